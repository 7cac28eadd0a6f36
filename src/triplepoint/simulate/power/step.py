"""What GPUs do in a training step: its passes, collectives, sends and update, with the work of each."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from triplepoint.simulate.artefacts.groups import split_sync
from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import StageWork
from triplepoint.simulate.power.gpu import Activity, Float, Int64
from triplepoint.simulate.power.work import UNITS, Workload, activity_of
from triplepoint.simulate.timeline.expand import TimeOf
from triplepoint.simulate.timeline.schedule import BACKWARD, BACKWARD_WEIGHT, FORWARD
from triplepoint.simulate.timeline.tasks import Timeline

Place = tuple[int, int]
"""Pipeline stage and class of replica; its ranks do the same."""


class Pieces(NamedTuple):
    """What runs in a step, one row a piece.

    Attributes:
        kind: Index of the place whose ranks run it; shape (num_pieces,).
        start_s: Shape (num_pieces,). Unit: s.
        end_s: Shape (num_pieces,). Unit: s.
        work: Shape (num_pieces, len(UNITS)). Unit: s.
    """

    kind: Int64
    start_s: Float
    end_s: Float
    work: Float


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
    lasts = pieces.end_s > pieces.start_s
    kind, start, end, work = (column[lasts] for column in pieces)
    width, rate = step_s / num_bins, work / (end - start)[:, None]
    # A rate that sets in is work in what is left of its bin, and in every bin after it; where it ends it is taken off.
    place, time, change = np.concatenate([kind, kind]), np.concatenate([start, end]), np.concatenate([rate, -rate])
    position = time / width
    first = np.minimum(position.astype(np.int64), num_bins - 1)
    slot, size = place * num_bins + first, num_kinds * num_bins
    rest = first + 1.0 - position
    found = np.empty((num_bins, num_kinds, len(UNITS)))
    for unit, value in enumerate(change.T):
        whole = np.bincount(slot, value, size).reshape(num_kinds, num_bins)
        part = np.bincount(slot, value * rest, size).reshape(num_kinds, num_bins)
        found[:, :, unit] = (part + np.cumsum(whole, axis=1) - whole).T
    activity = activity_of(np.maximum(found, 0.0), 1.0)
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
    def time_of(self) -> TimeOf:
        """Time of one run of an operation. Unit: s."""

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
    timeline, rows = ran.timeline, []
    begin = timeline.optimizer_start
    for kind, (stage, which) in enumerate(places):
        tasks, fixed_s, fixed = by_stage[stage]
        sends, sent = _sends(ran, workload, stage, which)
        update_s = begin + float(timeline.durations.optimizer.total[stage, which])
        times = np.concatenate([
            np.stack([timeline.start[stage, :, which], timeline.end[stage, :, which]], axis=1),
            fixed_s, sends, [[begin, update_s]],
        ])  # fmt: skip
        work = [tasks, fixed, np.broadcast_to(sent, (len(sends), len(UNITS)))]
        work.append(workload.of(ran.stages[stage].optimizer)[None])
        rows.append((np.full(len(times), kind), times[:, 0], times[:, 1], np.concatenate(work)))
    return Pieces(*(np.concatenate(column) for column in zip(*rows, strict=True)))


def _of_stage(ran: Ran, workload: Workload, stage: int) -> tuple[Float, Float, Float]:
    """Return the work of every task of a stage, and times and work of its collectives outside passes."""
    timeline, order = ran.timeline, ran.timeline.order
    by_kind = np.zeros((3, order.num_chunks, len(UNITS)))
    for index, chunk in enumerate(ran.stages[stage].chunks):
        weight = (chunk.backward_weight,)
        backward = (chunk.backward_input,) if order.is_split else (chunk.backward_input, *weight)
        for kind, parts in ((FORWARD, (chunk.forward,)), (BACKWARD, backward), (BACKWARD_WEIGHT, weight)):
            by_kind[kind, index] = workload.of_all(parts)
    gathers, reductions, after = (tuple(part) for part in split_sync(ran.stages[stage]))
    gathered_s = float(timeline.durations.gather_overlapped[stage].sum())
    times = np.concatenate([[[0.0, gathered_s]], timeline.sync[stage], timeline.final_sync[stage : stage + 1]])
    sync = [workload.of(gathers) * order.num_chunks, *[workload.of(reductions)] * order.num_chunks, workload.of(after)]
    return by_kind[order.kind[stage], order.chunk[stage]], times, np.array(sync)


def _sends(ran: Ran, workload: Workload, stage: int, which: int) -> tuple[Float, Float]:
    """Return when activations and gradients are on their way to other stages and from them, and the work of one."""
    timeline, order = ran.timeline, ran.timeline.order
    if order.num_stages == 1:
        return np.empty((0, 2)), np.zeros(len(UNITS))
    num_bytes = max(chunk.send_bytes for one in ran.stages for chunk in one.chunks)
    sent = np.stack([timeline.sent[:, :, which], timeline.arrival[:, :, which]], axis=-1).reshape(-1, 2)
    own = np.flatnonzero(order.is_sent[stage]) + stage * order.num_tasks
    received = order.needs[stage][order.needs[stage] >= 0]
    # Neighbours are near one another, but where a node ends.
    is_inside = ran.job.mesh.ranks_per_stage < ran.job.fabric.gpus_per_node
    return sent[np.concatenate([own, received])], workload.sent(num_bytes, is_inside)
