"""Read one side of a comparison: runs with their rows of table `points`, or loose traces."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from triplepoint.aggregate import point_row
from triplepoint.aggregate.steps import explain
from triplepoint.compare.subjects import Subject
from triplepoint.compare.traced import Traced, of_repeats, of_spans, of_tables
from triplepoint.config.plan import PlannedRun, read_planned_run
from triplepoint.errors import UserError
from triplepoint.files import temporary_folder
from triplepoint.manifest import Manifest, Origin, read_manifest
from triplepoint.status import Status
from triplepoint.tables import CATEGORIES, INTERVALS, KERNELS, TELEMETRY, TIMELINE
from triplepoint.telemetry.align import align_run
from triplepoint.trace.join import join_ranks
from triplepoint.trace.parsing import TraceFile, check_ranks, check_whole, find_traces, parse_traces
from triplepoint.trace.pipes import spool_pipes
from triplepoint.trace.rank_results import Job, RankSummary
from triplepoint.trace.run_traces import trace_run
from triplepoint.trace.taxonomy import Scheme

_TRACE_TABLES = tuple(f"{table.name}.parquet" for table in (INTERVALS, CATEGORIES, KERNELS, TIMELINE))
"""Tables of traces that a parsed run must have."""
CONDITIONS = {"inlet_temp_c": "Air at the inlet", "gpu_power_limit_w": "Power limit as set"}
"""Labels of the telemetry columns that are conditions of a run, not results."""


@dataclass(frozen=True)
class Context:
    """Folders and rules with which sides are read.

    Attributes:
        results: Folder of the results.
        config: Folder of the configuration.
        scheme: Rules that sort the kernels of traces that are not parsed yet.
        steps: Pattern of the annotations that mark steps in loose traces; None for the usual ones.
        progress: Called with lines of progress.
    """

    results: Path
    config: Path
    scheme: Scheme
    steps: re.Pattern[str] | None = None
    progress: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class Run:
    """A run that finished.

    Attributes:
        planned: Its point.
        manifest: Its manifest.
        row: Its row of table `points`.
        conditions: Means of `CONDITIONS` over measured steps; without those that were not measured.
    """

    planned: PlannedRun
    manifest: Manifest
    row: Mapping[str, Any]
    conditions: Mapping[str, float]


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        word: The user's word.
        runs: Repeats of one point; empty for loose traces.
        traced: Parts and kernels of its traces; None without traces.
        summaries: Summaries of loose traces, one per rank; empty for runs.
    """

    word: str
    runs: Sequence[Run]
    traced: Traced | None
    summaries: Sequence[RankSummary] = ()

    @property
    def jobs(self) -> list[Job]:
        """Job that each loose trace belongs to, as the trace describes it."""
        return [summary.job for summary in self.summaries]

    @property
    def origin(self) -> Origin:
        """Whether the side was measured or simulated."""
        if self.runs:
            return self.runs[0].manifest.origin
        return origin_of_traces(self.summaries)

    @property
    def tokens_per_gpu(self) -> float | None:
        """Tokens of a step over the number of GPUs; None if not known."""
        point = self.runs[0].planned.point if self.runs else None
        if point is None or not point.knows("global_batch_size", "sequence_length"):
            return None
        return point.num_tokens / point.num_gpus

    @property
    def step_s(self) -> float | None:
        """Time of measured steps, mean over repeats; None without measured steps. Unit: s."""
        times = [run.row["step_time_s"] for run in self.runs if run.row["step_time_s"] is not None]
        return sum(times) / len(times) if times else None


def origin_of_traces(summaries: Sequence[RankSummary]) -> Origin:
    """Return whether loose traces were recorded or come from the simulator."""
    return "simulated" if any(summary.job.is_simulated for summary in summaries) else "measured"


def read_side(subject: Subject, context: Context) -> Side:
    """Return a side of a comparison.

    Args:
        subject: Runs that finished (see `check_finished`), or traces.
        context: Folders and rules.

    Raises:
        UserError: If a run is incomplete, or there are no traces.
    """
    if subject.traces:
        return _read_traces(subject, context)
    runs = [_read_run(folder, context) for folder in subject.runs]
    # All repeats have one origin, since the engine is a setting.
    traced = [traced for _, traced in runs if traced is not None]
    return Side(subject.word, [run for run, _ in runs], of_repeats(traced))


@contextlib.contextmanager
def parsed_traces(subject: Subject, context: Context) -> Iterator[tuple[Path, Sequence[RankSummary]]]:
    """Yield a temporary folder with the tables of loose traces, and a summary of each trace.

    Raises:
        UserError: If there are no traces, or they are not of one job.
    """
    with temporary_folder("triplepoint-traces-") as scratch:
        files = _find(subject, spool_pipes(subject.traces, scratch / "pipes", context.progress))
        folders = [scratch / str(index) for index in range(len(files))]
        summaries = parse_traces(files, folders, context.scheme, context.progress, steps=context.steps)
        check_ranks((summary.path, summary.rank) for summary in summaries)
        check_whole(summaries, is_finished=True, progress=context.progress)
        tables = scratch / "tables"
        join_ranks(folders, tables)
        yield tables, summaries


def _read_traces(subject: Subject, context: Context) -> Side:
    with parsed_traces(subject, context) as (tables, summaries):
        traced = of_tables(tables) or of_spans(tables, summaries)
    if not sum(sum(step.values()) for step in traced.steps):
        raise UserError(f"{subject.word}: no work in the traces; expected kernels, or operators on the CPU")
    return Side(subject.word, [], traced, summaries)


def _find(subject: Subject, paths: Sequence[Path]) -> list[TraceFile]:
    """Return the traces of a subject; if a folder has none, the error names the folder."""
    try:
        return find_traces(paths)
    except UserError as error:
        raise UserError(f"{subject.word}: {error}" if Path(subject.word).is_dir() else str(error)) from None


def _read_run(folder: Path, context: Context) -> tuple[Run, Traced | None]:
    """Return a run and its traces; None without traces."""
    planned, manifest = read_planned_run(folder / "point.json"), read_manifest(folder / "raw" / "manifest.json")
    has_traces = planned.point.steps.profiled > 0
    with parsed_run(folder, context.scheme if has_traces else None, context.progress) as parsed:
        row = point_row(planned, manifest, parsed, context.results, context.config)
        traced = of_tables(parsed, planned.point.repeat) if has_traces else None
        return Run(planned, manifest, row, _conditions(parsed / "telemetry.parquet")), traced


def check_finished(subject: Subject) -> None:
    """Check that the runs of a subject finished.

    Raises:
        UserError: If one did not; the message has its status.
    """
    for folder in subject.runs:
        planned, path = read_planned_run(folder / "point.json"), folder / "raw" / "manifest.json"
        if not path.is_file():
            raise UserError(f"{planned.run}: has not run, {path} is missing; run 'snakemake all', or name another run")
        manifest = read_manifest(path)
        if manifest.status != Status.OK:
            raise UserError(f"{planned.run}: {manifest.status.label}: {explain(manifest)}; name a run that finished")
        if manifest.digest != planned.digest:
            raise UserError(f"{planned.run}: measured for another point than point.json has; launch it again")


@contextlib.contextmanager
def parsed_run(
    folder: Path, scheme: Scheme | None = None, progress: Callable[[str], None] = lambda line: None
) -> Iterator[Path]:
    """Yield a folder with the telemetry and trace tables of a run; a raw run is parsed into a temporary folder.

    Args:
        folder: Folder of the run.
        scheme: Rules that sort kernels; None if trace tables are not needed.
        progress: Called with lines of progress.

    Raises:
        UserError: If a recording or a trace is missing or damaged.
    """
    names = ("telemetry.parquet", *(_TRACE_TABLES if scheme is not None else ()))
    if all((folder / name).is_file() for name in names):
        yield folder
        return
    progress(f"{folder.name}: reading raw telemetry and traces")
    with temporary_folder("triplepoint-run-") as scratch:
        for name in ("point.json", "raw"):
            (scratch / name).symlink_to((folder / name).resolve())
        try:
            align_run(folder / "raw", scratch / "telemetry.parquet")
            if scheme is not None:
                trace_run(scratch, scheme, progress)
            yield scratch
        except UserError as error:
            raise UserError(str(error).replace(str(scratch), str(folder))) from None


def _conditions(path: Path) -> dict[str, float]:
    """Return the means of `CONDITIONS` over measured steps, from table `telemetry`."""
    telemetry = TELEMETRY.read(path)
    measured = telemetry.filter(pc.equal(telemetry["kind"], "measured"))
    means = {name: pc.mean(measured[name]).as_py() for name in CONDITIONS}
    return {name: mean for name, mean in means.items() if mean is not None}
