"""`triplepoint parse`: parses the traces of some ranks of a run."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from triplepoint.config.plan import read_planned_run
from triplepoint.errors import UserError
from triplepoint.manifest import read_manifest
from triplepoint.status import Status
from triplepoint.trace.parsing import find_run_traces, parse_traces
from triplepoint.trace.rank.rank_summary import RankSummary
from triplepoint.trace.taxonomy import Scheme

Progress = Callable[[str], None]

PARTS = "ranks"
"""Folder of a run that holds its parts, each of which holds a folder for each rank."""


def parse_part(run: Path, ranks: range, scheme: Scheme, progress: Progress, num_jobs: int | None = None) -> None:
    """Write the tables of some ranks of a run into `ranks/<first>-<last>/rank<N>/`, which is made anew.

    Args:
        run: Folder of the run.
        ranks: Ranks to take; those that were not to be traced are left out.
        scheme: Rules of the taxonomy.
        progress: Called with a line now and then.
        num_jobs: Processes to use; None for as many as cores may be used.

    Raises:
        UserError: If the run finished and a trace is missing or cut off, or one cannot be read. Nothing is left then.
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
        found = parse_traces(files, folders, scheme, progress, num_jobs, is_whole_job=False)
        _check_whole(found, is_finished, progress)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise


def _check_complete(run: Path, ranks: range, found: Sequence[int | None]) -> None:
    wanted = read_planned_run(run / "point.json").point.traced_ranks
    lost = [rank for rank in wanted if rank in ranks and rank not in found]
    if lost:
        raise UserError(
            f"{run / 'raw' / 'traces'}: no trace of ranks {', '.join(map(str, lost))} (rank{lost[0]}.json.gz, ...); "
            "launch the run again with --force"
        )


def _check_whole(found: Sequence[RankSummary], is_finished: bool, progress: Progress) -> None:
    """Refuse what is cut off, since steps would look shorter than they were; tell of single damaged events."""
    for one in found:
        if one.is_truncated and is_finished:
            raise UserError(
                f"{one.path}: truncated, after {one.num_events} events; copy it again, launch the run again with "
                f"--force, or see what is left with 'triplepoint trace {one.path} --out DIR'"
            )
        if one.num_damaged_events:
            progress(f"{one.path}: {one.num_damaged_events} of {one.num_events} events are damaged")
