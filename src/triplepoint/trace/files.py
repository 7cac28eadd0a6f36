"""What `triplepoint trace` does with loose files."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from triplepoint.tables import CATEGORIES, COLLECTIVES, CRITICAL_PATH, INTERVALS, KERNELS, RANKS
from triplepoint.trace.breakdown import breakdown_row, write_breakdown, write_kernels
from triplepoint.trace.export.joined import write_merged
from triplepoint.trace.export.perfetto import FILE_NAME
from triplepoint.trace.inputs import check_ranks, find_traces
from triplepoint.trace.parsing import parse_traces
from triplepoint.trace.summary import summarise
from triplepoint.trace.taxonomy import Scheme
from triplepoint.trace.together import Together, join_ranks

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
        UserError: If there are no traces, one cannot be read, has no rank, or shares its rank with another.
        OSError: If the disk is full. Nothing is written in either case.
    """
    files = find_traces(arguments)
    with _scratch(out) as scratch:
        folders = [scratch / str(index) for index in range(len(files))]
        summaries = parse_traces(files, folders, scheme, progress, num_jobs)
        check_ranks((one.path, one.rank) for one in summaries)
        tables = scratch / _TABLES
        together = join_ranks(folders, tables)
        write_merged(tables / FILE_NAME, tables / "timeline.parquet", together.drawn, [], lambda rank: f"rank {rank}")
        if csv:
            _write_csv(tables, together)
    return summarise(together.summaries, together.comparison)


def trace_files_as_hta(arguments: list[Path], out: Path, progress: Progress) -> str:
    """Write `breakdown.csv` and `kernels.csv` as HTA would have them; return the breakdown as text.

    Raises:
        UserError: As `trace_files`.
    """
    from triplepoint.trace import parity  # not at the top: nothing else needs it

    ranks = parity.read_hta(find_traces(arguments), progress)
    rows = [parity.breakdown_row(one) for one in ranks]
    with _scratch(out) as scratch:
        write_breakdown(scratch / _TABLES / "breakdown.csv", rows)
        write_kernels(scratch / _TABLES / "kernels.csv", parity.kernel_table(ranks))
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
