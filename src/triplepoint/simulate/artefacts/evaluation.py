"""The forward passes of a simulated step alone, as an evaluation runs them."""

from dataclasses import replace

import numpy as np

from triplepoint.simulate.artefacts.simulated import Simulated
from triplepoint.simulate.timeline.durations import Pass


def forward_only(step: Simulated) -> Simulated:
    """Return the forward passes of a step: no backward pass, gradients, optimizer or pause."""
    chunks = (
        tuple(replace(chunk, backward_input=(), backward_weight=()) for chunk in stage.chunks) for stage in step.stages
    )
    stages = [
        replace(stage, chunks=of_stage, gradient_sync=(), optimizer=())
        for stage, of_stage in zip(step.stages, chunks, strict=True)
    ]
    took = step.durations
    durations = replace(
        took,
        backward_input=_nothing(took.backward_input),
        backward_weight=_nothing(took.backward_weight),
        optimizer=_nothing(took.optimizer),
        sync_overlapped=np.zeros_like(took.sync_overlapped),
        sync_exposed=np.zeros_like(took.sync_exposed),
        gather_overlapped=np.zeros_like(took.gather_overlapped),
        pause_s=0.0,
    )
    return replace(step, stages=stages, durations=durations)


def _nothing(like: Pass) -> Pass:
    return Pass(np.zeros_like(like.compute), np.zeros_like(like.comm))
