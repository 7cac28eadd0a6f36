"""Rows as the scanner of Kineto traces gives them, made of columns of integers."""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.trace import Int64
from triplepoint.trace.kineto import HAS_STREAM, LAUNCH, ROW, Category, Rows
from triplepoint.trace.kineto.reader import Geometry, Sink
from triplepoint.trace.taxonomy import collective_kind

GEOMETRY_COLUMNS = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "shared_memory")
"""What `Emitter.geometry` takes: blocks, threads of a block, registers per thread, bytes of shared memory."""

_MIXING = np.array([0x9E3779B97F4A7C15 ^ (index * 0xC2B2AE3D27D4EB4F) | 1 for index in range(16)], dtype=object)


class Times(NamedTuple):
    """When work ran, and which call of the host launched it. Unit: ns as the file counts; shape of each (num_rows,)."""

    start: Int64
    end: Int64
    correlation: Int64


class Emitter:
    """Hands rows to a sink, and keeps the names, threads and geometries they refer to.

    Attributes:
        names: Distinct names so far.
        geometries: Distinct geometries so far.
        num_events: Events taken.
        num_damaged: Events that end before they begin, which were left out.
    """

    def __init__(self, sink: Sink, progress: Callable[[int], None] = lambda count: None) -> None:
        """Start with nothing.

        Args:
            sink: Takes the rows.
            progress: Called with the number of events after every batch.
        """
        self._sink = sink
        self._progress = progress
        self._name_of: dict[str, int] = {}
        self._thread_of: dict[Hashable, int] = {}
        self._geometry_of: dict[tuple[int, ...], int] = {}
        self.names: list[str] = []
        self.geometries: list[Geometry] = []
        self.num_events = 0
        self.num_damaged = 0

    def name(self, text: str) -> int:
        """Return the number of a name."""
        number = self._name_of.setdefault(text, len(self._name_of))
        if number == len(self.names):
            self.names.append(text)
        return number

    def threads(self, kind: str, values: Int64) -> Int64:
        """Return the numbers of threads of the host, or of streams of the GPU, by what the file calls them."""
        return _looked_up(values, lambda value: self._thread_of.setdefault((kind, value), len(self._thread_of)))

    def geometry(self, values: Int64) -> Int64:
        """Return the numbers of geometries.

        Args:
            values: Shape (num_rows, len(GEOMETRY_COLUMNS)), -1 where not told.
        """
        first, which = _distinct_rows(values)
        numbers = [self._geometry_number(tuple(values[row].tolist())) for row in first.tolist()]
        return np.array(numbers, dtype=np.int64)[which] if numbers else np.empty(0, dtype=np.int64)

    def _geometry_number(self, one: tuple[int, ...]) -> int:
        if all(value < 0 for value in one):
            return -1
        number = self._geometry_of.setdefault(one, len(self._geometry_of))
        if number == len(self.geometries):
            grid, block, (registers, shared) = one[:3], one[3:6], one[6:]
            self.geometries.append(
                Geometry(
                    grid=list(grid) if min(grid) >= 0 else None,
                    block=list(block) if min(block) >= 0 else None,
                    registers=registers if registers >= 0 else None,
                    shared_memory=shared if shared >= 0 else None,
                )
            )
        return number

    def work(self, category: Category, times: Times, name: Int64, stream: Int64, geometry: Int64 | None = None) -> None:
        """Give work of the GPU; names, streams (`threads`) and geometries as numbers, times in ns of the file."""
        rows = self._rows(category, times.start, times.end, name, self.threads("stream", stream))
        rows["correlation"] = np.where(times.correlation > 0, times.correlation, -1)
        rows["geometry"] = -1 if geometry is None else geometry
        rows["flags"] = HAS_STREAM
        self._give(rows)

    def ranges(self, start: Int64, end: Int64, name: Int64, thread: Int64) -> None:
        """Give ranges of NVTX, ROCTX and the calls of NCCL and RCCL, as annotations of the host."""
        self._give(self._rows(Category.ANNOTATION, start, end, name, self.threads("host", thread)))

    def launches(self, start: Int64, correlation: Int64, thread: Int64) -> None:
        """Give calls of the runtime that work of the GPU may refer to."""
        rows = np.empty(len(start), dtype=LAUNCH)
        rows["start"], rows["correlation"], rows["geometry"] = start, correlation, -1
        rows["thread"] = self.threads("host", thread)
        self.num_events += len(rows)
        rows = rows[correlation > 0]
        if len(rows):
            self._sink(rows, self.names)

    def _rows(self, category: Category, start: Int64, end: Int64, name: Int64, thread: Int64) -> Rows:
        rows = np.zeros(len(start), dtype=ROW)
        rows["start"], rows["duration"], rows["name"], rows["thread"] = start, end - start, name, thread
        rows["correlation"] = rows["message"] = rows["geometry"] = -1
        rows["category"] = category
        return rows

    def _give(self, rows: Rows) -> None:
        whole = rows[rows["duration"] >= 0]
        self.num_events += len(rows)
        self._progress(self.num_events)
        self.num_damaged += len(rows) - len(whole)
        if len(whole):
            self._sink(whole, self.names)


def named_range(text: str) -> str:
    """Return a range's name as PyTorch annotates it, where it is a collective of NCCL or RCCL: `nccl:all_reduce`."""
    kind = collective_kind(text) if text.startswith(("nccl", "rccl")) and ":" not in text else None
    return f"nccl:{kind}" if kind else text


def _looked_up(values: Int64, number_of: Callable[[int], int]) -> Int64:
    distinct, which = np.unique(values, return_inverse=True)
    return np.array([number_of(value) for value in distinct.tolist()], dtype=np.int64)[which]


def _distinct_rows(values: Int64) -> tuple[Int64, Int64]:
    """Return where each distinct row first stands, and which of them every row is."""
    mixing: Sequence[int] = [int(factor) % 2**64 for factor in _MIXING[: values.shape[1]]]
    mixed = (values.astype(np.uint64) * np.array(mixing, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    _, first, which = np.unique(mixed, return_index=True, return_inverse=True)
    if not np.array_equal(values, values[first[which]]):  # two rows mixed to one number: sort them whole
        _, first, which = np.unique(values, axis=0, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def numbers(values: Sequence[int] | Sequence[Sequence[int]] | Int64) -> npt.NDArray[np.int64]:
    """Return integers as an array of 64 bits."""
    return np.array(values, dtype=np.int64)
