# mypy: disallow-subclassing-any=False
"""The run of one rank: process groups, model, pipeline schedule, training steps, traces.

The pipeline is torch's stages and schedules, with phases annotated and gradients synchronised at the end.
"""

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
from triplepoint.launch.engines import (
    BETAS,
    LEARNING_RATE,
    MAX_GRADIENT_NORM,
    WEIGHT_DECAY,
    RankContext,
    StepRecorder,
    padded_vocab_size,
)
from triplepoint.launch.engines.data import Batcher, open_corpus
from triplepoint.launch.engines.loop import (
    Tracer,
    device_name,
    join_group,
    marker,
    open_device,
    phase,
    train_steps,
)
from triplepoint.launch.engines.native.generate import Generator
from triplepoint.launch.engines.native.gradients import (
    GradientSynchroniser,
    Placed,
    clip,
    local,
    local_gradient,
    place,
    sum_over_tp,
)
from triplepoint.launch.engines.native.model import Linear, Stage, mean_cross_entropy
from triplepoint.launch.engines.native.parallel import Mesh, build_mesh, build_stages, compute_dtype

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


class Trainer:
    """This rank's part of the model with its optimizer."""

    def __init__(self, point: Point, mesh: Mesh, device: torch.device) -> None:
        self.point, self.mesh = point, mesh
        self.stages = build_stages(point, mesh, device)
        every = {number: place(stage, point, mesh) for number, stage in self.stages.items()}
        placed = {number: [item for item in items if item.parameter.requires_grad] for number, items in every.items()}
        self.every = [item for items in every.values() for item in items]
        """All parameters, frozen ones too."""
        self.placed = [item for items in placed.values() for item in items]
        """Those that are trained."""
        self.synchroniser = GradientSynchroniser(placed, "grad" in point.overlap)
        self.schedule: Any = None
        if point.layout.pp > 1:
            self.schedule = build_schedule(self.stages, point, mesh, device, self.synchroniser, self._loss)
        self._leaves = {item.parameter: local(item.parameter).requires_grad_() for item in self.placed}
        self._linears = [m for stage in self.stages.values() for m in stage.modules() if isinstance(m, Linear)]
        self._optimizer = self._build_optimizer()
        self.gradient_norm = torch.zeros(())
        """Norm of the last step's gradient, before clipping."""

    @property
    def world(self) -> dist.ProcessGroup:
        """All ranks."""
        return self.mesh.world

    @property
    def has_loss(self) -> bool:
        """Whether this rank computes the loss: it has the last stage."""
        return any(stage.head is not None for stage in self.stages.values())

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Train on this rank's part of a global batch.

        Args:
            tokens: Shape (num_microbatches * micro_batch_size, sequence).
            targets: Next tokens, of the same shape.

        Returns:
            This rank's part of the mean loss, 0 without the last stage.
        """
        losses = self._accumulate(tokens, targets) if self.schedule is None else self._run_schedule(tokens, targets)
        with marker("grad_sync"):
            self.synchroniser.finish()
            sum_over_tp(self.placed, self.mesh.tp_group)
        with marker("optimizer"):
            self._update()
        return torch.stack(losses).sum() if losses else torch.zeros((), device=tokens.device)

    def global_loss(self, part: Tensor) -> float | None:
        """Return the mean loss of the global batch, None without the last stage. Unit: nat."""
        if not self.has_loss:
            return None
        total = part.detach().clone()
        dist.all_reduce(total, group=self.mesh.dp.get_group())
        return float(total)

    def count_parameters(self) -> tuple[int, int]:
        """Return the number of parameters of the whole model and of this rank."""
        held = sum(local(item.parameter).numel() for item in self.every)
        return self._count(self.every), held

    def count_trained(self) -> int:
        """Return the number of parameters of the whole model that are trained."""
        return self._count(self.placed)

    def _count(self, placed: list[Placed]) -> int:
        counted = sum(local(item.parameter).numel() for item in placed if item.is_counted)
        total = torch.tensor(counted, device=local(self.every[0].parameter).device)
        dist.all_reduce(total, group=self.mesh.world)
        return int(total)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return a micro-batch's part of the mean over the global batch, so that gradients need only be summed."""
        parts = self.point.num_microbatches * self.point.layout.dp
        return mean_cross_entropy(logits, targets, self.mesh.tp_group) / parts

    def _accumulate(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        (stage,) = self.stages.values()
        count, losses = self.point.num_microbatches, []
        for number, (inputs, wanted) in enumerate(zip(tokens.chunk(count), targets.chunk(count), strict=True)):
            is_last = number == count - 1
            self._prepare_fsdp(stage, is_last)
            with marker(phase("forward", 0, number)):
                loss = self._loss(stage(inputs), wanted)
            if is_last:
                self.synchroniser.arm(0)
            with marker(phase("backward", 0, number)):
                loss.backward()
            losses.append(loss.detach())
        self.synchroniser.flush(0)
        return losses

    def _prepare_fsdp(self, stage: Stage, is_last: bool) -> None:
        """Say when FSDP reduces gradients and frees parameters; under a pipeline torch's stages do it."""
        if isinstance(stage, FSDPModule):
            sharding = self.point.layout.data_parallel_sharding
            stage.set_is_last_backward(is_last)
            stage.set_requires_gradient_sync(is_last or sharding != "optim")
            stage.set_reshard_after_backward(is_last or sharding == "optim_grads_params")

    def _run_schedule(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        losses: list[Tensor] = []
        has_first = 0 in self.stages
        self.schedule.step(
            *((tokens,) if has_first else ()),
            target=targets if self.has_loss else None,
            losses=losses,
            return_outputs=False,
        )
        return [loss.detach() for loss in losses]

    def _build_optimizer(self) -> torch.optim.AdamW:
        """Return AdamW over the local parts: it works element by element, so it need not know of DTensors."""
        leaves = [leaf for leaf in self._leaves.values() if leaf.numel()]
        groups = [
            {"params": [leaf for leaf in leaves if leaf.ndim > 1], "weight_decay": WEIGHT_DECAY},
            {"params": [leaf for leaf in leaves if leaf.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW([group for group in groups if group["params"]], LEARNING_RATE, BETAS, fused=True)

    def _update(self) -> None:
        self.gradient_norm = clip(self.placed, MAX_GRADIENT_NORM, self.mesh.world)
        for parameter, leaf in self._leaves.items():
            leaf.grad = local_gradient(parameter)
        self._optimizer.step()
        for parameter, leaf in self._leaves.items():
            parameter.grad = leaf.grad = None
        for linear in self._linears:
            linear.forget_cast()


def run(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train `point` in this rank and return facts for the manifest; see the engine's `train`.

    A process group that is there already is used and left in place, so that one gang can train several points.
    """
    corpus = open_corpus(point)
    device = open_device(point.cluster.device, context.local_rank)
    torch.manual_seed(point.seed)
    is_owner = not dist.is_initialized()
    if is_owner:
        join_group(point.cluster.device)
    mesh = build_mesh(point.layout, device.type, has_way_back=point.inference is not None)
    trainer: Trainer | Generator
    trainer = Trainer(point, mesh, device) if point.inference is None else Generator(point, mesh, device, recorder)
    layout = point.layout
    dp_rank = mesh.dp.get_local_rank()
    batcher = Batcher(corpus, point.num_microbatches, point.micro_batch_size, layout.dp, dp_rank)
    train_steps(point, trainer, batcher, Tracer(point, context, mesh.roles(), device), recorder, device)
    own = _trained(trainer) if isinstance(trainer, Trainer) else trainer.facts()
    facts = {**own, **_facts(mesh, device), **corpus.facts()}
    if is_owner:
        # Only after a normal end: with a rank gone, this would wait for it.
        dist.destroy_process_group()
    return facts


def _trained(trainer: Trainer) -> dict[str, Any]:
    num_parameters, num_parameters_rank = trainer.count_parameters()
    return {
        "num_parameters": num_parameters,
        "num_parameters_rank": num_parameters_rank,
        "num_trained_parameters": trainer.count_trained(),
        "num_gradient_buckets": trainer.synchroniser.num_buckets,
        "gradient_norm": float(trainer.gradient_norm),
    }


def _facts(mesh: Mesh, device: torch.device) -> dict[str, Any]:
    return {
        "backend": dist.get_backend(mesh.world),
        "device_name": device_name(device),
        "num_threads": torch.get_num_threads(),
    }
