"""The work in a trace: computation, communication and memory operations, of a GPU or of the CPU itself.

A trace with GPU rows is judged by them alone: kernels, copies and fills. Rows of synchronisation and operators on the
CPU do not count, even where they carry a stream. A trace without GPU rows is judged by the CPU's own work, see `host`.
"""

from pathlib import Path

import numpy as np

from triplepoint.trace.kineto.reader import read_trace
from triplepoint.trace.kineto.rows import Category
from triplepoint.trace.kineto.spill import Sorter
from triplepoint.trace.rank.collectives import DeviceOperations
from triplepoint.trace.rank.events import Events
from triplepoint.trace.rank.found import Found, Reading, Work
from triplepoint.trace.rank.geometry import geometry_values
from triplepoint.trace.rank.groups import GroupRecord, Groups
from triplepoint.trace.rank.host import host_work
from triplepoint.trace.rank.launches import join_launches
from triplepoint.trace.rank.operations import Operations
from triplepoint.trace.rank.phases import DevicePhases, find_steps
from triplepoint.trace.rank.totals import KernelTotals


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
