"""Sources of `triplepoint why`: a run, parsed or raw, loose traces, their tables, or a table of operations."""

from dataclasses import replace
from pathlib import Path

from triplepoint.compare.sides import Context, origin_of_traces, parsed_run, parsed_traces
from triplepoint.compare.subjects import find_subject, one_run
from triplepoint.compare.traced import of_tables, part_name
from triplepoint.errors import UserError
from triplepoint.text import percent
from triplepoint.why.answer import Answer, answer_of, why_operations, why_run
from triplepoint.why.operations import Operations
from triplepoint.why.operations_table import is_operations_table
from triplepoint.why.run_operations import operations_of_one_rank, places_of_traces
from triplepoint.why.sensed import sense_traces
from triplepoint.why.step_times import analyse_step_times
from triplepoint.why.traced_operations import traced_operations

_MOST_PARTS = 4
"""Number of parts of the step that are named if one rank was traced."""


def why(word: str, context: Context) -> Answer:
    """Return why a job is slow, given as an argument of `triplepoint why`.

    Args:
        word: An argument of `triplepoint compare` (a run id or its beginning, the folder of a run, traces,
            `STUDY:POINT`), a folder that `triplepoint trace --out` wrote, or a table of operations.
        context: Folders and rules with which runs and traces are read.

    Raises:
        UserError: If the word means nothing or several runs, or the source is incomplete or damaged.
    """
    path = Path(word)
    if path.suffix == ".parquet" or (path.is_file() and is_operations_table(path)):
        return why_operations(path)
    if (path / "timeline.parquet").is_file() and not (path / "point.json").is_file():
        return why_traces(path.resolve())
    subject = find_subject(word, context.results)
    if subject.traces:
        with parsed_traces(subject, context) as (tables, summaries):
            world_size = max((summary.world_size or 0 for summary in summaries), default=0)
            unit = "GPU" if any(summary.job.gpu for summary in summaries) else "rank"
            origin = origin_of_traces(summaries)
            try:
                return replace(why_traces(tables, subject.word, world_size, unit), origin=origin)
            except UserError as error:
                raise UserError(str(error).replace(str(tables), subject.word)) from None
    return _why_raw(one_run(subject), context)


def _why_raw(run: Path, context: Context) -> Answer:
    """Return why a run is slow; telemetry and traces not parsed yet are parsed into a temporary folder."""
    has_traces = any((run / "raw" / "traces").glob("*"))
    notes: tuple[str, ...] = ()
    if has_traces:
        try:
            with parsed_run(run, context.scheme, context.progress) as parsed:
                return why_run(parsed, run.name)
        except UserError as error:
            if (run / "timeline.parquet").is_file():
                raise
            notes = (f"traces are not used: {error}",)
    with parsed_run(run, None, context.progress) as parsed:
        return why_run(parsed, run.name, notes)


def why_traces(folder: Path, name: str = "", world_size: int = 0, unit: str = "rank") -> Answer:
    """Return why a job is slow, from the tables of its traces.

    Args:
        folder: Folder that `triplepoint trace --out` wrote.
        name: Name in the answer; the folder's name if empty.
        world_size: Ranks of the job, from its traces; 0 if not known.
        unit: Word for the device of a rank: GPU; rank if it is a CPU or not known.

    Raises:
        UserError: If a table is missing or damaged, or the traces have neither passes nor collectives in common.
    """
    steps_of_one_rank = operations_of_one_rank(folder)
    if steps_of_one_rank is not None:
        return _why_one_rank(steps_of_one_rank, folder, name or folder.name)
    places = places_of_traces(folder)
    # Loose traces do not tell nodes: all ranks count as on one node.
    operations = traced_operations(folder, lambda rank: places.get(rank, (rank, 0)), max(len(places), 1))
    notes: tuple[str, ...] = ("no telemetry with the traces: causes come from times alone",)
    ranks = [worker.rank for worker in operations.workers]
    if len(ranks) < world_size:
        notes += (f"{len(ranks)} of {world_size} ranks were traced: what the others do is not known",)
    sensed, num_gpus = sense_traces(folder, ranks), max(world_size, len(ranks))
    answer = answer_of(name or folder.name, "traces", operations, sensed, num_gpus, lambda place: (), notes)
    return replace(answer, unit=unit)


def _why_one_rank(operations: Operations, folder: Path, name: str) -> Answer:
    """Return the largest parts of the step of a single traced rank; the traces of others would show the late rank."""
    rank = operations.workers[0].rank
    note = f"rank {rank} alone was traced: who is late is seen with the traces of all ranks; name their folder"
    answer = replace(answer_of(name, "one rank", operations, {}, 1, lambda place: (), (note,)), unit="rank")
    traced = of_tables(folder)
    parts = sorted(traced.steps[0], key=lambda part: -traced.mean_s(part))[:_MOST_PARTS] if traced else []
    if traced is None or not parts:
        return answer
    named = ", ".join(f"{part_name(part)} {percent(traced.mean_s(part) / traced.step_s, 0)}" for part in parts)
    return replace(answer, step_times=analyse_step_times(operations, "profiled"), step_parts=named)
