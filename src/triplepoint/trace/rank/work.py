"""Read the work in a trace: computation, communication and memory operations, of a GPU or of the CPU.

In a trace with GPU rows the work is kernels, copies and fills only. Rows of synchronisation and operators on the CPU do
not count, even if they have a stream. In a trace without GPU rows it is the work of the CPU:

- An instant of a thread belongs to the innermost operator. It counts if that operator computes (`aten::mm`), and not if
  it calls a collective (`c10d::`), waits, or is an autograd node or a `record_function`. So nothing counts twice on a
  thread, and `kernels` has self times. In `intervals` two threads at once count once.
- Operators of class memory (moving, filling, allocating) are memory operations; all others are computation.
- Communication is the time of `gloo:*` annotations (see `collectives`).

Totals of an operation are count, times and launch geometry, per step and over all steps.
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
from triplepoint.tables.traces import GEOMETRY
from triplepoint.trace import Int64
from triplepoint.trace.distinct import distinct_rows
from triplepoint.trace.kineto import LAUNCH, ROW, Category, Rows, is_device
from triplepoint.trace.kineto.external_sort import Sorter
from triplepoint.trace.kineto.reader import Geometry, Header
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
from triplepoint.trace.rank_results import Step
from triplepoint.trace.reader import read_trace
from triplepoint.trace.taxonomy import Kernel, Scheme

GEOMETRY_COLUMNS = tuple(column.name for column in GEOMETRY)


Floats = npt.NDArray[np.float64]

_BETWEEN_STEPS = -1
"""Index in place of a step's, for work between steps."""
_NO_OPERATION = -1
"""Number in place of an operation's, for operators that do not compute."""

_COMPUTES = re.compile(
    r"(?!c10d::|_c10d_functional|_dtensor::|autograd::|torch::autograd|profiler::|symm_mem::|inductor::)[a-z_]\w*::"
)
"""Names of operators on the CPU that compute."""


def geometry_values(geometries: Sequence[Geometry]) -> npt.NDArray[np.float64]:
    """Return the values of `GEOMETRY_COLUMNS`, shape (num_geometries, num_columns); NaN if missing or not a number."""
    # In the order of `GEOMETRY_COLUMNS`.
    rows = [
        (
            _product(geometry.grid),
            _product(geometry.block),
            _number(geometry.registers),
            _number(geometry.shared_memory),
            _number(geometry.blocks_per_sm),
            _number(geometry.warps_per_sm),
            _number(geometry.occupancy_percent) / 100,
        )
        for geometry in geometries
    ]
    values = np.array(rows, dtype=np.float64).reshape(-1, len(GEOMETRY_COLUMNS))
    # Some drivers estimate an occupancy slightly above 1.
    occupancy = GEOMETRY_COLUMNS.index("occupancy")
    values[:, occupancy] = np.minimum(values[:, occupancy], 1.0)
    return np.where(values >= 0, values, np.nan)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 2**63 else np.nan


def _product(sizes: Any) -> float:
    return float(np.prod([_number(size) for size in sizes])) if isinstance(sizes, list) and sizes else np.nan


class _StepTotals:
    """Totals of one step; one entry per operation."""

    def __init__(self, num_operations: int) -> None:
        self.count = np.zeros(num_operations, dtype=np.int64)
        self.sum_ns = np.zeros(num_operations, dtype=np.int64)
        self.min_ns = np.full(num_operations, np.iinfo(np.int64).max)
        self.max_ns = np.zeros(num_operations, dtype=np.int64)
        self.geometry_weight: Counter[tuple[int, int]] = Counter()
        """Time of every (operation, geometry). Unit: ns."""

    def add(self, rows: Rows) -> None:
        # Contiguous columns, and indices of numpy's own type: sums over fields of the rows take four times as long.
        operation, duration = rows["operation"].astype(np.intp), np.ascontiguousarray(rows["duration"])
        self.count += np.bincount(operation, minlength=len(self.count))
        np.add.at(self.sum_ns, operation, duration)
        np.minimum.at(self.min_ns, operation, duration)
        np.maximum.at(self.max_ns, operation, duration)
        has_geometry = np.flatnonzero(rows["geometry"] >= 0)
        pairs, index = distinct_rows(operation[has_geometry], rows["geometry"][has_geometry])
        # At least 1, so that the geometry of kernels without duration is not lost.
        weight = np.bincount(index, np.maximum(duration[has_geometry], 1), len(pairs))
        for (number, geometry), time in zip(pairs.tolist(), weight.tolist(), strict=True):
            self.geometry_weight[number, geometry] += time

    def rows(self, operations: Operations, geometries: Floats) -> Iterator[dict[str, Any]]:
        all_operations = operations.known
        geometry = self._mean_geometry(geometries)
        for number in np.flatnonzero(self.count).tolist():
            kernel, group, name = all_operations[number]
            yield {
                "class": kernel.cls,
                "kind": kernel.kind,
                "group": group,
                "name": name,
                "count": int(self.count[number]),
                "sum_ns": int(self.sum_ns[number]),
                "min_ns": int(self.min_ns[number]),
                "max_ns": int(self.max_ns[number]),
                **dict(zip(GEOMETRY_COLUMNS, geometry[number], strict=True)),
            }

    def _mean_geometry(self, geometries: Floats) -> list[list[float | None]]:
        """Return the mean geometry of every operation, weighted by time; None without values."""
        sums = np.zeros((len(self.count), len(GEOMETRY_COLUMNS)))
        weights = np.zeros_like(sums)
        for (operation, geometry), time in self.geometry_weight.items():
            values = geometries[geometry]
            is_known = ~np.isnan(values)
            sums[operation, is_known] += time * values[is_known]
            weights[operation, is_known] += time
        with np.errstate(invalid="ignore"):
            means = sums / weights
        return [[None if np.isnan(mean) else mean for mean in row] for row in means.tolist()]


class KernelTotals:
    """Totals per step and operation of one rank."""

    def __init__(self, operations: Operations, steps: list[Step], geometries: Floats) -> None:
        self._operations = operations
        self._geometries = geometries
        self._steps = steps
        by_start = sorted(range(len(steps)), key=lambda index: steps[index].start)
        self._order = np.array(by_start, dtype=np.int64)
        self._starts = np.array([steps[index].start for index in by_start], dtype=np.int64)
        self._ends = np.array([steps[index].end for index in by_start], dtype=np.int64)
        self._open: dict[int, _StepTotals] = {}
        """Totals that were not given out yet, by index of the step."""

    def add(self, rows: Rows) -> None:
        """Add work: rows of `LAUNCHED`. A row counts completely in the step in which it starts."""
        step = self._step_of(rows["start"])
        for index in np.unique(step).tolist():
            totals = self._open.setdefault(index, _StepTotals(len(self._operations.known)))
            totals.add(rows[step == index])

    def closed(self, before: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield and remove the rows of table `kernels` for steps that ended before a time; None for all. Unit: ns."""
        for index in sorted(self._open):
            if before is None or (index != _BETWEEN_STEPS and self._steps[index].end < before):
                number = None if index == _BETWEEN_STEPS else self._steps[index].number
                for row in self._open.pop(index).rows(self._operations, self._geometries):
                    yield {"step": number, **row}

    def _step_of(self, start: Int64) -> Int64:
        at = np.searchsorted(self._starts, start, side="right") - 1
        is_inside = (at >= 0) & (start < self._ends[at]) if len(self._ends) else np.zeros(len(start), dtype=bool)
        return np.where(is_inside, self._order[at] if len(self._order) else 0, _BETWEEN_STEPS)


@dataclass(frozen=True)
class ReadOptions:
    """Options of reading a trace.

    Attributes:
        scheme: Rules of the taxonomy.
        scratch: Folder for rows that do not fit in memory.
        is_alone: Whether the job has no other trace, so that no segments are written for the analysis across ranks.
        progress: Receives progress, a line at a time.
        part: Part of the file that belongs to this rank; None for a trace of Kineto or Chakra.
        steps: Names of the annotations that mark steps; None for the names that profilers and frameworks use.
    """

    scheme: Scheme
    scratch: Path
    is_alone: bool = False
    progress: Callable[[str], None] = lambda line: None
    part: Part | None = None
    steps: re.Pattern[str] | None = None


class TraceRows:
    """The rows of a trace, sorted into device work, launches, operators and marks."""

    def __init__(self, scratch: Path, steps: re.Pattern[str] | None = None) -> None:
        self._steps = steps
        self.device = Sorter("correlation", scratch)
        """Kernels, copies and fills: rows of `ROW`."""
        self.launches = Sorter("correlation", scratch)
        """Runtime calls: rows of `LAUNCH`."""
        self.operators = Sorter("start", scratch)
        """Operators on the CPU, if they were read: rows of `LAUNCHED`."""
        self._marks = np.empty(0, dtype=ROW)
        self._num_marks = 0
        self._is_mark = np.zeros(0, dtype=bool)

    def take(self, rows: Rows, names: list[str]) -> None:
        """Add rows of the trace; a sink of `read_trace`."""
        if rows.dtype == LAUNCH:
            self.launches.add(rows)
            return
        on_device = is_device(rows)
        self.device.add(rows[on_device])
        on_host = rows[~on_device]
        self.operators.add(not_launched(on_host[on_host["category"] == Category.CPU_OP]))
        self.launches.add(as_launches(on_host[on_host["category"] == Category.RUNTIME]))
        if len(on_host):
            new = [is_mark(name, self._steps) for name in names[len(self._is_mark) :]]
            self._is_mark = np.concatenate((self._is_mark, np.array(new, dtype=bool)))
            self._add_marks(on_host[self._is_mark[on_host["name"]]])

    def _add_marks(self, marks: Rows) -> None:
        """Append marks to one array of doubling size: small arrays among large temporary ones fragment the heap."""
        count = self._num_marks + len(marks)
        if count > len(self._marks):
            grown = np.empty(max(count, 2 * len(self._marks)), dtype=ROW)
            grown[: self._num_marks] = self._marks[: self._num_marks]
            self._marks = grown
        self._marks[self._num_marks : count] = marks
        self._num_marks = count

    def marks(self, header: Header) -> Events:
        """Return annotations and communicating operators."""
        return Events(header, self._marks[: self._num_marks])


@dataclass(frozen=True)
class Work:
    """The work of one rank. Times in ns as the file counts.

    Attributes:
        marks: Annotations and communicating operators.
        is_device: Whether the work is that of a GPU.
        operations: Operations that the rows refer to.
        rows: Rows of `LAUNCHED`, sorted by start.
        steps: Profiled steps, by number.
        phases: Phases of the steps.
        totals: Totals per operation; for a GPU the rows are still to be added.
        span: Start of the first and end of the last work; both 0 if there is none.
    """

    marks: Events
    is_device: bool
    operations: Operations
    rows: Sorter
    steps: list[Step]
    phases: Phases
    totals: KernelTotals
    span: tuple[int, int]


def host_work(trace: TraceRows, groups: Groups, options: ReadOptions) -> Work:
    """Return the work of the CPU."""
    marks = trace.marks(groups.header)
    operations = Operations()
    communication = _communication(marks, groups, options.scheme, operations)
    operation_of = _operation_of_name(marks.header.names, options.scheme, operations)
    # Work is the self time of operators, segment by segment; totals count each operator once, when it ends.
    finished = Sorter("start", options.scratch)
    rows = Sorter("start", options.scratch)
    rows.add(communication)
    for slab in slabs(trace.operators.blocks(), keep_duplicates=True):
        start, end, owner = self_segments(slab.start, slab.stop, slab.rows["thread"].astype(np.int64))
        np.add.at(slab.rows["exposed"], owner, end - start)
        slab.rows["operation"] = operation_of[slab.rows["name"]]
        rows.add(_self_rows(slab.rows, start, end, owner))
        done = slab.rows[slab.is_done & (slab.rows["operation"] != _NO_OPERATION)]
        done["duration"] = done["exposed"]
        finished.add(done)
    first, last = _span(rows)
    steps = find_steps(marks, first, last, is_device=False, pattern=options.steps)
    totals = KernelTotals(operations, steps, geometry_values(marks.header.geometries))
    totals.add(communication)
    for block in finished.blocks():
        totals.add(block)
    return Work(marks, False, operations, rows, steps, host_phases(marks), totals, (first, last))


def _communication(marks: Events, groups: Groups, scheme: Scheme, operations: Operations) -> Rows:
    """Return the communication of the CPU as rows of `LAUNCHED`."""
    collectives = host_collectives(marks, groups, scheme)
    rows = not_launched(marks.rows[[collective.event for collective in collectives]])
    rows["duration"] = [collective.end for collective in collectives] - rows["start"]
    rows["launch"] = rows["start"]
    rows["operation"] = [
        operations.number(Operation(Kernel("comm", kind), group, marks.name(event)))
        for event, _, kind, group in collectives
    ]
    return rows


def _operation_of_name(names: list[str], scheme: Scheme, operations: Operations) -> Int64:
    """Return the number of every name's operation, `_NO_OPERATION` if it does not compute."""
    operation = np.full(len(names), _NO_OPERATION, dtype=np.int64)
    for index, name in enumerate(names):
        if _COMPUTES.match(name):
            operation[index] = operations.number(Operation(scheme.host(name), None, name))
    return operation


def _self_rows(operators: Rows, start: Int64, end: Int64, owner: Int64) -> Rows:
    """Return the self segments of computing operators as rows of `LAUNCHED`."""
    computes = operators["operation"][owner] != _NO_OPERATION
    rows: Rows = operators[owner[computes]]
    rows["start"] = rows["launch"] = start[computes]
    rows["duration"] = end[computes] - start[computes]
    rows["exposed"] = 0
    return rows


def _span(rows: Sorter) -> tuple[int, int]:
    """Return start of the first and end of the last row, both 0 without rows."""
    first, last = 0, 0
    for index, block in enumerate(rows.blocks()):
        first = first if index else int(block["start"][0])
        end = int((block["start"] + block["duration"]).max())
        last = max(last, end) if index else end
    return first, last


def read_work(path: Path, record: GroupRecord, options: ReadOptions) -> Work:
    """Read the work of one rank: that of the GPU if the trace has GPU rows, else that of the CPU.

    Args:
        path: Trace of any profiler.
        record: The launcher's record of process groups.
        options: Options of reading.

    Raises:
        UserError: If the file is no trace, or has no GPU work although its format is for GPUs only.
    """
    trace = TraceRows(options.scratch, options.steps)
    header = read_trace(path, trace.take, options.part, progress=options.progress)
    if trace.device.count == 0 and options.part is not None:
        raise UserError(f"{path.name}: has no work of a GPU that ends after it begins; export it again")
    if trace.device.count == 0:
        trace = TraceRows(options.scratch, options.steps)
        header = read_trace(path, trace.take, host=True, progress=options.progress)
        return host_work(trace, Groups(record, header), options)
    return _device_work(trace, Groups(record, header), options)


def _device_work(trace: TraceRows, groups: Groups, options: ReadOptions) -> Work:
    marks = trace.marks(groups.header)
    operations = Operations()
    device_operations = DeviceOperations(marks, groups, options.scheme, operations)
    phases = DevicePhases(marks)
    by_start = Sorter("start", options.scratch)
    first, last = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for rows in join_launches(trace.device, trace.launches):
        device_operations.assign(rows)
        computes = np.isin(np.take(operations.label_of, rows["operation"]), operations.of_category("compute"))
        phases.add(rows[computes])
        first = min(first, int(rows["start"].min()))
        last = max(last, int((rows["start"] + rows["duration"]).max()))
        by_start.add(rows)
    steps = find_steps(marks, first, last, is_device=True, pattern=options.steps)
    totals = KernelTotals(operations, steps, geometry_values(marks.header.geometries))
    marks = _without_nccl_annotations(marks)
    return Work(marks, True, operations, by_start, steps, phases.finish(), totals, (first, last))


def _without_nccl_annotations(marks: Events) -> Events:
    """Remove the annotations of collectives. They are most of all marks, and no longer needed."""
    nccl = np.concatenate([marks.named(category, r"nccl:") for category in Category])
    return Events(marks.header, np.delete(marks.rows, nccl))
