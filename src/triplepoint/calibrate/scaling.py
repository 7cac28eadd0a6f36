"""Error of predictions at more GPUs than they are fitted at, for `triplepoint calibrate --scaling`.

Constants, widths and the quantile are fitted to rows of few GPUs. The larger rows are then predicted. The ratio of a
larger row to the smaller rows of the same training gives the error of scaling alone.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.calibrate.protocol import conformal_quantile, to_yaml
from triplepoint.calibrate.step_cases import Case, read_cases
from triplepoint.calibrate.step_ratios import grouped
from triplepoint.calibrate.step_time import fit
from triplepoint.errors import UserError
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.scaling import Known, LeftOut, ScalingKnown
from triplepoint.text import percent

_HEADER = """\
# Written by `triplepoint calibrate --scaling`: errors of rows larger than those that all was fitted to.
"""
MOST_GPUS = 64
"""Most GPUs of a row that the fit uses; larger rows are held out."""


@dataclass(frozen=True)
class Scaling:
    """The procedure: see `calibrate.protocol`.

    Attributes:
        tables: CSV files with the columns of `triplepoint predict --published` and `step_time_s`.
        config: Folder of the configuration.
        say: Called with a line of text on every skipped row.
    """

    tables: Sequence[Path]
    config: Path
    say: Callable[[str], None] | None = None

    def read(self) -> list[Case]:
        """Return the rows. Raises `UserError` if a table cannot be read."""
        return [case for table in self.tables for case in read_cases(table, self.config, self.say)]

    def fit(self, measured: list[Case]) -> ScalingKnown:
        """Return the errors on the larger rows. Raises `UserError` if there are no larger or no smaller rows."""
        few, many = split(measured)
        names = ", ".join(map(str, self.tables))
        if not few or not many:
            raise UserError(
                f"{names}: {len(few)} rows of up to {MOST_GPUS} GPUs, {len(many)} larger ones; expected both"
            )
        return scaling_known(few, many, fit_few(few, self.config), names)

    def report(self, fitted: ScalingKnown) -> list[str]:
        """Return a line of text on every group of larger rows, and one on ratios."""
        lines = [
            f"calibrate: {group.num_rows} rows beyond {fitted.most_gpus} GPUs, {group.known}: median error "
            f"{percent(group.median_error)}, {percent(group.coverage, 0)} in their interval"
            for group in fitted.left_out
        ]
        return [*lines, f"calibrate: ratios to smaller rows: median error {percent(fitted.ratio_error)}, "
                f"{percent(fitted.ratio_coverage, 0)} in their interval, {fitted.per_octave:.3f} per root "
                "octave"]  # fmt: skip

    def files(self, fitted: ScalingKnown) -> dict[Path, str]:
        """Return the text of `scaling.yaml`."""
        path = self.config / "calibration" / "scaling.yaml"
        return {path: _HEADER + to_yaml(fitted.model_dump(), width=118, flow=None)}


def split(measured: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """Return rows of few GPUs, and those of more."""
    few = [case for case in measured if case.job.num_gpus <= MOST_GPUS]
    return few, [case for case in measured if case.job.num_gpus > MOST_GPUS]


def fit_few(few: Sequence[Case], config: Path) -> Calibration:
    """Return the calibration fitted to rows of few GPUs."""
    return fit(few, f"{MOST_GPUS} GPUs or fewer", config)


def scaling_known(few: Sequence[Case], many: Sequence[Case], fitted: Calibration, names: str) -> ScalingKnown:
    """Return the errors on rows of many GPUs, of step times and of ratios to smaller rows.

    Args:
        few: Rows of few GPUs, which the calibration was fitted to.
        many: Rows of more GPUs.
        fitted: Calibration fitted to `few`.
        names: Names of the tables.

    Raises:
        UserError: If fewer than two trainings have rows of few and of many GPUs.
    """
    keys: dict[Known, Callable[[Case], Hashable]] = {
        "all": lambda case: True, "stack": lambda case: case.job.stack, "training": _training,
    }  # fmt: skip
    left_out = []
    for known, key in keys.items():
        fitted_keys = {key(case) for case in few}
        if rows := [case for case in many if key(case) in fitted_keys]:
            left_out.append(_left_out(known, rows, fitted))
    ratios = _ratios([*few, *many], fitted)
    if len({ratio.training for ratio in ratios}) < 2:
        raise UserError(f"{names}: fewer than two trainings on both sides of {MOST_GPUS} GPUs; add rows")
    inside = [
        ratio.score <= _quantile([other for other in ratios if other.training != ratio.training]) for ratio in ratios
    ]
    return ScalingKnown(
        fitted_to=names, most_gpus=MOST_GPUS, num_fitted=len(few), left_out=left_out,
        per_octave=round(_quantile(ratios), 4),
        ratio_error=round(float(np.median([abs(math.expm1(ratio.log_error)) for ratio in ratios])), 4),
        ratio_coverage=round(float(np.mean(inside)), 4),
        num_ratios=len(ratios), num_trainings=len({ratio.training for ratio in ratios}),
    )  # fmt: skip


def _training(case: Case) -> Hashable:
    return (*case.cluster, case.job.gpu.name)


def _left_out(known: Known, rows: Sequence[Case], fitted: Calibration) -> LeftOut:
    logs = np.array([case.log_error(fitted.constants(case.job)) for case in rows])
    widths = fitted.quantile * np.array([fitted.scale(case.job, case.uncertainty) for case in rows])
    return LeftOut(
        known=known, num_rows=len(rows), median_error=round(float(np.median(np.abs(np.expm1(-logs)))), 4),
        bias=round(math.exp(-float(logs.mean())), 4), coverage=round(float(np.mean(np.abs(logs) <= widths)), 4),
    )  # fmt: skip


@dataclass(frozen=True)
class _Ratio:
    """Ratio of a larger row to the smaller rows of its training.

    Attributes:
        training: Key of the training.
        log_error: Logarithm of measured over predicted ratio of step times.
        octaves: Doublings of GPUs from the largest smaller row.
        num_ratios: Number of ratios of this training.
    """

    training: Hashable
    log_error: float
    octaves: float
    num_ratios: int

    @property
    def score(self) -> float:
        """Absolute log error per root octave."""
        return abs(self.log_error) / math.sqrt(self.octaves)


def _ratios(cases: Sequence[Case], fitted: Calibration) -> list[_Ratio]:
    """Return the ratio of every row of many GPUs whose training has rows of few GPUs."""
    ratios = []
    for training, rows in grouped(cases, _training).items():
        few = [case for case in rows if case.job.num_gpus <= MOST_GPUS]
        many = [case for case in rows if case.job.num_gpus > MOST_GPUS]
        if not few:
            continue
        few_error = float(np.mean([case.log_error(fitted.constants(case.job)) for case in few]))
        largest = max(case.job.num_gpus for case in few)
        for case in many:
            log_error = case.log_error(fitted.constants(case.job)) - few_error
            ratios.append(_Ratio(training, log_error, math.log2(case.job.num_gpus / largest), len(many)))
    return ratios


def _quantile(ratios: Sequence[_Ratio]) -> float:
    """Return the score that 90 % of ratios stay below, where ratios of one training count as little more than one."""
    weights = [1 / math.sqrt(ratio.num_ratios) for ratio in ratios]
    return conformal_quantile([ratio.score for ratio in ratios], weights)
