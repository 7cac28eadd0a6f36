"""Calibrates one constant per version of a software stack to measured step times, and the spread that is left."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.calibrate.protocol import conformal_quantile, to_yaml
from triplepoint.errors import UserError
from triplepoint.metrics import robust_sigma
from triplepoint.published.rows import read_row, settle
from triplepoint.published.table import read_table
from triplepoint.published.words import UnreadableError, read_number
from triplepoint.simulate.calibration import Calibration, Fitted, Place, StackConstant, features_of, usual_factor
from triplepoint.simulate.costs import Constants
from triplepoint.simulate.intervals import Uncertainty
from triplepoint.simulate.job import Job
from triplepoint.simulate.step import simulate_step

_HEADER = """\
# Written by `triplepoint calibrate`. One constant per version of a software stack: a factor on the time of kernels, or
# the time of a launch in s; what it was fitted to; and how far predictions were from rows whose model was left out.
# Nothing here is of a model.
"""

FACTORS = (0.75, 1.0, 1.3, 1.7)
HOST_TIMES_S = (5e-6, 20e-6, 60e-6, 120e-6)
"""Where steps are simulated; between them the time is interpolated in log, beyond them extrapolated."""

PRIOR_ROWS = 1.0
"""Clusters' worth of belief that a stack's factor is the usual one of its GPU type: a constant has to earn itself."""

_HOST_GAIN = 0.7
"""How far errors must fall for the host to be the fitted constant: below this share of what a factor leaves."""


@dataclass(frozen=True)
class StepTimes:
    """The procedure: see `calibrate.protocol`.

    Attributes:
        tables: CSV files with the columns of `triplepoint predict --published` and `step_time_s`.
        target: YAML file to write.
        config: Folder of the configuration.
        say: Called with a line on every row that is passed over.
        stacks: Words of which one must stand in the framework's name; None for all.
        max_gpus: Most GPUs of a row; None for any.
    """

    tables: Sequence[Path]
    target: Path
    config: Path
    say: Callable[[str], None]
    stacks: Sequence[str] | None = None
    max_gpus: int | None = None

    def read(self) -> list["Case"]:
        """Return the rows selected. Raises `UserError` if a table cannot be read, or no row is left."""
        cases = [case for table in self.tables for case in read_cases(table, self.config, self.say)]
        if selected := [case for case in cases if self._is_selected(case)]:
            return selected
        raise UserError(f"no row left of {', '.join(map(str, self.tables))}; widen --stack or --max-gpus")

    def fit(self, measured: list["Case"]) -> Calibration:
        """Return the constants of stacks, and the quantile of errors of models held out."""
        words = [", ".join(str(table) for table in self.tables)]
        words += [f"frameworks with {' or '.join(self.stacks)}"] if self.stacks else []
        words += [f"{self.max_gpus} GPUs or fewer"] if self.max_gpus else []
        return fit(measured, "; ".join(words), self.config)

    def report(self, fitted: Calibration) -> list[str]:
        """Return a line on the stacks and the quantile of errors of models held out."""
        content = fitted.fitted
        stacks, rows, quantile = len(content.stacks), content.num_rows, content.quantile
        return [f"calibrate: {stacks} stacks from {rows} rows to {self.target}, quantile {quantile:.2f}"]

    def files(self, fitted: Calibration) -> dict[Path, str]:
        """Return the file of constants."""
        return {self.target: _HEADER + to_yaml(fitted.fitted.model_dump(), width=118, flow=None)}

    def _is_selected(self, case: "Case") -> bool:
        is_stack = not self.stacks or any(word.lower() in case.job.stack.lower() for word in self.stacks)
        return is_stack and (self.max_gpus is None or case.job.num_gpus <= self.max_gpus)


@dataclass(frozen=True, eq=False)
class Case:
    """One measured row, with its simulated times.

    Attributes:
        id: Of the row.
        job: What ran.
        measured_s: Time of a step.
        by_factor_s: Simulated times at `FACTORS`.
        by_host_s: Simulated times at `HOST_TIMES_S`, kernels as in the tables.
        uncertainty: Of the simulated times.
    """

    id: str
    job: Job
    measured_s: float
    by_factor_s: tuple[float, ...]
    by_host_s: tuple[float, ...]
    uncertainty: Uncertainty

    @property
    def cluster(self) -> tuple[str, str, str]:
        """Rows of one stack, model and precision are nearly one row."""
        return self.job.stack, self.job.model.name, self.job.precision

    def predicted_s(self, constants: Constants) -> float:
        """Return the simulated time; one of the constants is that of the tables."""
        if constants.host_s != Constants.host_s:
            return _at(constants.host_s, HOST_TIMES_S, self.by_host_s)
        return _at(constants.factor, FACTORS, self.by_factor_s)

    def exact_factor(self) -> float:
        """Return the factor at which the simulated time is the measured one."""
        return _at(self.measured_s, self.by_factor_s, FACTORS)


def read_cases(source: Path, config: Path, say: Callable[[str], None] | None = None) -> list[Case]:
    """Return the rows of a table that have a step time and can be simulated.

    Args:
        source: CSV with the columns of `triplepoint predict --published` and `step_time_s`.
        config: Folder of the configuration.
        say: Called with a line on every row that is passed over, and why.

    Raises:
        UserError: If the table cannot be read or has no step times.
    """
    cases = []
    table = read_table(source)
    if table and "step_time_s" not in table[0]:
        raise UserError(f"{source}: no column step_time_s; calibration needs measured times")
    for number, cells in enumerate(table, 1):
        row = read_row(cells, number, config)
        reason = row.reason
        try:
            measured = read_number("step_time_s", cells.get("step_time_s", ""))
            if row.job is not None and measured:
                cases.append(make_case(row.id, settle(row), measured, config))
                continue
            reason = reason or "no step_time_s"
        except (UserError, UnreadableError) as error:
            reason = str(error)
        if say:
            say(f"{source}: {row.id} passed over: {reason}")
    return cases


def make_case(id_: str, job: Job, measured_s: float, config: Path) -> Case:
    """Return a measured row with its simulated times. Raises `UserError` if the job cannot be simulated."""
    by_factor = [simulate_step(job, Constants(factor=factor), config) for factor in FACTORS]
    by_host = [simulate_step(job, Constants(host_s=host), config) for host in HOST_TIMES_S]
    times = tuple(step.time_s for step in by_factor), tuple(step.time_s for step in by_host)
    return Case(id_, job, measured_s, *times, by_factor[1].uncertainty)


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
    unknown = _spread_between(stacks)
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
    """Return the constant of every version of a stack.

    Where errors of a factor are much larger than those of a time per launch, the host is what the tables do not know.
    """
    members = grouped(cases, lambda case: case.job.stack)
    alone = [_constant(str(stack), rows, 1.0) for stack, rows in sorted(members.items())]
    # Once more, now that the usual factor of a GPU type is known: small stacks lean on it.
    return [_constant(first.stack, members[first.stack], usual_factor(alone, first.gpu)) for first in alone]


def _constant(stack: str, cases: Sequence[Case], usual: float) -> StackConstant:
    factor = Constants(factor=round(_median_factor(cases, usual), 4))
    host = Constants(host_s=float(f"{_best_host_s(cases):.3g}"))
    is_host = _error(cases, host) < _HOST_GAIN * _error(cases, factor)
    chosen = host if is_host else factor
    left = [math.log(case.measured_s / case.predicted_s(chosen)) for case in cases]
    gpus = Counter(case.job.gpu.name for case in cases)
    return StackConstant(
        stack=stack,
        constant="host" if is_host else "kernels",
        value=host.host_s if is_host else factor.factor,
        num_rows=len(cases),
        gpu=gpus.most_common(1)[0][0],
        spread=round(robust_sigma(left), 4),
    )


def _error(cases: Sequence[Case], constants: Constants) -> float:
    """Return the weighted mean absolute log error of some constants."""
    errors = [abs(math.log(case.measured_s / case.predicted_s(constants))) for case in cases]
    return float(np.average(errors, weights=cluster_weights(cases)))


def _best_host_s(cases: Sequence[Case]) -> float:
    grid = np.geomspace(HOST_TIMES_S[0], HOST_TIMES_S[-1], 41)
    return float(min(grid, key=lambda host: _error(cases, Constants(host_s=float(host)))))


def grouped(cases: Iterable[Case], key: Callable[[Case], Hashable]) -> dict[Hashable, list[Case]]:
    """Return cases by key."""
    groups: dict[Hashable, list[Case]] = defaultdict(list)
    for case in cases:
        groups[key(case)].append(case)
    return dict(groups)


def _median_factor(cases: Sequence[Case], usual: float) -> float:
    logs = np.array([*(math.log(case.exact_factor()) for case in cases), math.log(usual)])
    weight = np.array([*cluster_weights(cases), PRIOR_ROWS])
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
    return max(0.1, round(conformal_quantile(scores, weights), 4)) if scores else 2.0


def recalibrated(calibration: Calibration, cases: Sequence[Case]) -> Calibration:
    """Return the calibration with constants and places of other cases, the quantile kept."""
    stacks = fit_stacks(cases)
    places = list({_place(case.job): None for case in cases})
    unknown = _spread_between(stacks)
    update = {"stacks": stacks, "places": places, "unknown_stack_spread": unknown}
    return Calibration(calibration.fitted.model_copy(update=update), calibration.config)


def score(case: Case, calibration: Calibration) -> float:
    """Return the error of a case in scales: absolute, in log."""
    predicted = case.predicted_s(calibration.constants(case.job))
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


def _spread_between(stacks: Sequence[StackConstant]) -> float:
    """Return the standard deviation of log factors around the usual one of their GPU type, 0.1 where few are known."""
    factors = [stack for stack in stacks if stack.constant == "kernels"]
    logs = [math.log(stack.value / usual_factor(stacks, stack.gpu)) for stack in factors]
    return round(float(np.std(logs)), 4) if len(logs) > 3 else 0.1


def _at(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return y at x on the line through the two nearest points in log, also beyond the ends; xs grow."""
    log_x, log_xs, log_ys = math.log(x), np.log(xs), np.log(ys)
    place = int(np.clip(np.searchsorted(log_xs, log_x) - 1, 0, len(xs) - 2))
    run = log_xs[place + 1] - log_xs[place]
    slope = (log_ys[place + 1] - log_ys[place]) / run if run > 0 else 0.0
    return math.exp(log_ys[place] + slope * (log_x - log_xs[place]))
