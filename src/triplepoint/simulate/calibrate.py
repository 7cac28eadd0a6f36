"""Calibration to published step times: one constant per version of a software stack, and the spread that is left."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.metrics import robust_sigma
from triplepoint.simulate import intervals
from triplepoint.simulate.calibration import Calibration, Fitted, Place, StackConstant, features_of
from triplepoint.simulate.intervals import Uncertainty
from triplepoint.simulate.job import Job
from triplepoint.simulate.step import simulate_step

FACTORS = (0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
"""Factors at which steps are simulated; between them the time is interpolated in log, beyond them extrapolated."""

PRIOR_ROWS = 1.0
"""Rows' worth of belief that a stack's factor is 1: kernel tables are measured, a constant has to earn itself."""


@dataclass(frozen=True, eq=False)
class Case:
    """One measured row, with its simulated times.

    Attributes:
        id: Of the row.
        job: What ran.
        measured_s: Time of a step.
        curve_s: Simulated times at `FACTORS`.
        uncertainty: What they are known to.
    """

    id: str
    job: Job
    measured_s: float
    curve_s: tuple[float, ...]
    uncertainty: Uncertainty

    @property
    def cluster(self) -> tuple[str, str, str]:
        """Rows of one stack, model and precision are nearly one row."""
        return self.job.stack, self.job.model.name, self.job.precision

    def predicted_s(self, factor: float) -> float:
        """Return the simulated time at a factor."""
        return float(np.exp(_interpolate(math.log(factor), np.log(FACTORS), np.log(self.curve_s))))

    def exact_factor(self) -> float:
        """Return the factor at which the simulated time is the measured one."""
        return float(np.exp(_interpolate(math.log(self.measured_s), np.log(self.curve_s), np.log(FACTORS))))


def make_case(id_: str, job: Job, measured_s: float) -> Case:
    """Return a measured row with its simulated times. Raises `UserError` if the job cannot be simulated."""
    steps = [simulate_step(job, factor) for factor in FACTORS]
    return Case(id_, job, measured_s, tuple(step.time_s for step in steps), steps[2].uncertainty)


def fit(cases: Sequence[Case], fitted_to: str, config: Path) -> Calibration:
    """Return the calibration that some cases give.

    The factor of a stack is the weighted median of the exact factors of its rows, drawn to 1 where there are few. The
    quantile comes from errors of rows whose model was left out of the fit.

    Args:
        cases: Measured rows.
        fitted_to: What they are, in words.
        config: Folder of the configuration.
    """
    stacks = fit_stacks(cases)
    places = {_place(case.job): None for case in cases}
    unknown = _spread_between([one.factor for one in stacks])
    bare = Fitted(
        fitted_to=fitted_to,
        num_rows=len(cases),
        quantile=1.0,
        unknown_stack_spread=unknown,
        stacks=stacks,
        places=list(places),
    )
    quantile = _held_out_quantile(cases, Calibration(bare, config))
    return Calibration(bare.model_copy(update={"quantile": quantile}), config)


def fit_stacks(cases: Sequence[Case]) -> list[StackConstant]:
    """Return the constant of every version of a stack."""
    found = []
    for stack, members in sorted(grouped(cases, lambda case: case.job.stack).items()):
        factor = _median_factor(members)
        left = [math.log(case.measured_s / case.predicted_s(factor)) for case in members]
        found.append(
            StackConstant(
                stack=str(stack), factor=round(factor, 4), num_rows=len(members), spread=round(robust_sigma(left), 4)
            )
        )
    return found


def grouped(cases: Iterable[Case], key: Callable[[Case], Hashable]) -> dict[Hashable, list[Case]]:
    """Return cases by key."""
    found: dict[Hashable, list[Case]] = defaultdict(list)
    for case in cases:
        found[key(case)].append(case)
    return dict(found)


def _median_factor(cases: Sequence[Case]) -> float:
    logs = np.array([*(math.log(case.exact_factor()) for case in cases), 0.0])
    weight = np.array([*cluster_weights(cases), PRIOR_ROWS * float(np.mean(cluster_weights(cases)))])
    order = np.argsort(logs)
    reached = np.cumsum(weight[order]) / weight.sum()
    # Interpolated between the two in the middle, so that one row more never makes a jump.
    return float(np.exp(np.interp(0.5, reached - weight[order] / weight.sum() / 2, logs[order])))


def cluster_weights(cases: Sequence[Case]) -> list[float]:
    """Return weights that give each cluster of nearly equal rows the square root of its number."""
    size = Counter(case.cluster for case in cases)
    return [1 / math.sqrt(size[case.cluster]) for case in cases]


def _held_out_quantile(cases: Sequence[Case], calibration: Calibration) -> float:
    """Return the conformal quantile of rows predicted from stacks' constants fitted without their model."""
    scores, weights = [], []
    weight_of = dict(zip((case.id for case in cases), cluster_weights(cases), strict=True))
    for members in grouped(cases, model_size).values():
        held = {case.id for case in members}
        others = [case for case in cases if case.id not in held]
        if not others:
            continue
        without = recalibrated(calibration, others)
        for case in members:
            scores.append(score(case, without))
            weights.append(weight_of[case.id])
    return max(0.1, round(intervals.conformal_quantile(scores, weights), 4)) if scores else 2.0


def recalibrated(calibration: Calibration, cases: Sequence[Case]) -> Calibration:
    """Return the calibration with constants and places of other cases, the quantile kept."""
    stacks = fit_stacks(cases)
    places = list({_place(case.job): None for case in cases})
    unknown = _spread_between([one.factor for one in stacks])
    update = {"stacks": stacks, "places": places, "unknown_stack_spread": unknown}
    return Calibration(calibration.fitted.model_copy(update=update), calibration.config)


def score(case: Case, calibration: Calibration) -> float:
    """Return the error of a case in scales: absolute, in log."""
    predicted = case.predicted_s(calibration.factor(case.job.stack))
    return abs(math.log(case.measured_s / predicted)) / calibration.scale(case.job, case.uncertainty)


def model_size(case: Case) -> tuple[int, int]:
    """Return what makes two models the same size: width and parameters."""
    return case.job.model.hidden_size, case.job.model.num_parameters


def _place(job: Job) -> Place:
    features = features_of(job)
    return Place(
        stack=job.stack,
        gpu=features.gpu,
        num_gpus=job.num_gpus,
        sequence_length=job.sequence_length,
        num_parameters=float(f"{job.model.num_parameters:.3g}"),
    )


def _spread_between(factors: Sequence[float]) -> float:
    """Return the standard deviation of log factors, 0.1 where too few are known to tell."""
    logs = np.log(factors)
    return round(float(np.std(logs, ddof=1)), 4) if len(logs) > 2 else 0.1


def _interpolate(x: float, xs: np.ndarray, ys: np.ndarray) -> float:
    """Return y at x on the line through the two nearest points, also beyond the ends; xs grow."""
    place = int(np.clip(np.searchsorted(xs, x) - 1, 0, len(xs) - 2))
    low, high = xs[place], xs[place + 1]
    return float(ys[place] + (ys[place + 1] - ys[place]) * (x - low) / (high - low))
