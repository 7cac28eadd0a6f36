"""Writer of Chakra traces: the GPU work of one rank as nodes of the newest schema.

A node depends, by data, on the one before it on its stream. What a stream waited for on another is in no trace of a
profiler, so no such dependency is written. Steps and phases are `METADATA_NODE`s, which simulators skip.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from triplepoint.errors import UserError
from triplepoint.trace.chakra.files import write_trace
from triplepoint.trace.chakra.nodes import DURATION_NS, START_NS
from triplepoint.trace.chakra.schema import NEWEST
from triplepoint.trace.kineto import Category
from triplepoint.trace.kineto.reader import Header, Message
from triplepoint.trace.parsing import TraceFile, rank_of
from triplepoint.trace.rank.events import NEVER
from triplepoint.trace.rank.process_groups import group_size, message_bytes, peer_of, read_groups
from triplepoint.trace.rank.work import Reading, Work, read_work
from triplepoint.trace.taxonomy import Scheme
from triplepoint.units import NS_PER_US

KEPT_METADATA: Final = ("distributedInfo", "deviceProperties")
"""Members of a Kineto trace's head that are kept, as JSON."""
_TYPES: Final = {"send": "COMM_SEND_NODE", "recv": "COMM_RECV_NODE"}
_NUMBER_OF = {name: number for number, name in enumerate(NEWEST.enums["NodeType"])}
_COMM_TYPE = {name.lower(): number for number, name in enumerate(NEWEST.enums["CollectiveCommType"])}


def write_rank(
    file: TraceFile, out: Path, scheme: Scheme, scratch: Path, *, is_only: bool = True, is_packed: bool = False
) -> Path:
    """Write the GPU work of one rank as `chakra.<rank>.et`; return where.

    Args:
        file: Its trace, of any profiler.
        out: Folder to write into.
        scheme: Rules of the taxonomy, which say what communicates.
        scratch: Folder for what does not fit in memory.
        is_only: Whether the job has no other trace, so that one without a rank is rank 0.
        is_packed: Gzip it; its name ends in `.et.gz`.

    Raises:
        UserError: If the trace cannot be read, nothing tells its rank, or nothing in it ran on a GPU.
    """
    work = read_work(file.path, read_groups(file.record), Reading(scheme, scratch, part=file.part))
    if not work.is_device:
        raise UserError(
            f"{file.path}: has no work of a GPU, and a Chakra trace is written of GPU work; name a trace with kernels"
        )
    rank = rank_of(file, work.marks.header.rank, is_only)
    path = out / f"chakra.{rank}.et{'.gz' if is_packed else ''}"
    out.mkdir(parents=True, exist_ok=True)
    write_trace(path, _metadata(work.marks.header, rank), _nodes(work))
    return path


def _metadata(header: Header, rank: int) -> Any:
    kept = {name: header.metadata[name] for name in KEPT_METADATA if name in header.metadata}
    assert NEWEST.metadata_class is not None
    metadata = NEWEST.metadata_class(version=NEWEST.version)
    _add(metadata, "source", "triplepoint")
    _add(metadata, "rank", rank)
    if header.world_size is not None:
        _add(metadata, "world_size", header.world_size)
    _add(metadata, "base_time_ns", header.base_ns)
    _add(metadata, "trace_metadata", msgspec.json.encode(kept).decode())
    return metadata


def _nodes(work: Work) -> Iterator[Any]:
    """Yield the nodes of annotations, then those of work by start."""
    header, base = work.marks.header, work.marks.header.base_ns
    number = 0
    for row in work.marks.rows:
        yield _annotation(row, number, header)
        number += 1
    comm = [_communication(header, work, index) for index in range(len(work.operations.known))]
    last_on: dict[int, int] = {}
    for block in work.rows.blocks():
        names = block.dtype.names or ()
        for values in zip(*(block[name].tolist() for name in names if name != "unused"), strict=True):
            row = dict(zip((name for name in names if name != "unused"), values, strict=True))
            node = _timed(row, number, header)
            _add(node, "stream", row["thread"])
            _add(node, "correlation", row["correlation"])
            if row["launch"] != NEVER:
                _add(node, "launch_time_ns", row["launch"] + base)
                _add(node, "launch_tid", row["launch_thread"])
            if row["geometry"] >= 0:
                _add(node, "geometry", msgspec.json.encode(header.geometries[row["geometry"]]).decode())
            if row["thread"] in last_on:
                node.data_deps.append(last_on[row["thread"]])
            last_on[row["thread"]] = number
            comm[row["operation"]](node, row["message"])
            yield node
            number += 1


def _annotation(row: Any, number: int, header: Header) -> Any:
    values = {name: int(row[name]) for name in ("start", "duration", "name", "thread", "category", "message")}
    node = _timed(values, number, header)
    node.type = _NUMBER_OF["METADATA_NODE"]
    _add(node, "tid", values["thread"])
    if values["message"] >= 0:
        _add(node, "message", msgspec.json.encode(header.messages[values["message"]]).decode())
    return node


def _timed(row: dict[str, int], number: int, header: Header) -> Any:
    """Return a node with what all have: name, times and category."""
    start_ns = row["start"] + header.base_ns
    node = NEWEST.node_class(
        id=number,
        name=header.names[row["name"]].encode("utf-8", "backslashreplace").decode(),
        type=_NUMBER_OF["COMP_NODE"],
        start_time_micros=max(start_ns // NS_PER_US, 0),
        duration_micros=row["duration"] // NS_PER_US,
    )
    _add(node, "is_cpu_op", row["category"] > Category.MEMSET and row["category"] != Category.GPU_ANNOTATION)
    _add(node, START_NS, start_ns)
    _add(node, DURATION_NS, row["duration"])
    _add(node, "category", Category(row["category"]).name.lower())
    return node


def _communication(header: Header, work: Work, operation: int) -> Callable[[Any, int], None]:
    """Return what marks a node of an operation as communication: nothing, where it is none."""
    known = work.operations.known[operation]
    if known.kernel.category != "comm":
        return lambda node, message: None
    kind = known.kernel.kind

    def mark(node: Any, message: int) -> None:
        told = header.messages[message] if message >= 0 else Message()
        node.type = _NUMBER_OF[_TYPES.get(kind, "COMM_COLL_NODE")]
        if kind in _COMM_TYPE:
            _add(node, "comm_type", _COMM_TYPE[kind])
        size_bytes = message_bytes(kind, told, group_size(told))
        if size_bytes >= 0:
            _add(node, "comm_size", size_bytes)
        if told.group_name is not None:
            _add(node, "pg_name", str(told.group_name))
        peer = peer_of(told)
        if peer is not None and kind in _TYPES:
            node.attr.add(name="comm_dst" if kind == "send" else "comm_src", int32_val=peer)
        # What annotations and the launcher's record said of it goes with it.
        full = msgspec.structs.replace(
            told,
            collective=told.collective or kind,
            group_description=known.group or told.group_description,
        )
        _add(node, "message", msgspec.json.encode(full).decode())

    return mark


def _add(message: Any, name: str, value: bool | int | str) -> None:
    """Add an attribute, of the types that MLCommons' own converter and reader take."""
    field = "bool_val" if isinstance(value, bool) else "int64_val" if isinstance(value, int) else "string_val"
    message.attr.add(name=name, **{field: value})
