"""Exact interval algebra in integer nanoseconds.

A set of time is a pair of arrays `(start, end)`: sorted, disjoint, not touching, every interval longer than zero.
`union` makes one of any intervals; the other functions take and return such sets.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class Intervals(NamedTuple):
    """A set of time: sorted disjoint intervals. Unit: ns."""

    start: Int64
    end: Int64

    @property
    def length(self) -> int:
        """Return the summed length. Unit: ns."""
        return int((self.end - self.start).sum())


def empty() -> Intervals:
    """Return the set that holds no time."""
    nothing = np.empty(0, dtype=np.int64)
    return Intervals(nothing, nothing)


def single(start: int, end: int) -> Intervals:
    """Return the set of one interval, empty if it has no length."""
    return union(np.array([start], dtype=np.int64), np.array([end], dtype=np.int64))


def union(start: Int64, end: Int64) -> Intervals:
    """Return the set of time that any of the intervals covers.

    Args:
        start: Starts in any order. Unit: ns.
        end: Ends; intervals that end no later than they start cover nothing. Unit: ns.
    """
    covers = end > start
    start, end = start[covers], end[covers]
    if len(start) == 0:
        return empty()
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > reached[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Intervals(start[opens], reached[closes])


def covered_before(intervals: Intervals, times: Int64) -> Int64:
    """Return how much of the set lies before each time. Unit: ns."""
    totals = np.concatenate(([0], np.cumsum(intervals.end - intervals.start)))
    index = np.searchsorted(intervals.start, times, side="right") - 1
    last = np.maximum(index, 0)
    if len(intervals.start) == 0:
        return np.zeros(len(times), dtype=np.int64)
    inside = np.minimum(times, intervals.end[last]) - intervals.start[last]
    return np.where(index < 0, 0, totals[last] + inside).astype(np.int64)


def overlap_length(one: Intervals, other: Intervals) -> int:
    """Return the length of the time both sets hold. Unit: ns."""
    return int((covered_before(one, other.end) - covered_before(one, other.start)).sum())


def intersection(one: Intervals, other: Intervals) -> Intervals:
    """Return the time both sets hold."""
    return _where(one, other, is_in_other=1)


def difference(one: Intervals, other: Intervals) -> Intervals:
    """Return the time `one` holds and `other` does not."""
    return _where(one, other, is_in_other=0)


def merge(one: Intervals, other: Intervals) -> Intervals:
    """Return the time either set holds."""
    return union(np.concatenate((one.start, other.start)), np.concatenate((one.end, other.end)))


def _where(one: Intervals, other: Intervals, is_in_other: int) -> Intervals:
    """Return the part of `one` that is in `other` (1) or not (0), by a sweep over the borders of both sets."""
    times = np.concatenate((one.start, one.end, other.start, other.end))
    counts = [len(one.start), len(one.end), len(other.start), len(other.end)]
    order = np.argsort(times, kind="stable")
    times = times[order]
    in_one = np.cumsum(np.repeat([1, -1, 0, 0], counts)[order])
    in_other = np.cumsum(np.repeat([0, 0, 1, -1], counts)[order])
    holds = ((in_one == 1) & (in_other == is_in_other))[:-1]
    return union(times[:-1][holds], times[1:][holds])
