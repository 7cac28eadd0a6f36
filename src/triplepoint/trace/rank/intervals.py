"""Interval algebra in integer nanoseconds, and self time of nested events.

A set of intervals is a pair of arrays `(start, end)`: sorted, disjoint, not adjacent, none empty. `union` makes a set
from any intervals; the functions down to `gaps` take and return sets.
"""

from typing import NamedTuple

import numpy as np

from triplepoint.trace import Int64


class Intervals(NamedTuple):
    """A set of sorted, disjoint intervals. Unit: ns."""

    start: Int64
    end: Int64

    @property
    def length(self) -> int:
        """Total length. Unit: ns."""
        return int((self.end - self.start).sum())


def empty() -> Intervals:
    """Return the empty set."""
    no_times = np.empty(0, dtype=np.int64)
    return Intervals(no_times, no_times)


def single(start: int, end: int) -> Intervals:
    """Return the set of one interval, or the empty set if it has no length."""
    return union(np.array([start], dtype=np.int64), np.array([end], dtype=np.int64))


def union(start: Int64, end: Int64) -> Intervals:
    """Return the time that at least one of the intervals covers.

    Args:
        start: Starts in any order. Unit: ns.
        end: Ends; intervals that end no later than they start cover nothing. Unit: ns.
    """
    covers = end > start
    start, end = start[covers], end[covers]
    if len(start) == 0:
        return empty()
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    latest_end = np.maximum.accumulate(end)
    opens = np.concatenate(([True], start[1:] > latest_end[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Intervals(start[opens], latest_end[closes])


def covered_before(intervals: Intervals, times: Int64) -> Int64:
    """Return the length of the set before each time. Unit: ns."""
    totals = np.concatenate(([0], np.cumsum(intervals.end - intervals.start)))
    index = np.searchsorted(intervals.start, times, side="right") - 1
    last = np.maximum(index, 0)
    if len(intervals.start) == 0:
        return np.zeros(len(times), dtype=np.int64)
    inside = np.minimum(times, intervals.end[last]) - intervals.start[last]
    return np.where(index < 0, 0, totals[last] + inside).astype(np.int64)


def overlap_length(one: Intervals, other: Intervals) -> int:
    """Return the length of the intersection of two sets. Unit: ns."""
    return int((covered_before(one, other.end) - covered_before(one, other.start)).sum())


def intersection(one: Intervals, other: Intervals) -> Intervals:
    """Return the time in both sets."""
    return _part_of(one, other, is_in_other=1)


def difference(one: Intervals, other: Intervals) -> Intervals:
    """Return the time in `one` and not in `other`."""
    return _part_of(one, other, is_in_other=0)


def merge(one: Intervals, other: Intervals) -> Intervals:
    """Return the time in at least one of two sets."""
    return union(np.concatenate((one.start, other.start)), np.concatenate((one.end, other.end)))


def overlay(one: Intervals, other: Intervals) -> tuple[Int64, Int64, Int64, Int64]:
    """Return the intersections of the intervals of two lists, by time.

    Args:
        one: Sorted, disjoint intervals, which may be adjacent.
        other: Sorted, disjoint intervals, which may be adjacent.

    Returns:
        Index into `one`, index into `other`, start and end of every intersection; none is empty.
    """
    first = np.searchsorted(other.end, one.start, side="right")
    count = np.maximum(np.searchsorted(other.start, one.end, side="left") - first, 0)
    index_in_one = np.repeat(np.arange(len(one.start)), count)
    num_before = np.cumsum(count) - count
    index_in_other = np.arange(len(index_in_one)) - np.repeat(num_before - first, count)
    start = np.maximum(one.start[index_in_one], other.start[index_in_other])
    end = np.minimum(one.end[index_in_one], other.end[index_in_other])
    return index_in_one, index_in_other, start, end


def first_come(start: Int64, end: Int64) -> tuple[Intervals, Int64]:
    """Assign every instant to the running interval that began first.

    Args:
        start: Starts, sorted. Unit: ns.
        end: Ends. Unit: ns.

    Returns:
        Disjoint intervals by time, and the index of the interval each of them is assigned to.
    """
    if len(start) == 0:
        return empty(), np.empty(0, dtype=np.int64)
    assigned_until = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    begins = np.maximum(start, assigned_until)
    owner = np.flatnonzero(end > begins)
    return Intervals(begins[owner], end[owner]), owner


def gaps(intervals: Intervals, start: int, end: int) -> Intervals:
    """Return the time between `start` and `end` that is not in a set, all of which is between them."""
    starts = np.concatenate(([start], intervals.end))
    ends = np.concatenate((intervals.start, [end]))
    is_open = ends > starts
    return Intervals(starts[is_open], ends[is_open])


def _part_of(one: Intervals, other: Intervals, is_in_other: int) -> Intervals:
    """Return the part of `one` that is in `other` (1) or not (0), by a sweep over the borders of both sets."""
    times = np.concatenate((one.start, one.end, other.start, other.end))
    counts = [len(one.start), len(one.end), len(other.start), len(other.end)]
    order = np.argsort(times, kind="stable")
    times = times[order]
    in_one = np.cumsum(np.repeat([1, -1, 0, 0], counts)[order])
    in_other = np.cumsum(np.repeat([0, 0, 1, -1], counts)[order])
    is_in_part = ((in_one == 1) & (in_other == is_in_other))[:-1]
    return union(times[:-1][is_in_part], times[1:][is_in_part])


def self_segments(start: Int64, end: Int64, thread: Int64) -> tuple[Int64, Int64, Int64]:
    """Divide every thread's time among its nested events: each instant belongs to the innermost one.

    Events of one thread nest like calls. If damaged clocks make an event end after its caller, it is cut at the
    caller's end, so that no instant of a thread counts twice.

    Args:
        start: Start of every event, in any order. Unit: ns.
        end: End of every event. Unit: ns.
        thread: Number of every event's thread.

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
    """Return start, end and owner of the segments of one thread, whose events are sorted by start, longest first."""
    if (start[1:] >= end[:-1]).all():
        # Without nesting, as for most annotations, of which there may be millions.
        is_not_empty = end > start
        return np.stack((start[is_not_empty], end[is_not_empty], events[is_not_empty]), axis=1)
    segments = _nested_segments(events.tolist(), start.tolist(), end.tolist())
    return np.array(segments, dtype=np.int64).reshape(-1, 3)


class Cover:
    """Finds the innermost span that runs on a thread at a given time."""

    def __init__(self, start: Int64, end: Int64, thread: Int64, spans: Int64) -> None:
        """Index the spans of each thread.

        Args:
            start: Start of every event. Unit: ns.
            end: End of every event. Unit: ns.
            thread: Number of every event's thread.
            spans: Indices of the events that are spans; on one thread they nest.
        """
        segment_start, segment_end, owner = self_segments(start[spans], end[spans], thread[spans])
        owner = spans[owner]
        self._segments: dict[int, tuple[Int64, Int64, Int64]] = {}
        for number in np.unique(thread[owner]).tolist():
            on_thread = np.flatnonzero(thread[owner] == number)
            self._segments[number] = (segment_start[on_thread], segment_end[on_thread], owner[on_thread])

    def find(self, thread: Int64, time: Int64) -> Int64:
        """Return the index of the innermost span at each time on each thread, -1 if there is none."""
        events = np.full(len(time), -1, dtype=np.int64)
        for number, (segment_start, segment_end, owner) in self._segments.items():
            on_thread = np.flatnonzero(thread == number)
            at = np.searchsorted(segment_start, time[on_thread], side="right") - 1
            is_inside = (at >= 0) & (time[on_thread] < segment_end[at])
            events[on_thread[is_inside]] = owner[at[is_inside]]
        return events


def _nested_segments(events: list[int], start: list[int], end: list[int]) -> list[tuple[int, int, int]]:
    """Return start, end and owner of the segments of one thread, whose events are sorted by start, longest first."""
    segments: list[tuple[int, int, int]] = []
    running: list[tuple[int, int]] = []  # event and its end, innermost last
    now = 0
    for event, event_start, event_end in zip(events, start, end, strict=True):
        while running and running[-1][1] <= event_start:
            owner, owner_end = running.pop()
            if owner_end > now:
                segments.append((now, owner_end, owner))
                now = owner_end
        if running:
            owner, owner_end = running[-1]
            event_end = min(event_end, owner_end)
            if event_start > now:
                segments.append((now, event_start, owner))
        now = event_start
        running.append((event, event_end))
    while running:
        owner, owner_end = running.pop()
        if owner_end > now:
            segments.append((now, owner_end, owner))
            now = owner_end
    return segments
