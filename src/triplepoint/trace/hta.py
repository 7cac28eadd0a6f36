"""Rows, classes and breakdown as Holistic Trace Analysis (HTA) has them, for comparing with its results only.

HTA takes every row with a stream for work of the GPU, of whatever category. Of a job with two or more profiled steps it
drops what was launched from the start of the last step on, and all work whose launch was not recorded. Times are exact
nanoseconds here.

Source: HolisticTraceAnalysis 0.5.0, common/trace_filter.py, common/trace.py and analyzers/breakdown_analysis.py.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from triplepoint.errors import UserError
from triplepoint.trace import Bool
from triplepoint.trace.breakdown import as_us
from triplepoint.trace.kineto import HAS_STREAM, ROW, Rows
from triplepoint.trace.kineto.reader import Header, read_trace
from triplepoint.trace.parsing import TraceFile, check_ranks, rank_of
from triplepoint.trace.rank import intervals
from triplepoint.trace.taxonomy import Scheme, load_scheme

SCHEME = "hta"

_STEP = "ProfilerStep"
_SYNCHRONISATION = re.compile(r"(Event|Context) Sync$")
_NEITHER = "neither"
"""Class of rows that HTA counts as busy, but as no kind of work."""


@dataclass(frozen=True)
class HtaRank:
    """What HTA has of one rank: the GPU rows it selects."""

    rank: int
    header: Header
    rows: Rows


def read_hta(files: Sequence[TraceFile], progress: Callable[[str], None]) -> list[HtaRank]:
    """Return HTA's rows of every rank of a job, by rank.

    Raises:
        UserError: If a file cannot be read, has no rank, or shares it with another.
    """
    read = []
    for file in files:
        if file.part is not None:
            raise UserError(f"{file.path}: --parity hta reads only traces of Kineto, as HTA does; leave it out")
        header, rows = _read(file.path, progress)
        read.append((rank_of(file, header.rank, len(files) == 1), header, rows))
    check_ranks((header.path, rank) for rank, header, _ in read)
    # HTA counts the names of steps over all ranks together.
    steps = {name for _, header, _ in read for name in header.names if _STEP in name}
    return [
        HtaRank(rank, header, _select(header, rows, has_last_step=len(steps) > 1))
        for rank, header, rows in sorted(read, key=lambda one: one[0])
    ]


def _read(path: Path, progress: Callable[[str], None]) -> tuple[Header, Rows]:
    parts: list[Rows] = [np.empty(0, dtype=ROW)]
    header = read_trace(path, lambda rows, names: parts.append(rows), streams=True, progress=progress)
    return header, np.concatenate(parts)


def _select(header: Header, rows: Rows, *, has_last_step: bool) -> Rows:
    if has_last_step:
        rows = _before_last_step(header, rows)
    judged: Rows = rows[rows["flags"] & HAS_STREAM != 0]
    return judged


def _before_last_step(header: Header, rows: Rows) -> Rows:
    has_stream = rows["flags"] & HAS_STREAM != 0
    is_sync = _named(header, rows, lambda name: _SYNCHRONISATION.match(name) is not None)
    on_gpu = (has_stream & (rows["correlation"] >= 0)) | is_sync
    on_cpu = rows[~on_gpu]
    starts = on_cpu["start"][_named(header, on_cpu, lambda name: _STEP in name)]
    kept = on_cpu[on_cpu["start"] < starts.max()] if len(starts) else on_cpu[:0]
    # A row is there once for every call that is left with its correlation.
    calls, count = np.unique(kept["correlation"], return_counts=True)
    work = rows[on_gpu]
    at = np.minimum(np.searchsorted(calls, work["correlation"]), max(len(calls) - 1, 0))
    times = np.where(calls[at] == work["correlation"], count[at], 0) if len(calls) else np.zeros(len(work), dtype=int)
    return np.concatenate((np.repeat(work, times), kept))


def _named(header: Header, rows: Rows, test: Callable[[str], bool]) -> Bool:
    passes: Bool = np.array([test(name) for name in header.names], dtype=bool)
    return passes.take(rows["name"])


def hta_breakdown_row(one: HtaRank) -> dict[str, str]:
    """Return the row of a rank in `breakdown.csv`, as HTA has it; times in us."""
    start = np.ascontiguousarray(one.rows["start"])
    end = start + one.rows["duration"]
    of_class = {
        cls: intervals.union(start[own], end[own])
        for cls in ("compute", "comm", "memory")
        for own in [_of_class(one, cls)]
    }
    busy = intervals.union(start, end).length
    span = int(end.max() - start.min()) if len(start) else 0
    compute, comm = of_class["compute"].length, of_class["comm"].length
    overlapped = intervals.overlap_length(of_class["comm"], of_class["compute"])
    return {
        "rank": str(one.rank),
        "span_us": as_us(span),
        "compute_us": as_us(compute),
        "comm_us": as_us(comm),
        "comm_exposed_us": as_us(comm - overlapped),
        "comm_overlapped_us": as_us(overlapped),
        "memory_us": as_us(of_class["memory"].length),
        "idle_us": as_us(span - busy),
        "comm_overlap_fraction": f"{overlapped / comm:.9f}" if comm else "",
        "num_gpu_events": str(len(start)),
        "num_damaged_events": str(one.header.num_damaged),
        "truncated": "true" if one.header.is_truncated else "false",
        "non_compute_us": as_us(busy - compute),
    }


def kernel_table(ranks: Sequence[HtaRank]) -> pa.Table:
    """Return the rows for `kernels.csv`: one per rank and name, by HTA's classes."""
    scheme = load_scheme(SCHEME)
    rows = []
    for one in ranks:
        for name in np.unique(one.rows["name"]).tolist():
            duration = one.rows["duration"][one.rows["name"] == name]
            cls = _class(scheme, one.header.names[name])
            rows.append((one.rank, cls, cls, one.header.names[name], len(duration), *_statistics(duration)))
    columns = ("rank", "class", "kind", "name", "count", "sum_ns", "min_ns", "max_ns")
    types = (pa.int64(), pa.string(), pa.string(), pa.string(), *[pa.int64()] * 4)
    return pa.table({name: pa.array([row[i] for row in rows], types[i]) for i, name in enumerate(columns)})


def _statistics(duration: np.ndarray) -> tuple[int, int, int]:
    return int(duration.sum()), int(duration.min()), int(duration.max())


def _of_class(one: HtaRank, cls: str) -> Bool:
    scheme = load_scheme(SCHEME)
    return _named(one.header, one.rows, lambda name: _class(scheme, name) == cls)


def _class(scheme: Scheme, name: str) -> str:
    kernel = scheme.device(name)
    return "other" if kernel.cls == _NEITHER else kernel.category
