"""Checks predictions beyond the sizes they are fitted at, for `triplepoint calibrate --scaling`: scale is left out.

All is fitted to rows of few GPUs, constants, widths and the quantile; the larger rows are then predicted. The ratio of
a larger row to the smaller ones of its training says how well scaling alone is known.
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

_HEADER = """\
# Written by `triplepoint calibrate --scaling`: errors of rows larger than those that all was fitted to.
"""
MOST_GPUS = 64
"""Rows of so many GPUs or fewer are fitted to."""


@dataclass(frozen=True)
class Scaling:
    """The procedure: see `calibrate.protocol`.

    Attributes:
        tables: CSV files with the columns of `triplepoint predict --published` and `step_time_s`.
        config: Folder of the configuration.
        say: Called with a line on every row that is passed over.
    """

    tables: Sequence[Path]
    config: Path
    say: Callable[[str], None] | None = None

    def read(self) -> list[Case]:
        """Return the rows. Raises `UserError` if a table cannot be read."""
        return [case for table in self.tables for case in read_cases(table, self.config, self.say)]

    def fit(self, measured: list[Case]) -> ScalingKnown:
        """Return errors of the larger rows. Raises `UserError` if there are no larger or no smaller ones."""
        few = [case for case in measured if case.job.num_gpus <= MOST_GPUS]
        many = [case for case in measured if case.job.num_gpus > MOST_GPUS]
        names = ", ".join(map(str, self.tables))
        if not few or not many:
            raise UserError(
                f"{names}: {len(few)} rows of up to {MOST_GPUS} GPUs, {len(many)} larger ones; expected both"
            )
        return scaling_known(few, many, fit(few, f"{MOST_GPUS} GPUs or fewer", self.config), names)

    def report(self, fitted: ScalingKnown) -> list[str]:
        """Return a line on every kind of larger rows, and one on ratios."""
        lines = [
            f"calibrate: {one.num_rows} rows beyond {fitted.most_gpus} GPUs, {one.known}: median error "
            f"{one.median_error:.1%}, {one.coverage:.0%} in their interval"
            for one in fitted.left_out
        ]
        return [*lines, f"calibrate: ratios to smaller rows: median error {fitted.ratio_error:.1%}, "
                f"{fitted.ratio_coverage:.0%} in their interval, {fitted.per_octave:.3f} per root octave"]  # fmt: skip

    def files(self, fitted: ScalingKnown) -> dict[Path, str]:
        """Return `scaling.yaml`."""
        path = self.config / "calibration" / "scaling.yaml"
        return {path: _HEADER + to_yaml(fitted.model_dump(), width=118, flow=None)}


def scaling_known(few: Sequence[Case], many: Sequence[Case], fitted: Calibration, names: str) -> ScalingKnown:
    """Return errors of larger rows.

    Args:
        few: Rows that were fitted to.
        many: Larger ones.
        fitted: The calibration that the first give.
        names: Tables they are from.
    """
    keys: dict[Known, Callable[[Case], Hashable]] = {
        "all": lambda case: True, "stack": lambda case: case.job.stack, "training": _training,
    }  # fmt: skip
    left_out = []
    for known, key in keys.items():
        seen = {key(case) for case in few}
        if rows := [case for case in many if key(case) in seen]:
            left_out.append(_left_out(known, rows, fitted))
    ratios = _ratios([*few, *many], fitted)
    if len({ratio.training for ratio in ratios}) < 2:
        raise UserError(f"{names}: fewer than two trainings on both sides of {MOST_GPUS} GPUs; add rows")
    inside = [ratio.score <= _quantile([one for one in ratios if one.training != ratio.training]) for ratio in ratios]
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
    """A larger row against the smaller ones of its training.

    Attributes:
        training: Which training.
        log_error: Logarithm of measured over predicted ratio of step times.
        octaves: Of GPUs, from the largest of the smaller ones.
        num_alike: Ratios of this training.
    """

    training: Hashable
    log_error: float
    octaves: float
    num_alike: int

    @property
    def score(self) -> float:
        return abs(self.log_error) / math.sqrt(self.octaves)


def _ratios(cases: Sequence[Case], fitted: Calibration) -> list[_Ratio]:
    found = []
    for training, rows in grouped(cases, _training).items():
        few = [case for case in rows if case.job.num_gpus <= MOST_GPUS]
        many = [case for case in rows if case.job.num_gpus > MOST_GPUS]
        if not few:
            continue
        start = float(np.mean([case.log_error(fitted.constants(case.job)) for case in few]))
        largest = max(case.job.num_gpus for case in few)
        for case in many:
            log_error = case.log_error(fitted.constants(case.job)) - start
            found.append(_Ratio(training, log_error, math.log2(case.job.num_gpus / largest), len(many)))
    return found


def _quantile(ratios: Sequence[_Ratio]) -> float:
    """Return the score within which 90 % are; ratios of one training are nearly one."""
    weights = [1 / math.sqrt(ratio.num_alike) for ratio in ratios]
    return conformal_quantile([ratio.score for ratio in ratios], weights)
