"""`triplepoint trace FILES`: the tables of loose trace files, a readable summary, and two CSV files.

`breakdown.csv` says where each rank's time went, `kernels.csv` what ran. Both can be had as Holistic Trace Analysis
(HTA) has them, in exact nanoseconds, for comparing with its results only. HTA takes every row with a stream for work of
the GPU, of whatever category. Of a job with two or more profiled steps it drops what was launched from the start of the
last step on, and all work whose launch was not recorded.

Source: HolisticTraceAnalysis 0.5.0, common/trace_filter.py, common/trace.py and analyzers/breakdown_analysis.py.
"""

import csv
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triplepoint.errors import UserError
from triplepoint.files import whole, write_text
from triplepoint.tables import CATEGORIES, COLLECTIVES, CRITICAL_PATH, INTERVALS, KERNELS, RANKS
from triplepoint.trace import Bool
from triplepoint.trace.compare import Comparison
from triplepoint.trace.join import Together, join_ranks
from triplepoint.trace.kineto import HAS_STREAM, ROW, Rows
from triplepoint.trace.kineto.reader import Header, read_kineto
from triplepoint.trace.lanes import RankSummary
from triplepoint.trace.parsing import TraceFile, check_ranks, find_traces, parse_traces, rank_of
from triplepoint.trace.perfetto import FILE_NAME, CounterTrack, cut_track, rank_process, write_merged
from triplepoint.trace.pipes import spooled
from triplepoint.trace.rank import intervals
from triplepoint.trace.reader import read_counters
from triplepoint.trace.taxonomy import Scheme, load_scheme
from triplepoint.units import MS_PER_S, NS_PER_S, NS_PER_US

_KEYS = ["rank", "class", "kind", "name"]
SCHEME = "hta"

_STEP = "ProfilerStep"
_SYNCHRONISATION = re.compile(r"(Event|Context) Sync$")
_NEITHER = "neither"
"""Class of rows that HTA counts as busy, but as no kind of work."""
_TOP = 8
_ROWS = (
    ("compute", "compute", "busy"),
    ("comm exposed", "comm", "exposed"),
    ("comm overlapped", "comm", "overlapped"),
    ("memory exposed", "memory", "exposed"),
    ("idle", "idle", "busy"),
)


def summarise(summaries: Iterable[RankSummary], comparison: Comparison) -> str:
    """Return a few readable lines per rank, and some on the ranks together."""
    return "\n".join([*(_summarise_rank(one) for one in summaries), *_summarise_ranks(comparison)])


def _summarise_rank(one: RankSummary) -> str:
    span = one.span[1] - one.span[0]
    if span == 0:
        return f"rank {one.rank}: no work in the trace{_damage(one)}"
    of = f"{one.num_gpu_events} GPU events" if one.is_device else "CPU work"
    lines = [f"rank {one.rank}: {_ms(span).strip()} with {of}{_damage(one)}"]
    for title, category, part in _ROWS:
        busy, exposed = one.busy(category), one.exposed(category)
        time = {"busy": busy, "exposed": exposed, "overlapped": busy - exposed}[part]
        lines.append(f"  {title:<17} {_ms(time)} {100 * time / span:6.2f} %")
    parts = [account for account in one.accounts if account.label.kind != "all" and account.exposed]
    for title, is_idle in (("mostly", False), ("idle because", True)):
        own = sorted((a for a in parts if (a.label.category == "idle") == is_idle), key=lambda a: -a.exposed)
        if own:
            lines.append(
                f"  {title:<17} " + ", ".join(f"{_name(a.label)} {_ms(a.exposed).strip()}" for a in own[:_TOP])
            )
    return "\n".join(lines)


def _summarise_ranks(comparison: Comparison) -> list[str]:
    lines = [
        f"rank {one.rank} is a straggler: computes {100 * (one.compute_excess or 0):.1f} % longer than its peers, "
        f"comes last to {100 * (one.share_last or 0):.0f} % of its collectives"
        for one in comparison.standings
        if one.is_straggler
    ]
    for path in comparison.paths:
        longest = sorted(path.times.items(), key=lambda item: -item[1])[:_TOP]
        parts = ", ".join(f"rank {rank} {_name(label)} {_ms(time).strip()}" for (rank, label), time in longest)
        lines.append(f"critical path of step {path.step}: {parts}")
    return [*lines, *comparison.notes]


def _name(label: tuple[str, str, str | None]) -> str:
    category, kind, group = label
    name = kind if category == "compute" else f"{category}/{kind}"
    return f"{name}[{group}]" if group else name


def _damage(one: RankSummary) -> str:
    said = []
    if one.is_truncated:
        said.append("the file is truncated (was the job killed?)")
    if one.num_damaged_events:
        said.append(_plural(one.num_damaged_events, "damaged event"))
    if one.num_duplicate_events:
        said.append(_plural(one.num_duplicate_events, "duplicate event") + " left out")
    return f"; {', '.join(said)}" if said else ""


def _plural(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' if number > 1 else ''}"


def _ms(time_ns: int) -> str:
    return f"{time_ns / (NS_PER_S / MS_PER_S):12.3f} ms"


Progress = Callable[[str], None]

_TABLES = "tables"


def trace_files(
    arguments: list[Path],
    out: Path,
    scheme: Scheme,
    progress: Progress,
    *,
    csv: bool = False,
    num_jobs: int | None = None,
    steps: re.Pattern[str] | None = None,
) -> str:
    """Write the tables of the traces of one job.

    Args:
        arguments: Traces, pipes that traces come through (`-` for standard input), or folders of traces.
        out: Folder the tables are written to.
        scheme: Rules of the taxonomy.
        progress: Called with a line now and then.
        csv: Write CSV files too.
        num_jobs: Processes to parse with; None for one a core.
        steps: Names of the annotations that are the steps; None for those that profilers and frameworks give them.

    Returns:
        A readable summary.

    Raises:
        UserError: If there are no traces, one cannot be read, has no rank, shares its rank with another, or is of
            another job.
        OSError: If the disk is full. Nothing is written in either case.
    """
    with _scratch(out) as scratch:
        files = find_traces(spooled(arguments, scratch / "pipes", progress))
        folders = [scratch / str(index) for index in range(len(files))]
        summaries = parse_traces(files, folders, scheme, progress, num_jobs, steps=steps)
        check_ranks((one.path, one.rank) for one in summaries)
        progress(f"joining {_plural(len(files), 'rank')}")
        tables = scratch / _TABLES
        together = join_ranks(folders, tables)
        counters = [
            track for file, one in zip(files, summaries, strict=True) for track in _counters(file, one, together)
        ]
        write_merged(
            tables / FILE_NAME, tables / "timeline.parquet", together.drawn, counters, lambda rank: f"rank {rank}"
        )
        if csv:
            _write_csv(tables, together)
    return summarise(together.summaries, together.comparison)


def _counters(file: TraceFile, summary: RankSummary, together: Together) -> Iterator[CounterTrack]:
    """Yield what the profiler sampled of a rank's GPU while the drawn step ran, on the common clock."""
    if file.part is None:
        return
    clock = together.comparison.clocks[summary.rank]
    for one in read_counters(file.path, file.part):
        process = rank_process(summary.rank, f"rank {summary.rank}")
        track = CounterTrack(process, one.name, one.unit, clock.aligned(one.t_ns), one.value)
        if len((kept := cut_track(track, *together.drawn)).t_ns):
            yield kept


def trace_files_as_hta(arguments: list[Path], out: Path, progress: Progress) -> str:
    """Write `breakdown.csv` and `kernels.csv` as HTA would have them; return the breakdown as text.

    Raises:
        UserError: As `trace_files`.
    """
    with _scratch(out) as scratch:
        ranks = read_hta(find_traces(spooled(arguments, scratch / "pipes", progress)), progress)
        rows = [hta_breakdown_row(one) for one in ranks]
        write_breakdown(scratch / _TABLES / "breakdown.csv", rows)
        write_kernels(scratch / _TABLES / "kernels.csv", kernel_table(ranks))
    return "\n".join("  ".join(f"{name} {value}" for name, value in row.items()) for row in rows)


def _write_csv(out: Path, together: Together) -> None:
    write_breakdown(out / "breakdown.csv", [breakdown_row(one) for one in together.summaries])
    write_kernels(out / "kernels.csv", KERNELS.read(out / "kernels.parquet"))
    for table in (INTERVALS, CATEGORIES, COLLECTIVES, RANKS, CRITICAL_PATH):
        table.write_csv(out / f"{table.name}.csv", table.read_parts(out / f"{table.name}.parquet"))


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """Yield a folder whose `tables` go to `out` when the block succeeds; if it raises, all is as it was."""
    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".ranks-", dir=out))
    try:
        yield folder
        for path in (folder / _TABLES).iterdir():
            path.replace(out / path.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new and not any(out.iterdir()):
            out.rmdir()


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
            raise UserError(f"{file.path}: --parity hta reads traces of Kineto only, as HTA does; leave it out")
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
    header = read_kineto(path, lambda rows, names: parts.append(rows), streams=True, progress=progress)
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


def breakdown_row(one: RankSummary) -> dict[str, str]:
    """Return the row of a rank: times over all its work in the file, in us with three decimals.

    `memory_us` is the time any copy or fill was running, overlapped with others or not: compute, exposed communication,
    memory and idle time together exceed the span by what memory operations overlap.
    """
    first, last = one.span
    comm, exposed = one.busy("comm"), one.exposed("comm")
    return {
        "rank": str(one.rank),
        "span_us": as_us(last - first),
        "compute_us": as_us(one.busy("compute")),
        "comm_us": as_us(comm),
        "comm_exposed_us": as_us(exposed),
        "comm_overlapped_us": as_us(comm - exposed),
        "memory_us": as_us(one.busy("memory")),
        "idle_us": as_us(one.busy("idle")),
        "comm_overlap_fraction": f"{(comm - exposed) / comm:.9f}" if comm else "",
        "num_gpu_events": str(one.num_gpu_events),
        "num_damaged_events": str(one.num_damaged_events),
        "truncated": "true" if one.is_truncated else "false",
    }


def write_breakdown(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write rows of text under their keys."""
    lines = [",".join(rows[0]) if rows else "", *(",".join(row.values()) for row in rows)]
    write_text(path, "\n".join(lines) + "\n")


def write_kernels(path: Path, kernels: pa.Table) -> None:
    """Write what ran, summed over steps and process groups, the longest first.

    Args:
        path: File to write.
        kernels: Columns rank, class, kind, name, count, sum_ns, min_ns, max_ns; other columns do not matter.
    """
    sums = kernels.group_by(_KEYS, use_threads=False).aggregate(
        [("count", "sum"), ("sum_ns", "sum"), ("min_ns", "min"), ("max_ns", "max")]
    )
    order = pc.sort_indices(sums, [("rank", "ascending"), ("sum_ns_sum", "descending"), ("name", "ascending")])
    sums = sums.take(order)
    with whole(path) as scratch, scratch.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([*_KEYS, "count", "sum_us", "mean_us", "min_us", "max_us"])
        for one in sums.to_pylist():
            count, total = one["count_sum"], one["sum_ns_sum"]
            mean = f"{total / NS_PER_US / count:.3f}"
            ends = (as_us(one["min_ns_min"]), as_us(one["max_ns_max"]))
            rows.writerow([*(one[key] for key in _KEYS), count, as_us(total), mean, *ends])


def as_us(time_ns: int) -> str:
    """Return nanoseconds as exact microseconds."""
    sign, time_ns = ("-", -time_ns) if time_ns < 0 else ("", time_ns)
    return f"{sign}{time_ns // NS_PER_US}.{time_ns % NS_PER_US:03d}"
