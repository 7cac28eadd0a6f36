"""The steps of a run, the same for every engine: batch, barrier, step, record."""

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from triplepoint.config.point import Point
from triplepoint.launch.context import StepRecorder
from triplepoint.launch.engines.data import Batcher
from triplepoint.launch.engines.device import peak_memory_bytes, reserved_memory_bytes, synchronise
from triplepoint.launch.engines.tracing import Tracer, marker


class Trainer(Protocol):
    """A rank's part of the model with its optimizer."""

    @property
    def world(self) -> dist.ProcessGroup:
        """All ranks, for barriers."""
        ...

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Train on this rank's part of a global batch and return its part of the mean loss."""
        ...

    def global_loss(self, part: Tensor) -> float | None:
        """Return the mean loss of the global batch, None where another rank knows it. Unit: nat."""
        ...


def train_steps(
    point: Point, trainer: Trainer, batcher: Batcher, tracer: Tracer, recorder: StepRecorder, device: torch.device
) -> None:
    """Make all steps of the point, in order; only the training itself lies between `begin` and `end`."""
    for step, kind in enumerate(point.steps.kinds):
        tokens, targets = batcher.batch(step, device)
        if kind == "profiled":
            tracer.start()
        # Ranks start together, or the time of a fast one would hold its wait for a slow one.
        dist.barrier(group=trainer.world, device_ids=None if device.index is None else [device.index])
        synchronise(device)
        recorder.begin(step, kind)
        with marker(f"ProfilerStep#{step}"):
            part = trainer.step(tokens, targets)
            synchronise(device)
        recorder.end()
        loss = trainer.global_loss(part)
        recorder.write(loss, point.num_tokens, peak_memory_bytes(device), reserved_memory_bytes(device))
    tracer.finish()
