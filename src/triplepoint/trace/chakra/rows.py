"""Reader of Chakra traces that say when their nodes began, into the same rows as Kineto's."""

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from triplepoint.errors import UserError
from triplepoint.trace.chakra.files import Trace, open_trace
from triplepoint.trace.chakra.nodes import NodeFacts, attributes_of, facts_of
from triplepoint.trace.kineto import HAS_STREAM, LAUNCH, ROW, Category
from triplepoint.trace.kineto.reader import Geometry, Header, Message, Sink

_BATCH = 65_536
_CATEGORIES: Final = {category.name.lower(): category for category in Category}
_MOST_NS = 2**62
_MOST_RANKS = 10**9
_COPIES = ("MEM_LOAD_NODE", "MEM_STORE_NODE")


def read_chakra(path: Path, sink: Sink, progress: Callable[[str], None] = lambda line: None) -> Header:
    """Read the nodes of one rank's trace that ran on a GPU, and annotations.

    Args:
        path: The trace.
        sink: Called with arrays of `ROW` and of `LAUNCH`.
        progress: Called now and then with what was read so far.

    Raises:
        UserError: If the file is damaged, or none of its nodes says when it began.
    """
    trace = open_trace(path)
    reading = _Reading(trace, sink)
    for number, node in enumerate(trace.nodes(), 1):
        reading.add(facts_of(node, trace.schema))
        if number % _BATCH == 0:
            reading.flush()
            progress(f"{path.name}: {number} nodes")
    reading.flush()
    if not reading.has_times:
        raise UserError(f"{path}: no node on a GPU says when it began; expected start_time_micros or start_time_ns")
    return reading.header()


class _Reading:
    """Rows so far, and what they refer to."""

    def __init__(self, trace: Trace, sink: Sink) -> None:
        self._trace, self._sink = trace, sink
        told = attributes_of(trace.metadata.attr, True) if trace.metadata and trace.schema.syntax == "proto3" else {}
        self._told = told
        base = told.get("base_time_ns", 0)
        self._base = base if isinstance(base, int) and 0 <= base < _MOST_NS else 0
        self._names: dict[str, int] = {}
        self._name_list: list[str] = []
        self._threads: dict[Hashable, int] = {}
        self._messages: dict[str | Message, int] = {}
        self._geometries: dict[str, int] = {}
        self._rows: list[tuple[int, ...]] = []
        self._launches: dict[int, tuple[int, int]] = {}
        self._num_nodes = self._num_odd = 0
        self.has_times = False

    def add(self, node: NodeFacts) -> None:
        """Take a node; one of the host that is no annotation is left out."""
        self._num_nodes += 1
        told = node.attributes
        category = _CATEGORIES.get(str(told.get("category")), Category.OTHER)
        if category == Category.OTHER:
            category = Category.MEMCPY if node.type in _COPIES else Category.KERNEL
            if node.is_on_host or node.type in ("METADATA_NODE", "INVALID_NODE"):
                return
        start_ns, duration_ns = node.start_ns or 0, node.duration_ns or 0
        if not (abs(start_ns) < _MOST_NS and 0 <= duration_ns < _MOST_NS):
            self._num_odd += 1
            return
        is_device = category <= Category.MEMSET
        self.has_times |= is_device and node.start_ns is not None
        thread = self._thread("stream" if "stream" in told else "tid", told)
        correlation = _whole(told.get("correlation"), -1, _MOST_NS)
        launch = told.get("launch_time_ns")
        if isinstance(launch, int) and correlation > 0 and abs(launch) < _MOST_NS:
            self._launches[correlation] = (launch - self._base, _whole(told.get("launch_tid"), -1))
        self._rows.append(
            (
                start_ns - self._base,
                duration_ns,
                correlation,
                self._number(self._names, _row_name(node), self._name_list),
                thread,
                self._message(node),
                _index(self._geometries, told.get("geometry")),
                category,
                HAS_STREAM if is_device else 0,
            )
        )

    def flush(self) -> None:
        """Give the rows so far to the sink."""
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
        """Return what the rows refer to."""
        rank = self._told.get("rank")
        try:
            metadata = msgspec.json.decode(str(self._told.get("trace_metadata", "{}")), type=dict[str, Any])
        except msgspec.MsgspecError:
            metadata = {}
        return Header(
            path=self._trace.path,
            rank=rank if isinstance(rank, int) and 0 <= rank < _MOST_RANKS else None,
            base_ns=self._base,
            metadata=metadata,
            names=self._name_list,
            messages=[one if isinstance(one, Message) else _decoded(one, Message) for one in self._messages],
            geometries=[_decoded(one, Geometry) for one in self._geometries],
            num_events=self._num_nodes,
            num_damaged=self._num_odd,
            is_truncated=False,
        )

    def _thread(self, kind: str, told: dict[str, Any]) -> int:
        value = told.get(kind)
        if "category" in told:
            return _whole(value, 0)
        return self._threads.setdefault((kind, str(value)), len(self._threads))

    def _message(self, node: NodeFacts) -> int:
        text = node.attributes.get("message")
        if isinstance(text, str) or not node.is_comm:
            return _index(self._messages, text)
        return self._messages.setdefault(_message_of(node), len(self._messages))

    @staticmethod
    def _number(known: dict[str, int], text: str, texts: list[str]) -> int:
        number = known.setdefault(text, len(known))
        if number == len(texts):
            texts.append(text)
        return number


def _row_name(node: NodeFacts) -> str:
    """Return the name of a row; communication and copies of other writers are named as PyTorch names them."""
    if "category" in node.attributes:
        return node.name
    if node.is_comm and "nccl" not in node.name.lower():
        return f"nccl:{node.kind} {node.name}" if node.kind else f"nccl:{node.name}"
    return f"Memcpy {node.name}" if node.type in _COPIES else node.name


def _message_of(node: NodeFacts) -> Message:
    """Return what a node of another writer says of its communication.

    `comm_size` is what the rank gives, in bytes: what it gathers is not told.
    """
    told = node.attributes
    size, group = told.get("comm_size"), told.get("pg_name", told.get("communicator_id"))
    is_sized = isinstance(size, int) and size >= 0 and node.kind not in ("all_gather", "gather")
    return Message(
        collective=node.kind,
        group_name=None if group is None else str(group),
        in_elements=size if is_sized else None,
        out_elements=size if is_sized else None,
        dtype="byte" if is_sized else None,
        source=_whole(told.get("comm_src"), -1) if node.kind == "recv" else None,
        destination=_whole(told.get("comm_dst"), -1) if node.kind == "send" else None,
    )


def _index(known: dict[Any, int], text: Any) -> int:
    return known.setdefault(text, len(known)) if isinstance(text, str) else -1


def _whole(value: Any, otherwise: int, most: int = 2**31) -> int:
    return value if isinstance(value, int) and -1 <= value < most else otherwise


def _decoded(text: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError:
        return kind()
