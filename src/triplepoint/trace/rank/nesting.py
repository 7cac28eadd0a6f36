"""Whose time it is: the innermost of nested events on a thread, and the latest of spans that overlap."""

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


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


def latest_wins(start: Int64, end: Int64) -> tuple[Int64, Int64, Int64]:
    """Cut time among spans that may overlap in any way: each instant belongs to the running one that started last.

    Args:
        start: Starts, in any order. Unit: ns.
        end: Ends. Unit: ns.

    Returns:
        Start, end and owner (index of the span) of every segment, by time, none of them empty.
    """
    borders = np.unique(np.concatenate((start, end)))
    owner = np.full(max(len(borders) - 1, 0), -1, dtype=np.int64)
    for index in np.argsort(start, kind="stable"):
        first, last = np.searchsorted(borders, (start[index], end[index]))
        owner[first:last] = index
    held = np.flatnonzero(owner >= 0)
    # Cells between borders, joined where the owner stays the same.
    opens = np.concatenate(([True], (owner[held][1:] != owner[held][:-1]) | (held[1:] != held[:-1] + 1)))[: len(held)]
    closes = np.concatenate((opens[1:], [True]))[: len(held)]
    return borders[held[opens]], borders[held[closes] + 1], owner[held[opens]]
