"""The traces of a run: parse them, some ranks at a time (`triplepoint parse`), and join the ranks."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from triplepoint.config.plan import read_planned_run
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.status import Status
from triplepoint.tables import TELEMETRY
from triplepoint.trace.join import JoinedRanks, join_ranks
from triplepoint.trace.parsing import Progress, check_ranks, check_whole, find_run_traces, parse_traces
from triplepoint.trace.perfetto import FILE_NAME, CounterTrack, rank_title, telemetry_counters, write_merged
from triplepoint.trace.rank_results import SUMMARY, read_summary
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


def join_run(run: Path, parts: Sequence[Path]) -> None:
    """Write the tables and the merged trace of a whole run.

    Args:
        run: Folder of the run.
        parts: Folders that `parse_part` wrote; others of the run are removed. Empty: all of the run's folders.

    Raises:
        UserError: If a folder is incomplete, a rank is in two folders, or the run finished and a traced rank is in
            none.
    """
    manifest = read_manifest(run / "raw" / "manifest.json")
    folders = [path.parent for part in parts or (run / PARTS).glob("*") for path in part.glob(f"*/{SUMMARY}")]
    ranks = [read_summary(folder).rank for folder in folders]
    check_ranks(zip(folders, ranks, strict=True))
    missing = sorted(set(read_planned_run(run / "point.json").point.traced_ranks) - set(ranks))
    if missing and manifest.status == Status.OK:
        raise UserError(f"{run / PARTS}: ranks {', '.join(map(str, missing))} are not parsed; run 'snakemake all'")
    joined = join_ranks(folders, run)
    counters = _counters(run, manifest, joined)
    write_merged(
        run / FILE_NAME, run / "timeline.parquet", joined.drawn, counters, lambda rank: rank_title(manifest, rank)
    )
    if parts:
        _remove_others(run / PARTS, parts)


def trace_run(
    run: Path, scheme: Scheme, progress: Progress, num_jobs: int | None = None, *, note: Progress | None = None
) -> None:
    """Parse the traces of a run and join them, without intermediate files; for runs with few ranks.

    Raises:
        UserError: See `parse_part` and `join_run`.
    """
    ranks = read_planned_run(run / "point.json").point.traced_ranks
    parse_part(run, range(min(ranks), max(ranks) + 1), scheme, progress, num_jobs, note=note)
    try:
        join_run(run, list((run / PARTS).glob(f"{min(ranks)}-{max(ranks)}")))
    finally:
        shutil.rmtree(run / PARTS)


def _counters(run: Path, manifest: Manifest, joined: JoinedRanks) -> list[CounterTrack]:
    if not manifest.nodes or not joined.summaries:
        return []
    return telemetry_counters(TELEMETRY.read(run / "telemetry.parquet"), manifest, *joined.drawn)


def _remove_others(folder: Path, kept: Iterable[Path]) -> None:
    """Remove outdated folders of parts, which are large."""
    names = {path.resolve() for path in kept}
    for part in folder.glob("*"):
        if part.resolve() not in names:
            shutil.rmtree(part)
