"""Evaluation: only the forward passes of a simulated step."""

from dataclasses import replace

import numpy as np

from triplepoint.simulate.artefacts.simulated import Simulated
from triplepoint.simulate.timeline.durations import Pass


def forward_only(step: Simulated) -> Simulated:
    """Return the forward passes of a step, without backward passes, gradient reduction, optimizer and pause."""
    chunks = (
        tuple(replace(chunk, backward_input=(), backward_weight=()) for chunk in stage.chunks) for stage in step.stages
    )
    stages = [
        replace(stage, chunks=of_stage, gradient_sync=(), optimizer=())
        for stage, of_stage in zip(step.stages, chunks, strict=True)
    ]
    durations = step.durations
    forward = replace(
        durations,
        backward_input=_no_time(durations.backward_input),
        backward_weight=_no_time(durations.backward_weight),
        optimizer=_no_time(durations.optimizer),
        sync_overlapped=np.zeros_like(durations.sync_overlapped),
        sync_exposed=np.zeros_like(durations.sync_exposed),
        gather_overlapped=np.zeros_like(durations.gather_overlapped),
        pause_s=0.0,
    )
    return replace(step, stages=stages, durations=forward)


def _no_time(like: Pass) -> Pass:
    return Pass(np.zeros_like(like.compute), np.zeros_like(like.comm))
