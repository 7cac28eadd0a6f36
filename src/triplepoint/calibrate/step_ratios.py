"""Factors on the time of kernels that measured steps ask for: usual ones of GPU types, ratios of stacks and experts."""

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
"""Clusters' worth of belief that a version is like its stack, and a stack like the usual one: a ratio has to earn
itself."""

_PRIOR_STACKS = 1.5
"""Stacks' worth of belief that a GPU type is like its architecture."""

_LEAST_HOST_ROWS = 8
"""Rows from which on a stack may show that the host is what takes time."""

_HOST_GAIN = 0.5
"""How far errors must fall for the host to be the fitted constant: below this share of what a ratio leaves."""

_HOSTS_S = np.geomspace(5e-6, 200e-6, 49)
"""Times of the host among which the best one is looked for."""

_TURNS = 3
"""How often usual factors, ratios of stacks and of experts are found from each other."""

_LOG_RATIOS = np.linspace(-0.12, 0.12, 13)
"""Logarithms of ratios among which the one beside the host's time is looked for."""

FEW_ROWS = 2.0
"""Rows that a stack needs to count for half of itself: among the stacks of a GPU type, and with its own spread."""

Key = Callable[[Case], Hashable]


def grouped(cases: Iterable[Case], key: Key) -> dict[Hashable, list[Case]]:
    """Return cases by key."""
    groups: dict[Hashable, list[Case]] = defaultdict(list)
    for case in cases:
        groups[key(case)].append(case)
    return dict(groups)


@dataclass(frozen=True)
class Ratios:
    """Factors on the time of kernels, taken apart; all but the first are logarithms.

    Attributes:
        gpus: The usual factor of each GPU type.
        of_stack: Ratio of each version of a stack to it.
        experts_in: Ratio of models with experts to others, by the stack's name.
        experts: The usual one, of stacks that were measured with experts only, or without any.
    """

    gpus: list[GpuFactor]
    of_stack: dict[Hashable, float]
    experts_in: dict[str, float]
    experts: float

    def experts_of(self, job: Job) -> float:
        """Return the ratio of models with experts on a job's stack."""
        return self.experts_in.get(job.family, self.experts)

    def usual(self, job: Job) -> float:
        """Return the usual factor of a job: that of its GPU type, and of experts where it has any."""
        factor = math.log(usual_factor(self.gpus, job.gpu.name, job.gpu.architecture))
        return factor + (self.experts_of(job) if job.model.moe else 0.0)


def ratios_of(cases: Sequence[Case], hosts: Collection[Hashable]) -> Ratios:
    """Return the factors that rows ask for.

    Args:
        cases: Measured rows.
        hosts: Stacks whose constant is the host's time, which say nothing here.
    """
    families = grouped((case for case in cases if case.job.stack not in hosts), lambda case: case.job.family)
    found = Ratios([], {}, {}, 0.0)
    for _ in range(_TURNS):
        found = _refined(families, found)
    return found


def _refined(families: dict[Hashable, list[Case]], before: Ratios) -> Ratios:
    """Return the factors once more, each from the others as they were found before."""
    usual = replace(before, gpus=_usual_factors(families.values(), before))
    of_stack = {}
    for family in families.values():
        for stack, rows in grouped(family, lambda case: case.job.stack).items():
            others = [case for case in family if case.job.stack != stack]
            of_stack[stack] = ratio_of(rows, usual.usual, ratio_of(others, usual.usual, 0.0) if others else 0.0)

    def without_experts(job: Job) -> float:
        return usual.usual(job) - usual.experts_of(job) + of_stack[job.stack]

    experts_in = {}
    for name, family in families.items():
        with_experts = [case for case in family if case.job.model.moe]
        if 0 < len(with_experts) < len(family):
            experts_in[str(name)] = ratio_of(with_experts, without_experts, usual.experts)
    experts = statistics.median(experts_in.values()) if experts_in else 0.0
    return replace(usual, of_stack=of_stack, experts_in=experts_in, experts=experts)


def _usual_factors(families: Iterable[Sequence[Case]], found: Ratios) -> list[GpuFactor]:
    """Return the usual factor of each GPU type, experts taken out as far as they are known.

    It is the median over stacks, drawn to that of the architecture, and that to all: few rows of few stacks say little.
    """
    by_architecture: dict[str, dict[str, list[list[Case]]]] = defaultdict(lambda: defaultdict(list))
    for family in families:
        for rows in grouped(family, lambda case: case.job.gpu.name).values():
            gpu = rows[0].job.gpu
            by_architecture[gpu.architecture][gpu.name].append(rows)
    kinds = [[rows for stacks in by_gpu.values() for rows in stacks] for by_gpu in by_architecture.values()]
    overall, factors = _middle([rows for kind in kinds for rows in kind], found, None) if kinds else 0.0, []
    for kind, by_gpu in zip(kinds, by_architecture.values(), strict=True):
        everywhere = _middle(kind, found, overall)
        for name, stacks in by_gpu.items():
            factors.append(
                GpuFactor(
                    gpu=name,
                    architecture=stacks[0][0].job.gpu.architecture,
                    factor=round(math.exp(_middle(stacks, found, everywhere)), 4),
                    num_stacks=len(stacks),
                    kernel_sigma=round(
                        statistics.median(case.uncertainty.tables_sigma for rows in stacks for case in rows), 4
                    ),
                )
            )
    return factors


def _middle(stacks: Sequence[Sequence[Case]], found: Ratios, prior: float | None) -> float:
    """Return the median over stacks of their log factors, a stack of few rows counted less; drawn to a prior."""
    factors = [_median_factor(rows, found) for rows in stacks]
    weights = [len(rows) / (len(rows) + FEW_ROWS) for rows in stacks]
    if prior is None:
        return weighted_quantile(factors, weights)
    return weighted_quantile([*factors, prior], [*weights, _PRIOR_STACKS])


def _median_factor(cases: Sequence[Case], found: Ratios) -> float:
    """Return the weighted median of the log factors at which rows come out, without what experts add."""
    factors = [case.log_factor - (found.experts_of(case.job) if case.job.model.moe else 0.0) for case in cases]
    return weighted_quantile(factors, cluster_weights(cases).tolist())


def ratio_of(cases: Sequence[Case], usual: Callable[[Job], float], prior: float) -> float:
    """Return the weighted median of rows' log factors over the usual ones, drawn to a prior."""
    ratios = [case.log_factor - usual(case.job) for case in cases]
    return weighted_quantile([*ratios, prior], [*cluster_weights(cases), PRIOR_ROWS])


def weighted_quantile(values: Sequence[float], weights: Sequence[float], place: float = 0.5) -> float:
    """Return the weighted median, or what has `place` below it, interpolated: one row more never makes a jump."""
    order = np.argsort(values)
    weight = np.asarray(weights)[order]
    return float(np.interp(place, (np.cumsum(weight) - weight / 2) / weight.sum(), np.asarray(values)[order]))


def host_of(cases: Sequence[Case], found: Ratios, log_ratio: float) -> tuple[float, float] | None:
    """Return the host's time that suits rows best, and the log ratio beside it; None where a ratio alone does as well.

    Args:
        cases: Rows of one version of a stack.
        found: The usual factors.
        log_ratio: Of the stack, with the usual time of the host.
    """
    if len(cases) < _LEAST_HOST_ROWS:
        return None
    weights, usual = cluster_weights(cases), np.array([found.usual(case.job) for case in cases])
    by_both = np.array([weights @ np.abs(errors_by_host(cases, usual + ratio, _HOSTS_S)) for ratio in _LOG_RATIOS])
    factors = np.exp(usual + log_ratio)
    by_ratio = [abs(case.log_error(Constants(factor=factor))) for case, factor in zip(cases, factors, strict=True)]
    if by_both.min() >= _HOST_GAIN * float(weights @ by_ratio):
        return None
    ratio, host = np.unravel_index(by_both.argmin(), by_both.shape)
    return float(f"{_HOSTS_S[host]:.3g}"), float(_LOG_RATIOS[ratio])
