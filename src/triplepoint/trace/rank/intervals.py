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


def overlay(one: Intervals, other: Intervals) -> tuple[Int64, Int64, Int64, Int64]:
    """Return every stretch of time that an interval of each list has in common, by time.

    Args:
        one: Sorted disjoint intervals; unlike a set's they may touch.
        other: The same.

    Returns:
        Index into `one`, index into `other`, start and end of every stretch; none is empty.
    """
    first = np.searchsorted(other.end, one.start, side="right")
    count = np.maximum(np.searchsorted(other.start, one.end, side="left") - first, 0)
    of_one = np.repeat(np.arange(len(one.start)), count)
    behind = np.cumsum(count) - count
    of_other = np.arange(len(of_one)) - np.repeat(behind - first, count)
    start = np.maximum(one.start[of_one], other.start[of_other])
    end = np.minimum(one.end[of_one], other.end[of_other])
    return of_one, of_other, start, end


def first_come(start: Int64, end: Int64) -> tuple[Intervals, Int64]:
    """Give every instant to the one interval running that began first.

    Args:
        start: Starts, sorted. Unit: ns.
        end: Ends. Unit: ns.

    Returns:
        Disjoint intervals by time, and for each the index of the interval it was given to.
    """
    if len(start) == 0:
        return empty(), np.empty(0, dtype=np.int64)
    reached = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    begins = np.maximum(start, reached)
    owner = np.flatnonzero(end > begins)
    return Intervals(begins[owner], end[owner]), owner


def gaps(intervals: Intervals, start: int, end: int) -> Intervals:
    """Return what a set leaves free of the time from `start` to `end`; the set lies within."""
    starts = np.concatenate(([start], intervals.end))
    ends = np.concatenate((intervals.start, [end]))
    is_open = ends > starts
    return Intervals(starts[is_open], ends[is_open])


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
