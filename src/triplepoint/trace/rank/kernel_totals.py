"""Sums per operation: how often it ran, how long, and its launch geometry, per step and over all steps."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from triplepoint.trace.arrays import Int64
from triplepoint.trace.kineto.reader import Geometry
from triplepoint.trace.kineto.rows import Rows
from triplepoint.trace.lanes import Step
from triplepoint.trace.rank.operations import Operations

COLUMNS = (
    "num_blocks",
    "threads_per_block",
    "registers_per_thread",
    "shared_memory_bytes",
    "blocks_per_sm",
    "warps_per_sm",
    "occupancy",
)
"""Columns of table `kernels` that tell how a kernel was launched."""


def geometry_values(geometries: Sequence[Geometry]) -> npt.NDArray[np.float64]:
    """Return the values of `COLUMNS`, shape (num_geometries, num_columns), NaN where not told or no number."""
    rows = [
        (
            _product(one.grid),
            _product(one.block),
            _number(one.registers),
            _number(one.shared_memory),
            _number(one.blocks_per_sm),
            _number(one.warps_per_sm),
            _number(one.occupancy_percent) / 100,
        )
        for one in geometries
    ]
    values = np.array(rows, dtype=np.float64).reshape(-1, len(COLUMNS))
    # Some drivers estimate a little more than there can be.
    values[:, COLUMNS.index("occupancy")] = np.minimum(values[:, COLUMNS.index("occupancy")], 1.0)
    return np.where(values >= 0, values, np.nan)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 2**63 else np.nan


def _product(sizes: Any) -> float:
    return float(np.prod([_number(size) for size in sizes])) if isinstance(sizes, list) and sizes else np.nan


Floats = npt.NDArray[np.float64]

_OUTSIDE = -1


class _Sums:
    """Sums of one step: one entry an operation."""

    def __init__(self, num_operations: int) -> None:
        self.count = np.zeros(num_operations, dtype=np.int64)
        self.sum_ns = np.zeros(num_operations, dtype=np.int64)
        self.min_ns = np.full(num_operations, np.iinfo(np.int64).max)
        self.max_ns = np.zeros(num_operations, dtype=np.int64)
        self.weight: Counter[tuple[int, int]] = Counter()
        """Time of every (operation, geometry)."""

    def add(self, rows: Rows) -> None:
        operation, duration = rows["operation"], rows["duration"]
        self.count += np.bincount(operation, minlength=len(self.count))
        np.add.at(self.sum_ns, operation, duration)
        np.minimum.at(self.min_ns, operation, duration)
        np.maximum.at(self.max_ns, operation, duration)
        told = np.flatnonzero(rows["geometry"] >= 0)
        pairs = np.stack((operation[told], rows["geometry"][told]), axis=1).astype(np.int64)
        packed, which = np.unique(pairs[:, 0] << 32 | pairs[:, 1], return_inverse=True)
        # A kernel of no length still weighs something.
        weight = np.bincount(which, np.maximum(duration[told], 1), len(packed))
        for pair, time in zip(packed.tolist(), weight.tolist(), strict=True):
            self.weight[pair >> 32, pair & 0xFFFFFFFF] += time

    def rows(self, operations: Operations, geometries: Floats) -> Iterator[dict[str, Any]]:
        known = operations.known
        geometry = self._geometry(geometries)
        for index in np.flatnonzero(self.count).tolist():
            kernel, group, name = known[index]
            yield {
                "class": kernel.cls,
                "kind": kernel.kind,
                "group": group,
                "name": name,
                "count": int(self.count[index]),
                "sum_ns": int(self.sum_ns[index]),
                "min_ns": int(self.min_ns[index]),
                "max_ns": int(self.max_ns[index]),
                **dict(zip(COLUMNS, geometry[index], strict=True)),
            }

    def _geometry(self, geometries: Floats) -> list[list[float | None]]:
        """Return the means of every operation, None where nothing tells."""
        sums = np.zeros((len(self.count), len(COLUMNS)))
        weights = np.zeros_like(sums)
        for (operation, geometry), time in self.weight.items():
            value = geometries[geometry]
            told = ~np.isnan(value)
            sums[operation, told] += time * value[told]
            weights[operation, told] += time
        with np.errstate(invalid="ignore"):
            means = sums / weights
        return [[None if np.isnan(one) else one for one in row] for row in means.tolist()]


class KernelTotals:
    """Sums per operation of one rank."""

    def __init__(self, operations: Operations, steps: list[Step], geometries: Floats) -> None:
        """Start with nothing.

        Args:
            operations: The operations of all rows to come.
            geometries: What their geometries are, see `geometry_values`.
            steps: Steps of the rank, by number.
        """
        self._operations = operations
        self._geometries = geometries
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
                for row in self._open.pop(index).rows(self._operations, self._geometries):
                    yield {"step": number, **row}

    def _step_of(self, start: Int64) -> Int64:
        at = np.searchsorted(self._starts, start, side="right") - 1
        is_inside = (at >= 0) & (start < self._ends[at]) if len(self._ends) else np.zeros(len(start), dtype=bool)
        return np.where(is_inside, self._order[at] if len(self._order) else 0, _OUTSIDE)
