"""Activity of GPUs in a training step: passes, collectives, sends and update, with the work of each."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from triplepoint.simulate.artefacts.groups import split_sync
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import StageWork
from triplepoint.simulate.power.gpu import Activity, Float, Int64
from triplepoint.simulate.power.work import UNITS, Workload, activity_of
from triplepoint.simulate.timeline.schedule import operations_by_task
from triplepoint.simulate.timeline.tasks import Timeline

Place = tuple[int, int]
"""Pipeline stage and class of replica; ranks of one place do the same."""

_SHORTEST_S = 1e-12
"""Runs shorter than this are ignored. Unit: s."""


class Pieces(NamedTuple):
    """Passes, collectives, sends and update of a step, each with one or many runs.

    Attributes:
        kind: Index of the place whose ranks run each piece; shape (num_pieces,).
        work: Work of one run of each piece; shape (num_pieces, len(UNITS)). Unit: s.
        part: Index of the piece of every run; shape (num_runs,).
        start_s: Start of every run; shape (num_runs,). Unit: s.
        end_s: End of every run; shape (num_runs,). Unit: s.
    """

    kind: Int64
    work: Float
    part: Int64
    start_s: Float
    end_s: Float


def bin_activity(pieces: Pieces, num_kinds: int, step_s: float, num_bins: int, polling_share: float) -> Activity:
    """Return the mean activity in equal time bins of a step; the energy is that of the pieces.

    Args:
        pieces: The pieces of the step.
        num_kinds: Number of places.
        step_s: Length of the step. Unit: s.
        num_bins: Number of bins.
        polling_share: Share of the clock tree that a waiting rank drives.

    Returns:
        Activity of shape (num_bins, num_kinds).
    """
    lasts = pieces.end_s - pieces.start_s > _SHORTEST_S
    part, start, end = (column[lasts] for column in (pieces.part, pieces.start_s, pieces.end_s))
    rate = step_s / num_bins / (end - start)
    # A run adds its rate to the rest of its first bin and to all later bins; at its end the rate is subtracted again.
    change = np.concatenate([rate, -rate])
    position = np.concatenate([start, end]) * (num_bins / step_s)
    first = np.minimum(position.astype(np.int64), num_bins - 1)
    slot, size = np.concatenate([part, part]) * num_bins + first, len(pieces.kind) * num_bins
    whole = np.bincount(slot, change, size).reshape(-1, num_bins)
    left = np.bincount(slot, change * (first + 1.0 - position), size).reshape(-1, num_bins)
    runs = np.maximum(left + np.cumsum(whole, axis=1) - whole, 0.0)
    is_of_kind = [pieces.kind == kind for kind in range(num_kinds)]
    work = np.stack([runs[selected].T @ pieces.work[selected] for selected in is_of_kind], axis=1)
    activity = activity_of(work, step_s / num_bins)
    awake = np.asarray(activity.awake)
    awake += polling_share * (1.0 - awake)
    return activity


class Ran(Protocol):
    """A simulated step, as far as its load depends on it."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def stages(self) -> Sequence[StageWork]:
        """Work of every pipeline stage."""

    @property
    def timeline(self) -> Timeline:
        """Times of the step."""

    @property
    def workload(self) -> Workload:
        """Work of the job's operations."""

    def place(self, rank: int) -> Place:
        """Return stage and class of a rank."""


def pieces_of(ran: Ran, workload: Workload, places: Sequence[Place]) -> Pieces:
    """Return the pieces of a step on the ranks of some places; a pass has its mean activity, since kernels are short.

    Args:
        ran: The step.
        workload: Work of the job's operations.
        places: The places.
    """
    by_stage = {stage: _stage_pieces(ran, workload, stage) for stage in dict.fromkeys(stage for stage, _ in places)}
    timeline, by_place, num_pieces = ran.timeline, list[tuple[Int64, Float, Int64, Float]](), 0
    update_start_s = timeline.optimizer_start
    for kind, (stage, which) in enumerate(places):
        work, part, collectives_s = by_stage[stage]
        sends_s = _sends(ran, stage, which)
        update_end_s = update_start_s + float(timeline.durations.optimizer.total[stage, which])
        passes_s = np.stack([timeline.start[stage, :, which], timeline.end[stage, :, which]], axis=1)
        times_s = np.concatenate([passes_s, collectives_s, [[update_start_s, update_end_s]], sends_s])
        parts = np.concatenate([part, np.full(len(sends_s), len(work) - 1)])
        by_place.append((np.full(len(work), kind), work, parts + num_pieces, times_s))
        num_pieces += len(work)
    kinds, works, all_parts, all_times_s = (np.concatenate(column) for column in zip(*by_place, strict=True))
    return Pieces(kinds, works, all_parts, all_times_s[:, 0], all_times_s[:, 1])


def _stage_pieces(ran: Ran, workload: Workload, stage: int) -> tuple[Float, Int64, Float]:
    """Return the pieces of a stage.

    Returns:
        Work of each pass and collective, of the update, and last of a send; the index of the piece of every run except
        the sends, in the order of tasks, collectives and update; start and end of the collectives outside of passes.
    """
    timeline, order = ran.timeline, ran.timeline.order
    if stage not in workload.of_stage:
        workload.of_stage[stage] = _stage_work(ran, workload, stage)
    task = order.kind[stage] * order.num_chunks + order.chunk[stage]
    part = np.concatenate([task, 3 * order.num_chunks + np.array([0, *[1] * order.num_chunks, 2, 3])])
    gathered_s = float(timeline.durations.gather_overlapped[stage].sum())
    return (
        workload.of_stage[stage],
        part,
        np.concatenate([[[0.0, gathered_s]], timeline.sync[stage], timeline.final_sync[stage : stage + 1]]),
    )


def _stage_work(ran: Ran, workload: Workload, stage: int) -> Float:
    """Return the work of the pieces of a stage, see `_stage_pieces`; shape (num_pieces, len(UNITS)). Unit: s."""
    order = ran.timeline.order
    passes = np.zeros((3, order.num_chunks, len(UNITS)))
    for index, chunk in enumerate(ran.stages[stage].chunks):
        for kind, parts in operations_by_task(chunk, order.is_split).items():
            passes[kind, index] = workload.of_all(parts)
    gathers, reductions, after = (tuple(part) for part in split_sync(ran.stages[stage]))
    num_bytes = max(chunk.send_bytes for one in ran.stages for chunk in one.chunks)
    # Neighbouring stages share a node, except at its edge.
    is_inside = ran.job.mesh.ranks_per_stage < ran.job.fabric.gpus_per_node
    return np.concatenate([passes.reshape(-1, len(UNITS)), [
        workload.of(gathers) * order.num_chunks, workload.of(reductions), workload.of(after),
        workload.of(ran.stages[stage].optimizer), workload.sent(num_bytes, is_inside),
    ]])  # fmt: skip


def _sends(ran: Ran, stage: int, which: int) -> Float:
    """Return the times at which activations and gradients are sent to and from other stages; shape (num_sends, 2).

    Unit: s.
    """
    timeline, order = ran.timeline, ran.timeline.order
    if order.num_stages == 1:
        return np.empty((0, 2))
    sent = np.stack([timeline.sent[:, :, which], timeline.arrival[:, :, which]], axis=-1).reshape(-1, 2)
    outgoing = np.flatnonzero(order.is_sent[stage]) + stage * order.num_tasks
    received = order.needs[stage][order.needs[stage] >= 0]
    return np.asarray(sent[np.concatenate([outgoing, received])])
