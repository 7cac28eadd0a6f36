"""Phases of a step on its GPUs, from which peak power is computed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from triplepoint.simulate.operations import Operation, StageWork
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.step import Ran
from triplepoint.simulate.power.work import Workload
from triplepoint.simulate.timeline.tasks import Timeline

_GOVERNED_S = 0.2
"""Time that a governor needs to follow: of shorter passes it sees the mean, including the gaps between them."""


class Phases(NamedTuple):
    """Work of the GPUs of some stages, by phase.

    Shape (num_stages, num_phases), work with an additional axis of len(UNITS).

    Attributes:
        seconds: Time of the phase in a step. Unit: s.
        once_s: Time of a single pass. Unit: s.
        work: Work of the phase in a step.
        operations: Operations of a single pass, by stage and phase.
        alone_s: Like `seconds`, without gaps between passes. Unit: s.
        alone: Work in `alone_s`.
    """

    seconds: Float
    once_s: Float
    work: Float
    operations: Sequence[Sequence[tuple[Operation, ...]]]
    alone_s: Float
    alone: Float


def phases_of(ran: Ran, workload: Workload, stages: Sequence[int], polling_share: float) -> Phases:
    """Return the phases of some stages: forward passes, backward passes, the update, the rest of the step.

    Args:
        ran: The step.
        workload: Work of the job's operations.
        stages: Numbers of the stages.
        polling_share: Share of the clock tree that waiting drives.
    """
    timeline, rows = ran.timeline, np.array(stages)
    durations, num_microbatches = timeline.durations, timeline.order.num_microbatches
    backward = durations.backward_input.total[rows] + durations.backward_weight.total[rows]
    passes = np.stack([durations.forward.total[rows, :, 0].sum(axis=1), backward[:, :, 0].sum(axis=1)], axis=1)
    once = passes / timeline.order.num_chunks
    operations = [_operations(ran.stages[stage]) for stage in stages]
    pass_work = np.array([[workload.of_all(part) for part in parts] for parts in operations])
    pass_work[:, :2] *= num_microbatches
    seconds = np.concatenate([passes * num_microbatches, durations.optimizer.total[rows, :1]], axis=1)
    rest = np.maximum(timeline.step_time_s - seconds.sum(axis=1, keepdims=True), 1e-9)
    seconds = np.concatenate([seconds, rest], axis=1)
    sends = 4 * num_microbatches * (timeline.order.num_stages > 1)
    rest_work = [
        workload.of(ran.stages[stage].gradient_sync)
        + sends * workload.sent(ran.stages[stage].chunks[0].send_bytes, is_inside=False)
        for stage in stages
    ]
    work = np.concatenate([pass_work, np.array(rest_work)[:, None]], axis=1)
    # A rank that waits for others polls in a kernel.
    polling = polling_share if ran.job.num_gpus > 1 else 0.0
    work[..., 0] += polling * np.maximum(seconds - work[..., 0], 0.0)
    alone_s, alone = seconds.copy(), work.copy()
    _even_out(timeline, timeline.final_sync[rows], passes, once, seconds, work)
    flat = [[tuple(op for operations in part for op in operations) for part in parts] for parts in operations]
    return Phases(seconds, np.concatenate([once, seconds[:, 2:]], axis=1), work, flat, alone_s, alone)


def _even_out(timeline: Timeline, final_sync: Float, passes: Float, once: Float, seconds: Float, work: Float) -> None:
    """Spread the work of short passes over them and the gaps between them, since a governor sees their mean.

    Args:
        timeline: Timeline of the step.
        final_sync: Start and end of the final gradient reduction; shape (num_stages, 2). Unit: s.
        passes: Time of forward and backward passes of one micro-batch; shape (num_stages, 2). Unit: s.
        once: Time of single passes; same shape. Unit: s.
        seconds: Time of the phases; changed. Unit: s.
        work: Work of the phases; changed.
    """
    fill = (timeline.order.num_stages - 1) * once.sum(axis=1)
    long_gaps = fill + timeline.durations.pause_s + (final_sync[:, 1] - final_sync[:, 0])
    is_short = (once < _GOVERNED_S).all(axis=1)
    gaps = np.where(is_short, np.maximum(seconds[:, 3] - long_gaps, 0.0), 0.0)[:, None]
    total = passes.sum(axis=1, keepdims=True)
    # A stage may have no layer, and then no passes that take time.
    share = np.divide(passes, total, out=np.full_like(passes, 0.5), where=total > 0)
    mean_work = work[:, :2].sum(axis=1, keepdims=True) * share[..., None]
    work[:, :2] = np.where(is_short.reshape(-1, 1, 1), mean_work, work[:, :2])
    # Gaps bring along their share of the work between passes.
    moved = gaps[..., None] * work[:, 3:] / seconds[:, 3:, None]
    work[:, :2] += moved * share[..., None]
    work[:, 3:] -= moved
    seconds[:, :2] += gaps * share
    seconds[:, 3:] = np.maximum(seconds[:, 3:] - gaps, 1e-9)


def _operations(stage: StageWork) -> list[list[tuple[Operation, ...]]]:
    """Return the operations of one micro-batch's forward and backward passes, and of the update."""
    forward = [chunk.forward for chunk in stage.chunks]
    backward = [part for chunk in stage.chunks for part in (chunk.backward_input, chunk.backward_weight)]
    return [forward, backward, [stage.optimizer]]
