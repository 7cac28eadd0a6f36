"""Events of a trace with names and messages, the operations they stand for, and the host calls that launched them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from triplepoint.trace import Bool, Int64
from triplepoint.trace.kineto import LAUNCH, ROW, Category, Rows
from triplepoint.trace.kineto.external_sort import Sorter
from triplepoint.trace.kineto.reader import Header, Message
from triplepoint.trace.lanes import Label
from triplepoint.trace.taxonomy import Kernel

NEVER = np.iinfo(np.int64).min
"""Time of a call that was not recorded."""

LAUNCHED = np.dtype(
    [
        *((name, ROW[name]) for name in ROW.names or ()),
        ("launch", "i8"),
        ("launch_thread", "i4"),
        ("operation", "i4"),
        ("exposed", "i8"),
        ("sequence", "i4"),
    ]
)
"""A row of work; when and on which thread it was launched, what it does (an index), its exposed time, and its number
among the collectives of its kind and group."""


@dataclass(frozen=True)
class Events:
    """Events held in memory.

    Attributes:
        header: What the rows refer to.
        rows: Array of `ROW`, in any order.
    """

    header: Header
    rows: Rows

    @property
    def start(self) -> Int64:
        """Return the start of every event. Unit: ns as the file counts."""
        return np.ascontiguousarray(self.rows["start"])

    @property
    def end(self) -> Int64:
        """Return the end of every event. Unit: ns as the file counts."""
        return np.asarray(self.rows["start"] + self.rows["duration"])

    @property
    def thread(self) -> Int64:
        """Return the number of every event's thread; on a GPU that is its stream."""
        return np.ascontiguousarray(self.rows["thread"])

    def name(self, event: int) -> str:
        """Return the name of an event."""
        return self.header.names[int(self.rows["name"][event])]

    def message(self, event: int) -> Message:
        """Return what an event says about communication."""
        index = self.rows["message"][event]
        return self.header.messages[index] if index >= 0 else Message()

    def named(self, category: Category, pattern: str | re.Pattern[str]) -> Int64:
        """Return the events of a category whose name matches a pattern from its start, by start time."""
        of_category = np.flatnonzero(self.rows["category"] == category)
        names = self.rows["name"][of_category]
        matches = re.compile(pattern).match
        wanted = [index for index in np.unique(names).tolist() if matches(self.header.names[index])]
        found = of_category[np.isin(names, wanted)]
        by_start: Int64 = found[np.argsort(self.rows["start"][found], kind="stable")]
        return by_start


class Operation(NamedTuple):
    """What rows of the kernel table have in common."""

    kernel: Kernel
    group: str | None
    name: str

    @property
    def label(self) -> Label:
        """Return what its time counts as: by class where it computes, by kind otherwise."""
        category = self.kernel.category
        return Label(category, self.kernel.cls if category == "compute" else self.kernel.kind, self.group)


class Operations:
    """Distinct operations and their labels, numbered in order of appearance."""

    def __init__(self) -> None:
        self._operations: dict[Operation, int] = {}
        self._labels: dict[Label, int] = {}
        self.label_of: list[int] = []
        """Number of the label of every operation."""

    @property
    def known(self) -> list[Operation]:
        """Return the operations so far."""
        return list(self._operations)

    @property
    def labels(self) -> list[Label]:
        """Return the labels so far."""
        return list(self._labels)

    def number(self, operation: Operation) -> int:
        """Return the number of an operation, a new one if it was not known."""
        index = self._operations.setdefault(operation, len(self._operations))
        if index == len(self.label_of):
            self.label_of.append(self.label_number(operation.label))
        return index

    def label_number(self, label: Label) -> int:
        """Return the number of a label, a new one if it was not known."""
        return self._labels.setdefault(label, len(self._labels))

    def of_category(self, category: str) -> list[int]:
        """Return the numbers of the labels of a category."""
        return [index for label, index in self._labels.items() if label.category == category]


def as_launches(calls: Rows) -> Rows:
    """Return calls of the runtime that came as rows of `ROW`, as begins and ends do, as rows of `LAUNCH`."""
    kept: Rows = calls[calls["correlation"] > 0][list(LAUNCH.names or ())].astype(LAUNCH)
    return kept


def not_launched(rows: Rows) -> Rows:
    """Return rows of `ROW` as rows of `LAUNCHED` whose launch and operation are not known yet."""
    more = np.empty(len(rows), dtype=LAUNCHED)
    # The fields of a row stand first, so that they can be copied as the bytes they are.
    bytes_of = more.view(np.uint8).reshape(len(rows), LAUNCHED.itemsize)
    bytes_of[:, : ROW.itemsize] = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), ROW.itemsize)
    more["launch"], more["launch_thread"], more["operation"], more["exposed"] = NEVER, -1, -1, 0
    more["sequence"] = -1
    return more


def join_launches(device: Sorter, launches: Sorter) -> Iterator[Rows]:
    """Yield device work with its launches.

    ROCm writes the geometry of a kernel on its launch, CUDA on the kernel; it is taken from where it stands.

    Yields:
        Rows of `LAUNCHED`, by correlation.
    """
    blocks = launches.blocks()
    known = np.empty(0, dtype=LAUNCH)
    for rows in device.blocks():
        known = known[np.searchsorted(known["correlation"], rows["correlation"][0]) :]
        while (len(known) == 0 or known["correlation"][-1] < rows["correlation"][-1]) and (
            more := next(blocks, None)
        ) is not None:
            known = np.concatenate((known, more))
        yield _joined(rows, known)


def _joined(rows: Rows, known: Rows) -> Rows:
    joined = not_launched(rows)
    at = _find(rows["correlation"], known["correlation"])
    found = np.flatnonzero(at >= 0)
    launch = known[at[found]]
    joined["launch"][found] = launch["start"]
    joined["launch_thread"][found] = launch["thread"]
    joined["geometry"][found] = np.where(rows["geometry"][found] < 0, launch["geometry"], rows["geometry"][found])
    return joined


def _find(wanted: Int64, known: Int64) -> Int64:
    """Return where each value first stands in the sorted `known`, -1 where it does not."""
    if len(known) == 0:
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, at, -1)


@dataclass(frozen=True)
class Slab:
    """All work between two moments.

    Attributes:
        begin: Start of the slab. Unit: ns as the file counts.
        end: End of the slab.
        rows: Rows of `LAUNCHED` that run in it, by start; those from before it come first.
        following: The row that begins at `end`, shape (1,); shape (0,) at the end of the trace.
        num_dropped: Exact duplicates left out.
    """

    begin: int
    end: int
    rows: Rows
    following: Rows
    num_dropped: int

    @property
    def start(self) -> Int64:
        """Return the start of every row within the slab."""
        return np.asarray(np.maximum(self.rows["start"], self.begin))

    @property
    def stop(self) -> Int64:
        """Return the end of every row within the slab."""
        return np.asarray(np.minimum(self.rows["start"] + self.rows["duration"], self.end))

    @property
    def is_begun(self) -> Bool:
        """Return which rows begin within the slab."""
        return np.asarray(self.rows["start"] >= self.begin)

    @property
    def is_done(self) -> Bool:
        """Return which rows end within the slab."""
        return np.asarray(self.rows["start"] + self.rows["duration"] <= self.end)


def slabs(blocks: Iterable[Rows], *, keep_duplicates: bool = False) -> Iterator[Slab]:
    """Yield the slabs of a trace.

    Args:
        blocks: Rows of `LAUNCHED` by start; rows with the same start stand in the same block.
        keep_duplicates: Take rows that are equal in everything for different work.
    """
    waiting: Rows | None = None
    carried: Rows | None = None
    num_dropped = 0
    for following in blocks:
        if not keep_duplicates:
            following, num_next = _without_duplicates(following)
        else:
            num_next = 0
        if waiting is not None:
            slab = _slab(carried, waiting, following[:1], num_dropped)
            yield slab
            carried = slab.rows[~slab.is_done]
        waiting, num_dropped = following, num_next
    if waiting is not None:
        yield _slab(carried, waiting, waiting[:0], num_dropped)


def _slab(carried: Rows | None, rows: Rows, following: Rows, num_dropped: int) -> Slab:
    begin = int(rows["start"][0])
    if carried is not None and len(carried):
        rows = np.concatenate((carried, rows))
    end = int(following["start"][0]) if len(following) else int((rows["start"] + rows["duration"]).max())
    return Slab(begin, end, rows, following, num_dropped)


def _without_duplicates(rows: Rows) -> tuple[Rows, int]:
    """Return the rows without those equal to another in time, stream, name and correlation, and how many went."""
    start = rows["start"]
    is_tied = np.zeros(len(rows), dtype=bool)
    is_tied[1:] = start[1:] == start[:-1]
    is_tied[:-1] |= is_tied[1:]
    tied = np.flatnonzero(is_tied)
    if len(tied) == 0:
        return rows, 0
    told_apart = [rows[name][tied] for name in ("start", "duration", "thread", "name", "correlation", "category")]
    _, first = np.unique(np.stack(told_apart, axis=1), axis=0, return_index=True)
    kept = np.ones(len(rows), dtype=bool)
    kept[tied] = False
    kept[tied[first]] = True
    return rows[kept], int(len(rows) - kept.sum())
