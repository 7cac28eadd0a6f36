"""What `triplepoint parse` and `triplepoint trace --run` do with a run of the pipeline."""

import shutil
from collections.abc import Callable
from pathlib import Path

from triplepoint.errors import UserError
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.tables import TELEMETRY
from triplepoint.trace.export.counters import rank_title, telemetry_counters
from triplepoint.trace.export.joined import write_merged
from triplepoint.trace.export.perfetto import FILE_NAME, CounterTrack
from triplepoint.trace.inputs import find_run_traces
from triplepoint.trace.parsing import parse_traces
from triplepoint.trace.rank.summary import SUMMARY
from triplepoint.trace.taxonomy import Scheme
from triplepoint.trace.together import Together, join_ranks

Progress = Callable[[str], None]


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
