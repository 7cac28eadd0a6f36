# mypy: disallow-subclassing-any=False
"""Pipeline parallelism: torch's stages and schedules, with phases annotated and gradients synchronised at the end."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from triplepoint.config.point import Point
from triplepoint.launch.engines.loop import marker
from triplepoint.launch.engines.native.gradients import GradientSynchroniser
from triplepoint.launch.engines.native.model import Stage
from triplepoint.launch.engines.native.parallel import Mesh, compute_dtype
from triplepoint.launch.engines.shared import padded_vocab_size

_SINGLE_STAGE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_MULTI_STAGE = {"interleaved_1f1b": ScheduleInterleaved1F1B, "zero_bubble": ScheduleInterleavedZeroBubble}


class AnnotatedStage(PipelineStage):
    """A pipeline stage that names its phases in the trace and tells the synchroniser of its last backward pass."""

    synchroniser: GradientSynchroniser
    num_microbatches: int
    _done: int = 0

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass of one micro-batch."""
        with marker(phase("forward", self.stage_index, fwd_chunk_id)):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """Run the backward pass of one micro-batch, without weight gradients if it is not full."""
        self._begin(full_backward)
        with marker(phase("backward", self.stage_index, bwd_chunk_id)):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        self._end(full_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Compute the weight gradients of one micro-batch (zero bubble)."""
        self._begin(True)
        with marker(phase("backward_weight", self.stage_index, bwd_chunk_id)):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        self._end(True)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Let FSDP reduce its gradients."""
        if isinstance(self.submod, FSDPModule):
            with marker("grad_sync"):
                super().perform_reduce_grad(grad_scale_factor)

    # Own counting: the schedules' `last_backward` flag is wrong from the second of several stages on, since the
    # first stage that reduces its gradients resets the counters of all.
    def _begin(self, completes: bool) -> None:
        if completes and self._done == self.num_microbatches - 1:
            self.synchroniser.arm(self.stage_index)

    def _end(self, completes: bool) -> None:
        self._done += completes
        if self._done == self.num_microbatches:
            self._done = 0
            self.synchroniser.flush(self.stage_index)


def phase(name: str, stage: int, microbatch: int) -> str:
    """Return the annotation of a phase."""
    return f"{name} stage={stage} microbatch={microbatch}"


def build_schedule(
    stages: dict[int, Stage],
    point: Point,
    mesh: Mesh,
    device: torch.device,
    synchroniser: GradientSynchroniser,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Any:
    """Return the schedule that runs this rank's stages.

    Args:
        stages: Modules under their stage numbers.
        point: What is trained.
        mesh: Process groups.
        device: Where the stages live.
        synchroniser: Told when a stage's gradients are complete.
        loss: Loss of one micro-batch from logits and targets, already divided by the global batch.
    """
    # NCCL makes a group's communicator at its first use, which all its ranks must join: not so in the first exchange of
    # a schedule, which is between neighbours.
    dist.all_reduce(torch.zeros(1, device=device), group=mesh.pp.get_group())
    wrapped = [_stage(number, module, point, mesh, device) for number, module in stages.items()]
    for stage in wrapped:
        stage.synchroniser, stage.num_microbatches = synchroniser, point.num_microbatches
    name = point.layout.schedule
    if name in _SINGLE_STAGE:
        (stage,) = wrapped
        return _SINGLE_STAGE[name](stage, point.num_microbatches, loss_fn=loss, scale_grads=False)
    return _MULTI_STAGE[str(name)](wrapped, point.num_microbatches, loss_fn=loss, scale_grads=False)


def _stage(number: int, module: Stage, point: Point, mesh: Mesh, device: torch.device) -> AnnotatedStage:
    """Return the stage with its shapes given, so that torch need not run it once to find out."""
    num_stages = point.layout.pp * point.layout.vp
    tokens = torch.empty(point.micro_batch_size, point.sequence_length, dtype=torch.long, device="meta")
    part = point.sequence_length // (point.layout.tp if point.layout.sequence_parallel else 1)
    stream = _example(point, part, point.model.hidden_size)
    logits = _example(point, point.sequence_length, padded_vocab_size(point.model.vocab_size) // point.layout.tp)
    return AnnotatedStage(
        module,
        number,
        num_stages,
        device,
        input_args=tokens if number == 0 else stream,
        output_args=logits if number == num_stages - 1 else stream,
        group=mesh.pp.get_group(),
    )


def _example(point: Point, length: int, width: int) -> Tensor:
    shape = (point.micro_batch_size, length, width)
    return torch.empty(shape, dtype=compute_dtype(point), device="meta", requires_grad=True)
