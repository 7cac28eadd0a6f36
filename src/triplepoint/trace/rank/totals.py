"""Sums per operation: how often it ran, how long, and how it was launched, per step and over everything."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from triplepoint.trace.kineto.rows import Int64, Rows
from triplepoint.trace.lanes import Step
from triplepoint.trace.rank.operations import Operations

GEOMETRY = (
    "num_blocks",
    "threads_per_block",
    "registers_per_thread",
    "shared_memory_bytes",
    "blocks_per_sm",
    "warps_per_sm",
    "occupancy",
)
"""Columns that tell how a kernel was launched: means weighted by duration, of the occurrences that tell."""

_OUTSIDE = -1


class _Sums:
    """Sums of one step: one entry an operation."""

    def __init__(self, num_operations: int) -> None:
        self.count = np.zeros(num_operations, dtype=np.int64)
        self.sum_ns = np.zeros(num_operations, dtype=np.int64)
        self.min_ns = np.full(num_operations, np.iinfo(np.int64).max)
        self.max_ns = np.zeros(num_operations, dtype=np.int64)
        self.weighted = np.zeros((len(GEOMETRY), num_operations))
        self.weight = np.zeros((len(GEOMETRY), num_operations))

    def add(self, rows: Rows) -> None:
        operation, duration = rows["operation"], rows["duration"]
        size = len(self.count)
        self.count += np.bincount(operation, minlength=size)
        np.add.at(self.sum_ns, operation, duration)
        np.minimum.at(self.min_ns, operation, duration)
        np.maximum.at(self.max_ns, operation, duration)
        # A kernel of no length still weighs something.
        weight = np.maximum(duration, 1).astype(np.float64)
        for index, name in enumerate(GEOMETRY):
            told = rows[name] >= 0  # neither -1 nor NaN
            if told.any():
                self.weight[index] += np.bincount(operation[told], weight[told], size)
                self.weighted[index] += np.bincount(operation[told], weight[told] * rows[name][told], size)

    def rows(self, operations: Operations) -> Iterator[dict[str, Any]]:
        known = operations.known
        for index in np.flatnonzero(self.count).tolist():
            kernel, group, name = known[index]
            geometry = {
                column: self.weighted[at, index] / self.weight[at, index] if self.weight[at, index] else None
                for at, column in enumerate(GEOMETRY)
            }
            yield {
                "class": kernel.cls,
                "kind": kernel.kind,
                "group": group,
                "name": name,
                "count": int(self.count[index]),
                "sum_ns": int(self.sum_ns[index]),
                "min_ns": int(self.min_ns[index]),
                "max_ns": int(self.max_ns[index]),
                **geometry,
            }


class KernelTotals:
    """Sums per operation of one rank."""

    def __init__(self, operations: Operations, steps: list[Step]) -> None:
        """Start with nothing.

        Args:
            operations: The operations of all rows to come.
            steps: Steps of the rank, by number.
        """
        self._operations = operations
        self._steps = steps
        by_start = sorted(range(len(steps)), key=lambda index: steps[index].start)
        self._order = np.array(by_start, dtype=np.int64)
        self._starts = np.array([steps[index].start for index in by_start], dtype=np.int64)
        self._ends = np.array([steps[index].end for index in by_start], dtype=np.int64)
        self._open: dict[int, _Sums] = {}

    def add(self, rows: Rows) -> None:
        """Add occurrences; each counts whole for the step it starts in."""
        step = self._step_of(rows["start"])
        for index in np.unique(step).tolist():
            sums = self._open.setdefault(index, _Sums(len(self._operations.known)))
            sums.add(rows[step == index])

    def closed(self, before: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield and forget the rows of steps that ended before a time, all rows where it is None. Unit: ns."""
        for index in sorted(self._open):
            if before is None or (index != _OUTSIDE and self._steps[index].end < before):
                number = None if index == _OUTSIDE else self._steps[index].number
                for row in self._open.pop(index).rows(self._operations):
                    yield {"step": number, **row}

    def _step_of(self, start: Int64) -> Int64:
        at = np.searchsorted(self._starts, start, side="right") - 1
        is_inside = (at >= 0) & (start < self._ends[at]) if len(self._ends) else np.zeros(len(start), dtype=bool)
        return np.where(is_inside, self._order[at] if len(self._order) else 0, _OUTSIDE)
