"""Where the time of a rank went: every instant counts once, in the account of its step, phase and label.

Where several things run at once the instant counts as *exposed* time of one of them: computation before communication
before memory operations, and among the same the one that began first. *Busy* is the union of all that ran, whatever
else did. Exposed time of all labels, idle ones included, adds up to the time of the account.

An idle gap lasts until the next work begins. Up to the call that launched that work the host was late: *bubble* while
it waited for a neighbour in the pipeline, *straggler* while it waited for others in a collective, *host* otherwise (a
launch gap). After the call the device itself waited: *bubble* before communication of the pipeline, *straggler* before
any other communication, *other* before the rest (a dependency, or the latency of the launch). Where the launch was not
recorded the whole gap counts as the device's; where no work followed at all, as the host's.

A rank that waits inside a kernel of communication is communicating here. How much of that is waiting, for the same two
causes, takes the traces of the others: see `triplepoint.trace.compare`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from triplepoint.trace import Int64
from triplepoint.trace.kineto import Category
from triplepoint.trace.lanes import Label
from triplepoint.trace.rank import intervals
from triplepoint.trace.rank.events import NEVER, Events, Operations, Slab
from triplepoint.trace.rank.intervals import Intervals
from triplepoint.trace.rank.phases import Windows
from triplepoint.trace.taxonomy import CATEGORIES, is_of_pipeline

IDLE_KINDS = ("bubble", "straggler", "host", "other")
_AWAITED = ("bubble", "straggler", "other")
"""Kinds of those gaps that the device itself waits in."""


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
    """Return the gaps of a slab by the reason for them."""
    free = _cut(free, slab.rows["start"][slab.rows["duration"] == 0])
    starts, launches, operation = (
        np.concatenate((slab.rows[name], slab.following[name])) for name in ("start", "launch", "operation")
    )
    at = np.searchsorted(starts, free.end)
    is_ended = at < len(starts)
    ending = at[is_ended]
    until = free.end.copy()
    begin, end, launch = free.start[is_ended], free.end[is_ended], launches[ending]
    until[is_ended] = np.where(launch == NEVER, begin, np.clip(launch, begin, end))
    late = intervals.union(free.start, until)
    bubble = intervals.intersection(late, waits.bubble)
    late = intervals.difference(late, waits.bubble)
    straggler = intervals.intersection(late, waits.straggler)
    found = {"bubble": [bubble], "straggler": [straggler], "host": [intervals.difference(late, waits.straggler)]}
    kind_of = np.array([_AWAITED.index(_awaited(operations, index)) for index in range(len(operations.labels))])
    awaited = kind_of[np.array(operations.label_of, dtype=np.int64)[operation[ending]]]
    for number, kind in enumerate(_AWAITED):
        own = np.flatnonzero(is_ended)[awaited == number]
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
    category, kind, group = operations.labels[label]
    if category != "comm":
        return "other"
    return "bubble" if is_of_pipeline(kind, group) else "straggler"


def _joined(parts: list[Intervals]) -> Intervals:
    """Return disjoint lists of intervals as one, by time; those that touch stay apart or not alike."""
    start = np.concatenate([part.start for part in parts])
    order = np.argsort(start, kind="stable")
    return Intervals(start[order], np.concatenate([part.end for part in parts])[order])


ALL = "all"
"""Kind of the label that stands for a whole category."""


@dataclass(frozen=True)
class Pieces:
    """Disjoint stretches of time, by time, idle ones included; `label` numbers the labels of the operations."""

    times: Intervals
    label: Int64


class Accounts:
    """Busy and exposed time per window account and label, and over everything."""

    def __init__(self, operations: Operations, windows: Windows, waits: Waits) -> None:
        self._operations = operations
        self._windows = windows
        self._waits = waits
        self._idle = {kind: operations.label_number(Label("idle", kind)) for kind in IDLE_KINDS}
        self._all = {one: operations.label_number(Label(one, ALL)) for one in (*CATEGORIES, "idle")}
        # One row an account and a last one for everything; one column a label.
        self._busy = np.zeros((windows.num_accounts + 1, len(operations.labels)), dtype=np.int64)
        self._exposed = np.zeros_like(self._busy)

    def add(self, slab: Slab) -> Pieces:
        """Account for a slab, and add to the `exposed` time of its rows.

        Returns:
            The slab cut into pieces.
        """
        label = np.array(self._operations.label_of, dtype=np.int64)[slab.rows["operation"]]
        start, stop = slab.start, slab.stop
        taken, exposed = intervals.empty(), np.zeros(len(label), dtype=np.int64)
        parts: list[tuple[Intervals, Int64]] = []
        for category in CATEGORIES:
            rows = np.flatnonzero(np.isin(label, self._operations.of_category(category)) & (stop > start))
            busy = self._add_busy(self._all[category], start[rows], stop[rows])
            for one in np.unique(label[rows]).tolist():
                own = rows[label[rows] == one]
                self._add_busy(one, start[own], stop[own])
            times, row = _uncovered(start[rows], stop[rows], intervals.gaps(taken, slab.begin, slab.end))
            row = rows[row]
            np.add.at(exposed, row, times.end - times.start)
            parts.append((times, label[row]))
            taken = intervals.merge(taken, busy)
        slab.rows["exposed"] += exposed
        pieces = _by_time(parts + self._gaps(slab, intervals.gaps(taken, slab.begin, slab.end)))
        self._add(self._exposed, pieces.times, pieces.label)
        return pieces

    def add_idle(self, slab: Slab) -> Pieces:
        """Account for time of steps before the first work or after the last; it counts for no total."""
        pieces = _by_time(self._gaps(slab, intervals.single(slab.begin, slab.end)))
        self._add_to_windows(self._exposed, pieces.times, pieces.label)
        return pieces

    def _gaps(self, slab: Slab, free: Intervals) -> list[tuple[Intervals, Int64]]:
        by_kind = idle_pieces(slab, free, self._waits, self._operations)
        return [(times, np.full(len(times.start), self._idle[kind])) for kind, times in by_kind.items()]

    def totals(self) -> dict[Label, tuple[int, int]]:
        """Return busy and exposed time of every label over everything, labels in order of their number. Unit: ns."""
        return self._of_account(self._windows.num_accounts)

    def accounts(self) -> Iterator[tuple[int, dict[Label, tuple[int, int]]]]:
        """Yield every account with busy and exposed time of all labels, those of whole categories among them."""
        for account in range(self._windows.num_accounts):
            yield account, self._of_account(account)

    def _of_account(self, account: int) -> dict[Label, tuple[int, int]]:
        busy, exposed = self._busy[account].tolist(), self._exposed[account].tolist()
        labels = self._operations.labels
        for index, label in enumerate(labels):
            if label.category == "idle" and label.kind != ALL:
                busy[index] = exposed[index]
                busy[self._all["idle"]] += exposed[index]
            if label.kind != ALL:
                exposed[self._all[label.category]] += exposed[index]
        return dict(zip(labels, zip(busy, exposed, strict=True), strict=True))

    def _add_busy(self, label: int, start: Int64, stop: Int64) -> Intervals:
        busy = intervals.union(start, stop)
        self._add(self._busy, busy, np.full(len(busy.start), label))
        return busy

    def _add(self, matrix: Int64, times: Intervals, label: Int64) -> None:
        np.add.at(matrix[-1], label, times.end - times.start)
        self._add_to_windows(matrix, times, label)

    def _add_to_windows(self, matrix: Int64, times: Intervals, label: Int64) -> None:
        piece, window, start, end = intervals.overlay(times, self._windows.times)
        np.add.at(matrix.reshape(-1), self._windows.account[window] * matrix.shape[1] + label[piece], end - start)


def _uncovered(start: Int64, stop: Int64, free: Intervals) -> tuple[Intervals, Int64]:
    """Share `free` time out among intervals, the earlier begun first: the times, and which interval got each."""
    shared, owner = intervals.first_come(start, stop)
    piece, _, begin, end = intervals.overlay(shared, free)
    return Intervals(begin, end), owner[piece]


def _by_time(parts: list[tuple[Intervals, Int64]]) -> Pieces:
    start = np.concatenate([times.start for times, _ in parts])
    end = np.concatenate([times.end for times, _ in parts])
    label = np.concatenate([label for _, label in parts])
    order = np.argsort(start, kind="stable")
    return Pieces(Intervals(start[order], end[order]), label[order])
