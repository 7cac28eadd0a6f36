"""Interval algebra in integer nanoseconds, and the innermost of nested events.

A set of time is a pair of arrays `(start, end)`: sorted, disjoint, not touching, every interval longer than zero.
`union` makes one of any intervals; the functions down to `gaps` take and return such sets.
"""

from typing import NamedTuple

import numpy as np

from triplepoint.trace import Int64


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


def self_segments(start: Int64, end: Int64, thread: Int64) -> tuple[Int64, Int64, Int64]:
    """Cut every thread's time among its nested events: each instant belongs to the innermost.

    Events of one thread nest as calls do. Where damaged clocks make one outlast its caller, it is cut at the caller's
    end, so that no instant of a thread is given twice.

    Args:
        start: Start of every event, in any order. Unit: ns.
        end: End. Unit: ns.
        thread: Thread.

    Returns:
        Start, end and owner (index of the event) of every segment, none of them empty.
    """
    order = np.lexsort((-end, start, thread))
    parts = [np.empty((0, 3), dtype=np.int64)]
    for events in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1):
        parts.append(_segments_of_thread(events, start[events], end[events]))
    columns = np.concatenate(parts)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def _segments_of_thread(events: Int64, start: Int64, end: Int64) -> Int64:
    """Return start, end and owner of the segments of one thread, whose events come by start, longest first."""
    if (start[1:] >= end[:-1]).all():
        # Nothing runs inside anything: the usual case of annotations, of which there may be millions.
        whole = end > start
        return np.stack((start[whole], end[whole], events[whole]), axis=1)
    segments: list[tuple[int, int, int]] = []
    _walk(events.tolist(), start.tolist(), end.tolist(), segments)
    return np.array(segments, dtype=np.int64).reshape(-1, 3)


class Cover:
    """Which of some spans runs innermost on a thread at a time."""

    def __init__(self, start: Int64, end: Int64, thread: Int64, spans: Int64) -> None:
        """Take the events that count as spans; those of a thread nest.

        Args:
            start: Start of every event. Unit: ns.
            end: End. Unit: ns.
            thread: Thread.
            spans: Which of the events count.
        """
        begin, until, owner = self_segments(start[spans], end[spans], thread[spans])
        owner = spans[owner]
        self._segments = {
            one: (begin[on], until[on], owner[on])
            for one in np.unique(thread[owner]).tolist()
            for on in [np.flatnonzero(thread[owner] == one)]
        }

    def find(self, thread: Int64, time: Int64) -> Int64:
        """Return the event of the innermost span at each time on each thread, -1 where none runs."""
        found = np.full(len(time), -1, dtype=np.int64)
        for one, (begin, until, owner) in self._segments.items():
            asked = np.flatnonzero(thread == one)
            at = np.searchsorted(begin, time[asked], side="right") - 1
            is_inside = (at >= 0) & (time[asked] < until[at])
            found[asked[is_inside]] = owner[at[is_inside]]
        return found


def _walk(events: list[int], start: list[int], end: list[int], segments: list[tuple[int, int, int]]) -> None:
    """Append the segments of one thread, whose events come by start, longest first."""
    running: list[tuple[int, int]] = []
    now = 0
    for event, begins, ends in zip(events, start, end, strict=True):
        while running and running[-1][1] <= begins:
            owner, until = running.pop()
            if until > now:
                segments.append((now, until, owner))
                now = until
        if running:
            owner, until = running[-1]
            ends = min(ends, until)
            if begins > now:
                segments.append((now, begins, owner))
        now = begins
        running.append((event, ends))
    while running:
        owner, until = running.pop()
        if until > now:
            segments.append((now, until, owner))
            now = until
