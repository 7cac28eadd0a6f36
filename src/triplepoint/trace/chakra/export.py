"""Writer of Chakra traces: the GPU work of one rank as nodes of the newest schema.

A node has a data dependency on the node before it on its stream. Traces of profilers do not record waits of one
stream for another, so no such dependency is written. Steps and phases are `METADATA_NODE`s, which simulators skip.
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
from triplepoint.trace.rank.work import ReadOptions, Work, read_work
from triplepoint.trace.taxonomy import Scheme
from triplepoint.units import NS_PER_US

KEPT_METADATA: Final = ("distributedInfo", "deviceProperties")
"""Members of the metadata of a Kineto trace that are kept, as JSON."""
_TYPES: Final = {"send": "COMM_SEND_NODE", "recv": "COMM_RECV_NODE"}
_NUMBER_OF = {name: number for number, name in enumerate(NEWEST.enums["NodeType"])}
_COMM_TYPE = {name.lower(): number for number, name in enumerate(NEWEST.enums["CollectiveCommType"])}


def write_rank(
    file: TraceFile, out: Path, scheme: Scheme, scratch: Path, *, is_only: bool = True, is_packed: bool = False
) -> Path:
    """Write the GPU work of one rank as `chakra.<rank>.et`; return its path.

    Args:
        file: Trace of the rank, of any profiler.
        out: Folder to write into.
        scheme: Rules of the taxonomy, which tell communication from other work.
        scratch: Folder for rows that do not fit in memory.
        is_only: Whether the job has no other trace. A trace without a rank is then rank 0.
        is_packed: Whether to gzip the file; its name then ends in `.et.gz`.

    Raises:
        UserError: If the trace cannot be read, its rank is unknown, or no work in it ran on a GPU.
    """
    work = read_work(file.path, read_groups(file.record), ReadOptions(scheme, scratch, part=file.part))
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
    _add_attribute(metadata, "source", "triplepoint")
    _add_attribute(metadata, "rank", rank)
    if header.world_size is not None:
        _add_attribute(metadata, "world_size", header.world_size)
    _add_attribute(metadata, "base_time_ns", header.base_ns)
    _add_attribute(metadata, "trace_metadata", msgspec.json.encode(kept).decode())
    return metadata


def _nodes(work: Work) -> Iterator[Any]:
    """Yield the nodes of annotations, then those of work in order of start."""
    header, base = work.marks.header, work.marks.header.base_ns
    number = 0
    for row in work.marks.rows:
        yield _annotation(row, number, header)
        number += 1
    mark_communication = [_communication(header, work, index) for index in range(len(work.operations.known))]
    last_on_stream: dict[int, int] = {}
    for block in work.rows.blocks():
        names = [name for name in block.dtype.names or () if name != "unused"]
        for values in zip(*(block[name].tolist() for name in names), strict=True):
            row = dict(zip(names, values, strict=True))
            node = _timed_node(row, number, header)
            _add_attribute(node, "stream", row["thread"])
            _add_attribute(node, "correlation", row["correlation"])
            if row["launch"] != NEVER:
                _add_attribute(node, "launch_time_ns", row["launch"] + base)
                _add_attribute(node, "launch_tid", row["launch_thread"])
            if row["geometry"] >= 0:
                _add_attribute(node, "geometry", msgspec.json.encode(header.geometries[row["geometry"]]).decode())
            if row["thread"] in last_on_stream:
                node.data_deps.append(last_on_stream[row["thread"]])
            last_on_stream[row["thread"]] = number
            mark_communication[row["operation"]](node, row["message"])
            yield node
            number += 1


def _annotation(row: Any, number: int, header: Header) -> Any:
    values = {name: int(row[name]) for name in ("start", "duration", "name", "thread", "category", "message")}
    node = _timed_node(values, number, header)
    node.type = _NUMBER_OF["METADATA_NODE"]
    _add_attribute(node, "tid", values["thread"])
    if values["message"] >= 0:
        _add_attribute(node, "message", msgspec.json.encode(header.messages[values["message"]]).decode())
    return node


def _timed_node(row: dict[str, int], number: int, header: Header) -> Any:
    """Return a node with the fields of all nodes: name, times and category."""
    start_ns = row["start"] + header.base_ns
    node = NEWEST.node_class(
        id=number,
        name=header.names[row["name"]].encode("utf-8", "backslashreplace").decode(),
        type=_NUMBER_OF["COMP_NODE"],
        start_time_micros=max(start_ns // NS_PER_US, 0),
        duration_micros=row["duration"] // NS_PER_US,
    )
    _add_attribute(node, "is_cpu_op", row["category"] > Category.MEMSET and row["category"] != Category.GPU_ANNOTATION)
    _add_attribute(node, START_NS, start_ns)
    _add_attribute(node, DURATION_NS, row["duration"])
    _add_attribute(node, "category", Category(row["category"]).name.lower())
    return node


def _communication(header: Header, work: Work, operation: int) -> Callable[[Any, int], None]:
    """Return a function that fills a node, given its message, as communication; it does nothing for other work."""
    known = work.operations.known[operation]
    if known.kernel.category != "comm":
        return lambda node, message: None
    kind = known.kernel.kind

    def mark(node: Any, message: int) -> None:
        arguments = header.messages[message] if message >= 0 else Message()
        node.type = _NUMBER_OF[_TYPES.get(kind, "COMM_COLL_NODE")]
        if kind in _COMM_TYPE:
            _add_attribute(node, "comm_type", _COMM_TYPE[kind])
        size_bytes = message_bytes(kind, arguments, group_size(arguments))
        if size_bytes >= 0:
            _add_attribute(node, "comm_size", size_bytes)
        if arguments.group_name is not None:
            _add_attribute(node, "pg_name", str(arguments.group_name))
        peer = peer_of(arguments)
        if peer is not None and kind in _TYPES:
            node.attr.add(name="comm_dst" if kind == "send" else "comm_src", int32_val=peer)
        # Kind and group can come from annotations or the launcher's record, not from the trace's own arguments.
        completed = msgspec.structs.replace(
            arguments,
            collective=arguments.collective or kind,
            group_description=known.group or arguments.group_description,
        )
        _add_attribute(node, "message", msgspec.json.encode(completed).decode())

    return mark


def _add_attribute(message: Any, name: str, value: bool | int | str) -> None:
    """Add an attribute in one of the types that the converter and the reader of MLCommons accept."""
    field = "bool_val" if isinstance(value, bool) else "int64_val" if isinstance(value, int) else "string_val"
    message.attr.add(name=name, **{field: value})
