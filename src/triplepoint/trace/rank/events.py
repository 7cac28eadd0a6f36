"""Events of a trace, their operations and labels, the host calls that launched them, and slabs of time."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from triplepoint.trace import Bool, Int64
from triplepoint.trace.kineto import LAUNCH, ROW, Category, Rows
from triplepoint.trace.kineto.external_sort import Sorter
from triplepoint.trace.kineto.reader import Header, Message
from triplepoint.trace.rank_results import Label
from triplepoint.trace.taxonomy import Kernel

NEVER = np.iinfo(np.int64).min
"""Launch time of work whose launch was not recorded."""

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
"""A row of work: the fields of `ROW`, time and thread of its launch, number of its operation, exposed time, sequence
number among the collectives of its kind and group."""


@dataclass(frozen=True)
class Events:
    """Events of a trace in memory.

    Attributes:
        header: Names and messages that the rows refer to.
        rows: Array of `ROW`, in any order.
    """

    header: Header
    rows: Rows

    @property
    def start(self) -> Int64:
        """Start of every event. Unit: ns as the file counts."""
        return np.ascontiguousarray(self.rows["start"])

    @property
    def end(self) -> Int64:
        """End of every event. Unit: ns as the file counts."""
        return np.asarray(self.rows["start"] + self.rows["duration"])

    @property
    def thread(self) -> Int64:
        """Number of every event's thread, on a GPU of its stream."""
        return np.ascontiguousarray(self.rows["thread"])

    def name(self, event: int) -> str:
        """Return the name of an event."""
        return self.header.names[int(self.rows["name"][event])]

    def message(self, event: int) -> Message:
        """Return the communication arguments of an event."""
        index = self.rows["message"][event]
        return self.header.messages[index] if index >= 0 else Message()

    def named(self, category: Category, pattern: str | re.Pattern[str]) -> Int64:
        """Return the indices of the events of a category whose name begins with a match of a pattern, by start."""
        of_category = np.flatnonzero(self.rows["category"] == category)
        names = self.rows["name"][of_category]
        matches = re.compile(pattern).match
        matching = [index for index in np.unique(names).tolist() if matches(self.header.names[index])]
        events = of_category[np.isin(names, matching)]
        by_start: Int64 = events[np.argsort(self.rows["start"][events], kind="stable")]
        return by_start


class Operation(NamedTuple):
    """A distinct operation of a trace: class and kind, role of the process group, and name."""

    kernel: Kernel
    group: str | None
    name: str

    @property
    def label(self) -> Label:
        """Label of its time: by class for computation, else by kind."""
        category = self.kernel.category
        return Label(category, self.kernel.cls if category == "compute" else self.kernel.kind, self.group)


class Operations:
    """Distinct operations and labels, numbered in the order in which they were added."""

    def __init__(self) -> None:
        self._operations: dict[Operation, int] = {}
        self._labels: dict[Label, int] = {}
        self.label_of: list[int] = []
        """Number of the label of every operation."""

    @property
    def known(self) -> list[Operation]:
        """All operations so far, by number."""
        return list(self._operations)

    @property
    def labels(self) -> list[Label]:
        """All labels so far, by number."""
        return list(self._labels)

    def number(self, operation: Operation) -> int:
        """Return the number of an operation, which is added if it is new."""
        index = self._operations.setdefault(operation, len(self._operations))
        if index == len(self.label_of):
            self.label_of.append(self.label_number(operation.label))
        return index

    def label_number(self, label: Label) -> int:
        """Return the number of a label, which is added if it is new."""
        return self._labels.setdefault(label, len(self._labels))

    def of_category(self, category: str) -> list[int]:
        """Return the numbers of the labels of a category."""
        return [index for label, index in self._labels.items() if label.category == category]


def as_launches(calls: Rows) -> Rows:
    """Convert runtime calls from rows of `ROW`, as begin and end events give them, to rows of `LAUNCH`."""
    with_correlation: Rows = calls[calls["correlation"] > 0][list(LAUNCH.names or ())].astype(LAUNCH)
    return with_correlation


def not_launched(rows: Rows) -> Rows:
    """Convert rows of `ROW` to rows of `LAUNCHED` without launch, operation and sequence number."""
    extended = np.empty(len(rows), dtype=LAUNCHED)
    # The fields of ROW are the first of LAUNCHED, so that they can be copied as bytes.
    as_bytes = extended.view(np.uint8).reshape(len(rows), LAUNCHED.itemsize)
    as_bytes[:, : ROW.itemsize] = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), ROW.itemsize)
    extended["launch"], extended["launch_thread"], extended["operation"], extended["exposed"] = NEVER, -1, -1, 0
    extended["sequence"] = -1
    return extended


def join_launches(device: Sorter, launches: Sorter) -> Iterator[Rows]:
    """Join device work with its launches by correlation.

    The geometry of a kernel is part of its launch with ROCm, and of the kernel with CUDA.

    Args:
        device: Rows of `ROW`, sorted by correlation.
        launches: Rows of `LAUNCH`, sorted by correlation.

    Yields:
        Rows of `LAUNCHED`, by correlation.
    """
    launch_blocks = launches.blocks()
    window = np.empty(0, dtype=LAUNCH)
    for rows in device.blocks():
        window = window[np.searchsorted(window["correlation"], rows["correlation"][0]) :]
        while (len(window) == 0 or window["correlation"][-1] < rows["correlation"][-1]) and (
            more := next(launch_blocks, None)
        ) is not None:
            window = np.concatenate((window, more))
        yield _joined(rows, window)


def _joined(rows: Rows, launches: Rows) -> Rows:
    joined = not_launched(rows)
    at = _find(rows["correlation"], launches["correlation"])
    has_launch = np.flatnonzero(at >= 0)
    launch = launches[at[has_launch]]
    joined["launch"][has_launch] = launch["start"]
    joined["launch_thread"][has_launch] = launch["thread"]
    own_geometry = rows["geometry"][has_launch]
    joined["geometry"][has_launch] = np.where(own_geometry < 0, launch["geometry"], own_geometry)
    return joined


def _find(values: Int64, sorted_values: Int64) -> Int64:
    """Return the first position of each value in `sorted_values`, -1 if it is not in there."""
    if len(sorted_values) == 0:
        return np.full(len(values), -1)
    at = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    return np.where(sorted_values[at] == values, at, -1)


@dataclass(frozen=True)
class Slab:
    """All work within a time window. The slabs of a trace are adjacent, so that it is processed in constant memory.

    Attributes:
        begin: Start of the window. Unit: ns as the file counts.
        end: End of the window. Unit: ns as the file counts.
        rows: Rows of `LAUNCHED` that run in the window, sorted by start.
        following: The row that begins at `end`, shape (1,); shape (0,) at the end of the trace.
        num_dropped: Number of exact duplicates left out.
    """

    begin: int
    end: int
    rows: Rows
    following: Rows
    num_dropped: int

    @cached_property
    def start(self) -> Int64:
        """Start of every row within the window. Unit: ns as the file counts."""
        return np.asarray(np.maximum(self.rows["start"], self.begin))

    @cached_property
    def stop(self) -> Int64:
        """End of every row within the window. Unit: ns as the file counts."""
        return np.asarray(np.minimum(self.rows["start"] + self.rows["duration"], self.end))

    @cached_property
    def is_begun(self) -> Bool:
        """Whether each row begins within the window."""
        return np.asarray(self.rows["start"] >= self.begin)

    @cached_property
    def is_done(self) -> Bool:
        """Whether each row ends within the window."""
        return np.asarray(self.rows["start"] + self.rows["duration"] <= self.end)


def slabs(blocks: Iterable[Rows], *, keep_duplicates: bool = False) -> Iterator[Slab]:
    """Yield the slabs of a trace.

    Args:
        blocks: Rows of `LAUNCHED`, sorted by start; rows with the same start are in the same block.
        keep_duplicates: Whether identical rows are different work.
    """
    current: Rows | None = None
    unfinished: Rows | None = None
    num_dropped = 0
    for following in blocks:
        if not keep_duplicates:
            following, num_dropped_next = _without_duplicates(following)
        else:
            num_dropped_next = 0
        if current is not None:
            slab = _slab(unfinished, current, following[:1], num_dropped)
            yield slab
            unfinished = slab.rows[~slab.is_done]
        current, num_dropped = following, num_dropped_next
    if current is not None:
        yield _slab(unfinished, current, current[:0], num_dropped)


def _slab(unfinished: Rows | None, rows: Rows, following: Rows, num_dropped: int) -> Slab:
    begin = int(rows["start"][0])
    if unfinished is not None and len(unfinished):
        rows = np.concatenate((unfinished, rows))
    end = int(following["start"][0]) if len(following) else int((rows["start"] + rows["duration"]).max())
    return Slab(begin, end, rows, following, num_dropped)


def _without_duplicates(rows: Rows) -> tuple[Rows, int]:
    """Return the rows without those equal to another in time, stream, name and correlation, and their number."""
    start = rows["start"]
    shares_start = np.zeros(len(rows), dtype=bool)
    shares_start[1:] = start[1:] == start[:-1]
    shares_start[:-1] |= shares_start[1:]
    candidates = np.flatnonzero(shares_start)
    if len(candidates) == 0:
        return rows, 0
    identity = [rows[name][candidates] for name in ("start", "duration", "thread", "name", "correlation", "category")]
    _, first = np.unique(np.stack(identity, axis=1), axis=0, return_index=True)
    is_kept = np.ones(len(rows), dtype=bool)
    is_kept[candidates] = False
    is_kept[candidates[first]] = True
    return rows[is_kept], int(len(rows) - is_kept.sum())
