"""Join the parsed ranks of a run: `triplepoint trace --run`."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from triplepoint.config.plan import read_planned_run
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.status import Status
from triplepoint.tables import TELEMETRY
from triplepoint.trace.join import JoinedRanks, join_ranks
from triplepoint.trace.parsing import Progress, check_ranks
from triplepoint.trace.perfetto import FILE_NAME, CounterTrack, rank_title, telemetry_counters, write_merged
from triplepoint.trace.rank_results import SUMMARY, read_summary
from triplepoint.trace.run_parts import PARTS, parse_part
from triplepoint.trace.taxonomy import Scheme


def join_run(run: Path, parts: Sequence[Path]) -> None:
    """Write the tables and the merged trace of a whole run.

    Args:
        run: Folder of the run.
        parts: Folders that `parse_part` wrote; others of the run are removed. Empty: all of the run's folders.

    Raises:
        UserError: If a folder is incomplete or of another run, a rank is in two folders, or the run finished and a
            traced rank is in none.
    """
    manifest = read_manifest(run / "raw" / "manifest.json")
    folders = sorted(path.parent for part in parts or (run / PARTS).glob("*") for path in part.glob(f"*/{SUMMARY}"))
    summaries = [read_summary(folder) for folder in folders]
    for folder, summary in zip(folders, summaries, strict=True):
        _check_run(run, folder, Path(summary.path))
    ranks = [summary.rank for summary in summaries]
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


def _check_run(run: Path, folder: Path, trace: Path) -> None:
    """Refuse a rank that was parsed from a trace of another run; runs may have been moved since, so names count."""
    if trace.absolute().parent.parts[-3:] != (run / "raw" / "traces").absolute().parts[-3:]:
        raise UserError(
            f"{folder}: of another run, parsed from {trace}, expected ranks of {run.name}; name its own folders, or "
            f"parse it again with 'triplepoint trace --run {run.name} --parse'"
        )


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
