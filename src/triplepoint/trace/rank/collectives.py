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

import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from triplepoint.errors import UserError
from triplepoint.trace.kineto.reader import Category, Trace
from triplepoint.trace.rank.gloo import Asked, match_in_order
from triplepoint.trace.rank.launches import enclosing, launch_of
from triplepoint.trace.taxonomy import classify_host, collective_kind

Int64 = npt.NDArray[np.int64]

_POINT_TO_POINT = ("send", "recv")
_PIPELINE = "pp"
_ROLES = "tp|pp|dp|cp|ep|edp|world"
_DESCRIPTION = re.compile(rf"(?:mesh_)?({_ROLES})", re.IGNORECASE)
_MEGATRON_ROLES = {
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
}


class _Group(msgspec.Struct):
    role: str
    name: str


class _Collective(msgspec.Struct):
    role: str
    t_ns: int


class GroupRecord(msgspec.Struct):
    """What the launcher wrote down of a rank's process groups and collectives; empty where it wrote nothing."""

    groups: list[_Group] = []
    collectives: list[_Collective] = []

    def role_of(self, name: Any, description: Any) -> str | None:
        """Return the role (tp, dp, ...) of a process group, None where not known."""
        known = {group.name: group.role for group in self.groups}
        if str(name) in known:
            return known[str(name)]
        text = str(description)
        found = _DESCRIPTION.fullmatch(text)
        return found[1].lower() if found else _MEGATRON_ROLES.get(text)


class HostCollective(NamedTuple):
    """One communication on the CPU: `end` is until when it counts. Unit: ns since 1970."""

    event: int
    end: int
    kind: str
    group: str | None


def read_groups(path: Path) -> GroupRecord:
    """Return the launcher's record beside a trace, an empty one if there is none.

    Raises:
        UserError: If the record is damaged.
    """
    if not path.is_file():
        return GroupRecord()
    try:
        return msgspec.json.decode(path.read_bytes(), type=GroupRecord)
    except msgspec.MsgspecError as error:
        raise UserError(f"{path.name}: not a record of process groups ({error}); launch the run again") from None


def device_collectives(trace: Trace, groups: GroupRecord, events: Int64) -> dict[int, tuple[str | None, str | None]]:
    """Return kind and group of communication kernels, by event; None where not known."""
    on_device = trace.named(Category.GPU_ANNOTATION, r"nccl:")
    on_host = trace.named(Category.ANNOTATION, r"nccl:")
    found = {}
    for event, launch in zip(events.tolist(), launch_of(trace, events).tolist(), strict=True):
        args = trace.comm_args.get(event)
        kind = collective_kind(str(args.collective)) if args and args.collective else None
        kind = kind or _annotated_kind(trace, on_device, event)
        if kind is None and launch >= 0:
            kind = _annotated_kind(trace, on_host, launch)
        group = groups.role_of(args.group_name, args.group_description) if args else None
        found[event] = (kind, group)
    return found


def _annotated_kind(trace: Trace, spans: Int64, event: int) -> str | None:
    around = enclosing(trace, spans, int(trace.thread[event]), int(trace.start[event]))
    return collective_kind(trace.names[trace.name[around]]) if around is not None else None


def host_collectives(trace: Trace, groups: GroupRecord) -> list[HostCollective]:
    """Return the communication of a trace without a GPU."""
    in_flight = trace.named(Category.ANNOTATION, r"(gloo|mpi|ucc):")
    calls = trace.named(Category.CPU_OP, r"c10d::")
    kinds = {int(name): classify_host(trace.names[name]).kind for name in np.unique(trace.name[in_flight])}
    is_p2p = np.array([kinds[name] in _POINT_TO_POINT for name in trace.name[in_flight].tolist()], dtype=bool)
    direct = [
        HostCollective(event, _end_of_p2p(trace, calls, event, kind), kind, _PIPELINE if groups.groups else None)
        for event in in_flight[is_p2p].tolist()
        for kind in [kinds[int(trace.name[event])]]
    ]
    asked = _calls_with_roles(trace, groups, calls)
    started = [(event, kinds[int(trace.name[event])]) for event in in_flight[~is_p2p].tolist()]
    joined = match_in_order(trace, started, asked)
    return direct + [
        HostCollective(event, int(trace.end[event]), kind, group)
        for (event, _), (kind, group) in zip(started, joined, strict=True)
    ]


def _end_of_p2p(trace: Trace, calls: Int64, event: int, kind: str) -> int:
    if kind != "send":
        return int(trace.end[event])
    around = enclosing(trace, calls, int(trace.thread[event]), int(trace.start[event]))
    return int(trace.start[event] if around is None else min(trace.end[event], trace.end[around]))


def _calls_with_roles(trace: Trace, groups: GroupRecord, calls: Int64) -> list[Asked]:
    """Return the collective operators, each with the role of the recorded collective that falls inside it."""
    roles: dict[int, str] = {}
    first, last = (trace.start[calls].min(), trace.end[calls].max()) if len(calls) else (0, -1)
    for record in groups.collectives:
        if not first <= record.t_ns <= last:
            continue
        around = calls[(trace.start[calls] <= record.t_ns) & (trace.end[calls] >= record.t_ns)]
        # Two threads may be inside a call at once; the one entered last is the one that records.
        for call in reversed(around.tolist()):
            if call not in roles:
                roles[call] = record.role
                break
    asked = []
    for call in calls.tolist():
        kind = collective_kind(trace.names[trace.name[call]])
        if kind is not None and kind not in _POINT_TO_POINT:
            asked.append(Asked(call, kind, roles.get(call)))
    return asked
