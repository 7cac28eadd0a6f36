"""Choices among configurations whose values are uncertain: the front, what may reach it, and which few to measure."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triplepoint.metrics import Z90

Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

_NUM_DRAWS = 2000
"""Draws of all errors together: a probability of 95 % is known to half a percent with so many."""
_ALIKE = 0.005
"""Times nearer than this cannot be told apart by a measurement of a few steps (calibration, `repeat`). Unit: 1."""
_ENOUGH = 0.95
"""Probability of having the fastest at which no more is added to what is measured."""


def pareto_front(values: Float) -> Bool:
    """Return which rows no other row beats: as small in all columns, smaller in one. Shape (num_rows,).

    Args:
        values: Shape (num_rows, num_objectives), smaller is better; rows with NaN are not on the front.
    """
    on_front: Bool = np.asarray(~np.isnan(values).any(axis=1), dtype=np.bool_)
    for row in np.flatnonzero(on_front):
        if on_front[row]:
            beaten = (values >= values[row]).all(axis=1) & (values > values[row]).any(axis=1)
            on_front = np.asarray(on_front & ~beaten, dtype=np.bool_)
    return on_front


def may_reach_front(logs: Float, front: Float, widths: Float) -> Bool:
    """Return which rows may be on the front: no row of it beats them in all columns by more than is uncertain.

    Args:
        logs: Logarithms of objectives, smaller is better; shape (num_rows, num_objectives).
        front: The same of the rows on the front; shape (num_on_front, num_objectives).
        widths: Half the interval of the difference of each row to each one on the front; shape (num_rows,
            num_on_front, num_objectives).
    """
    is_behind: Bool = np.asarray(logs[:, None, :] - front[None, :, :] > widths, dtype=np.bool_)
    is_beaten: Bool = np.asarray(is_behind.all(axis=2), dtype=np.bool_)
    return np.asarray(~is_beaten.any(axis=1), dtype=np.bool_)


@dataclass(frozen=True)
class Few:
    """Rows to measure, and what measuring them is worth.

    Attributes:
        rows: Their numbers, the choice and then the most useful.
        probability: That the best, or one as good within 0.5 %, is among them, 0 to 1.
        gain: Expected time of the choice over that of the best of them once it is known, less 1.
    """

    rows: list[int]
    probability: float
    gain: float


def few_to_measure(logs: Float, widths: Float, most: int, choice: int | None = None, seed: int = 0) -> Few:
    """Return the few rows that most likely have the smallest value among them.

    Errors are drawn together, so that the difference of two rows scatters as its interval says. Rows are added one by
    one, each the one that lowers the expected smallest value most.

    Args:
        logs: Logarithms of predicted values; shape (num_rows,).
        widths: Half the 90 % interval of the difference of two rows; shape (num_rows, num_rows), 0 on the diagonal.
        most: Rows to measure at most.
        choice: Row that is taken if nothing is measured; None: that of the smallest value.
        seed: Of the draws.
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
    """Return draws of all values together; shape (num_draws, num_rows)."""
    variance = (widths / Z90) ** 2
    origin = int(logs.argmin())
    # Covariance of errors over that of the first, of which only differences are known.
    covariance = (variance[:, [origin]] + variance[[origin], :] - variance) / 2.0
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(logs + np.random.default_rng(seed).standard_normal((_NUM_DRAWS, len(logs))) @ root.T)
