"""Activity of GPUs in a training step: passes, collectives, sends and update, with the work of each."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from triplepoint.simulate.artefacts.groups import split_sync
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import StageWork
from triplepoint.simulate.power.gpu import Activity, Float, Int64
from triplepoint.simulate.power.work import UNITS, Workload, activity_of
from triplepoint.simulate.timeline.schedule import BACKWARD, BACKWARD_WEIGHT, FORWARD
from triplepoint.simulate.timeline.tasks import Timeline

Place = tuple[int, int]
"""Pipeline stage and class of replica; its ranks do the same."""

_SHORTEST_S = 1e-12
"""What is shorter does nothing."""


class Pieces(NamedTuple):
    """What runs in a step: passes and collectives, each once or many times.

    Attributes:
        kind: Of each pass or collective, index of the place whose ranks run it; shape (num_parts,).
        work: Of one run of it; shape (num_parts, len(UNITS)). Unit: s.
        part: Of every run, which pass or collective; shape (num_runs,).
        start_s: Shape (num_runs,). Unit: s.
        end_s: Shape (num_runs,). Unit: s.
    """

    kind: Int64
    work: Float
    part: Int64
    start_s: Float
    end_s: Float


def bin_activity(pieces: Pieces, num_kinds: int, step_s: float, num_bins: int, polling_share: float) -> Activity:
    """Return the mean activity in equal bins of a step; energy is that of the pieces.

    Args:
        pieces: What runs.
        num_kinds: Kinds of ranks.
        step_s: Length of the step. Unit: s.
        num_bins: Bins.
        polling_share: Share of the clock tree that a rank drives which waits for others.

    Returns:
        Shape (num_bins, num_kinds).
    """
    lasts = pieces.end_s - pieces.start_s > _SHORTEST_S
    part, start, end = (column[lasts] for column in (pieces.part, pieces.start_s, pieces.end_s))
    rate = step_s / num_bins / (end - start)
    # A run that sets in goes on in what is left of its bin, and in every bin after it; where it ends that is taken off.
    change = np.concatenate([rate, -rate])
    position = np.concatenate([start, end]) * (num_bins / step_s)
    first = np.minimum(position.astype(np.int64), num_bins - 1)
    slot, size = np.concatenate([part, part]) * num_bins + first, len(pieces.kind) * num_bins
    whole = np.bincount(slot, change, size).reshape(-1, num_bins)
    left = np.bincount(slot, change * (first + 1.0 - position), size).reshape(-1, num_bins)
    runs = np.maximum(left + np.cumsum(whole, axis=1) - whole, 0.0)
    own = [pieces.kind == kind for kind in range(num_kinds)]
    work = np.stack([runs[of_kind].T @ pieces.work[of_kind] for of_kind in own], axis=1)
    activity = activity_of(work, step_s / num_bins)
    awake = np.asarray(activity.awake)
    awake += polling_share * (1.0 - awake)
    return activity


class Ran(Protocol):
    """A simulated step, as far as it says what runs."""

    @property
    def job(self) -> Job:
        """The job."""

    @property
    def stages(self) -> Sequence[StageWork]:
        """Work of every pipeline stage."""

    @property
    def timeline(self) -> Timeline:
        """When everything runs."""

    @property
    def workload(self) -> Workload:
        """Work of the job's operations."""

    def place(self, rank: int) -> Place:
        """Return stage and class of a rank."""


def pieces_of(ran: Ran, workload: Workload, places: Sequence[Place]) -> Pieces:
    """Return what runs on the ranks of some places: a pass is as its mean, kernels are shorter than governors see.

    Args:
        ran: The step.
        workload: Work of the job's operations.
        places: Stage and class of each kind of ranks.
    """
    by_stage = {stage: _of_stage(ran, workload, stage) for stage in dict.fromkeys(stage for stage, _ in places)}
    timeline, found, num_parts = ran.timeline, list[tuple[Int64, Float, Int64, Float]](), 0
    begin = timeline.optimizer_start
    for kind, (stage, which) in enumerate(places):
        work, part, collectives_s = by_stage[stage]
        sends_s = _sends(ran, stage, which)
        update_s = begin + float(timeline.durations.optimizer.total[stage, which])
        passes_s = np.stack([timeline.start[stage, :, which], timeline.end[stage, :, which]], axis=1)
        times = np.concatenate([passes_s, collectives_s, [[begin, update_s]], sends_s])
        parts = np.concatenate([part, np.full(len(sends_s), len(work) - 1)])
        found.append((np.full(len(work), kind), work, parts + num_parts, times))
        num_parts += len(work)
    kinds, works, which_part, times_s = (np.concatenate(column) for column in zip(*found, strict=True))
    return Pieces(kinds, works, which_part, times_s[:, 0], times_s[:, 1])


def _of_stage(ran: Ran, workload: Workload, stage: int) -> tuple[Float, Int64, Float]:
    """Return what a stage runs.

    Returns:
        Work of each pass and collective, of the update, and of a send, which is last; which of them every run but the
        sends is, in the order of tasks, collectives and update; and start and end of the collectives outside of passes.
    """
    timeline, order = ran.timeline, ran.timeline.order
    passes = np.zeros((3, order.num_chunks, len(UNITS)))
    for index, chunk in enumerate(ran.stages[stage].chunks):
        weight = (chunk.backward_weight,)
        backward = (chunk.backward_input,) if order.is_split else (chunk.backward_input, *weight)
        for kind, parts in ((FORWARD, (chunk.forward,)), (BACKWARD, backward), (BACKWARD_WEIGHT, weight)):
            passes[kind, index] = workload.of_all(parts)
    gathers, reductions, after = (tuple(part) for part in split_sync(ran.stages[stage]))
    num_bytes = max(chunk.send_bytes for one in ran.stages for chunk in one.chunks)
    # Neighbours are near one another, but where a node ends.
    is_inside = ran.job.mesh.ranks_per_stage < ran.job.fabric.gpus_per_node
    work = np.concatenate([passes.reshape(-1, len(UNITS)), [
        workload.of(gathers) * order.num_chunks, workload.of(reductions), workload.of(after),
        workload.of(ran.stages[stage].optimizer), workload.sent(num_bytes, is_inside),
    ]])  # fmt: skip
    task = order.kind[stage] * order.num_chunks + order.chunk[stage]
    part = np.concatenate([task, 3 * order.num_chunks + np.array([0, *[1] * order.num_chunks, 2, 3])])
    gathered_s = float(timeline.durations.gather_overlapped[stage].sum())
    return (
        work,
        part,
        np.concatenate([[[0.0, gathered_s]], timeline.sync[stage], timeline.final_sync[stage : stage + 1]]),
    )


def _sends(ran: Ran, stage: int, which: int) -> Float:
    """Return when activations and gradients are on their way to other stages and from them; shape (num_sends, 2)."""
    timeline, order = ran.timeline, ran.timeline.order
    if order.num_stages == 1:
        return np.empty((0, 2))
    sent = np.stack([timeline.sent[:, :, which], timeline.arrival[:, :, which]], axis=-1).reshape(-1, 2)
    outgoing = np.flatnonzero(order.is_sent[stage]) + stage * order.num_tasks
    received = order.needs[stage][order.needs[stage] >= 0]
    return np.asarray(sent[np.concatenate([outgoing, received])])
