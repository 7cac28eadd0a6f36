"""Reader of Chakra traces with start times. It gives the same rows as the reader of Kineto traces."""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from triplepoint.errors import UserError
from triplepoint.trace.chakra.files import Trace, open_trace
from triplepoint.trace.chakra.nodes import ChakraNode, read_attributes, read_node
from triplepoint.trace.kineto import HAS_STREAM, LAUNCH, ROW, Category
from triplepoint.trace.kineto.reader import Geometry, Header, Message, Sink

_BATCH = 65_536
_CATEGORIES: Final = {category.name.lower(): category for category in Category}
_MOST_NS = 2**62
_MOST_RANKS = 10**9
_COPIES = ("MEM_LOAD_NODE", "MEM_STORE_NODE")


def read_chakra(path: Path, sink: Sink, progress: Callable[[str], None] = lambda line: None) -> Header:
    """Read annotations and the nodes that ran on a GPU from the trace of one rank; return the header.

    Args:
        path: The trace.
        sink: Receives arrays of `ROW` and of `LAUNCH`.
        progress: Receives the number of nodes read so far, as text, after every batch.

    Raises:
        UserError: If the file is damaged, or no node on a GPU has a start time.
    """
    trace = open_trace(path)
    rows = _RowBuilder(trace, sink)
    for number, node in enumerate(trace.nodes(), 1):
        rows.add(read_node(node, trace.schema))
        if number % _BATCH == 0:
            rows.flush()
            progress(f"{path.name}: {number} nodes")
    rows.flush()
    if not rows.has_times:
        raise UserError(f"{path}: no node on a GPU says when it began; expected start_time_micros or start_time_ns")
    return rows.header()


class _RowBuilder:
    """Builds rows of nodes, and numbers the names, threads, messages and geometries that they refer to.

    Attributes:
        has_times: Whether any node on a GPU has a start time so far.
    """

    def __init__(self, trace: Trace, sink: Sink) -> None:
        self._trace, self._sink = trace, sink
        has_attributes = trace.schema.syntax == "proto3"
        self._metadata = read_attributes(trace.metadata.attr, True) if trace.metadata and has_attributes else {}
        base = self._metadata.get("base_time_ns", 0)
        self._base = base if isinstance(base, int) and 0 <= base < _MOST_NS else 0
        self._names: dict[str, int] = {}
        self._name_list: list[str] = []
        self._threads: dict[Hashable, int] = {}
        self._messages: dict[str | Message, int] = {}
        self._geometries: dict[str, int] = {}
        self._rows: list[tuple[int, ...]] = []
        self._launches: dict[int, tuple[int, int]] = {}
        self._num_nodes = self._num_damaged = 0
        self.has_times = False

    def add(self, node: ChakraNode) -> None:
        """Add a node, unless it is neither GPU work nor an annotation."""
        self._num_nodes += 1
        attributes = node.attributes
        category = _CATEGORIES.get(str(attributes.get("category")), Category.OTHER)
        if category == Category.OTHER:
            category = Category.MEMCPY if node.type in _COPIES else Category.KERNEL
            if node.is_on_host or node.type in ("METADATA_NODE", "INVALID_NODE"):
                return
        start_ns, duration_ns = node.start_ns or 0, node.duration_ns or 0
        if not (abs(start_ns) < _MOST_NS and 0 <= duration_ns < _MOST_NS):
            self._num_damaged += 1
            return
        is_device = category <= Category.MEMSET
        self.has_times |= is_device and node.start_ns is not None
        thread = self._thread("stream" if "stream" in attributes else "tid", attributes)
        correlation = _valid_integer(attributes.get("correlation"), -1, _MOST_NS)
        launch = attributes.get("launch_time_ns")
        if isinstance(launch, int) and correlation > 0 and abs(launch) < _MOST_NS:
            self._launches[correlation] = (launch - self._base, _valid_integer(attributes.get("launch_tid"), -1))
        self._rows.append(
            (
                start_ns - self._base,
                duration_ns,
                correlation,
                self._name(_row_name(node)),
                thread,
                self._message(node),
                _number(self._geometries, attributes.get("geometry")),
                category,
                HAS_STREAM if is_device else 0,
            )
        )

    def flush(self) -> None:
        """Pass the rows since the last flush to the sink."""
        rows = np.zeros(len(self._rows), dtype=ROW)
        fields = [name for name in ROW.names or () if name != "unused"]
        for name, column in zip(fields, zip(*self._rows, strict=True), strict=False):
            rows[name] = column
        launches = np.zeros(len(self._launches), dtype=LAUNCH)
        if len(launches):
            launches["correlation"] = list(self._launches)
            launches["start"], launches["thread"] = np.array(list(self._launches.values()), dtype=np.int64).T
            launches["geometry"] = -1
            self._sink(launches, self._name_list)
        if len(rows):
            self._sink(rows, self._name_list)
        self._rows.clear()
        self._launches.clear()

    def header(self) -> Header:
        """Return the header, with the names, messages and geometries that rows refer to."""
        rank = self._metadata.get("rank")
        try:
            metadata = msgspec.json.decode(str(self._metadata.get("trace_metadata", "{}")), type=dict[str, Any])
        except msgspec.MsgspecError:
            metadata = {}
        return Header(
            path=self._trace.path,
            rank=rank if isinstance(rank, int) and 0 <= rank < _MOST_RANKS else None,
            base_ns=self._base,
            metadata=metadata,
            names=self._name_list,
            messages=[
                message if isinstance(message, Message) else _decoded(message, Message) for message in self._messages
            ],
            geometries=[_decoded(text, Geometry) for text in self._geometries],
            num_events=self._num_nodes,
            num_damaged=self._num_damaged,
            is_truncated=False,
        )

    def _name(self, name: str) -> int:
        number = self._names.setdefault(name, len(self._names))
        if number == len(self._name_list):
            self._name_list.append(name)
        return number

    def _thread(self, kind: str, attributes: dict[str, Any]) -> int:
        value = attributes.get(kind)
        if "category" in attributes:
            return _valid_integer(value, 0)
        return self._threads.setdefault((kind, str(value)), len(self._threads))

    def _message(self, node: ChakraNode) -> int:
        text = node.attributes.get("message")
        if isinstance(text, str) or not node.is_comm:
            return _number(self._messages, text)
        return self._messages.setdefault(_message_of(node), len(self._messages))


def _row_name(node: ChakraNode) -> str:
    """Return the name of a row. Communication and copies from other writers get the names that PyTorch uses."""
    if "category" in node.attributes:
        return node.name
    if node.is_comm and "nccl" not in node.name.lower():
        return f"nccl:{node.kind} {node.name}" if node.kind else f"nccl:{node.name}"
    return f"Memcpy {node.name}" if node.type in _COPIES else node.name


def _message_of(node: ChakraNode) -> Message:
    """Return the arguments of communication from a node of another writer.

    `comm_size` is the number of bytes that the rank contributes. The size of a gathered result is unknown.
    """
    attributes = node.attributes
    size, group = attributes.get("comm_size"), attributes.get("pg_name", attributes.get("communicator_id"))
    is_sized = isinstance(size, int) and size >= 0 and node.kind not in ("all_gather", "gather")
    return Message(
        collective=node.kind,
        group_name=None if group is None else str(group),
        in_elements=size if is_sized else None,
        out_elements=size if is_sized else None,
        dtype="byte" if is_sized else None,
        source=_valid_integer(attributes.get("comm_src"), -1) if node.kind == "recv" else None,
        destination=_valid_integer(attributes.get("comm_dst"), -1) if node.kind == "send" else None,
    )


def _number(numbers: dict[Any, int], text: Any) -> int:
    """Return the number of a text, adding it if it is new; -1 if it is no text."""
    return numbers.setdefault(text, len(numbers)) if isinstance(text, str) else -1


def _valid_integer(value: Any, default: int, limit: int = 2**31) -> int:
    """Return a value if it is an integer from -1 to below a limit, otherwise a default."""
    return value if isinstance(value, int) and -1 <= value < limit else default


def _decoded(text: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError:
        return kind()
