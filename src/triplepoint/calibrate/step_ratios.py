"""Factors on kernel times from measured steps: usual factors of GPU types, and ratios of stacks and of experts."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from triplepoint.calibrate.step_cases import Case, cluster_weights, errors_by_host
from triplepoint.simulate.calibration import GpuFactor, usual_factor
from triplepoint.simulate.costs import Constants
from triplepoint.simulate.job import Job

PRIOR_ROWS = 1.0
"""Weight, in rows, of the prior that a version of a stack is like the stack, and a stack like the usual one."""

_PRIOR_STACKS = 1.5
"""Weight, in stacks, of the prior that a GPU type is like its architecture."""

_LEAST_HOST_ROWS = 8
"""Least number of rows of a stack to which a host time is fitted."""

_HOST_GAIN = 0.5
"""Error with a fitted host time over the error with a ratio alone, above which the ratio is kept."""

_HOSTS_S = np.geomspace(5e-6, 200e-6, 49)
"""Host times per launch to try. Unit: s."""

_ITERATIONS = 3
"""Iterations over usual factors, ratios of stacks and ratios of experts, each from the others."""

_LOG_RATIOS = np.linspace(-0.12, 0.12, 13)
"""Logarithms of ratios to try with each host time."""

FEW_ROWS = 2.0
"""Number of rows at which a stack counts half, in the median of a GPU type and in its own spread."""

Key = Callable[[Case], Hashable]


def grouped(cases: Iterable[Case], key: Key) -> dict[Hashable, list[Case]]:
    """Return cases grouped by a key."""
    groups: dict[Hashable, list[Case]] = defaultdict(list)
    for case in cases:
        groups[key(case)].append(case)
    return dict(groups)


@dataclass(frozen=True)
class Ratios:
    """Factors on kernel times, split by cause.

    Attributes:
        gpus: Usual factor of each GPU type.
        by_stack: Log ratio of each version of a stack to the usual factor.
        experts_by_family: Log ratio of models with experts to others, by the name of the stack without its version.
        experts: Usual log ratio of models with experts, for stacks measured only with or only without experts.
    """

    gpus: list[GpuFactor]
    by_stack: dict[Hashable, float]
    experts_by_family: dict[str, float]
    experts: float

    def experts_of(self, job: Job) -> float:
        """Return the log ratio of models with experts on a job's stack."""
        return self.experts_by_family.get(job.family, self.experts)

    def usual(self, job: Job) -> float:
        """Return the usual log factor of a job, from its GPU type and, if it has experts, their ratio."""
        factor = math.log(usual_factor(self.gpus, job.gpu.name, job.gpu.architecture))
        return factor + (self.experts_of(job) if job.model.moe else 0.0)


def ratios_of(cases: Sequence[Case], hosts: Collection[Hashable]) -> Ratios:
    """Fit the factors to measured rows.

    Args:
        cases: Measured rows.
        hosts: Stacks with a fitted host time, whose rows are ignored here.
    """
    families = grouped((case for case in cases if case.job.stack not in hosts), lambda case: case.job.family)
    ratios = Ratios([], {}, {}, 0.0)
    for _ in range(_ITERATIONS):
        ratios = _refined(families, ratios)
    return ratios


def _refined(families: dict[Hashable, list[Case]], before: Ratios) -> Ratios:
    """Fit each factor again, given the other factors of the previous iteration."""
    usual = replace(before, gpus=_usual_factors(families.values(), before))
    by_stack = {}
    for family in families.values():
        for stack, rows in grouped(family, lambda case: case.job.stack).items():
            others = [case for case in family if case.job.stack != stack]
            by_stack[stack] = ratio_of(rows, usual.usual, ratio_of(others, usual.usual, 0.0) if others else 0.0)

    def without_experts(job: Job) -> float:
        return usual.usual(job) - usual.experts_of(job) + by_stack[job.stack]

    experts_by_family = {}
    for name, family in families.items():
        with_experts = [case for case in family if case.job.model.moe]
        if 0 < len(with_experts) < len(family):
            experts_by_family[str(name)] = ratio_of(with_experts, without_experts, usual.experts)
    experts = statistics.median(experts_by_family.values()) if experts_by_family else 0.0
    return replace(usual, by_stack=by_stack, experts_by_family=experts_by_family, experts=experts)


def _usual_factors(families: Iterable[Sequence[Case]], ratios: Ratios) -> list[GpuFactor]:
    """Return the usual factor of each GPU type, without the known ratio of experts.

    It is the median over stacks, shrunk to the median of the architecture, which is shrunk to that of all rows, because
    few rows of few stacks determine little.
    """
    by_architecture: dict[str, dict[str, list[list[Case]]]] = defaultdict(lambda: defaultdict(list))
    for family in families:
        for rows in grouped(family, lambda case: case.job.gpu.name).values():
            gpu = rows[0].job.gpu
            by_architecture[gpu.architecture][gpu.name].append(rows)
    by_kind = [[rows for stacks in by_gpu.values() for rows in stacks] for by_gpu in by_architecture.values()]
    if not by_kind:
        return []
    overall, factors = _median_over_stacks([rows for stacks in by_kind for rows in stacks], ratios, None), []
    for kind, by_gpu in zip(by_kind, by_architecture.values(), strict=True):
        of_architecture = _median_over_stacks(kind, ratios, overall)
        for name, stacks in by_gpu.items():
            factors.append(
                GpuFactor(
                    gpu=name,
                    architecture=stacks[0][0].job.gpu.architecture,
                    factor=round(math.exp(_median_over_stacks(stacks, ratios, of_architecture)), 4),
                    num_stacks=len(stacks),
                    kernel_sigma=round(
                        statistics.median(case.uncertainty.tables_sigma for rows in stacks for case in rows), 4
                    ),
                )
            )
    return factors


def _median_over_stacks(stacks: Sequence[Sequence[Case]], ratios: Ratios, prior: float | None) -> float:
    """Return the median over stacks of their log factors, shrunk to a prior; a stack of few rows counts less."""
    factors = [_median_factor(rows, ratios) for rows in stacks]
    weights = [len(rows) / (len(rows) + FEW_ROWS) for rows in stacks]
    if prior is None:
        return weighted_quantile(factors, weights)
    return weighted_quantile([*factors, prior], [*weights, _PRIOR_STACKS])


def _median_factor(cases: Sequence[Case], ratios: Ratios) -> float:
    """Return the weighted median of the rows' exact log factors, without the ratio of experts."""
    factors = [case.log_factor - (ratios.experts_of(case.job) if case.job.model.moe else 0.0) for case in cases]
    return weighted_quantile(factors, cluster_weights(cases).tolist())


def ratio_of(cases: Sequence[Case], usual: Callable[[Job], float], prior: float) -> float:
    """Return the weighted median of rows' log factors over the usual ones, shrunk to a prior."""
    ratios = [case.log_factor - usual(case.job) for case in cases]
    return weighted_quantile([*ratios, prior], [*cluster_weights(cases), PRIOR_ROWS])


def weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float = 0.5) -> float:
    """Return the weighted quantile with `share` of the weight below it; interpolated, so that no row makes it jump."""
    order = np.argsort(values)
    weight = np.asarray(weights)[order]
    return float(np.interp(share, (np.cumsum(weight) - weight / 2) / weight.sum(), np.asarray(values)[order]))


def host_of(cases: Sequence[Case], ratios: Ratios, log_ratio: float) -> tuple[float, float] | None:
    """Fit the host time per launch and a log ratio to rows of a stack; None where a ratio alone fits about as well.

    Args:
        cases: Rows of one version of a stack.
        ratios: Factors on kernel times, for the usual factors.
        log_ratio: Log ratio of the stack at the default host time.

    Returns:
        Host time in s, and the log ratio.
    """
    if len(cases) < _LEAST_HOST_ROWS:
        return None
    weights, usual = cluster_weights(cases), np.array([ratios.usual(case.job) for case in cases])
    with_host = np.array([weights @ np.abs(errors_by_host(cases, usual + ratio, _HOSTS_S)) for ratio in _LOG_RATIOS])
    factors = np.exp(usual + log_ratio)
    without = [abs(case.log_error(Constants(factor=factor))) for case, factor in zip(cases, factors, strict=True)]
    if with_host.min() >= _HOST_GAIN * float(weights @ without):
        return None
    ratio, host = np.unravel_index(with_host.argmin(), with_host.shape)
    return float(f"{_HOSTS_S[host]:.3g}"), float(_LOG_RATIOS[ratio])
