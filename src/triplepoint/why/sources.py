"""What `triplepoint why` is asked about: a run, parsed or raw, loose traces, their tables, or a table of operations."""

from dataclasses import replace
from pathlib import Path

from triplepoint.compare.sides import Context, parsed_run, parsed_traces
from triplepoint.compare.subjects import find_subject, one_run
from triplepoint.compare.traced import of_tables, part_name
from triplepoint.errors import UserError
from triplepoint.why.answer import Answer, answer_of, why_operations, why_run
from triplepoint.why.operations import Operations
from triplepoint.why.operations_table import is_operations_table
from triplepoint.why.run_operations import operations_of_one_rank, places_of_traces
from triplepoint.why.sensed import sense_traces
from triplepoint.why.step_times import study_steps
from triplepoint.why.traced_operations import traced_operations

_MOST_PARTS = 4
"""Parts of the step of a rank that was traced alone."""


def why(word: str, context: Context) -> Answer:
    """Return why the job that a word means is slow.

    Args:
        word: What `triplepoint compare` takes: a run id or its beginning, the folder of a run, traces, `STUDY:POINT`;
            also a folder that `triplepoint trace --out` wrote, and a table of operations.
        context: What raw runs and traces are read with.

    Raises:
        UserError: If it means nothing or several runs, or what it means is incomplete or damaged.
    """
    path = Path(word)
    if path.suffix == ".parquet" or (path.is_file() and is_operations_table(path)):
        return why_operations(path)
    if (path / "timeline.parquet").is_file() and not (path / "point.json").is_file():
        return why_traces(path.resolve())
    subject = find_subject(word, context.results)
    if subject.traces:
        with parsed_traces(subject, context) as (tables, summaries):
            world_size = max((one.world_size or 0 for one in summaries), default=0)
            unit = "GPU" if any(one.job.gpu for one in summaries) else "rank"
            try:
                return why_traces(tables, subject.word, world_size, unit)
            except UserError as error:
                raise UserError(str(error).replace(str(tables), subject.word)) from None
    return _why_raw(one_run(subject), context)


def _why_raw(run: Path, context: Context) -> Answer:
    """Return why a run is slow; its telemetry and traces are parsed in a scratch folder where that was not done yet."""
    has_traces = any((run / "raw" / "traces").glob("*"))
    note: tuple[str, ...] = ()
    if has_traces:
        try:
            with parsed_run(run, True, context) as parsed:
                return why_run(parsed, run.name)
        except UserError as error:
            if (run / "timeline.parquet").is_file():
                raise
            note = (f"traces are not used: {error}",)
    with parsed_run(run, False, context) as parsed:
        return why_run(parsed, run.name, note)


def why_traces(folder: Path, name: str = "", world_size: int = 0, unit: str = "rank") -> Answer:
    """Return why the job of a folder that `triplepoint trace --out` wrote is slow.

    Args:
        folder: The folder.
        name: What the job is called; the folder's name if empty.
        world_size: Ranks of the job, as its traces say; 0 where they do not.
        unit: What a rank computes on in words: GPU; rank where that is a processor, or not known.

    Raises:
        UserError: If a table is missing or damaged, or no passes were traced.
    """
    lone = operations_of_one_rank(folder)
    if lone is not None:
        return _why_one_rank(lone, folder, name or folder.name)
    places = places_of_traces(folder)
    # Nodes are not known of loose traces: all of a job count as on one.
    operations = traced_operations(folder, lambda rank: places.get(rank, (rank, 0)), max(len(places), 1))
    notes: tuple[str, ...] = ("no telemetry beside the traces: causes are of time alone",)
    ranks = [worker.rank for worker in operations.workers]
    if len(ranks) < world_size:
        notes += (f"{len(ranks)} of {world_size} ranks were traced: what the others do is not known",)
    sensed, num_gpus = sense_traces(folder, ranks), max(world_size, len(ranks))
    found = answer_of(name or folder.name, "traces", operations, sensed, num_gpus, lambda place: (), notes)
    return replace(found, unit=unit)


def _why_one_rank(operations: Operations, folder: Path, name: str) -> Answer:
    """Return where the steps of one traced rank go: whom it waits for is in the traces of the others."""
    rank = operations.workers[0].rank
    note = f"rank {rank} alone was traced: who is late is seen with the traces of all ranks; name their folder"
    found = replace(answer_of(name, "one rank", operations, {}, 1, lambda place: (), (note,)), unit="rank")
    traced = of_tables(folder)
    parts = sorted(traced.steps[0], key=lambda part: -traced.mean_s(part))[:_MOST_PARTS] if traced else []
    if traced is None or not parts:
        return found
    named = ", ".join(f"{part_name(part)} {traced.mean_s(part) / traced.step_s:.0%}" for part in parts)
    return replace(found, step_times=study_steps(operations, "profiled"), step_parts=named)
