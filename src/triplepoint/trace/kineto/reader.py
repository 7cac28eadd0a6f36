"""Read Kineto traces in constant memory.

Rows are passed to a sink in batches. The names, messages and geometries that they refer to are in the header, at the
end. Begin and end events (`ph` B and E) are paired: an end closes the latest open begin of its thread. A damaged event
is counted, its time and name are recovered if they are certain, and other events are not affected.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from triplepoint.errors import UserError
from triplepoint.trace.kineto import IS_BEGIN, IS_END, LAUNCH, ROW, Rows
from triplepoint.trace.kineto._scanner import ROW_BYTES, Scanner
from triplepoint.trace.kineto.source import Source


def pair_halves(halves: Rows) -> tuple[Rows, int]:
    """Pair begin and end events.

    Args:
        halves: Rows that are a begin or an end, in any order.

    Returns:
        Complete rows, and the number of begins and ends without a partner.
    """
    open_begins: dict[int, list[int]] = {}
    begins: list[int] = []
    ends: list[int] = []
    order = np.argsort(halves["start"], kind="stable")
    num_unpaired = 0
    for index, thread, flags in zip(
        order.tolist(), halves["thread"][order].tolist(), halves["flags"][order].tolist(), strict=True
    ):
        open_on_thread = open_begins.setdefault(thread, [])
        if flags & IS_BEGIN:
            open_on_thread.append(index)
        elif open_on_thread:
            begins.append(open_on_thread.pop())
            ends.append(index)
        else:
            num_unpaired += 1
    complete = halves[begins]
    complete["duration"] = halves["start"][ends] - complete["start"]
    complete["flags"] &= ~np.uint8(IS_BEGIN | IS_END)
    return complete, num_unpaired + sum(map(len, open_begins.values()))


# Possessive quantifiers, and patterns that start at a fixed character: damaged text may have a megabyte of spaces or
# names, and the search must not take quadratic time.
_BORDER = re.compile(rb"(?<=\})(?:\s*+,)?\s*+(?=\{\s*+\")")
_ENDS = rb"(?=\s*[,}\]\r\n])"
_WORD = re.compile(rb'"(ph|cat|ts|dur|pid|tid)"\s*:\s*("[^"\\\x00-\x1f]*"|[-+\w.]+)' + _ENDS)
_NUMBER = re.compile(rb'"(correlation|stream|bytes|External id)"\s*:\s*(-?\d+)' + _ENDS)
_NAME = re.compile(rb'"name"\s*+:\s*+"')
_AFTER_NAME = re.compile(rb',\s*+"(?:ph|cat|pid|tid|ts|dur|args|id|bp|s)"')
_COMM = re.compile(
    rb'"(Collective name|In msg nelems|Out msg nelems|Group size|dtype|Process Group Name|Process Group Description'
    rb'|Process Group Ranks|Src Rank|Dst Rank)"\s*:\s*("[^"\\\x00-\x1f]*"|\d+)' + _ENDS
)
_NEEDED = {b"ph", b"cat", b"ts"}


def salvage(damaged: bytes) -> Iterator[bytes]:
    """Yield valid JSON for every event in a damaged text that still has a phase, category and time."""
    for text in _BORDER.split(damaged):
        members = {key: _quoted(value) for key, value in _WORD.findall(text)}
        if not members.keys() >= _NEEDED:
            continue
        begin = _NAME.search(text)
        if begin and (after := _AFTER_NAME.search(text, begin.end())):
            name = text[begin.end() : after.start()].rstrip().removesuffix(b'"')
            members[b"name"] = msgspec.json.encode(name.decode("utf-8", "backslashreplace"))
        members[b"args"] = _object(dict([*_NUMBER.findall(text), *_COMM.findall(text)]))
        yield _object(members)


def _quoted(value: bytes) -> bytes:
    """Return a value as a JSON string, since a word may not be a number."""
    return value if value[:1] == b'"' else b'"' + value + b'"'


def _object(members: dict[bytes, bytes]) -> bytes:
    return b"{" + b",".join(b'"%s":%s' % member for member in members.items()) + b"}"


Sink = Callable[[Rows, list[str]], None]
"""Receives rows, and all names so far."""

_PROGRESS_PERIOD_S = 1.0
_PIECES_AT_ONCE = 32
"""Pieces of text to scan before their rows are taken: taking has a fixed cost, and a piece has few rows."""
_DAMAGED_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})(?!\d)')
_DAMAGED_RANK = re.compile(rb'"rank"\s*:\s*(\d{1,9})(?!\d)')
"""Metadata that is searched for in damaged text."""
_MAX_RANKS = 10**9

assert ROW.itemsize == ROW_BYTES


class Message(msgspec.Struct, frozen=True):
    """Communication arguments of an event, not validated; None if missing."""

    collective: Any = msgspec.field(name="Collective name", default=None)
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_description: Any = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    source: Any = msgspec.field(name="Src Rank", default=None)
    destination: Any = msgspec.field(name="Dst Rank", default=None)
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    dtype: Any = None
    input_dims: Any = msgspec.field(name="Input Dims", default=None)
    input_types: Any = msgspec.field(name="Input type", default=None)


class Geometry(msgspec.Struct, frozen=True):
    """Launch geometry of a kernel, not validated; None if missing."""

    grid: Any = None
    block: Any = None
    registers: Any = msgspec.field(name="registers per thread", default=None)
    shared_memory: Any = msgspec.field(name="shared memory", default=None)
    blocks_per_sm: Any = msgspec.field(name="blocks per SM", default=None)
    warps_per_sm: Any = msgspec.field(name="warps per SM", default=None)
    occupancy_percent: Any = msgspec.field(name="est. achieved occupancy %", default=None)


@dataclass(frozen=True)
class Header:
    """Metadata of a trace, the texts that its rows refer to by number, and counts of events.

    Attributes:
        path: The trace file.
        rank: Rank in the file's content, None if it has none.
        base_ns: Base time, to be added to a row's `start` for nanoseconds since 1970.
        metadata: Decoded members of the document other than events: `distributedInfo`, `deviceProperties`, ...
        names: Distinct event names.
        messages: Distinct communication arguments.
        geometries: Distinct launch geometries.
        num_events: Undamaged events of any kind.
        num_damaged: Events without a usable time, or recovered from damaged text.
        is_truncated: Whether the file ended early.
    """

    path: Path
    rank: int | None
    base_ns: int
    metadata: dict[str, Any]
    names: list[str]
    messages: list[Message]
    geometries: list[Geometry]
    num_events: int
    num_damaged: int
    is_truncated: bool

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the job, None if the file has none."""
        info = self.metadata.get("distributedInfo")
        size = info.get("world_size") if isinstance(info, dict) else None
        return size if isinstance(size, int) and size > 0 else None


def read_trace(
    path: Path,
    sink: Sink,
    *,
    host: bool = False,
    streams: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> Header:
    """Read one trace.

    Args:
        path: Chrome JSON of the PyTorch profiler: plain, gzip or zstd, with any spacing.
        sink: Called with arrays of `ROW`, in the file's order except for paired begins and ends, and of `LAUNCH`.
        host: Whether to include all operators on the CPU, and not only communicating ones.
        streams: Whether to include every event that has a stream or a correlation.
        progress: Receives a line every second.

    Raises:
        UserError: If the file is missing, empty, or has no events.
    """
    reading = _Reading(path, sink, Scanner(host=host, streams=streams))
    source = Source(path)
    shown = time.monotonic()
    for piece in source.pieces():
        reading.feed(piece)
        if time.monotonic() - shown > _PROGRESS_PERIOD_S:
            shown = time.monotonic()
            share = 100 * source.done // max(source.size, 1)
            progress(f"{path.name}: {share} % of {source.size / 1e6:.0f} MB, {reading.scanner.num_events} events")
    return reading.finish(source.is_truncated)


T = TypeVar("T", Message, Geometry)


class _Reading:
    """State of reading one trace."""

    def __init__(self, path: Path, sink: Sink, scanner: Scanner) -> None:
        self.scanner = scanner
        self._path = path
        self._sink = sink
        self._halves: list[Rows] = []
        """Begin and end events."""
        self._metadata: list[bytes] = []
        self._recovered: dict[re.Pattern[bytes], int] = {}
        """Metadata from damaged text."""
        self._names: list[str] = []
        self._is_damaged_name = np.zeros(0, dtype=bool)
        """Whether each name is invalid UTF-8."""
        self._num_damaged_names = 0
        """Rows with a damaged name."""
        self._num_pieces = 0

    def feed(self, piece: bytes) -> None:
        self.scanner.feed(piece)
        self._num_pieces += 1
        if self._num_pieces % _PIECES_AT_ONCE == 0:
            self._take()

    def finish(self, is_truncated: bool) -> Header:
        scanner = self.scanner
        scanner.finish()
        self._take()
        if not scanner.has_events:
            raise UserError(f"{self._path.name}: no `traceEvents` in it, expected a Kineto trace; name another file")
        num_unpaired = 0
        if self._halves:
            paired, num_unpaired = pair_halves(np.concatenate(self._halves))
            self._sink(paired, self._names)
        metadata = _decode_members(self._metadata)
        return Header(
            path=self._path,
            rank=self._rank(metadata),
            base_ns=self._base_ns(metadata),
            metadata=metadata,
            names=self._names,
            messages=[_decode(text, Message) for text in scanner.messages(0)],
            geometries=[_decode(text, Geometry) for text in scanner.geometries(0)],
            num_events=scanner.num_events,
            num_damaged=scanner.num_damaged + self._num_damaged_names + num_unpaired,
            is_truncated=is_truncated or not scanner.is_closed,
        )

    def _take(self) -> None:
        """Take the rows that the scanner has, and pass them to the sink."""
        for text in self.scanner.take_damaged():
            self._recover_metadata(text)
            for event in salvage(text):
                self.scanner.feed_event(event)
        self._metadata += self.scanner.take_metadata()
        rows = np.frombuffer(self.scanner.take_rows(), dtype=ROW)
        launches = np.frombuffer(self.scanner.take_launches(), dtype=LAUNCH)
        if len(launches):
            self._sink(launches, self._names)
        self._take_names()
        if self._is_damaged_name.any():
            self._num_damaged_names += int(self._is_damaged_name[rows["name"]].sum())
        is_half = rows["flags"] & (IS_BEGIN | IS_END) != 0
        if is_half.any():
            self._halves.append(rows[is_half])
            rows = rows[~is_half]
        if len(rows):
            self._sink(rows, self._names)

    def _take_names(self) -> None:
        """Decode the scanner's new names."""
        new = self.scanner.names(len(self._names))
        if not new:
            return
        is_damaged = np.zeros(len(new), dtype=bool)
        for index, name in enumerate(new):
            try:
                self._names.append(_unescape(name.decode()))
            except UnicodeDecodeError:
                self._names.append(_unescape(name.decode(errors="backslashreplace").replace("\\x", "\\\\x")))
                is_damaged[index] = True
        self._is_damaged_name = np.concatenate((self._is_damaged_name, is_damaged))

    def _recover_metadata(self, text: bytes) -> None:
        for pattern in (_DAMAGED_BASE, _DAMAGED_RANK):
            match = pattern.search(text)
            if match:
                self._recovered[pattern] = int(match[1])

    def _rank(self, metadata: dict[str, Any]) -> int | None:
        info = metadata.get("distributedInfo")
        rank = info.get("rank") if isinstance(info, dict) else None
        return rank if isinstance(rank, int) and 0 <= rank < _MAX_RANKS else self._recovered.get(_DAMAGED_RANK)

    def _base_ns(self, metadata: dict[str, Any]) -> int:
        base = metadata.get("baseTimeNanoseconds", self._recovered.get(_DAMAGED_BASE, 0))
        # A time after the year 2100 is damaged, and sums with it would overflow 64 bits.
        return base if isinstance(base, int) and 0 <= base < 4_100_000_000_000_000_000 else 0


def _unescape(name: str) -> str:
    if "\\" not in name:
        return name
    try:
        return str(json.loads(f'"{name}"'))
    except ValueError:
        return name


def _decode_members(members: list[bytes]) -> dict[str, Any]:
    """Decode metadata from keys and values in turns. Values that are no JSON are strings: the scanner drops quotes."""
    decoded: dict[str, Any] = {}
    for key, value in zip(members[::2], members[1::2], strict=True):
        try:
            decoded[key.decode(errors="replace")] = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            decoded[key.decode(errors="replace")] = value.decode(errors="replace")
    return decoded


def _decode(text: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return kind()
