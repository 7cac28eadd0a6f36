"""The kind and the process group of every communication event.

On a GPU the kernel's arguments name both, where the profiler wrote them; else the `nccl:*` annotation around it on its
stream, or around its launch, names the collective.

On gloo nothing on the event does: a reduce-scatter runs as `gloo:all_reduce` on a worker thread, after the `c10d::`
operator that asked for it. The operator gives the kind; the launcher's record of collectives, whose times fall inside
the operators, gives the group. Annotations are matched to operators in order: a worker thread belongs to one process
group and takes its work first in, first out.

A receive lasts from posting to its wait and is counted so. A send also lasts until it is waited for, however early the
data left, so it is counted only up to the end of the `c10d::send` that posted it.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from triplepoint.trace import Int64
from triplepoint.trace.distinct import distinct_rows
from triplepoint.trace.kineto import Category, Rows
from triplepoint.trace.rank.events import Events, Operation, Operations
from triplepoint.trace.rank.intervals import Cover
from triplepoint.trace.rank.process_groups import Groups, tensor_sizes
from triplepoint.trace.taxonomy import POINT_TO_POINT, Scheme, collective_kind

_RUNS_AS = {"reduce_scatter": "all_reduce"}
"""Collectives gloo does by another: the operator's kind, and the kind the annotation shows."""


class Asked(NamedTuple):
    """One `c10d::` operator: its event, the kind it asks for, the role of its process group where known."""

    event: int
    kind: str
    role: str | None

    @property
    def runs_as(self) -> str:
        """Return the kind gloo's annotation shows."""
        return _RUNS_AS.get(self.kind, self.kind)


def match_in_order(events: Events, started: list[tuple[int, str]], asked: list[Asked]) -> list[tuple[str, str | None]]:
    """Return kind and role of every annotation.

    Returns:
        For each annotation: the kind that was asked for (else the one it shows), and the role of its group or None.
    """
    start, thread = events.start, events.thread
    sizes = {event: _sizes(events, event) for event in [*(e for e, _ in started), *(a.event for a in asked)]}
    role_of_thread = _thread_roles(events, started, asked, sizes)
    waiting: dict[str | None, list[Asked]] = {}
    for call in asked:
        waiting.setdefault(call.role, []).append(call)
    matched = []
    for event, kind in started:
        role = role_of_thread.get(int(thread[event]))
        queue = waiting.get(role, [])
        found = next((call for call in queue if _fits(start, event, kind, call, sizes)), None)
        if found is not None:
            queue.remove(found)
        matched.append((found.kind if found else kind, role))
    return matched


def _thread_roles(
    events: Events, started: list[tuple[int, str]], asked: list[Asked], sizes: dict[int, frozenset[int]]
) -> dict[int, str | None]:
    """Return the role each worker thread serves: most of its work starts right after an operator of that role."""
    start, thread = events.start, events.thread
    votes: dict[int, Counter[str | None]] = {}
    begin = 0
    recent: list[Asked] = []
    for event, kind in started:
        while begin < len(asked) and start[asked[begin].event] <= start[event]:
            recent = [*recent[-15:], asked[begin]]
            begin += 1
        latest = next((call for call in reversed(recent) if _fits(start, event, kind, call, sizes)), None)
        if latest is not None:
            votes.setdefault(int(thread[event]), Counter())[latest.role] += 1
    return {thread: counter.most_common(1)[0][0] for thread, counter in votes.items()}


def _fits(start: Int64, event: int, kind: str, call: Asked, sizes: dict[int, frozenset[int]]) -> bool:
    if call.runs_as != kind or start[call.event] > start[event]:
        return False
    shown, wanted = sizes[event], sizes[call.event]
    return not shown or not wanted or not shown.isdisjoint(wanted)


def _sizes(events: Events, event: int) -> frozenset[int]:
    """Return the numbers of elements of an event's tensors, empty where shapes were not recorded."""
    return frozenset(tensor_sizes(events.message(event).input_dims))


_PIPELINE = "pp"


class DeviceOperations:
    """Tells what rows of device work do."""

    def __init__(self, marks: Events, groups: Groups, scheme: Scheme, operations: Operations) -> None:
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
            distinct, which = distinct_rows(name[comm], rows["message"][comm], self._annotation(rows[comm]))
            numbers = [self._refine(*key) for key in distinct.tolist()]
            operation[comm] = np.array(numbers, dtype=np.int64)[which]
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
