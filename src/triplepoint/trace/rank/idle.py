"""Why nothing ran: what a rank waited for in the gaps between its work.

A gap lasts until the next work begins. Up to the call that launched that work the host was late: *bubble* while it
waited for a neighbour in the pipeline, *straggler* while it waited for others in a collective, *host* otherwise (a
launch gap). After the call the device itself waited: *bubble* before a point-to-point message, *straggler* before any
other communication, *other* before the rest (a dependency, or the latency of the launch). Where the launch was not
recorded the whole gap counts as the device's; where no work followed at all, as the host's.
"""

from typing import NamedTuple

import numpy as np

from triplepoint.trace.kineto.rows import Category, Int64
from triplepoint.trace.rank import intervals
from triplepoint.trace.rank.events import Events
from triplepoint.trace.rank.intervals import Intervals
from triplepoint.trace.rank.launches import NEVER
from triplepoint.trace.rank.operations import POINT_TO_POINT, Operations
from triplepoint.trace.rank.slabs import Slab

IDLE_KINDS = ("bubble", "straggler", "host", "other")


class Waits(NamedTuple):
    """When the host was blocked by others. Unit: ns as the file counts."""

    bubble: Intervals
    straggler: Intervals


def find_waits(marks: Events) -> Waits:
    """Return when the host was inside communication that blocks it: the CPU's own backends, and barriers."""
    return Waits(
        _union(marks, (Category.ANNOTATION, r"(gloo|mpi|ucc):(send|recv)")),
        _union(
            marks,
            (Category.ANNOTATION, r"(gloo|mpi|ucc):(?!send|recv)"),
            (Category.CPU_OP, r"c10d::(monitored_)?barrier"),
        ),
    )


def _union(marks: Events, *wanted: tuple[Category, str]) -> Intervals:
    events = np.concatenate([marks.named(category, pattern) for category, pattern in wanted])
    return intervals.union(marks.start[events], marks.end[events])


def idle_pieces(slab: Slab, free: Intervals, waits: Waits, operations: Operations) -> dict[str, Intervals]:
    """Return the gaps of a slab by the reason for them.

    Args:
        slab: The slab.
        free: Its gaps.
        waits: When the host waited for others.
        operations: What its rows do.
    """
    free = _cut(free, slab.rows["start"][slab.rows["duration"] == 0])
    rows = np.concatenate((slab.rows, slab.following))
    at = np.searchsorted(rows["start"], free.end)
    is_ended = at < len(rows)
    ending = rows[at[is_ended]]
    until = free.end.copy()
    begin, end = free.start[is_ended], free.end[is_ended]
    until[is_ended] = np.where(ending["launch"] == NEVER, begin, np.clip(ending["launch"], begin, end))
    late = intervals.union(free.start, until)
    bubble = intervals.intersection(late, waits.bubble)
    late = intervals.difference(late, waits.bubble)
    straggler = intervals.intersection(late, waits.straggler)
    found = {"bubble": [bubble], "straggler": [straggler], "host": [intervals.difference(late, waits.straggler)]}
    kind_of = np.array([_awaited(operations, index) for index in range(len(operations.labels))])
    awaited = kind_of[np.array(operations.label_of, dtype=np.int64)[ending["operation"]]]
    for kind in ("bubble", "straggler", "other"):
        own = np.flatnonzero(is_ended)[awaited == kind]
        found.setdefault(kind, []).append(intervals.union(until[own], free.end[own]))
    return {kind: _joined(parts) for kind, parts in found.items()}


def _cut(free: Intervals, times: Int64) -> Intervals:
    """Cut gaps where work of no length began: it ended one gap, and what it waited for is told by its kind."""
    if len(times) == 0 or len(free.start) == 0:
        return free
    gap = np.maximum(np.searchsorted(free.start, times) - 1, 0)
    inside = np.unique(times[(free.start[gap] < times) & (times < free.end[gap])])
    return Intervals(np.sort(np.concatenate((free.start, inside))), np.sort(np.concatenate((free.end, inside))))


def _awaited(operations: Operations, label: int) -> str:
    """Return what the device waits for before work of a label."""
    category, kind, _ = operations.labels[label]
    if category != "comm":
        return "other"
    return "bubble" if kind in POINT_TO_POINT else "straggler"


def _joined(parts: list[Intervals]) -> Intervals:
    """Return disjoint lists of intervals as one, by time; those that touch stay apart or not alike."""
    start = np.concatenate([part.start for part in parts])
    order = np.argsort(start, kind="stable")
    return Intervals(start[order], np.concatenate([part.end for part in parts])[order])
