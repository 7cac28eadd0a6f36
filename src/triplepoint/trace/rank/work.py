"""The work in a trace: computation, communication and memory operations, of a GPU or of the CPU itself.

A trace with GPU rows is judged by them alone: kernels, copies and fills. Rows of synchronisation and operators on the
CPU do not count, even where they carry a stream. A trace without GPU rows is judged by the work of the CPU:

- An instant of a thread belongs to the innermost operator running on it. It counts if that is a computing operator
  (`aten::mm`), not if it is a collective's call (`c10d::`), a wait, an autograd node or a `record_function`. So nothing
  is counted twice on a thread, and `kernels` holds self times. Two threads at once count once in `intervals`.
- Operators that only move, fill or allocate (class memory) are memory, all others computation.
- Communication is `gloo:*` in flight (see `collectives`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.trace.arrays import Int64
from triplepoint.trace.kineto.external_sort import Sorter
from triplepoint.trace.kineto.reader import Header, read_trace
from triplepoint.trace.kineto.rows import LAUNCH, ROW, Category, Rows, is_device
from triplepoint.trace.lanes import Step
from triplepoint.trace.rank.collectives import DeviceOperations, host_collectives
from triplepoint.trace.rank.events import Events
from triplepoint.trace.rank.intervals import self_segments
from triplepoint.trace.rank.kernel_totals import KernelTotals, geometry_values
from triplepoint.trace.rank.launches import as_launches, join_launches, not_launched
from triplepoint.trace.rank.operations import Operation, Operations
from triplepoint.trace.rank.phases import MARKS, DevicePhases, Phases, find_steps, host_phases
from triplepoint.trace.rank.process_groups import GroupRecord, Groups
from triplepoint.trace.rank.slabs import slabs
from triplepoint.trace.taxonomy import Kernel, Scheme


@dataclass(frozen=True)
class Reading:
    """How to read a trace.

    Attributes:
        scheme: Rules of the taxonomy.
        scratch: Folder for what does not fit in memory.
        is_alone: Whether the job has no other trace, so that nothing is kept for an analysis across ranks.
        progress: Called every few seconds of reading.
    """

    scheme: Scheme
    scratch: Path
    is_alone: bool = False
    progress: Callable[[str], None] = lambda line: None


class Found:
    """The rows of a trace by what they are for."""

    def __init__(self, scratch: Path) -> None:
        """Start with nothing; what does not fit in memory goes to a folder."""
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
            new = [MARKS.match(name) is not None for name in names[len(self._is_mark) :]]
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


_COMPUTES = re.compile(
    r"(?!c10d::|_c10d_functional|_dtensor::|autograd::|torch::autograd|profiler::|symm_mem::|inductor::)[a-z_]\w*::"
)
_NOT_WORK = -1


def host_work(found: Found, groups: Groups, how: Reading) -> Work:
    """Return the work of the CPU.

    Args:
        found: Rows of a trace that was read with its operators.
        groups: Process groups of the rank.
        how: How the trace was read.
    """
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
    steps = find_steps(marks, first, last, is_device=False)
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
    found = Found(how.scratch)
    header = read_trace(path, found.take, progress=how.progress)
    if found.device.count == 0:
        found = Found(how.scratch)
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
    steps = find_steps(marks, first, last, is_device=True)
    totals = KernelTotals(operations, steps, geometry_values(marks.header.geometries))
    return Work(_without_named(marks), True, operations, by_start, steps, phases.finish(), totals, (first, last))


def _without_named(marks: Events) -> Events:
    """Leave out the annotations that named collectives, most of all marks: the rows have it from them."""
    done = np.concatenate([marks.named(category, r"nccl:") for category in Category])
    return Events(marks.header, np.delete(marks.rows, done))
