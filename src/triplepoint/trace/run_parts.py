"""Parse the traces of a run, some ranks at a time: `triplepoint parse`."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from triplepoint.config.plan import read_planned_run
from triplepoint.errors import UserError
from triplepoint.manifest import read_manifest
from triplepoint.status import Status
from triplepoint.trace.parsing import Progress, check_whole, find_run_traces, parse_traces
from triplepoint.trace.taxonomy import Scheme

PARTS = "ranks"
"""Folder of a run with its parts: `ranks/<first>-<last>/rank<N>/`."""


def parse_part(
    run: Path,
    ranks: range,
    scheme: Scheme,
    progress: Progress,
    num_jobs: int | None = None,
    *,
    note: Progress | None = None,
) -> None:
    """Write the tables of some ranks of a run to `ranks/<first>-<last>/rank<N>/`; older tables there are removed.

    Args:
        run: Folder of the run.
        ranks: The ranks.
        scheme: Rules of the taxonomy.
        progress: Receives progress, a line at a time.
        num_jobs: Processes to use; None for one per core that may be used.
        note: Receives messages about damaged events; None for `progress`.

    Raises:
        UserError: If a trace cannot be read, or the run finished and a trace is missing or truncated. Then no tables
            are left.
    """
    out = run / PARTS / f"{ranks[0]}-{ranks[-1]}"
    shutil.rmtree(out, ignore_errors=True)
    files = [file for file in find_run_traces(run / "raw" / "traces") if file.rank in ranks]
    is_finished = read_manifest(run / "raw" / "manifest.json").status == Status.OK
    if is_finished:
        _check_complete(run, ranks, [file.rank for file in files])
    out.mkdir(parents=True)
    try:
        folders = [out / f"rank{file.rank}" for file in files]
        summaries = parse_traces(files, folders, scheme, progress, num_jobs, is_whole_job=False)
        check_whole(summaries, is_finished, note or progress)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise


def _check_complete(run: Path, ranks: range, traced: Sequence[int | None]) -> None:
    """Refuse a run without the traces of all ranks that were to be traced."""
    wanted = read_planned_run(run / "point.json").point.traced_ranks
    missing = [rank for rank in wanted if rank in ranks and rank not in traced]
    if missing:
        names = f"ranks {', '.join(map(str, missing))} (rank{missing[0]}.json.gz, ...)"
        raise UserError(f"{run / 'raw' / 'traces'}: no trace of {names}; launch the run again with --force")
