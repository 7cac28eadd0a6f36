"""Build rows like those of the scanner of Kineto traces from columns of integers."""

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.trace import Int64
from triplepoint.trace.kineto import HAS_STREAM, LAUNCH, ROW, Category, Rows
from triplepoint.trace.kineto.reader import Geometry, Sink
from triplepoint.trace.taxonomy import collective_kind

GEOMETRY_FIELDS = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "registers", "shared_memory")
"""Columns of `Emitter.geometry`: blocks, threads per block, registers per thread, bytes of shared memory."""

_MIXING = np.array([0x9E3779B97F4A7C15 ^ (index * 0xC2B2AE3D27D4EB4F) | 1 for index in range(16)], dtype=object)
"""Odd factors of a hash of rows, one per column."""


class Times(NamedTuple):
    """Start, end and correlation of work; shape of each (num_rows,). Unit of times: ns as the file counts."""

    start: Int64
    end: Int64
    correlation: Int64


class Emitter:
    """Passes rows to a sink, and numbers the names, threads and geometries that they refer to.

    Attributes:
        names: Distinct names so far.
        geometries: Distinct geometries so far.
        num_events: Number of events so far.
        num_damaged: Number of events that end before they begin, which are left out.
    """

    def __init__(self, sink: Sink, progress: Callable[[int], None] = lambda count: None) -> None:
        """Start with no events.

        Args:
            sink: Receives the rows.
            progress: Receives the number of events after every batch.
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
        """Return the number of each thread.

        Args:
            kind: "host" for threads of the host, "stream" for streams of the GPU.
            values: Identifiers of the threads or streams in the file; shape (num_rows,).
        """
        return _map_distinct(values, lambda value: self._thread_of.setdefault((kind, value), len(self._thread_of)))

    def geometry(self, values: Int64) -> Int64:
        """Return the number of each row's geometry, -1 if no field of it is known.

        Args:
            values: Fields in the order of GEOMETRY_FIELDS, -1 if unknown; shape (num_rows, len(GEOMETRY_FIELDS)).
        """
        first, index = _distinct_rows(values)
        numbers = [self._geometry_number(tuple(values[row].tolist())) for row in first.tolist()]
        return np.array(numbers, dtype=np.int64)[index] if numbers else np.empty(0, dtype=np.int64)

    def _geometry_number(self, fields: tuple[int, ...]) -> int:
        if all(value < 0 for value in fields):
            return -1
        number = self._geometry_of.setdefault(fields, len(self._geometry_of))
        if number == len(self.geometries):
            grid, block, (registers, shared) = fields[:3], fields[3:6], fields[6:]
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
        """Emit GPU work.

        Args:
            category: Kernel, copy or fill.
            times: Times and correlations.
            name: Numbers from `name`.
            stream: Identifiers of streams in the file.
            geometry: Numbers from `geometry`; None if unknown.
        """
        rows = self._rows(category, times.start, times.end, name, self.threads("stream", stream))
        rows["correlation"] = np.where(times.correlation > 0, times.correlation, -1)
        rows["geometry"] = -1 if geometry is None else geometry
        rows["flags"] = HAS_STREAM
        self._emit(rows)

    def ranges(self, start: Int64, end: Int64, name: Int64, thread: Int64) -> None:
        """Emit ranges of NVTX, ROCTX and calls of NCCL and RCCL, as annotations of the host."""
        self._emit(self._rows(Category.ANNOTATION, start, end, name, self.threads("host", thread)))

    def launches(self, start: Int64, correlation: Int64, thread: Int64) -> None:
        """Emit runtime calls, to which GPU work may refer."""
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

    def _emit(self, rows: Rows) -> None:
        undamaged = rows[rows["duration"] >= 0]
        self.num_events += len(rows)
        self._progress(self.num_events)
        self.num_damaged += len(rows) - len(undamaged)
        if len(undamaged):
            self._sink(undamaged, self.names)


def named_range(text: str) -> str:
    """Return the name of a range. Collectives of NCCL and RCCL are named as by PyTorch: `nccl:all_reduce`."""
    kind = collective_kind(text) if text.startswith(("nccl", "rccl")) and ":" not in text else None
    return f"nccl:{kind}" if kind else text


def _map_distinct(values: Int64, number_of: Callable[[int], int]) -> Int64:
    """Return `number_of` of each value, calling it once per distinct value."""
    distinct, index = np.unique(values, return_inverse=True)
    return np.array([number_of(value) for value in distinct.tolist()], dtype=np.int64)[index]


def _distinct_rows(values: Int64) -> tuple[Int64, Int64]:
    """Return the position of each distinct row, and every row's index among the distinct ones."""
    factors: Sequence[int] = [int(factor) % 2**64 for factor in _MIXING[: values.shape[1]]]
    hashes = (values.astype(np.uint64) * np.array(factors, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    _, first, index = np.unique(hashes, return_index=True, return_inverse=True)
    if not np.array_equal(values, values[first[index]]):  # two rows have the same hash: compare whole rows
        _, first, index = np.unique(values, axis=0, return_index=True, return_inverse=True)
    return first, index.reshape(-1)


def numbers(values: Sequence[int] | Sequence[Sequence[int]] | Int64) -> npt.NDArray[np.int64]:
    """Return integers as an array of 64-bit integers."""
    return np.array(values, dtype=np.int64)
