"""Which collective a communication event is, and in which process group.

On a GPU the kernel's arguments name both, where the profiler wrote them; else the `nccl:*` annotation around it on its
stream, or around its launch, names the collective.

On gloo nothing on the event does: a reduce-scatter runs as `gloo:all_reduce` on a worker thread, after the `c10d::`
operator that asked for it. The operator gives the kind; the launcher's record of collectives, whose times fall inside
the operators, gives the group. Annotations are tied to operators in order: a worker thread belongs to one process group
and takes its work first in, first out.

A receive lasts from posting to its wait and is counted so. A send also lasts until it is waited for, however early the
data left, so it is counted only up to the end of the `c10d::send` that posted it.
"""

from typing import NamedTuple

import numpy as np

from triplepoint.trace.kineto.rows import Category, Int64, Rows
from triplepoint.trace.rank.events import Events
from triplepoint.trace.rank.gloo import Asked, match_in_order
from triplepoint.trace.rank.groups import Groups
from triplepoint.trace.rank.nesting import Cover
from triplepoint.trace.rank.operations import POINT_TO_POINT, Operation, Operations
from triplepoint.trace.taxonomy import Scheme, collective_kind

_PIPELINE = "pp"


class DeviceOperations:
    """Tells what rows of device work do."""

    def __init__(self, marks: Events, groups: Groups, scheme: Scheme, operations: Operations) -> None:
        """Take what the rows are judged by.

        Args:
            marks: Annotations of the trace, on the host and on the device.
            groups: Process groups of the rank.
            scheme: Rules of the taxonomy.
            operations: Where new operations are numbered.
        """
        self._marks = marks
        self._groups = groups
        self._scheme = scheme
        self._operations = operations
        self._on_device = _cover(marks, Category.GPU_ANNOTATION)
        self._on_host = _cover(marks, Category.ANNOTATION)
        self._by_name = np.full(len(marks.header.names), -1, dtype=np.int64)
        self._known: dict[tuple[int, int, int], int] = {}

    def assign(self, rows: Rows) -> None:
        """Set the operation of rows of `LAUNCHED`."""
        name = rows["name"]
        self._classify(np.unique(name[self._by_name[name] < 0]).tolist())
        operation = self._by_name[name]
        is_comm = np.isin(np.take(self._operations.label_of, operation), self._operations.of_category("comm"))
        comm = np.flatnonzero(is_comm)
        if len(comm):
            keys = np.stack((name[comm], rows["message"][comm], self._annotation(rows[comm])), axis=1)
            distinct, which = np.unique(keys, axis=0, return_inverse=True)
            numbers = [self._refine(*key) for key in distinct.tolist()]
            operation[comm] = np.array(numbers, dtype=np.int64)[which.reshape(-1)]
        rows["operation"] = operation

    def _classify(self, names: list[int]) -> None:
        for name in names:
            text = self._marks.header.names[name]
            self._by_name[name] = self._operations.number(Operation(self._scheme.device(text), None, text))

    def _annotation(self, rows: Rows) -> Int64:
        """Return the name of the `nccl:` annotation around each row or its launch, -1 where there is none."""
        around = self._on_device.find(rows["thread"], rows["start"])
        on_host = self._on_host.find(rows["launch_thread"], rows["launch"])
        around = np.where(around >= 0, around, on_host)
        return np.where(around >= 0, self._marks.rows["name"][around], -1) if len(self._marks.rows) else around

    def _refine(self, name: int, message: int, annotation: int) -> int:
        key = (name, message, annotation)
        if key not in self._known:
            header = self._marks.header
            told = header.messages[message] if message >= 0 else None
            kind = collective_kind(str(told.collective)) if told and told.collective else None
            if kind is None and annotation >= 0:
                kind = collective_kind(header.names[annotation])
            plain = self._scheme.device(header.names[name])
            group = self._groups.role(told.group_name, told.group_description) if told else None
            operation = Operation(plain._replace(kind=kind) if kind else plain, group, header.names[name])
            self._known[key] = self._operations.number(operation)
        return self._known[key]


def _cover(marks: Events, category: Category) -> Cover:
    """Return the `nccl:` annotations of a category; what is found is a row of `marks`."""
    return Cover(marks.start, marks.end, marks.thread, marks.named(category, r"nccl:"))


class HostCollective(NamedTuple):
    """One communication on the CPU: `end` is until when it counts. Unit: ns as the file counts."""

    event: int
    end: int
    kind: str
    group: str | None


def host_collectives(marks: Events, groups: Groups, scheme: Scheme) -> list[HostCollective]:
    """Return the communication of a trace without a GPU, by its annotations and `c10d::` operators."""
    in_flight = marks.named(Category.ANNOTATION, r"(gloo|mpi|ucc):")
    calls = marks.named(Category.CPU_OP, r"c10d::")
    kind_of = {event: scheme.host(marks.name(event)).kind for event in in_flight.tolist()}
    direct = [event for event, kind in kind_of.items() if kind in POINT_TO_POINT]
    started = [(event, kind) for event, kind in kind_of.items() if kind not in POINT_TO_POINT]
    joined = match_in_order(marks, started, _calls_with_roles(marks, groups, calls))
    return [
        *_messages(marks, calls, direct, kind_of, _PIPELINE if groups.record.groups else None),
        *(
            HostCollective(event, int(marks.end[event]), kind, group)
            for (event, _), (kind, group) in zip(started, joined, strict=True)
        ),
    ]


def _messages(
    marks: Events, calls: Int64, events: list[int], kind_of: dict[int, str], group: str | None
) -> list[HostCollective]:
    """Return sends and receives, a send until its call was done."""
    around = Cover(marks.start, marks.end, marks.thread, calls).find(marks.thread[events], marks.start[events])
    end = marks.end
    found = []
    for event, call in zip(events, around.tolist(), strict=True):
        until = int(end[event])
        if kind_of[event] == "send":
            until = min(until, int(end[call])) if call >= 0 else int(marks.start[event])
        found.append(HostCollective(event, until, kind_of[event], group))
    return found


def _calls_with_roles(marks: Events, groups: Groups, calls: Int64) -> list[Asked]:
    """Return the collective operators, each with the role of the recorded collective that falls inside it."""
    roles: dict[int, str] = {}
    start, end = marks.start[calls], marks.end[calls]
    for record in groups.record.collectives:
        time = record.t_ns - marks.header.base_ns
        # Two threads may be inside a call at once; the one entered last is the one that records.
        for call in reversed(calls[(start <= time) & (end >= time)].tolist()):
            if call not in roles:
                roles[call] = record.role
                break
    asked = []
    for call in calls.tolist():
        kind = collective_kind(marks.name(call))
        if kind is not None and kind not in POINT_TO_POINT:
            asked.append(Asked(call, kind, roles.get(call)))
    return asked
