"""Phases of a step on its GPUs, from which peaks of power are made."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from triplepoint.simulate.operations import Operation, StageWork
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.step import Ran
from triplepoint.simulate.power.work import Workload
from triplepoint.simulate.timeline.tasks import Timeline

_GOVERNED_S = 0.2
"""A governor needs some control periods to follow: of shorter passes it sees the mean, with the gaps between them."""


class Phases(NamedTuple):
    """Work of the GPUs of stages; shape (num_stages, num_phases), work with (len(UNITS),) behind.

    Attributes:
        seconds: Of the step. Unit: s.
        once_s: Of a single pass. Unit: s.
        work: Of the step.
        operations: Of a single pass, by stage and phase.
        alone_s: Of the step, as `seconds`, without gaps between passes. Unit: s.
        alone: Work in that time.
    """

    seconds: Float
    once_s: Float
    work: Float
    operations: Sequence[Sequence[tuple[Operation, ...]]]
    alone_s: Float
    alone: Float


def phases_of(ran: Ran, workload: Workload, stages: Sequence[int], polling_share: float) -> Phases:
    """Return what the GPUs of some stages do: forward and backward passes, the update, the rest of the step.

    Args:
        ran: The step.
        workload: Work of the job's operations.
        stages: Which stages.
        polling_share: Share of the clock tree that waiting drives.
    """
    timeline, rows = ran.timeline, np.array(stages)
    durations, num_microbatches = timeline.durations, timeline.order.num_microbatches
    backward = durations.backward_input.total[rows] + durations.backward_weight.total[rows]
    passes = np.stack([durations.forward.total[rows, :, 0].sum(axis=1), backward[:, :, 0].sum(axis=1)], axis=1)
    once = passes / timeline.order.num_chunks
    operations = [_operations(ran.stages[stage]) for stage in stages]
    done = np.array([[workload.of_all(part) for part in parts] for parts in operations])
    done[:, :2] *= num_microbatches
    seconds = np.concatenate([passes * num_microbatches, durations.optimizer.total[rows, :1]], axis=1)
    rest = np.maximum(timeline.step_time_s - seconds.sum(axis=1, keepdims=True), 1e-9)
    seconds = np.concatenate([seconds, rest], axis=1)
    sends = 4 * num_microbatches * (timeline.order.num_stages > 1)
    between = [
        workload.of(ran.stages[stage].gradient_sync)
        + sends * workload.sent(ran.stages[stage].chunks[0].send_bytes, is_inside=False)
        for stage in stages
    ]
    work = np.concatenate([done, np.array(between)[:, None]], axis=1)
    # A rank with others waits in a kernel that polls.
    polling = polling_share if ran.job.num_gpus > 1 else 0.0
    work[..., 0] += polling * np.maximum(seconds - work[..., 0], 0.0)
    alone_s, alone = seconds.copy(), work.copy()
    _even_out(timeline, timeline.final_sync[rows], passes, once, seconds, work)
    flat = [[tuple(one for some in part for one in some) for part in parts] for parts in operations]
    return Phases(seconds, np.concatenate([once, seconds[:, 2:]], axis=1), work, flat, alone_s, alone)


def _even_out(timeline: Timeline, final_sync: Float, passes: Float, once: Float, seconds: Float, work: Float) -> None:
    """Let short passes take up the gaps between them, each with the same mean work: so a governor sees them."""
    fill = (timeline.order.num_stages - 1) * once.sum(axis=1)
    apart = fill + timeline.durations.pause_s + (final_sync[:, 1] - final_sync[:, 0])
    is_short = (once < _GOVERNED_S).all(axis=1)
    gaps = np.where(is_short, np.maximum(seconds[:, 3] - apart, 0.0), 0.0)[:, None]
    share = passes / passes.sum(axis=1, keepdims=True)
    both = work[:, :2].sum(axis=1, keepdims=True) * share[..., None]
    work[:, :2] = np.where(is_short.reshape(-1, 1, 1), both, work[:, :2])
    # What a gap takes comes along, its share of work between passes.
    moved = gaps[..., None] * work[:, 3:] / seconds[:, 3:, None]
    work[:, :2] += moved * share[..., None]
    work[:, 3:] -= moved
    seconds[:, :2] += gaps * share
    seconds[:, 3:] = np.maximum(seconds[:, 3:] - gaps, 1e-9)


def _operations(stage: StageWork) -> list[list[tuple[Operation, ...]]]:
    forward = [chunk.forward for chunk in stage.chunks]
    backward = [part for chunk in stage.chunks for part in (chunk.backward_input, chunk.backward_weight)]
    return [forward, backward, [stage.optimizer]]
