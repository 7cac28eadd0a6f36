"""Predictions against measurements: errors, bias, coverage, order; and protocols that leave out what is asked for."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from triplepoint.simulate.calibration.fit import Case, grouped, recalibrated
from triplepoint.simulate.calibration.fitted import Calibration
from triplepoint.simulate.calibration.intervals import interval


@dataclass(frozen=True)
class Judged:
    """One measured row and what was predicted for it.

    Attributes:
        case: The row.
        predicted_s: Predicted time of a step.
        low_s: Lower end of the interval.
        high_s: Upper end.
    """

    case: Case
    predicted_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.case.measured_s - 1

    @property
    def is_covered(self) -> bool:
        """Whether the measurement lies in the interval."""
        return self.low_s <= self.case.measured_s <= self.high_s


@dataclass(frozen=True)
class Summary:
    """Errors of some rows, as fractions.

    Attributes:
        num_rows: How many.
        mape: Mean absolute error.
        p90: 90th percentile of absolute errors.
        bias: Geometric mean of predicted over measured.
        coverage: Share of rows in their interval.
    """

    num_rows: int
    mape: float
    p90: float
    bias: float
    coverage: float


def judge(cases: Sequence[Case], calibration: Calibration) -> list[Judged]:
    """Return predictions for measured rows."""
    found = []
    for case in cases:
        time = case.predicted_s(calibration.constants(case.job))
        width = calibration.scale(case.job, case.uncertainty)
        found.append(Judged(case, time, *interval(time, calibration.quantile, width)))
    return found


def judge_left_out(cases: Sequence[Case], calibration: Calibration, key: Callable[[Case], Hashable]) -> list[Judged]:
    """Return predictions where each row comes from a calibration without all rows of the same key."""
    found: list[Judged] = []
    for name, members in grouped(cases, key).items():
        others = [case for case in cases if key(case) != name]
        found.extend(judge(members, recalibrated(calibration, others) if others else calibration))
    return found


def summarise(judged: Sequence[Judged]) -> Summary:
    """Return errors of some rows. Raises `ValueError` if there are none."""
    if not judged:
        raise ValueError("no rows, expected at least one")
    errors = np.array([abs(one.error) for one in judged])
    logs = [math.log(one.predicted_s / one.case.measured_s) for one in judged]
    return Summary(
        len(judged),
        float(errors.mean()),
        float(np.percentile(errors, 90)),
        math.exp(float(np.mean(logs))),
        float(np.mean([one.is_covered for one in judged])),
    )


def rank_correlation(judged: Sequence[Judged]) -> float:
    """Return Spearman's correlation of predicted and measured times, ties ranked by their mean.

    Raises:
        ValueError: If there are fewer than three rows.
    """
    if len(judged) < 3:
        raise ValueError(f"{len(judged)} rows, expected three or more")
    predicted = _ranks(np.array([one.predicted_s for one in judged]))
    measured = _ranks(np.array([one.case.measured_s for one in judged]))
    return float(np.corrcoef(predicted, measured)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    low = np.searchsorted(np.sort(values), values, side="left")
    high = np.searchsorted(np.sort(values), values, side="right")
    return np.asarray((low + high) / 2)
