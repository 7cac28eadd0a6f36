"""Reproduce the results of Holistic Trace Analysis (HTA), for comparison with them.

HTA counts every row with a stream as GPU work, whatever its category. If a job has two or more profiled steps, HTA
drops work launched after the start of the last step, and work whose launch was not recorded. Times here are exact
nanoseconds.

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
"""Class of rows that HTA counts as busy time only."""


@dataclass(frozen=True)
class HtaRank:
    """One rank with the GPU rows that HTA selects."""

    rank: int
    header: Header
    rows: Rows


def read_hta(files: Sequence[TraceFile], progress: Callable[[str], None]) -> list[HtaRank]:
    """Return HTA's rows of every rank of a job, by rank.

    Raises:
        UserError: If a file cannot be read, has no rank, or has the rank of another one.
    """
    traces = []
    for file in files:
        if file.part is not None:
            raise UserError(f"{file.path}: --parity hta reads only traces of Kineto, as HTA does; leave it out")
        header, rows = _read(file.path, progress)
        traces.append((rank_of(file, header.rank, len(files) == 1), header, rows))
    check_ranks((header.path, rank) for rank, header, _ in traces)
    # HTA counts the names of steps over all ranks together.
    steps = {name for _, header, _ in traces for name in header.names if _STEP in name}
    return [
        HtaRank(rank, header, _select(header, rows, has_last_step=len(steps) > 1))
        for rank, header, rows in sorted(traces, key=lambda trace: trace[0])
    ]


def _read(path: Path, progress: Callable[[str], None]) -> tuple[Header, Rows]:
    parts: list[Rows] = [np.empty(0, dtype=ROW)]
    header = read_trace(path, lambda rows, names: parts.append(rows), streams=True, progress=progress)
    return header, np.concatenate(parts)


def _select(header: Header, rows: Rows, *, has_last_step: bool) -> Rows:
    if has_last_step:
        rows = _before_last_step(header, rows)
    with_stream: Rows = rows[rows["flags"] & HAS_STREAM != 0]
    return with_stream


def _before_last_step(header: Header, rows: Rows) -> Rows:
    """Return the rows of the CPU before the last step, and the GPU work that they launched."""
    has_stream = rows["flags"] & HAS_STREAM != 0
    is_sync = _has_name(header, rows, lambda name: _SYNCHRONISATION.match(name) is not None)
    on_gpu = (has_stream & (rows["correlation"] >= 0)) | is_sync
    on_cpu = rows[~on_gpu]
    step_starts = on_cpu["start"][_has_name(header, on_cpu, lambda name: _STEP in name)]
    before: Rows = on_cpu[on_cpu["start"] < step_starts.max()] if len(step_starts) else on_cpu[:0]
    # As in HTA's join, GPU work is there once for every remaining row of the CPU with its correlation.
    correlations, counts = np.unique(before["correlation"], return_counts=True)
    work = rows[on_gpu]
    if not len(correlations):
        return before
    at = np.minimum(np.searchsorted(correlations, work["correlation"]), len(correlations) - 1)
    repeats = np.where(correlations[at] == work["correlation"], counts[at], 0)
    return np.concatenate((np.repeat(work, repeats), before))


def _has_name(header: Header, rows: Rows, test: Callable[[str], bool]) -> Bool:
    """Return which rows have a name that passes the test."""
    passes: Bool = np.array([test(name) for name in header.names], dtype=bool)
    return passes.take(rows["name"])


def hta_breakdown_row(rank: HtaRank) -> dict[str, str]:
    """Return the row of a rank in `breakdown.csv`, as HTA computes it; times in us."""
    start = np.ascontiguousarray(rank.rows["start"])
    end = start + rank.rows["duration"]
    by_class = {}
    for cls in ("compute", "comm", "memory"):
        is_of_class = _is_of_class(rank, cls)
        by_class[cls] = intervals.union(start[is_of_class], end[is_of_class])
    busy = intervals.union(start, end).length
    span = int(end.max() - start.min()) if len(start) else 0
    compute, comm = by_class["compute"].length, by_class["comm"].length
    overlapped = intervals.overlap_length(by_class["comm"], by_class["compute"])
    return {
        "rank": str(rank.rank),
        "span_us": as_us(span),
        "compute_us": as_us(compute),
        "comm_us": as_us(comm),
        "comm_exposed_us": as_us(comm - overlapped),
        "comm_overlapped_us": as_us(overlapped),
        "memory_us": as_us(by_class["memory"].length),
        "idle_us": as_us(span - busy),
        "comm_overlap_fraction": f"{overlapped / comm:.9f}" if comm else "",
        "num_gpu_events": str(len(start)),
        "num_damaged_events": str(rank.header.num_damaged),
        "truncated": "true" if rank.header.is_truncated else "false",
        "non_compute_us": as_us(busy - compute),
    }


def kernel_table(ranks: Sequence[HtaRank]) -> pa.Table:
    """Return the rows for `kernels.csv`, one per rank and name, with HTA's classes."""
    scheme = load_scheme(SCHEME)
    rows = []
    for rank in ranks:
        for number in np.unique(rank.rows["name"]).tolist():
            duration = rank.rows["duration"][rank.rows["name"] == number]
            name = rank.header.names[number]
            cls = _class(scheme, name)
            rows.append((rank.rank, cls, cls, name, len(duration), *_sum_min_max(duration)))
    columns = ("rank", "class", "kind", "name", "count", "sum_ns", "min_ns", "max_ns")
    types = (pa.int64(), pa.string(), pa.string(), pa.string(), *[pa.int64()] * 4)
    return pa.table({name: pa.array([row[i] for row in rows], types[i]) for i, name in enumerate(columns)})


def _sum_min_max(duration: np.ndarray) -> tuple[int, int, int]:
    return int(duration.sum()), int(duration.min()), int(duration.max())


def _is_of_class(rank: HtaRank, cls: str) -> Bool:
    scheme = load_scheme(SCHEME)
    return _has_name(rank.header, rank.rows, lambda name: _class(scheme, name) == cls)


def _class(scheme: Scheme, name: str) -> str:
    kernel = scheme.device(name)
    return "other" if kernel.cls == _NEITHER else kernel.category
