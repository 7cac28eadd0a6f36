"""An energy counter as it was sampled: when it moved, and what it said in between; pure functions on arrays."""

from typing import NamedTuple

import numpy as np

_FEWEST_MOVES = 8
_MOVES_AT_ONCE = 300
"""Moves of a counter put on one grid: over longer times the two clocks drift apart."""
_LONGEST_PERIOD_S = 0.1
"""Between updates of an energy counter: H100, as Zeus's authors measured (ml.energy blog); AMD's is far shorter."""
_SLACK = 0.02
"""How far off the reads around it a move may be put, as a share of the counter's period."""
_MOSTLY = 0.98
_PERIODS, _LOOKS = 31, 2


class EnergyCounter:
    """An energy counter between the instants at which it moved.

    It publishes at regular times, which are found to milliseconds although it is read much less often: its moves lie on
    a grid, and each was seen to lie between two reads. Where it is read at a whole multiple of its own rate, that never
    moves against the grid, so it says no more than the time between two reads; hence the slack.
    """

    def __init__(self, times_s: np.ndarray, counter_j: np.ndarray) -> None:
        """Find its moves.

        Args:
            times_s: When it was read. Shape (num_reads,). Unit: s.
            counter_j: What it said. Shape (num_reads,). Unit: J.
        """
        before, after, self.values_j = changes(times_s, counter_j)
        self.moved_s, self.slack_s = _move_times(before, after)
        """Times of its moves, shape (num_moves,), and by how much all of them may be off together. Unit: s."""

    def at(self, at_s: np.ndarray) -> np.ndarray:
        """Return the counter at given times, interpolated between its moves. Unit: J.

        Raises:
            ValueError: If it did not move before the first and after the last.
        """
        if len(self.moved_s) < 2 or at_s.min() < self.moved_s[0] or at_s.max() > self.moved_s[-1]:
            raise ValueError(
                "the energy counter did not move around the window; sample for longer or take a later window"
            )
        return np.asarray(np.interp(at_s, self.moved_s, self.values_j))


def _move_times(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, float]:
    if len(after) < _FEWEST_MOVES:
        return (before + after) / 2, float(np.median(after - before)) / 2 if len(after) else 0.0
    period_s = float(np.median(np.diff(after)))
    # After a gap in the samples: what is read was published within the last period, however long the gap.
    is_gap = (after - before > period_s)[1:]
    # Read less often than it is published, a value is no older than it can be either.
    before = np.maximum(before, after - min(period_s, _LONGEST_PERIOD_S))
    numbers = np.concatenate([[0.0], np.cumsum(np.where(is_gap, np.rint(np.diff(after) / period_s), 1.0))])
    starts = range(0, max(1, len(after) - len(after) % _MOVES_AT_ONCE), _MOVES_AT_ONCE)
    parts = [slice(at, at + _MOVES_AT_ONCE if at != starts[-1] else None) for at in starts]
    grids = [
        on_grid(numbers[part] - numbers[at], before[part], after[part]) for at, part in zip(starts, parts, strict=True)
    ]
    moved_s = np.concatenate([grid.times_s for grid in grids])
    # A grid that contradicts what was seen is none.
    late_s = _SLACK * period_s
    is_seen = (moved_s > before - late_s) & (moved_s < after + late_s)
    if is_seen.mean() <= _MOSTLY:
        return (before + after) / 2, float(np.median(after - before)) / 2
    return moved_s, float(np.median([grid.slack_s for grid in grids]))


def integral_j(times_s: np.ndarray, power_w: np.ndarray, start_s: float, end_s: float) -> float:
    """Return the integral of sampled power over a window, by trapezes, ends interpolated. Unit: J.

    Args:
        times_s: Times of samples, ascending. Shape (num_samples,). Unit: s.
        power_w: Power of each. Shape (num_samples,). Unit: W.
        start_s: Start. Unit: s.
        end_s: End. Unit: s.
    """
    inside = (times_s > start_s) & (times_s < end_s)
    at = np.concatenate([[start_s], times_s[inside], [end_s]])
    return float(np.trapezoid(np.interp(at, times_s, power_w), at))


def changes(times_s: np.ndarray, readings: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for every reading that differs from the one before, the time before it, its own time, and its value."""
    at = np.flatnonzero(np.diff(readings) != 0) + 1
    return times_s[at - 1], times_s[at], readings[at]


class Grid(NamedTuple):
    """Regular times that fit what was seen.

    Attributes:
        period_s: Time between two. Unit: s.
        times_s: The times. Unit: s.
        slack_s: All of them could be this much earlier or later and still fit. Unit: s.
    """

    period_s: float
    times_s: np.ndarray
    slack_s: float


def on_grid(numbers: np.ndarray, before: np.ndarray, after: np.ndarray) -> Grid:
    """Return the grid of numbered changes that were seen between two reads each.

    Args:
        numbers: How many periods after the first each change came. Shape (num_changes,).
        before: Times of the reads before the changes. Shape (num_changes,). Unit: s.
        after: Times of the reads after them. Shape (num_changes,). Unit: s.
    """
    period_s = float(np.polyfit(numbers, (before + after) / 2, 1)[0])
    reach_s = float(np.median(after - before)) / max(numbers[-1], 1)
    phase_s = slack_s = 0.0
    # The room for all of them is concave in the period: around the best of a few lies the best of all.
    for _ in range(_LOOKS):
        tried_s = period_s + np.linspace(-reach_s, reach_s, _PERIODS)
        latest_start = (before[:, None] - numbers[:, None] * tried_s).max(axis=0)
        earliest_end = (after[:, None] - numbers[:, None] * tried_s).min(axis=0)
        best = int(np.argmax(earliest_end - latest_start))
        period_s, phase_s = float(tried_s[best]), float(latest_start[best] + earliest_end[best]) / 2
        slack_s = max(0.0, float(earliest_end[best] - latest_start[best]) / 2)
        reach_s *= 2 / (_PERIODS - 1)
    return Grid(period_s, phase_s + period_s * numbers, slack_s)
