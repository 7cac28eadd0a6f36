"""`triplepoint trace --run`: joins the parsed ranks of a run."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from triplepoint.config.plan import read_planned_run
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.status import Status
from triplepoint.tables import TELEMETRY
from triplepoint.trace.join import Together, join_ranks
from triplepoint.trace.lanes import SUMMARY, read_summary
from triplepoint.trace.parsing import PARTS, Progress, check_ranks, parse_part
from triplepoint.trace.perfetto import FILE_NAME, CounterTrack, rank_title, telemetry_counters, write_merged
from triplepoint.trace.taxonomy import Scheme


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
    if lost and manifest.status == Status.OK:
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
