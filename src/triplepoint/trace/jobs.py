"""What `triplepoint trace` and `triplepoint parse` do, from files to files."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from triplepoint.errors import UserError
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.tables import COLLECTIVES, CRITICAL_PATH, INTERVALS, KERNELS, RANKS, TELEMETRY
from triplepoint.trace import parity
from triplepoint.trace.breakdown import breakdown_row, write_breakdown, write_kernels
from triplepoint.trace.export.counters import rank_title, telemetry_counters
from triplepoint.trace.export.joined import write_merged
from triplepoint.trace.export.perfetto import FILE_NAME, CounterTrack
from triplepoint.trace.inputs import check_ranks, find_run_traces, find_traces
from triplepoint.trace.parsing import parse_traces
from triplepoint.trace.rank.summary import SUMMARY
from triplepoint.trace.summary import summarise
from triplepoint.trace.taxonomy import Scheme
from triplepoint.trace.together import Together, join_ranks

Progress = Callable[[str], None]


def trace_files(
    arguments: list[Path],
    out: Path,
    scheme: Scheme,
    progress: Progress,
    *,
    csv: bool = False,
    num_jobs: int | None = None,
) -> str:
    """Write the tables of the traces of one job.

    Args:
        arguments: Traces, or folders of traces.
        out: Folder the tables are written to.
        scheme: Rules of the taxonomy.
        progress: Called with a line now and then.
        csv: Write CSV files too.
        num_jobs: Processes to parse with; None for one a core.

    Returns:
        A readable summary.

    Raises:
        UserError: If there are no traces, one cannot be read, has no rank, or shares its rank with another. Nothing is
            written then.
    """
    files = find_traces(arguments)
    with _scratch(out) as scratch:
        folders = [scratch / str(index) for index in range(len(files))]
        summaries = parse_traces(files, folders, scheme, progress, num_jobs)
        check_ranks((one.path, one.rank) for one in summaries)
        together = join_ranks(folders, out)
    write_merged(out / FILE_NAME, out / "timeline.parquet", together.drawn, [], lambda rank: f"rank {rank}")
    if csv:
        _write_csv(out, together)
    return summarise(together.summaries, together.comparison)


def trace_files_as_hta(arguments: list[Path], out: Path, progress: Progress) -> str:
    """Write `breakdown.csv` and `kernels.csv` as HTA would have them; return the breakdown as text.

    Raises:
        UserError: As `trace_files`.
    """
    ranks = parity.read_hta(find_traces(arguments), progress)
    rows = [parity.breakdown_row(one) for one in ranks]
    write_breakdown(out / "breakdown.csv", rows)
    write_kernels(out / "kernels.csv", parity.kernel_table(ranks))
    return "\n".join("  ".join(f"{name} {value}" for name, value in row.items()) for row in rows)


def parse_run(run: Path, ranks: range, out: Path, scheme: Scheme, progress: Progress) -> None:
    """Write the tables of some ranks of a run, each into a folder of its own.

    Args:
        run: Folder of the run.
        ranks: Positions among the run's traces, by rank.
        out: Folder for the folders; emptied first.
        scheme: Rules of the taxonomy.
        progress: Called with a line now and then.

    Raises:
        UserError: If the run finished and has no trace at all, or one cannot be read.
    """
    traces = run / "raw" / "traces"
    found = find_run_traces(traces)
    if not found and read_manifest(run / "raw" / "manifest.json").status == "ok":
        raise UserError(f"{traces}: no traces (rank0.json.gz, ...); launch the run again with profiled steps")
    files = found[ranks.start : ranks.stop]
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    parse_traces(files, [out / f"rank{file.rank}" for file in files], scheme, progress)


def join_run(run: Path, ranks: Path) -> None:
    """Write the tables of a whole run and its merged trace.

    Args:
        run: Folder of the run.
        ranks: Folder with the folders that `parse_run` wrote.

    Raises:
        UserError: If one of them is not whole.
    """
    manifest = read_manifest(run / "raw" / "manifest.json")
    together = join_ranks([path.parent for path in ranks.glob(f"*/*/{SUMMARY}")], run)
    counters = _counters(run, manifest, together)
    write_merged(
        run / FILE_NAME, run / "timeline.parquet", together.drawn, counters, lambda rank: rank_title(manifest, rank)
    )


def _counters(run: Path, manifest: Manifest, together: Together) -> list[CounterTrack]:
    if not manifest.nodes or not together.summaries:
        return []
    return telemetry_counters(TELEMETRY.read(run / "telemetry.parquet"), manifest, *together.drawn)


def _write_csv(out: Path, together: Together) -> None:
    write_breakdown(out / "breakdown.csv", [breakdown_row(one) for one in together.summaries])
    write_kernels(out / "kernels.csv", KERNELS.read(out / "kernels.parquet"))
    for table in (INTERVALS, COLLECTIVES, RANKS, CRITICAL_PATH):
        table.write_csv(out / f"{table.name}.csv", table.read(out / f"{table.name}.parquet"))


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """Yield a folder beside the tables, gone afterwards; so is theirs if it was made here and stayed empty."""
    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".ranks-", dir=out))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new and not any(out.iterdir()):
            out.rmdir()
