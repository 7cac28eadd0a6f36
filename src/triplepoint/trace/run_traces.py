"""Traces of a run: `triplepoint parse` parses ranks, `triplepoint trace --run` joins them."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from triplepoint.config.plan import read_planned_run
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.tables import TELEMETRY
from triplepoint.trace.export.counters import rank_title, telemetry_counters
from triplepoint.trace.export.perfetto import FILE_NAME, CounterTrack, write_merged
from triplepoint.trace.join import Together, join_ranks
from triplepoint.trace.parsing import check_ranks, find_run_traces, parse_traces
from triplepoint.trace.rank.rank_summary import SUMMARY, RankSummary, read_summary
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
    is_finished = read_manifest(run / "raw" / "manifest.json").status == "ok"
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


def join_run(run: Path, parts: Sequence[Path]) -> None:
    """Write the tables of a whole run and its merged trace.

    Args:
        run: Folder of the run.
        parts: Folders that `parse_part` wrote, the run's others are removed; none for all of them.

    Raises:
        UserError: If one of them is not whole, a rank is in two, or the run finished and a traced rank is in none.
    """
    manifest = read_manifest(run / "raw" / "manifest.json")
    folders = [path.parent for part in parts or (run / PARTS).glob("*") for path in part.glob(f"*/{SUMMARY}")]
    ranks = [read_summary(folder).rank for folder in folders]
    check_ranks(zip(folders, ranks, strict=True))
    lost = sorted(set(read_planned_run(run / "point.json").point.traced_ranks) - set(ranks))
    if lost and manifest.status == "ok":
        raise UserError(f"{run / PARTS}: ranks {', '.join(map(str, lost))} are not parsed; run 'snakemake all'")
    together = join_ranks(folders, run)
    counters = _counters(run, manifest, together)
    write_merged(
        run / FILE_NAME, run / "timeline.parquet", together.drawn, counters, lambda rank: rank_title(manifest, rank)
    )
    if parts:
        _remove_others(run / PARTS, parts)


def trace_run(run: Path, scheme: Scheme, progress: Progress, num_jobs: int | None = None) -> None:
    """Parse the traces of a run and join them, leaving nothing between: for few and small ones.

    Args:
        run: Folder of the run.
        scheme: Rules of the taxonomy.
        progress: Called with a line now and then.
        num_jobs: Processes to parse with; None for as many as cores may be used.

    Raises:
        UserError: As `parse_part` and `join_run` do.
    """
    ranks = read_planned_run(run / "point.json").point.traced_ranks
    parse_part(run, range(min(ranks), max(ranks) + 1), scheme, progress, num_jobs)
    try:
        join_run(run, list((run / PARTS).glob(f"{min(ranks)}-{max(ranks)}")))
    finally:
        shutil.rmtree(run / PARTS)


def _counters(run: Path, manifest: Manifest, together: Together) -> list[CounterTrack]:
    if not manifest.nodes or not together.summaries:
        return []
    return telemetry_counters(TELEMETRY.read(run / "telemetry.parquet"), manifest, *together.drawn)


def _remove_others(folder: Path, kept: Iterable[Path]) -> None:
    """Remove parts that others have taken the place of: their segments are large."""
    names = {path.resolve() for path in kept}
    for part in folder.glob("*"):
        if part.resolve() not in names:
            shutil.rmtree(part)
