"""Find the kind and the process group of every communication event.

On a GPU both are among the kernel's arguments, if the profiler recorded them. Otherwise the `nccl:*` annotation around
the kernel on its stream, or around its launch, names the collective.

Events of gloo name neither: a reduce-scatter runs as `gloo:all_reduce` on a worker thread, after the `c10d::` operator
that called it. The operator has the kind. The group comes from the launcher's record of collectives, whose times are
inside the operators. Annotations are matched to operators in order: a worker thread belongs to one process group and
works first in, first out.

A receive counts from its post to its wait. A send also lasts until its wait, however early the data left, so it counts
only up to the end of the `c10d::send` that posted it.
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
"""Kinds that gloo implements by another one: kind of the operator, and kind in the annotation."""


class CollectiveCall(NamedTuple):
    """One `c10d::` operator: index of its event, its kind, and the role of its process group, None if unknown."""

    event: int
    kind: str
    role: str | None

    @property
    def runs_as(self) -> str:
        """Kind in gloo's annotation."""
        return _RUNS_AS.get(self.kind, self.kind)


def match_in_order(
    events: Events, annotations: list[tuple[int, str]], calls: list[CollectiveCall]
) -> list[tuple[str, str | None]]:
    """Match the annotations of worker threads to the operators that called them.

    Args:
        events: Annotations and operators.
        annotations: Index and kind of every annotation, by start.
        calls: Operators, by start.

    Returns:
        For each annotation: the kind of its operator (else its own), and the role of its group or None.
    """
    start, thread = events.start, events.thread
    indices = [*(event for event, _ in annotations), *(call.event for call in calls)]
    sizes = {event: _sizes(events, event) for event in indices}
    role_of_thread = _thread_roles(events, annotations, calls, sizes)
    queues: dict[str | None, list[CollectiveCall]] = {}
    for call in calls:
        queues.setdefault(call.role, []).append(call)
    matched = []
    for event, kind in annotations:
        role = role_of_thread.get(int(thread[event]))
        queue = queues.get(role, [])
        matching_call = next((call for call in queue if _fits(start, event, kind, call, sizes)), None)
        if matching_call is not None:
            queue.remove(matching_call)
        matched.append((matching_call.kind if matching_call else kind, role))
    return matched


def _thread_roles(
    events: Events, annotations: list[tuple[int, str]], calls: list[CollectiveCall], sizes: dict[int, frozenset[int]]
) -> dict[int, str | None]:
    """Return the role of each worker thread's group: most of its work starts right after operators of that role."""
    start, thread = events.start, events.thread
    votes: dict[int, Counter[str | None]] = {}
    next_call = 0
    recent: list[CollectiveCall] = []
    for event, kind in annotations:
        while next_call < len(calls) and start[calls[next_call].event] <= start[event]:
            recent = [*recent[-15:], calls[next_call]]
            next_call += 1
        latest = next((call for call in reversed(recent) if _fits(start, event, kind, call, sizes)), None)
        if latest is not None:
            votes.setdefault(int(thread[event]), Counter())[latest.role] += 1
    return {thread: counter.most_common(1)[0][0] for thread, counter in votes.items()}


def _fits(start: Int64, event: int, kind: str, call: CollectiveCall, sizes: dict[int, frozenset[int]]) -> bool:
    """Return whether an operator may have called an annotated collective: by kind, start and tensor sizes."""
    if call.runs_as != kind or start[call.event] > start[event]:
        return False
    annotation_sizes, call_sizes = sizes[event], sizes[call.event]
    return not annotation_sizes or not call_sizes or not annotation_sizes.isdisjoint(call_sizes)


def _sizes(events: Events, event: int) -> frozenset[int]:
    """Return the numbers of elements of an event's tensors; empty if shapes were not recorded."""
    return frozenset(tensor_sizes(events.message(event).input_dims))


_PIPELINE = "pp"


class DeviceOperations:
    """Determines the operation of every row of device work."""

    def __init__(self, marks: Events, groups: Groups, scheme: Scheme, operations: Operations) -> None:
        self._marks = marks
        self._groups = groups
        self._scheme = scheme
        self._operations = operations
        self._on_device = _nccl_annotations(marks, Category.GPU_ANNOTATION)
        self._on_host = _nccl_annotations(marks, Category.ANNOTATION)
        self._operation_of_name = np.full(len(marks.header.names), -1, dtype=np.int64)
        self._operation_of_comm: dict[tuple[int, int, int], int] = {}

    def assign(self, rows: Rows) -> None:
        """Set the field `operation` of rows of `LAUNCHED`."""
        name = rows["name"]
        self._classify(np.unique(name[self._operation_of_name[name] < 0]).tolist())
        operation = self._operation_of_name[name]
        is_comm = np.isin(np.take(self._operations.label_of, operation), self._operations.of_category("comm"))
        comm = np.flatnonzero(is_comm)
        if len(comm):
            distinct, index = distinct_rows(name[comm], rows["message"][comm], self._annotation(rows[comm]))
            numbers = [self._communication(*key) for key in distinct.tolist()]
            operation[comm] = np.array(numbers, dtype=np.int64)[index]
        rows["operation"] = operation

    def _classify(self, names: list[int]) -> None:
        for name in names:
            text = self._marks.header.names[name]
            self._operation_of_name[name] = self._operations.number(Operation(self._scheme.device(text), None, text))

    def _annotation(self, rows: Rows) -> Int64:
        """Return the name number of the `nccl:` annotation around each row or its launch, -1 if there is none."""
        on_device = self._on_device.find(rows["thread"], rows["start"])
        on_host = self._on_host.find(rows["launch_thread"], rows["launch"])
        event = np.where(on_device >= 0, on_device, on_host)
        return np.where(event >= 0, self._marks.rows["name"][event], -1) if len(self._marks.rows) else event

    def _communication(self, name: int, message: int, annotation: int) -> int:
        """Return the number of a communication operation, given the numbers of name, message and annotation."""
        key = (name, message, annotation)
        if key not in self._operation_of_comm:
            header = self._marks.header
            arguments = header.messages[message] if message >= 0 else None
            kind = collective_kind(str(arguments.collective)) if arguments and arguments.collective else None
            if kind is None and annotation >= 0:
                kind = collective_kind(header.names[annotation])
            by_name = self._scheme.device(header.names[name])
            group = self._groups.role(arguments.group_name, arguments.group_description) if arguments else None
            operation = Operation(by_name._replace(kind=kind) if kind else by_name, group, header.names[name])
            self._operation_of_comm[key] = self._operations.number(operation)
        return self._operation_of_comm[key]


def _nccl_annotations(marks: Events, category: Category) -> Cover:
    """Return the `nccl:` annotations of a category, as a search for indices of `marks`."""
    return Cover(marks.start, marks.end, marks.thread, marks.named(category, r"nccl:"))


class HostCollective(NamedTuple):
    """One communication on the CPU.

    Attributes:
        event: Index of its annotation.
        end: End of the time that counts. Unit: ns as the file counts.
        kind: all_reduce, send, ...
        group: Role of the process group; None if unknown.
    """

    event: int
    end: int
    kind: str
    group: str | None


def host_collectives(marks: Events, groups: Groups, scheme: Scheme) -> list[HostCollective]:
    """Return the communication in a trace without GPU work, by annotations and `c10d::` operators."""
    annotations = marks.named(Category.ANNOTATION, r"(gloo|mpi|ucc):")
    operators = marks.named(Category.CPU_OP, r"c10d::")
    kind_of = {event: scheme.host(marks.name(event)).kind for event in annotations.tolist()}
    point_to_point = [event for event, kind in kind_of.items() if kind in POINT_TO_POINT]
    collectives = [(event, kind) for event, kind in kind_of.items() if kind not in POINT_TO_POINT]
    matched = match_in_order(marks, collectives, _calls_with_roles(marks, groups, operators))
    return [
        *_transfers(marks, operators, point_to_point, kind_of, _PIPELINE if groups.record.groups else None),
        *(
            HostCollective(event, int(marks.end[event]), kind, group)
            for (event, _), (kind, group) in zip(collectives, matched, strict=True)
        ),
    ]


def _transfers(
    marks: Events, operators: Int64, events: list[int], kind_of: dict[int, str], group: str | None
) -> list[HostCollective]:
    """Return sends and receives; a send counts up to the end of the operator around its start."""
    around = Cover(marks.start, marks.end, marks.thread, operators).find(marks.thread[events], marks.start[events])
    end = marks.end
    transfers = []
    for event, operator in zip(events, around.tolist(), strict=True):
        counted_end = int(end[event])
        if kind_of[event] == "send":
            counted_end = min(counted_end, int(end[operator])) if operator >= 0 else int(marks.start[event])
        transfers.append(HostCollective(event, counted_end, kind_of[event], group))
    return transfers


def _calls_with_roles(marks: Events, groups: Groups, operators: Int64) -> list[CollectiveCall]:
    """Return the collective operators, each with the role of the recorded collective inside it."""
    roles: dict[int, str] = {}
    start, end = marks.start[operators], marks.end[operators]
    for record in groups.record.collectives:
        time = record.t_ns - marks.header.base_ns
        # Two threads may be inside an operator at once: the one that entered last has made the record.
        for operator in reversed(operators[(start <= time) & (end >= time)].tolist()):
            if operator not in roles:
                roles[operator] = record.role
                break
    calls = []
    for operator in operators.tolist():
        kind = collective_kind(marks.name(operator))
        if kind is not None and kind not in POINT_TO_POINT:
            calls.append(CollectiveCall(operator, kind, roles.get(operator)))
    return calls
