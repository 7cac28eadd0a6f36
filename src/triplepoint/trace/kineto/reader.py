"""One Kineto trace as columns: integer nanoseconds, name ids, categories, and the arguments the analysis needs.

Only complete events (`ph: X`) of the categories in `Category` are kept. The text is decoded in one typed call today;
a streaming reader only has to feed `_Builder.add` batch by batch.
"""

import contextlib
import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from triplepoint.trace.kineto.source import explain_damage, read_source
from triplepoint.units import NS_PER_US

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Category(IntEnum):
    """Categories of events that are kept."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    CPU_OP = 3
    RUNTIME = 4
    ANNOTATION = 5
    GPU_ANNOTATION = 6


_CATEGORIES = {
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "cpu_op": Category.CPU_OP,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "user_annotation": Category.ANNOTATION,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    # Spelling of 2021.
    "Kernel": Category.KERNEL,
    "Memcpy": Category.MEMCPY,
    "Memset": Category.MEMSET,
    "Operator": Category.CPU_OP,
    "Runtime": Category.RUNTIME,
}
_DEVICE = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
_LONGEST_US = 3.2e13
"""A year: no event lasts longer, whatever a damaged one says."""
_LATEST_US = 4.1e15
"""The year 2100, so that no sum of times leaves 64 bits."""
_COMM_NAME = re.compile(r"nccl|gloo:|c10d::", re.IGNORECASE)


class Event(msgspec.Struct, gc=False):
    """One event as it stands in the file; only what is read."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = float("nan")
    dur: float = float("nan")
    pid: int | str = 0
    tid: int | str = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Document(msgspec.Struct):
    traceEvents: list[Event]  # noqa: N815 - the file's spelling
    baseTimeNanoseconds: int = 0  # noqa: N815
    distributedInfo: dict[str, Any] | None = None  # noqa: N815


class _Launch(msgspec.Struct, gc=False):
    correlation: int = -1


class CommArgs(msgspec.Struct, gc=False):
    """Arguments of a communication event; None where the event lacks them."""

    collective: Any = msgspec.field(name="Collective name", default=None)
    group_name: Any = msgspec.field(name="Process Group Name", default=None)
    group_description: Any = msgspec.field(name="Process Group Description", default=None)
    input_dims: Any = msgspec.field(name="Input Dims", default=None)


@dataclass(frozen=True)
class Trace:
    """Columns of one trace, one entry per kept event, in the file's order.

    Attributes:
        path: File it was read from.
        rank: Rank the file says it is of, None where it does not.
        names: Distinct event names.
        name: Index into `names`.
        category: A `Category`.
        start: Wall-clock start. Unit: ns since 1970.
        duration: Unit: ns.
        thread: Index of the (process, thread), or of the stream of device work.
        correlation: Ties device work to the call that launched it; -1 where not known.
        comm_args: Arguments of communication events, by index of the event.
        num_damaged: Complete events without a usable time or duration, left out.
    """

    path: Path
    rank: int | None
    names: list[str]
    name: Int64
    category: Int64
    start: Int64
    duration: Int64
    thread: Int64
    correlation: Int64
    comm_args: dict[int, CommArgs]
    num_damaged: int

    @property
    def end(self) -> Int64:
        """Return the wall-clock end of every event. Unit: ns since 1970."""
        return self.start + self.duration

    @property
    def is_device(self) -> Bool:
        """Return which events are work of a GPU."""
        return np.isin(self.category, _DEVICE)

    def named(self, category: Category, pattern: str) -> Int64:
        """Return the indices of events of a category whose name matches a pattern from its start, by start time."""
        wanted = [index for index, name in enumerate(self.names) if re.match(pattern, name)]
        found = np.flatnonzero((self.category == category) & np.isin(self.name, wanted))
        return found[np.argsort(self.start[found], kind="stable")]


def read_trace(path: Path) -> Trace:
    """Read one Kineto trace.

    Args:
        path: Chrome JSON as the PyTorch profiler writes it, plain or gzip.

    Returns:
        Its columns.

    Raises:
        UserError: If the file is not a whole trace.
    """
    text = read_source(path)
    builder = _Builder()
    with _gc_disabled():
        document = _decode(path, text)
        builder.add(document.traceEvents)
    rank = (document.distributedInfo or {}).get("rank")
    return builder.finish(path, rank if isinstance(rank, int) else None, document.baseTimeNanoseconds)


def _decode(path: Path, text: bytes) -> _Document:
    text = text.removeprefix(b"\xef\xbb\xbf")
    try:
        if text.lstrip()[:1] == b"[":
            return _Document(msgspec.json.decode(text, type=list[Event]))
        return msgspec.json.decode(text, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise explain_damage(path, text, str(error)) from None


class _Builder:
    """Collects batches of events into columns."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[int | str, int | str], int] = {}
        self._columns: dict[str, list[npt.NDArray[Any]]] = {}
        self._comm_args: dict[int, CommArgs] = {}
        self._count = 0
        self._num_damaged = 0

    def add(self, events: list[Event]) -> None:
        """Append the events worth keeping."""
        complete = [e for e in events if e.ph == "X" and e.cat in _CATEGORIES]
        kept = [e for e in complete if 0.0 <= e.dur < _LONGEST_US and 0.0 <= e.ts < _LATEST_US]
        self._num_damaged += len(complete) - len(kept)
        category = np.array([_CATEGORIES[e.cat] for e in kept], dtype=np.int64)
        names, threads = self._names, self._threads
        self._append("name", np.array([names.setdefault(e.name, len(names)) for e in kept], dtype=np.int64))
        self._append("category", category)
        self._append("start", us_to_ns(np.array([e.ts for e in kept])))
        self._append("duration", us_to_ns(np.array([e.dur for e in kept])))
        keys = [threads.setdefault((e.pid, e.tid), len(threads)) for e in kept]
        self._append("thread", np.array(keys, dtype=np.int64))
        self._append("correlation", _correlations(kept, category))
        self._add_comm_args(kept)
        self._count += len(kept)

    def _append(self, column: str, values: npt.NDArray[Any]) -> None:
        self._columns.setdefault(column, []).append(values)

    def _add_comm_args(self, kept: list[Event]) -> None:
        is_comm = {name for name in self._names if _COMM_NAME.search(name)}
        indices = [index for index, event in enumerate(kept) if event.name in is_comm]
        for index, args in zip(indices, _decode_args([kept[i] for i in indices], CommArgs), strict=True):
            self._comm_args[self._count + index] = args

    def finish(self, path: Path, rank: int | None, base_ns: int) -> Trace:
        """Return the columns, with times on the wall clock."""
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        columns["start"] = columns["start"] + base_ns
        return Trace(path, rank, list(self._names), **columns, comm_args=self._comm_args, num_damaged=self._num_damaged)


def us_to_ns(us: npt.NDArray[np.float64]) -> Int64:
    """Return microseconds as integer nanoseconds.

    Whole and fractional part apart: an absolute time in microseconds is exact in a float, in nanoseconds it is not.
    """
    whole = np.floor(us)
    return whole.astype(np.int64) * NS_PER_US + np.rint((us - whole) * NS_PER_US).astype(np.int64)


def _correlations(kept: list[Event], category: Int64) -> Int64:
    values = np.full(len(kept), -1, dtype=np.int64)
    if not np.isin(category, _DEVICE).any():
        return values
    indices = np.flatnonzero(np.isin(category, (*_DEVICE, Category.RUNTIME)))
    values[indices] = [args.correlation for args in _decode_args([kept[i] for i in indices], _Launch)]
    return values


def _decode_args(events: list[Event], kind: Any) -> list[Any]:
    """Return the arguments of events as `kind`, decoded in one call; defaults where one does not fit the type."""
    try:
        return msgspec.json.decode(b"[" + b",".join(e.args for e in events) + b"]", type=list[kind])
    except msgspec.MsgspecError:
        return [_decode_one(e.args, kind) for e in events]


def _decode_one(args: msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(args, type=kind)
    except msgspec.MsgspecError:
        return kind()


@contextlib.contextmanager
def _gc_disabled() -> Iterator[None]:
    """Keep the collector from walking millions of young objects; it triples the time of decoding."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
