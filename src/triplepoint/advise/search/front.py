"""Choice among configurations with uncertain values: the Pareto front, rows that may reach it, and a few to measure."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triplepoint.metrics import Z90

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

_NUM_DRAWS = 2000
"""Number of joint draws of all errors: the standard error of a probability of 95 % is then half a percent."""
_ALIKE = 0.005
"""Relative difference of times below which a measurement of a few steps cannot distinguish them (calibration,
`repeat`)."""
_ENOUGH = 0.95
"""Probability of including the fastest row at which no further rows are added."""


def pareto_front(values: Float) -> Bool:
    """Return whether each row is on the Pareto front: no other row is as small in all columns and smaller in one.

    Args:
        values: Objectives, smaller is better; shape (num_rows, num_objectives). Rows with NaN are not on the front.
    """
    on_front: Bool = np.asarray(~np.isnan(values).any(axis=1), dtype=np.bool_)
    for row in np.flatnonzero(on_front):
        if on_front[row]:
            beaten = (values >= values[row]).all(axis=1) & (values > values[row]).any(axis=1)
            on_front = np.asarray(on_front & ~beaten, dtype=np.bool_)
    return on_front


def may_reach_front(logs: Float, front: Float, widths: Float) -> Bool:
    """Return whether each row may be on the front: no row of it is better in all columns by more than the uncertainty.

    Args:
        logs: Logarithms of objectives, smaller is better; shape (num_rows, num_objectives).
        front: Logarithms of objectives of the rows on the front; shape (num_on_front, num_objectives).
        widths: Half-width of the interval of the difference of each row to each row on the front; shape (num_rows,
            num_on_front, num_objectives).
    """
    is_behind: Bool = np.asarray(logs[:, None, :] - front[None, :, :] > widths, dtype=np.bool_)
    is_beaten: Bool = np.asarray(is_behind.all(axis=2), dtype=np.bool_)
    return np.asarray(~is_beaten.any(axis=1), dtype=np.bool_)


@dataclass(frozen=True)
class Few:
    """Rows to measure, and the value of measuring them.

    Attributes:
        rows: Indices of the rows: the choice, then the most useful ones.
        probability: Probability that they include the best row, or one within 0.5 % of it, 0 to 1.
        gain: Expected time of the choice over that of the best measured row, minus 1.
    """

    rows: list[int]
    probability: float
    gain: float


def few_to_measure(logs: Float, widths: Float, most: int, choice: int | None = None, seed: int = 0) -> Few:
    """Return a few rows that most likely include the one with the smallest value.

    Errors are drawn jointly, so that the difference of two rows has the spread of its interval. Rows are added one by
    one: each time the row that lowers the expected smallest value most.

    Args:
        logs: Logarithms of predicted values; shape (num_rows,).
        widths: Half-width of the 90 % interval of the difference of two rows; shape (num_rows, num_rows).
        most: Largest number of rows.
        choice: Row to choose without a measurement. None: that with the smallest value.
        seed: Seed of the draws.
    """
    drawn = _draws(logs, widths, seed)
    first, best = int(logs.argmin()) if choice is None else choice, drawn.min(axis=1)
    rows, lowest = [first], drawn[:, first].copy()
    while len(rows) < min(most, len(logs)) and float((lowest <= best + _ALIKE).mean()) < _ENOUGH:
        gains = np.maximum(lowest[:, None] - drawn, 0.0).mean(axis=0)
        rows.append(int(gains.argmax()))
        lowest = np.minimum(lowest, drawn[:, rows[-1]])
    return Few(rows, float((lowest <= best + _ALIKE).mean()), float(np.expm1(drawn[:, first] - lowest).mean()))


def _draws(logs: Float, widths: Float, seed: int) -> Float:
    """Return joint draws of all values; shape (num_draws, num_rows)."""
    variance = (widths / Z90) ** 2
    origin = int(logs.argmin())
    # Only differences are known, so this is the covariance of errors relative to that of the smallest row.
    covariance = (variance[:, [origin]] + variance[[origin], :] - variance) / 2.0
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(logs + np.random.default_rng(seed).standard_normal((_NUM_DRAWS, len(logs))) @ root.T)
