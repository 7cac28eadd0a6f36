"""Why a job is slow, from traces without a run: of all its ranks, or of one."""

from dataclasses import replace
from pathlib import Path

from triplepoint.compare.traced import of_tables, part_name
from triplepoint.why.answer import Answer, answer_of
from triplepoint.why.operations import Operations
from triplepoint.why.run_operations import operations_of_one_rank, places_of_traces
from triplepoint.why.sensed import sense_traces
from triplepoint.why.step_times import study_steps
from triplepoint.why.traced_operations import traced_operations

_MOST_PARTS = 4
"""Parts of the step of a rank that was traced alone."""


def why_traces(folder: Path, name: str = "") -> Answer:
    """Return why the job of a folder that `triplepoint trace --out` wrote is slow.

    Args:
        folder: The folder.
        name: What the job is called; the folder's name if empty.

    Raises:
        UserError: If a table is missing or damaged, or no passes were traced.
    """
    lone = operations_of_one_rank(folder)
    if lone is not None:
        return _why_one_rank(lone, folder, name or folder.name)
    places = places_of_traces(folder)
    # Nodes are not known of loose traces: all of a job count as on one.
    operations = traced_operations(folder, lambda rank: places.get(rank, (rank, 0)), max(len(places), 1))
    note = "no telemetry beside the traces: causes are of time alone"
    ranks = [worker.rank for worker in operations.workers]
    sensed = sense_traces(folder, ranks)
    found = answer_of(name or folder.name, "traces", operations, sensed, len(ranks), lambda place: (), (note,))
    return replace(found, unit="rank")


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
    return replace(found, step_times=study_steps(operations, "profiled"), notes=(f"its step is {named}", *found.notes))
