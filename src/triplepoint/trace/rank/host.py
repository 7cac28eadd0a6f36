"""The work of a trace without GPU rows: that of the CPU itself.

- An instant of a thread belongs to the innermost operator running on it. It counts if that is a computing operator
  (`aten::mm`), not if it is a collective's call (`c10d::`), a wait, an autograd node or a `record_function`. So nothing
  is counted twice on a thread, and `kernels` holds self times. Two threads at once count once in `intervals`.
- Operators that only move, fill or allocate (class memory) are memory, all others computation.
- Communication is `gloo:*` in flight (see `collectives`).
"""

import re

import numpy as np

from triplepoint.trace.kineto.rows import Int64, Rows
from triplepoint.trace.kineto.spill import Sorter
from triplepoint.trace.rank.collectives import host_collectives
from triplepoint.trace.rank.events import Events
from triplepoint.trace.rank.found import Found, Reading, Work
from triplepoint.trace.rank.geometry import geometry_values
from triplepoint.trace.rank.groups import Groups
from triplepoint.trace.rank.launches import not_launched
from triplepoint.trace.rank.nesting import self_segments
from triplepoint.trace.rank.operations import Operation, Operations
from triplepoint.trace.rank.phases import find_steps, host_phases
from triplepoint.trace.rank.slabs import slabs
from triplepoint.trace.rank.totals import KernelTotals
from triplepoint.trace.taxonomy import Kernel, Scheme

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
