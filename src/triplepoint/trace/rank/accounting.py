"""Account for the time of a rank: busy and exposed time by step, phase and label.

Every instant counts once as *exposed* time of one label. If several operations run at once, it is that of computation
before communication before memory operations, and within a category that of the operation that began first. *Busy* time
of a label is the union of all its operations, overlapped or not. The exposed times of all labels, idle ones included,
add up to the time of the step and phase.

An idle gap lasts until the next work begins. Until the call that launched that work, the host was late: *bubble* while
it waited for a neighbour in the pipeline, *straggler* while it waited for others in a collective, *host* otherwise (a
launch gap). After the call, the device waited: *bubble* before communication of the pipeline, *straggler* before any
other communication, *other* before other work (a dependency, or launch latency). If the launch was not recorded, the
whole gap is time of the device. If no work follows, it is time of the host.

A rank that waits inside a communication kernel is communicating here. To tell such waiting from data transfer takes the
traces of other ranks, see `triplepoint.trace.compare`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from triplepoint.trace import Int64
from triplepoint.trace.kineto import Category
from triplepoint.trace.rank import intervals
from triplepoint.trace.rank.events import NEVER, Events, Operations, Slab
from triplepoint.trace.rank.intervals import Intervals
from triplepoint.trace.rank.phases import Windows
from triplepoint.trace.rank_results import Label
from triplepoint.trace.taxonomy import CATEGORIES, is_of_pipeline

IDLE_KINDS = ("bubble", "straggler", "host", "other")
_DEVICE_WAITS = ("bubble", "straggler", "other")
"""Kinds of idle time in which the device waits after the launch of its next work."""


class Waits(NamedTuple):
    """Times in which the host waited for other ranks. Unit: ns as the file counts."""

    bubble: Intervals
    straggler: Intervals


def find_waits(marks: Events) -> Waits:
    """Return the times in which communication blocked the host: collectives of CPU backends, and barriers."""
    return Waits(
        _union(marks, (Category.ANNOTATION, r"(gloo|mpi|ucc):(send|recv)")),
        _union(
            marks,
            (Category.ANNOTATION, r"(gloo|mpi|ucc):(?!send|recv)"),
            (Category.CPU_OP, r"c10d::(monitored_)?barrier"),
        ),
    )


def _union(marks: Events, *patterns: tuple[Category, str]) -> Intervals:
    """Return the time of all marks of these categories and names."""
    events = np.concatenate([marks.named(category, pattern) for category, pattern in patterns])
    return intervals.union(marks.start[events], marks.end[events])


def idle_by_reason(slab: Slab, gaps: Intervals, waits: Waits, operations: Operations) -> dict[str, Intervals]:
    """Divide the idle gaps of a slab by the reason for them, one of `IDLE_KINDS`."""
    gaps = _split_at(gaps, slab.rows["start"][slab.rows["duration"] == 0])
    work_start, work_launch, work_operation = (
        np.concatenate((slab.rows[name], slab.following[name])) for name in ("start", "launch", "operation")
    )
    next_row = np.searchsorted(work_start, gaps.end)
    has_next = next_row < len(work_start)
    next_row = next_row[has_next]
    # Until its launch the host was late, from then on the device waited.
    launch = gaps.end.copy()
    begin, end, next_launch = gaps.start[has_next], gaps.end[has_next], work_launch[next_row]
    launch[has_next] = np.where(next_launch == NEVER, begin, np.clip(next_launch, begin, end))
    host_late = intervals.union(gaps.start, launch)
    bubble = intervals.intersection(host_late, waits.bubble)
    host_late = intervals.difference(host_late, waits.bubble)
    straggler = intervals.intersection(host_late, waits.straggler)
    host = intervals.difference(host_late, waits.straggler)
    by_reason = {"bubble": [bubble], "straggler": [straggler], "host": [host]}
    label_of = np.array(operations.label_of, dtype=np.int64)
    reason_of_label = np.array(
        [_DEVICE_WAITS.index(_device_wait(operations, label)) for label in range(len(operations.labels))]
    )
    reason = reason_of_label[label_of[work_operation[next_row]]]
    for number, kind in enumerate(_DEVICE_WAITS):
        of_kind = np.flatnonzero(has_next)[reason == number]
        by_reason.setdefault(kind, []).append(intervals.union(launch[of_kind], gaps.end[of_kind]))
    return {kind: _joined(parts) for kind, parts in by_reason.items()}


def _split_at(gaps: Intervals, times: Int64) -> Intervals:
    """Split gaps at the start of work without duration, which ends one gap with a reason of its own."""
    if len(times) == 0 or len(gaps.start) == 0:
        return gaps
    gap = np.maximum(np.searchsorted(gaps.start, times) - 1, 0)
    inside = np.unique(times[(gaps.start[gap] < times) & (times < gaps.end[gap])])
    return Intervals(np.sort(np.concatenate((gaps.start, inside))), np.sort(np.concatenate((gaps.end, inside))))


def _device_wait(operations: Operations, label: int) -> str:
    """Return the reason why the device waits before work of a label."""
    category, kind, group = operations.labels[label]
    if category != "comm":
        return "other"
    return "bubble" if is_of_pipeline(kind, group) else "straggler"


def _joined(parts: list[Intervals]) -> Intervals:
    """Join lists of disjoint intervals, by time. Adjacent intervals are not merged."""
    start = np.concatenate([part.start for part in parts])
    order = np.argsort(start, kind="stable")
    return Intervals(start[order], np.concatenate([part.end for part in parts])[order])


ALL = "all"
"""Kind of the label for a whole category."""


@dataclass(frozen=True)
class Pieces:
    """Disjoint intervals, sorted by time and idle ones included, with the number of each one's label."""

    times: Intervals
    label: Int64


class Accounts:
    """Busy and exposed time of every label, per account (a phase of a step) and in total."""

    def __init__(self, operations: Operations, windows: Windows, waits: Waits) -> None:
        self._operations = operations
        self._windows = windows
        self._waits = waits
        self._idle = {kind: operations.label_number(Label("idle", kind)) for kind in IDLE_KINDS}
        self._all = {category: operations.label_number(Label(category, ALL)) for category in (*CATEGORIES, "idle")}
        # A row per account, and the total in the last row; a column per label.
        self._busy = np.zeros((windows.num_accounts + 1, len(operations.labels)), dtype=np.int64)
        self._exposed = np.zeros_like(self._busy)

    def add(self, slab: Slab) -> Pieces:
        """Account for a slab, and add to the `exposed` time of its rows.

        Returns:
            The time of the slab, divided into pieces with one label each.
        """
        label = np.take(self._operations.label_of, slab.rows["operation"])
        start, stop = slab.start, slab.stop
        assigned, exposed = intervals.empty(), np.zeros(len(label), dtype=np.int64)
        parts: list[tuple[Intervals, Int64]] = []
        for category in CATEGORIES:
            is_of_category = np.zeros(len(self._operations.labels), dtype=bool)
            is_of_category[self._operations.of_category(category)] = True
            rows = np.flatnonzero(is_of_category[label] & (stop > start))
            busy = self._add_busy(self._all[category], start[rows], stop[rows])
            label_of_row = label[rows]
            for number in np.flatnonzero(np.bincount(label_of_row)).tolist():
                of_label = rows[label_of_row == number]
                self._add_busy(number, start[of_label], stop[of_label])
            times, row = _assign(start[rows], stop[rows], intervals.gaps(assigned, slab.begin, slab.end))
            row = rows[row]
            np.add.at(exposed, row, times.end - times.start)
            parts.append((times, label[row]))
            assigned = intervals.merge(assigned, busy)
        slab.rows["exposed"] += exposed
        pieces = _by_time(parts + self._idle_parts(slab, intervals.gaps(assigned, slab.begin, slab.end)))
        np.add.at(self._exposed[-1], pieces.label, pieces.times.end - pieces.times.start)
        self._add_exposed(pieces)
        return pieces

    def add_idle(self, slab: Slab) -> Pieces:
        """Account for idle time of steps before the first or after the last work, which is not in the total."""
        pieces = _by_time(self._idle_parts(slab, intervals.single(slab.begin, slab.end)))
        self._add_exposed(pieces)
        return pieces

    def _idle_parts(self, slab: Slab, gaps: Intervals) -> list[tuple[Intervals, Int64]]:
        by_reason = idle_by_reason(slab, gaps, self._waits, self._operations)
        return [(times, np.full(len(times.start), self._idle[kind])) for kind, times in by_reason.items()]

    def totals(self) -> dict[Label, tuple[int, int]]:
        """Return total busy and exposed time of every label, in the order of label numbers. Unit: ns."""
        return self._of_account(self._windows.num_accounts)

    def accounts(self) -> Iterator[tuple[int, dict[Label, tuple[int, int]]]]:
        """Yield the number of every account, with busy and exposed time of every label. Unit: ns."""
        for account in range(self._windows.num_accounts):
            yield account, self._of_account(account)

    def _of_account(self, account: int) -> dict[Label, tuple[int, int]]:
        """Return busy and exposed time of every label; times of whole categories and idle time are derived here."""
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
        self._busy[-1, label] += busy.length
        windows = self._windows.times
        in_window = intervals.covered_before(busy, windows.end) - intervals.covered_before(busy, windows.start)
        np.add.at(self._busy[:, label], self._windows.account, in_window)
        return busy

    def _add_exposed(self, pieces: Pieces) -> None:
        piece, window, start, end = intervals.overlay(pieces.times, self._windows.times)
        account = self._windows.account[window] * self._exposed.shape[1] + pieces.label[piece]
        np.add.at(self._exposed.reshape(-1), account, end - start)


def _assign(start: Int64, stop: Int64, free: Intervals) -> tuple[Intervals, Int64]:
    """Assign `free` time to the operations that run in it, those that began earlier first.

    Returns:
        The assigned times, and the index of the operation of each.
    """
    assigned, owner = intervals.first_come(start, stop)
    piece, _, begin, end = intervals.overlay(assigned, free)
    return Intervals(begin, end), owner[piece]


def _by_time(parts: list[tuple[Intervals, Int64]]) -> Pieces:
    start = np.concatenate([times.start for times, _ in parts])
    end = np.concatenate([times.end for times, _ in parts])
    label = np.concatenate([label for _, label in parts])
    order = np.argsort(start, kind="stable")
    return Pieces(Intervals(start[order], end[order]), label[order])
