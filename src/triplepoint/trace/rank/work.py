"""The work in a trace: computation, communication and memory operations, of a GPU or of the CPU itself.

A trace with GPU rows is judged by them alone: kernels, copies and fills. Rows of synchronisation and operators on the
CPU do not count, even where they carry a stream. A trace without GPU rows is judged by the work of the CPU:

- An instant of a thread belongs to the innermost operator running on it. It counts if that is a computing operator
  (`aten::mm`), not if it is a collective's call (`c10d::`), a wait, an autograd node or a `record_function`. So nothing
  is counted twice on a thread, and `kernels` holds self times. Two threads at once count once in `intervals`.
- Operators that only move, fill or allocate (class memory) are memory, all others computation.
- Communication is `gloo:*` in flight (see `collectives`).

Totals per operation: how often it ran, how long, and its launch geometry, per step and over all steps.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triplepoint.errors import UserError
from triplepoint.trace import Int64
from triplepoint.trace.distinct import distinct_rows
from triplepoint.trace.kineto import LAUNCH, ROW, Category, Rows, is_device
from triplepoint.trace.kineto.external_sort import Sorter
from triplepoint.trace.kineto.reader import Geometry, Header
from triplepoint.trace.lanes import Step
from triplepoint.trace.profilers import Part
from triplepoint.trace.rank.collectives import DeviceOperations, host_collectives
from triplepoint.trace.rank.events import (
    Events,
    Operation,
    Operations,
    as_launches,
    join_launches,
    not_launched,
    slabs,
)
from triplepoint.trace.rank.intervals import self_segments
from triplepoint.trace.rank.phases import DevicePhases, Phases, find_steps, host_phases, is_mark
from triplepoint.trace.rank.process_groups import GroupRecord, Groups
from triplepoint.trace.reader import read_trace
from triplepoint.trace.taxonomy import Kernel, Scheme

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


Floats = npt.NDArray[np.float64]

_OUTSIDE = -1


_COMPUTES = re.compile(
    r"(?!c10d::|_c10d_functional|_dtensor::|autograd::|torch::autograd|profiler::|symm_mem::|inductor::)[a-z_]\w*::"
)
_NOT_WORK = -1


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
        # Of whole columns, and of the type that numpy indexes with: in the rows, sums take four times as long.
        operation, duration = rows["operation"].astype(np.intp), np.ascontiguousarray(rows["duration"])
        self.count += np.bincount(operation, minlength=len(self.count))
        np.add.at(self.sum_ns, operation, duration)
        np.minimum.at(self.min_ns, operation, duration)
        np.maximum.at(self.max_ns, operation, duration)
        told = np.flatnonzero(rows["geometry"] >= 0)
        pairs, which = distinct_rows(operation[told], rows["geometry"][told])
        # A kernel of no length still weighs something.
        weight = np.bincount(which, np.maximum(duration[told], 1), len(pairs))
        for (one, geometry), time in zip(pairs.tolist(), weight.tolist(), strict=True):
            self.weight[one, geometry] += time

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


@dataclass(frozen=True)
class Reading:
    """How to read a trace.

    Attributes:
        scheme: Rules of the taxonomy.
        scratch: Folder for what does not fit in memory.
        is_alone: Whether the job has no other trace, so that nothing is kept for an analysis across ranks.
        progress: Called now and then while reading.
        part: Which part of the file is this rank's; None for a trace of Kineto.
        steps: Names of the annotations that are the steps; None for those that profilers and frameworks give them.
    """

    scheme: Scheme
    scratch: Path
    is_alone: bool = False
    progress: Callable[[str], None] = lambda line: None
    part: Part | None = None
    steps: re.Pattern[str] | None = None


class Found:
    """The rows of a trace by what they are for."""

    def __init__(self, scratch: Path, steps: re.Pattern[str] | None = None) -> None:
        self._steps = steps
        self.device = Sorter("correlation", scratch)
        """Kernels, copies and fills: rows of `ROW`."""
        self.launches = Sorter("correlation", scratch)
        """Calls of the runtime: rows of `LAUNCH`."""
        self.operators = Sorter("start", scratch)
        """Operators on the CPU, where they were asked for: rows of `LAUNCHED`."""
        self._marks = np.empty(0, dtype=ROW)
        self._num_marks = 0
        self._is_mark = np.zeros(0, dtype=bool)

    def take(self, rows: Rows, names: list[str]) -> None:
        """Take rows of the trace, as `read_trace` gives them."""
        if rows.dtype == LAUNCH:
            self.launches.add(rows)
            return
        work = is_device(rows)
        self.device.add(rows[work])
        rest = rows[~work]
        self.operators.add(not_launched(rest[rest["category"] == Category.CPU_OP]))
        self.launches.add(as_launches(rest[rest["category"] == Category.RUNTIME]))
        if len(rest):
            new = [is_mark(name, self._steps) for name in names[len(self._is_mark) :]]
            self._is_mark = np.concatenate((self._is_mark, np.array(new, dtype=bool)))
            self._keep(rest[self._is_mark[rest["name"]]])

    def _keep(self, marks: Rows) -> None:
        """Keep marks in one array that doubles: many small ones, kept among large ones that go, tear the heap apart."""
        count = self._num_marks + len(marks)
        if count > len(self._marks):
            grown = np.empty(max(count, 2 * len(self._marks)), dtype=ROW)
            grown[: self._num_marks] = self._marks[: self._num_marks]
            self._marks = grown
        self._marks[self._num_marks : count] = marks
        self._num_marks = count

    def marks(self, header: Header) -> Events:
        """Return the annotations, and the operators that communicate."""
        return Events(header, self._marks[: self._num_marks])


@dataclass(frozen=True)
class Work:
    """The work of one rank. Times in ns as the file counts.

    Attributes:
        marks: Annotations, and operators that communicate.
        is_device: Whether the work is a GPU's.
        operations: What the rows do.
        rows: Rows of `LAUNCHED`, by start.
        steps: Profiled steps, by number.
        phases: Annotated time.
        totals: Sums per operation; of a GPU still to be filled from the rows.
        span: Start of the first and end of the last work; both 0 without any.
    """

    marks: Events
    is_device: bool
    operations: Operations
    rows: Sorter
    steps: list[Step]
    phases: Phases
    totals: KernelTotals
    span: tuple[int, int]


def host_work(found: Found, groups: Groups, how: Reading) -> Work:
    """Return the work of the CPU."""
    marks = found.marks(groups.header)
    operations = Operations()
    communication = _communication(marks, groups, how.scheme, operations)
    operation_of = _computing(marks.header.names, how.scheme, operations)
    # Operators that finish are counted; what each thread did, instant by instant, is the work.
    finished = Sorter("start", how.scratch)
    rows = Sorter("start", how.scratch)
    rows.add(communication)
    for slab in slabs(found.operators.blocks(), keep_duplicates=True):
        start, end, owner = self_segments(slab.start, slab.stop, slab.rows["thread"].astype(np.int64))
        np.add.at(slab.rows["exposed"], owner, end - start)
        slab.rows["operation"] = operation_of[slab.rows["name"]]
        rows.add(_segments(slab.rows, start, end, owner))
        done = slab.rows[slab.is_done & (slab.rows["operation"] != _NOT_WORK)]
        done["duration"] = done["exposed"]
        finished.add(done)
    first, last = _span(rows)
    steps = find_steps(marks, first, last, is_device=False, pattern=how.steps)
    totals = KernelTotals(operations, steps, geometry_values(marks.header.geometries))
    totals.add(communication)
    for block in finished.blocks():
        totals.add(block)
    return Work(marks, False, operations, rows, steps, host_phases(marks), totals, (first, last))


def _communication(marks: Events, groups: Groups, scheme: Scheme, operations: Operations) -> Rows:
    found = host_collectives(marks, groups, scheme)
    rows = not_launched(marks.rows[[one.event for one in found]])
    rows["duration"] = [one.end for one in found] - rows["start"]
    rows["launch"] = rows["start"]
    rows["operation"] = [
        operations.number(Operation(Kernel("comm", one.kind), one.group, marks.name(one.event))) for one in found
    ]
    return rows


def _computing(names: list[str], scheme: Scheme, operations: Operations) -> Int64:
    """Return the operation of every name, `_NOT_WORK` for those that do not compute."""
    operation = np.full(len(names), _NOT_WORK, dtype=np.int64)
    for index, name in enumerate(names):
        if _COMPUTES.match(name):
            operation[index] = operations.number(Operation(scheme.host(name), None, name))
    return operation


def _segments(operators: Rows, start: Int64, end: Int64, owner: Int64) -> Rows:
    """Return the stretches of threads in which an operator itself computed."""
    counts = operators["operation"][owner] != _NOT_WORK
    rows: Rows = operators[owner[counts]]
    rows["start"] = rows["launch"] = start[counts]
    rows["duration"] = end[counts] - start[counts]
    rows["exposed"] = 0
    return rows


def _span(rows: Sorter) -> tuple[int, int]:
    first, last = 0, 0
    for index, block in enumerate(rows.blocks()):
        first = first if index else int(block["start"][0])
        end = int((block["start"] + block["duration"]).max())
        last = max(last, end) if index else end
    return first, last


def read_work(path: Path, record: GroupRecord, how: Reading) -> Work:
    """Read the work of one rank: of its GPU if it has GPU rows, of the CPU otherwise.

    Raises:
        UserError: If the file is no trace.
    """
    found = Found(how.scratch, how.steps)
    header = read_trace(path, found.take, how.part, progress=how.progress)
    if found.device.count == 0 and how.part is not None:
        raise UserError(f"{path.name}: no work of a GPU that ends after it begins; export it again")
    if found.device.count == 0:
        found = Found(how.scratch, how.steps)
        header = read_trace(path, found.take, host=True, progress=how.progress)
        return host_work(found, Groups(record, header), how)
    return _device_work(found, Groups(record, header), how)


def _device_work(found: Found, groups: Groups, how: Reading) -> Work:
    marks = found.marks(groups.header)
    operations = Operations()
    judge = DeviceOperations(marks, groups, how.scheme, operations)
    phases = DevicePhases(marks)
    by_start = Sorter("start", how.scratch)
    first, last = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for rows in join_launches(found.device, found.launches):
        judge.assign(rows)
        computes = np.isin(np.take(operations.label_of, rows["operation"]), operations.of_category("compute"))
        phases.add(rows[computes])
        first = min(first, int(rows["start"].min()))
        last = max(last, int((rows["start"] + rows["duration"]).max()))
        by_start.add(rows)
    steps = find_steps(marks, first, last, is_device=True, pattern=how.steps)
    totals = KernelTotals(operations, steps, geometry_values(marks.header.geometries))
    return Work(_without_named(marks), True, operations, by_start, steps, phases.finish(), totals, (first, last))


def _without_named(marks: Events) -> Events:
    """Leave out the annotations that named collectives, most of all marks: the rows have it from them."""
    done = np.concatenate([marks.named(category, r"nccl:") for category in Category])
    return Events(marks.header, np.delete(marks.rows, done))
