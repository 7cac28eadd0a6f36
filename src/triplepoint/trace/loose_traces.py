"""`triplepoint trace FILES`: the tables of loose trace files, a readable summary, and CSV files."""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from triplepoint.errors import UserError
from triplepoint.tables import CATEGORIES, COLLECTIVES, CRITICAL_PATH, INTERVALS, KERNELS, RANKS
from triplepoint.trace.breakdown import breakdown_row, write_breakdown, write_kernels
from triplepoint.trace.chakra.export import write_rank
from triplepoint.trace.chakra.files import is_chakra
from triplepoint.trace.chakra.summary import summarise_graph
from triplepoint.trace.compare import Comparison
from triplepoint.trace.hta import hta_breakdown_row, kernel_table, read_hta
from triplepoint.trace.join import Together, join_ranks
from triplepoint.trace.lanes import RankSummary
from triplepoint.trace.parsing import TraceFile, check_ranks, find_traces, parse_traces
from triplepoint.trace.perfetto import FILE_NAME, CounterTrack, cut_track, rank_process, write_merged
from triplepoint.trace.pipes import spooled
from triplepoint.trace.reader import read_counters
from triplepoint.trace.taxonomy import Scheme
from triplepoint.units import MS_PER_S, NS_PER_S, counted

_TOP = 8
_ROWS = (
    ("compute", "compute", "busy"),
    ("comm exposed", "comm", "exposed"),
    ("comm overlapped", "comm", "overlapped"),
    ("memory exposed", "memory", "exposed"),
    ("idle", "idle", "busy"),
)


def summarise(summaries: Iterable[RankSummary], comparison: Comparison) -> str:
    """Return the ranks together and slow ones in a line each, then a few lines per rank, and what steps depend on."""
    summaries = list(summaries)
    slow, paths = _slow_ranks(comparison), _paths(comparison)
    return "\n".join([*_together(summaries), *slow, *map(_summarise_rank, summaries), *paths, *comparison.notes])


def _together(summaries: Sequence[RankSummary]) -> list[str]:
    """Return in one line where the time of all ranks went; nothing of a single rank."""
    worked = [one for one in summaries if one.span[1] > one.span[0]]
    span = sum(one.span[1] - one.span[0] for one in worked)
    if len(worked) < 2:
        return []
    parts = (
        f"{title} {sum(_time(one, category, part) for one in worked) / span:.1%}" for title, category, part in _ROWS
    )
    return [f"{len(worked)} ranks together: {', '.join(parts).replace('%', ' %')}"]


def _time(one: RankSummary, category: str, part: str) -> int:
    busy, exposed = one.busy(category), one.exposed(category)
    return {"busy": busy, "exposed": exposed, "overlapped": busy - exposed}[part]


def _summarise_rank(one: RankSummary) -> str:
    span = one.span[1] - one.span[0]
    if span == 0:
        return f"rank {one.rank}: no work in the trace{_remarks(one)}"
    of = f"{one.num_gpu_events} GPU events" if one.is_device else "CPU work"
    lines = [f"rank {one.rank}: {_ms(span).strip()} with {of}{_remarks(one)}"]
    for title, category, part in _ROWS:
        time = _time(one, category, part)
        lines.append(f"  {title:<17} {_ms(time)} {100 * time / span:6.2f} %")
    parts = [account for account in one.accounts if account.label.kind != "all" and account.exposed]
    for title, is_idle in (("mostly", False), ("idle because", True)):
        own = sorted((a for a in parts if (a.label.category == "idle") == is_idle), key=lambda a: -a.exposed)
        if own:
            lines.append(
                f"  {title:<17} " + ", ".join(f"{_name(a.label)} {_ms(a.exposed).strip()}" for a in own[:_TOP])
            )
    return "\n".join(lines)


def _slow_ranks(comparison: Comparison) -> list[str]:
    return [
        f"rank {one.rank} is a straggler: computes {100 * (one.compute_excess or 0):.1f} % longer than its peers, "
        f"comes last to {100 * (one.share_last or 0):.0f} % of its collectives"
        for one in comparison.standings
        if one.is_straggler
    ]


def _paths(comparison: Comparison) -> list[str]:
    lines = []
    for path in comparison.paths:
        longest = sorted(path.times.items(), key=lambda item: -item[1])[:_TOP]
        parts = ", ".join(f"rank {rank} {_name(label)} {_ms(time).strip()}" for (rank, label), time in longest)
        lines.append(f"critical path of step {path.step}: {parts}")
    return lines


def _name(label: tuple[str, str, str | None]) -> str:
    category, kind, group = label
    name = kind if category == "compute" else f"{category}/{kind}"
    return f"{name}[{group}]" if group else name


def _remarks(one: RankSummary) -> str:
    damage = _damage(one.is_truncated, one.num_damaged_events)
    said = [damage] if damage else []
    if one.num_duplicate_events:
        said.append(counted(one.num_duplicate_events, "duplicate event") + " left out")
    return f"; {', '.join(said)}" if said else ""


def _damage(is_truncated: bool, num_damaged_events: int) -> str:
    """Return what of a trace could not be read; empty where it was read whole."""
    said = ["the file is truncated (was the job killed?)"] if is_truncated else []
    if num_damaged_events:
        said.append(counted(num_damaged_events, "damaged event"))
    return ", ".join(said)


def _ms(time_ns: int) -> str:
    return f"{time_ns / (NS_PER_S / MS_PER_S):12.3f} ms"


Progress = Callable[[str], None]

_TABLES = "tables"


@dataclass(frozen=True)
class Analysed:
    """What came of the traces of a job, beside their tables.

    Attributes:
        summary: Readable lines.
        num_files: Traces that were read.
        damaged: By file, what of it could not be read; the tables hold the rest.
    """

    summary: str
    num_files: int
    damaged: Mapping[str, str]

    @property
    def is_any_whole(self) -> bool:
        """Whether at least one file was read whole."""
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
) -> Analysed:
    """Write the tables of the traces of one job.

    Args:
        arguments: Traces, pipes that traces come through (`-` for standard input), or folders of traces.
        out: Folder the tables are written to.
        scheme: Rules of the taxonomy.
        progress: Called with a line now and then.
        csv: Write CSV files too.
        chakra: Write a Chakra trace of every rank too.
        num_jobs: Processes to parse with; None for one a core.
        steps: Names of the annotations that are the steps; None for those that profilers and frameworks give them.

    Returns:
        A readable summary, and which files are damaged.

    Raises:
        UserError: If there are no traces, one cannot be read, has no rank, shares its rank with another, or is of
            another job.
        OSError: If the disk is full. Nothing is written in either case.
    """
    with _scratch(out) as scratch:
        files = find_traces(spooled(arguments, scratch / "pipes", progress))
        graphs = [summarise_graph(file.path) for file in files if is_chakra(file.path)]
        said = [line for graph in graphs for line in graph.lines()]
        if len(graphs) == len(files) and not any(graph.has_times for graph in graphs):
            return Analysed("\n".join(said), len(files), {})
        folders = [scratch / str(index) for index in range(len(files))]
        summaries = parse_traces(files, folders, scheme, progress, num_jobs, steps=steps)
        check_ranks((one.path, one.rank) for one in summaries)
        progress(f"joining {counted(len(files), 'rank')}")
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
        for file, folder in zip(files if chakra else [], folders, strict=False):
            write_rank(file, tables, scheme, folder, is_only=len(files) == 1)
    read = [(one.path, _damage(one.is_truncated, one.num_damaged_events)) for one in summaries]
    return _analysed("\n".join([*said, summarise(together.summaries, together.comparison)]), read)


def _analysed(summary: str, read: Sequence[tuple[str | Path, str]]) -> Analysed:
    return Analysed(summary, len({path for path, _ in read}), {Path(path).name: said for path, said in read if said})


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


def trace_files_as_hta(arguments: list[Path], out: Path, progress: Progress) -> Analysed:
    """Write `breakdown.csv` and `kernels.csv` as HTA would have them; return the breakdown as text, and damage.

    Raises:
        UserError: As `trace_files`.
    """
    with _scratch(out) as scratch:
        files = find_traces(spooled(arguments, scratch / "pipes", progress))
        chakra = next((file.path for file in files if is_chakra(file.path)), None)
        if chakra is not None:
            raise UserError(f"{chakra}: --parity hta is of traces of Kineto; leave it out for a Chakra trace")
        ranks = read_hta(files, progress)
        rows = [hta_breakdown_row(one) for one in ranks]
        write_breakdown(scratch / _TABLES / "breakdown.csv", rows)
        write_kernels(scratch / _TABLES / "kernels.csv", kernel_table(ranks))
    read = [(one.header.path, _damage(one.header.is_truncated, one.header.num_damaged)) for one in ranks]
    return _analysed("\n".join("  ".join(f"{name} {value}" for name, value in row.items()) for row in rows), read)


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
    (folder / _TABLES).mkdir()
    try:
        yield folder
        for path in (folder / _TABLES).iterdir():
            path.replace(out / path.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new and not any(out.iterdir()):
            out.rmdir()
