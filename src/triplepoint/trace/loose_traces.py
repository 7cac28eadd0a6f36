"""Analyse trace files that belong to no run: tables, a readable summary, CSV files. `triplepoint trace FILES`."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from triplepoint.errors import UserError
from triplepoint.files import temporary_folder
from triplepoint.tables import CATEGORIES, COLLECTIVES, CRITICAL_PATH, INTERVALS, KERNELS, RANKS
from triplepoint.text import percent
from triplepoint.trace.breakdown import breakdown_row, write_breakdown, write_kernels
from triplepoint.trace.chakra.export import write_rank
from triplepoint.trace.chakra.files import is_chakra
from triplepoint.trace.chakra.summary import summarise_graph
from triplepoint.trace.compare import Comparison
from triplepoint.trace.hta import hta_breakdown_row, kernel_table, read_hta
from triplepoint.trace.join import JoinedRanks, join_ranks
from triplepoint.trace.parsing import TraceFile, check_ranks, find_traces, parse_traces
from triplepoint.trace.perfetto import FILE_NAME, CounterTrack, cut_track, rank_process, write_merged
from triplepoint.trace.pipes import spool_pipes
from triplepoint.trace.rank_results import RankSummary
from triplepoint.trace.reader import read_counters
from triplepoint.trace.taxonomy import Scheme
from triplepoint.units import MS_PER_S, NS_PER_S, counted

_TOP = 8
"""Labels that are named in a line of the summary."""
_SUMMARY_ROWS = (
    ("compute", "compute", "busy"),
    ("comm exposed", "comm", "exposed"),
    ("comm overlapped", "comm", "overlapped"),
    ("memory exposed", "memory", "exposed"),
    ("idle", "idle", "busy"),
)
"""Lines of a rank's summary: title, category and kind of time."""


def summarise(summaries: Iterable[RankSummary], comparison: Comparison) -> str:
    """Return all ranks together and slow ones in a line each, a few lines per rank, and what steps depend on."""
    summaries = list(summaries)
    slow, paths = _slow_ranks(comparison), _paths(comparison)
    return "\n".join([*_all_ranks(summaries), *slow, *map(_summarise_rank, summaries), *paths, *comparison.notes])


def _all_ranks(summaries: Sequence[RankSummary]) -> list[str]:
    """Return in one line where the time of all ranks went; no line for a single rank."""
    working = [summary for summary in summaries if summary.span[1] > summary.span[0]]
    span = sum(summary.span[1] - summary.span[0] for summary in working)
    if len(working) < 2:
        return []
    parts = (
        f"{title} {percent(sum(_time(summary, category, kind) for summary in working) / span)}"
        for title, category, kind in _SUMMARY_ROWS
    )
    return [f"{len(working)} ranks together: {', '.join(parts)}"]


def _time(summary: RankSummary, category: str, kind: str) -> int:
    busy, exposed = summary.busy(category), summary.exposed(category)
    return {"busy": busy, "exposed": exposed, "overlapped": busy - exposed}[kind]


def _summarise_rank(summary: RankSummary) -> str:
    span = summary.span[1] - summary.span[0]
    if span == 0:
        return f"rank {summary.rank}: no work in the trace{_remarks(summary)}"
    work = f"{summary.num_gpu_events} GPU events" if summary.is_device else "CPU work"
    lines = [f"rank {summary.rank}: {_ms(span).strip()} with {work}{_remarks(summary)}"]
    for title, category, kind in _SUMMARY_ROWS:
        time = _time(summary, category, kind)
        lines.append(f"  {title:<17} {_ms(time)} {100 * time / span:6.2f} %")
    exposed_labels = [account for account in summary.accounts if account.label.kind != "all" and account.exposed]
    for title, is_idle in (("mostly", False), ("idle because", True)):
        shown = [account for account in exposed_labels if (account.label.category == "idle") == is_idle]
        shown = sorted(shown, key=lambda account: -account.exposed)[:_TOP]
        if shown:
            times = ", ".join(f"{_label_name(account.label)} {_ms(account.exposed).strip()}" for account in shown)
            lines.append(f"  {title:<17} {times}")
    return "\n".join(lines)


def _slow_ranks(comparison: Comparison) -> list[str]:
    return [
        f"rank {rank.rank} is a straggler: computes {100 * (rank.compute_excess or 0):.1f} % longer than its peers, "
        f"comes last to {100 * (rank.share_last or 0):.0f} % of its collectives"
        for rank in comparison.standings
        if rank.is_straggler
    ]


def _paths(comparison: Comparison) -> list[str]:
    lines = []
    for path in comparison.paths:
        longest = sorted(path.times.items(), key=lambda item: -item[1])[:_TOP]
        parts = ", ".join(f"rank {rank} {_label_name(label)} {_ms(time).strip()}" for (rank, label), time in longest)
        lines.append(f"critical path of step {path.step}: {parts}")
    return lines


def _label_name(label: tuple[str, str, str | None]) -> str:
    category, kind, group = label
    name = kind if category == "compute" else f"{category}/{kind}"
    return f"{name}[{group}]" if group else name


def _remarks(summary: RankSummary) -> str:
    damage = _damage(summary.is_truncated, summary.num_damaged_events)
    remarks = [damage] if damage else []
    if summary.num_duplicate_events:
        remarks.append(counted(summary.num_duplicate_events, "duplicate event") + " left out")
    return f"; {', '.join(remarks)}" if remarks else ""


def _damage(is_truncated: bool, num_damaged_events: int) -> str:
    """Return a description of a trace's damage; empty if there is none."""
    parts = ["the file is truncated (was the job killed?)"] if is_truncated else []
    if num_damaged_events:
        parts.append(counted(num_damaged_events, "damaged event"))
    return ", ".join(parts)


def _ms(time_ns: int) -> str:
    return f"{time_ns / (NS_PER_S / MS_PER_S):12.3f} ms"


Progress = Callable[[str], None]

_TABLES = "tables"


@dataclass(frozen=True)
class TraceAnalysis:
    """Result of analysing the traces of a job, in addition to the tables.

    Attributes:
        summary: Readable lines.
        num_files: Number of traces.
        damaged: Description of the damage of each damaged file, by name; the tables have what could be read.
    """

    summary: str
    num_files: int
    damaged: Mapping[str, str]

    @property
    def is_any_whole(self) -> bool:
        """Whether at least one file is undamaged."""
        return len(self.damaged) < self.num_files


def trace_files(
    arguments: list[Path],
    out: Path,
    scheme: Scheme,
    progress: Progress,
    *,
    csv: bool = False,
    chakra: bool = False,
    num_jobs: int | None = None,
    steps: re.Pattern[str] | None = None,
) -> TraceAnalysis:
    """Write the tables of the traces of one job.

    Args:
        arguments: Traces, folders of traces, or pipes (`-` for standard input).
        out: Folder to write the tables to.
        scheme: Rules of the taxonomy.
        progress: Receives progress, a line at a time.
        csv: Whether to write CSV files, too.
        chakra: Whether to write a Chakra trace of every rank, too.
        num_jobs: Processes to parse with; None for one per core.
        steps: Names of the annotations that mark steps; None for the names that profilers and frameworks use.

    Returns:
        A readable summary, and the damaged files.

    Raises:
        UserError: If there are no traces, or one cannot be read, has no rank, has the rank of another one, or is of
            another job.
        OSError: If the disk is full. Nothing is written in either case.
    """
    with _scratch(out) as scratch:
        files = find_traces(spool_pipes(arguments, scratch / "pipes", progress))
        graphs = [summarise_graph(file.path) for file in files if is_chakra(file.path)]
        graph_lines = [line for graph in graphs for line in graph.lines()]
        if len(graphs) == len(files) and not any(graph.has_times for graph in graphs):
            return TraceAnalysis("\n".join(graph_lines), len(files), {})
        folders = [scratch / str(index) for index in range(len(files))]
        summaries = parse_traces(files, folders, scheme, progress, num_jobs, steps=steps)
        check_ranks((summary.path, summary.rank) for summary in summaries)
        progress(f"joining {counted(len(files), 'rank')}")
        tables = scratch / _TABLES
        joined = join_ranks(folders, tables)
        counters = [
            track for file, summary in zip(files, summaries, strict=True) for track in _counters(file, summary, joined)
        ]
        write_merged(
            tables / FILE_NAME, tables / "timeline.parquet", joined.drawn, counters, lambda rank: f"rank {rank}"
        )
        if csv:
            _write_csv(tables, joined)
        for file, folder in zip(files if chakra else [], folders, strict=False):
            write_rank(file, tables, scheme, folder, is_only=len(files) == 1)
    damage = [(summary.path, _damage(summary.is_truncated, summary.num_damaged_events)) for summary in summaries]
    return _analysis("\n".join([*graph_lines, summarise(joined.summaries, joined.comparison)]), damage)


def _analysis(summary: str, damage: Sequence[tuple[str | Path, str]]) -> TraceAnalysis:
    """Return the result from the summary, and path and damage of every trace."""
    num_files = len({path for path, _ in damage})
    return TraceAnalysis(summary, num_files, {Path(path).name: text for path, text in damage if text})


def _counters(file: TraceFile, summary: RankSummary, joined: JoinedRanks) -> Iterator[CounterTrack]:
    """Yield the profiler's samples of a rank's GPU during the drawn step, on the common clock."""
    if file.part is None:
        return
    clock = joined.comparison.clocks[summary.rank]
    for counter in read_counters(file.path, file.part):
        process = rank_process(summary.rank, f"rank {summary.rank}")
        track = CounterTrack(process, counter.name, counter.unit, clock.aligned(counter.t_ns), counter.value)
        if len((drawn := cut_track(track, *joined.drawn)).t_ns):
            yield drawn


def trace_files_as_hta(arguments: list[Path], out: Path, progress: Progress) -> TraceAnalysis:
    """Write `breakdown.csv` and `kernels.csv` as HTA would; the summary of the result is the breakdown.

    Raises:
        UserError: See `trace_files`.
    """
    with _scratch(out) as scratch:
        files = find_traces(spool_pipes(arguments, scratch / "pipes", progress))
        chakra = next((file.path for file in files if is_chakra(file.path)), None)
        if chakra is not None:
            raise UserError(f"{chakra}: --parity hta is of traces of Kineto; leave it out for a Chakra trace")
        ranks = read_hta(files, progress)
        rows = [hta_breakdown_row(rank) for rank in ranks]
        write_breakdown(scratch / _TABLES / "breakdown.csv", rows)
        write_kernels(scratch / _TABLES / "kernels.csv", kernel_table(ranks))
    headers = [rank.header for rank in ranks]
    damage = [(header.path, _damage(header.is_truncated, header.num_damaged)) for header in headers]
    return _analysis("\n".join("  ".join(f"{name} {value}" for name, value in row.items()) for row in rows), damage)


def _write_csv(out: Path, joined: JoinedRanks) -> None:
    write_breakdown(out / "breakdown.csv", [breakdown_row(summary) for summary in joined.summaries])
    write_kernels(out / "kernels.csv", KERNELS.read(out / "kernels.parquet"))
    for table in (INTERVALS, CATEGORIES, COLLECTIVES, RANKS, CRITICAL_PATH):
        table.write_csv(out / f"{table.name}.csv", table.read_parts(out / f"{table.name}.parquet"))


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """Yield a temporary folder; its folder `tables` is moved to `out` on success. After an error `out` is unchanged."""
    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with temporary_folder(".ranks-", out) as folder:
            (folder / _TABLES).mkdir()
            yield folder
            for path in (folder / _TABLES).iterdir():
                path.replace(out / path.name)
    finally:
        if is_new and not any(out.iterdir()):
            out.rmdir()
