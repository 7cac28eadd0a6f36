"""What counts as work in a trace: computation, communication and memory operations, of a GPU or of the CPU itself.

A trace with GPU rows is judged by them alone: kernels, copies and fills. Communication is what the taxonomy calls so,
memory is copies and fills, computation is the rest. Rows of synchronisation and operators on the CPU do not count.

A trace without GPU rows is judged by the CPU's own work:
- An instant of a thread belongs to the innermost operator running on it. It counts if that is a computing operator
  (`aten::mm`), not if it is a collective's call (`c10d::`), a wait, an autograd node or a `record_function`. So nothing
  is counted twice on a thread, and `kernels` holds self times. Two threads at once count once in `intervals`.
- Operators that only move, fill or allocate (class memory) are memory, all others computation.
- Communication is `gloo:*` in flight (see `collectives`).
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.trace.kineto.reader import Category, Trace
from triplepoint.trace.rank import intervals
from triplepoint.trace.rank.collectives import GroupRecord, device_collectives, host_collectives
from triplepoint.trace.rank.intervals import Intervals
from triplepoint.trace.rank.nesting import self_segments
from triplepoint.trace.taxonomy import classify_device, classify_host

Int64 = npt.NDArray[np.int64]

CATEGORIES = ("compute", "comm", "memory")
_COMPUTES = re.compile(
    r"(?!c10d::|_c10d_functional|_dtensor::|autograd::|torch::autograd|profiler::|symm_mem::|inductor::)[a-z_]\w*::"
)


class Label(NamedTuple):
    """What rows of the kernel table have in common."""

    cls: str
    kind: str
    group: str | None
    name: str

    @property
    def category(self) -> str:
        """Return compute, comm or memory."""
        return self.cls if self.cls in ("comm", "memory") else "compute"


@dataclass(frozen=True)
class Work:
    """The work of one rank.

    Attributes:
        is_device: Whether it is of a GPU.
        labels: Distinct labels.
        label: Index into `labels`, one entry per occurrence.
        start: Unit: ns since 1970.
        duration: Duration on a GPU, self time on the CPU. Unit: ns.
        event: Index of the event in the trace.
        busy: Time each of `CATEGORIES` was running.
    """

    is_device: bool
    labels: list[Label]
    label: Int64
    start: Int64
    duration: Int64
    event: Int64
    busy: dict[str, Intervals]

    def rows_of(self, category: str) -> Int64:
        """Return the indices of the occurrences of a category."""
        wanted = [index for index, label in enumerate(self.labels) if label.category == category]
        return np.flatnonzero(np.isin(self.label, wanted))

    @property
    def span(self) -> tuple[int, int]:
        """Return start of the first and end of the last work. Unit: ns since 1970."""
        if len(self.start) == 0:
            return 0, 0
        return int(self.start.min()), int((self.start + self.duration).max())


def find_work(trace: Trace, groups: GroupRecord) -> Work:
    """Return the work in a trace: of its GPU if it has GPU rows, of the CPU otherwise."""
    return _device_work(trace, groups) if trace.is_device.any() else _host_work(trace, groups)


def _device_work(trace: Trace, groups: GroupRecord) -> Work:
    event = np.flatnonzero(trace.is_device)
    kernel_of = {int(name): classify_device(trace.names[name]) for name in np.unique(trace.name[event])}
    is_comm = np.isin(trace.name[event], [name for name, kernel in kernel_of.items() if kernel.cls == "comm"])
    refined = device_collectives(trace, groups, event[is_comm])
    labels = _Labels()
    plain = {name: labels.index(Label(*kernel, None, trace.names[name])) for name, kernel in kernel_of.items()}
    label = np.array([plain[name] for name in trace.name[event].tolist()], dtype=np.int64)
    for row in np.flatnonzero(is_comm).tolist():
        name = int(trace.name[event[row]])
        kind, group = refined[int(event[row])]
        label[row] = labels.index(Label("comm", kind or kernel_of[name].kind, group, trace.names[name]))
    start, end = trace.start[event], trace.end[event]
    busy = _busy(labels.known, label, start, end)
    return Work(True, labels.known, label, start, trace.duration[event], event, busy)


def _host_work(trace: Trace, groups: GroupRecord) -> Work:
    labels = _Labels()
    ops = np.flatnonzero(trace.category == Category.CPU_OP)
    computes = [index for index, name in enumerate(trace.names) if _COMPUTES.match(name)]
    segment_start, segment_end, owner = self_segments(trace.start[ops], trace.end[ops], trace.thread[ops])
    counts = np.isin(trace.name[ops], computes)
    self_time = np.bincount(owner, weights=segment_end - segment_start, minlength=len(ops)).astype(np.int64)
    op_label = np.full(len(ops), -1, dtype=np.int64)
    for name in np.unique(trace.name[ops[counts]]).tolist():
        text = trace.names[name]
        op_label[trace.name[ops] == name] = labels.index(Label(*classify_host(text), None, text))
    comm = host_collectives(trace, groups)
    comm_label = np.array(
        [labels.index(Label("comm", c.kind, c.group, trace.names[trace.name[c.event]])) for c in comm], dtype=np.int64
    )
    comm_event = np.array([c.event for c in comm], dtype=np.int64)
    comm_end = np.array([c.end for c in comm], dtype=np.int64)
    comm_start = trace.start[comm_event]
    held = counts[owner]
    busy = _busy(
        labels.known,
        np.concatenate((op_label[owner[held]], comm_label)),
        np.concatenate((segment_start[held], comm_start)),
        np.concatenate((segment_end[held], comm_end)),
    )
    return Work(
        is_device=False,
        labels=labels.known,
        label=np.concatenate((op_label[counts], comm_label)),
        start=np.concatenate((trace.start[ops[counts]], comm_start)),
        duration=np.concatenate((self_time[counts], comm_end - comm_start)),
        event=np.concatenate((ops[counts], comm_event)),
        busy=busy,
    )


def _busy(labels: list[Label], label: Int64, start: Int64, end: Int64) -> dict[str, Intervals]:
    category = np.array([CATEGORIES.index(one.category) for one in labels], dtype=np.int64)
    busy = {}
    for index, name in enumerate(CATEGORIES):
        rows = category[label] == index
        busy[name] = intervals.union(start[rows], end[rows])
    return busy


class _Labels:
    """Distinct labels in order of appearance."""

    def __init__(self) -> None:
        self._index: dict[Label, int] = {}

    @property
    def known(self) -> list[Label]:
        return list(self._index)

    def index(self, label: Label) -> int:
        return self._index.setdefault(label, len(self._index))
