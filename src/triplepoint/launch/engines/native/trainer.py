# mypy: disallow-subclassing-any=False
"""Training with the native engine in one rank: model, pipeline schedule, optimizer, steps.

The pipeline uses torch's stages and schedules; phases are annotated here, and gradients are synchronised by
`GradientSynchroniser`.
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
    """A pipeline stage that annotates its phases, and reports its last backward pass to the gradient synchroniser."""

    synchroniser: GradientSynchroniser
    num_microbatches: int
    _num_backward: int = 0
    """Complete backward passes in this step."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass of one micro-batch."""
        with marker(phase("forward", self.stage_index, fwd_chunk_id)):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        """Run the backward pass of one micro-batch; unless it is full, without weight gradients."""
        self._begin_backward(full_backward)
        with marker(phase("backward", self.stage_index, bwd_chunk_id)):
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        self._end_backward(full_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        """Compute the weight gradients of one micro-batch (zero bubble)."""
        self._begin_backward(True)
        with marker(phase("backward_weight", self.stage_index, bwd_chunk_id)):
            super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        self._end_backward(True)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        """Let FSDP reduce its gradients."""
        if isinstance(self.submod, FSDPModule):
            with marker("grad_sync"):
                super().perform_reduce_grad(grad_scale_factor)

    # Backward passes are counted here because the schedules' `last_backward` flag is wrong from the second of several
    # stages on: the first stage that reduces its gradients resets the counters of all.
    def _begin_backward(self, has_weight_gradients: bool) -> None:
        if has_weight_gradients and self._num_backward == self.num_microbatches - 1:
            self.synchroniser.arm(self.stage_index)

    def _end_backward(self, has_weight_gradients: bool) -> None:
        self._num_backward += has_weight_gradients
        if self._num_backward == self.num_microbatches:
            self._num_backward = 0
            self.synchroniser.flush(self.stage_index)


def build_schedule(
    stages: dict[int, Stage],
    point: Point,
    mesh: Mesh,
    device: torch.device,
    synchroniser: GradientSynchroniser,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Any:
    """Return the pipeline schedule of this rank's stages.

    Args:
        stages: Modules by stage number.
        point: The training run.
        mesh: Process groups.
        device: Device of the stages.
        synchroniser: Reduces the gradients of each stage.
        loss: Loss of one micro-batch from logits and targets, already divided by the global batch.
    """
    # NCCL creates a group's communicator at its first use, in which all its ranks must take part. The first exchange of
    # a schedule is between neighbours only.
    dist.all_reduce(torch.zeros(1, device=device), group=mesh.pp.get_group())
    pipeline_stages = [_pipeline_stage(number, module, point, mesh, device) for number, module in stages.items()]
    for stage in pipeline_stages:
        stage.synchroniser, stage.num_microbatches = synchroniser, point.num_microbatches
    name = point.layout.schedule
    if name in _SINGLE_STAGE:
        (stage,) = pipeline_stages
        return _SINGLE_STAGE[name](stage, point.num_microbatches, loss_fn=loss, scale_grads=False)
    return _MULTI_STAGE[str(name)](pipeline_stages, point.num_microbatches, loss_fn=loss, scale_grads=False)


def _pipeline_stage(number: int, module: Stage, point: Point, mesh: Mesh, device: torch.device) -> AnnotatedStage:
    """Return the stage with its input and output shapes, which torch would otherwise find by running it once."""
    num_stages = point.layout.pp * point.layout.vp
    tokens = torch.empty(point.micro_batch_size, point.sequence_length, dtype=torch.long, device="meta")
    local_length = point.sequence_length // (point.layout.tp if point.layout.sequence_parallel else 1)
    residual = _meta_activation(point, local_length, point.model.hidden_size)
    vocab_part = padded_vocab_size(point.model.vocab_size) // point.layout.tp
    logits = _meta_activation(point, point.sequence_length, vocab_part)
    return AnnotatedStage(
        module,
        number,
        num_stages,
        device,
        input_args=tokens if number == 0 else residual,
        output_args=logits if number == num_stages - 1 else residual,
        group=mesh.pp.get_group(),
    )


def _meta_activation(point: Point, length: int, width: int) -> Tensor:
    shape = (point.micro_batch_size, length, width)
    return torch.empty(shape, dtype=compute_dtype(point), device="meta", requires_grad=True)


class Trainer:
    """This rank's part of the model with its optimizer."""

    def __init__(self, point: Point, mesh: Mesh, device: torch.device) -> None:
        self.point, self.mesh = point, mesh
        self.stages = build_stages(point, mesh, device)
        by_stage = {number: place(stage, point, mesh) for number, stage in self.stages.items()}
        trained = {number: [p for p in placed if p.parameter.requires_grad] for number, placed in by_stage.items()}
        self.all_parameters = [item for placed in by_stage.values() for item in placed]
        """Frozen parameters included."""
        self.trained_parameters = [item for placed in trained.values() for item in placed]
        self.synchroniser = GradientSynchroniser(trained, "grad" in point.overlap)
        self.schedule: Any = None
        """Torch's pipeline schedule; None without pipeline parallelism."""
        if point.layout.pp > 1:
            self.schedule = build_schedule(self.stages, point, mesh, device, self.synchroniser, self._loss)
        self._local_parts = {p.parameter: local(p.parameter).requires_grad_() for p in self.trained_parameters}
        """This rank's part of each parameter, for the optimizer; shares its memory."""
        self._linears = [m for stage in self.stages.values() for m in stage.modules() if isinstance(m, Linear)]
        self._optimizer = self._build_optimizer()
        self.gradient_norm = torch.zeros(())
        """Norm of the last step's gradient, before clipping."""

    @property
    def world(self) -> dist.ProcessGroup:
        """Process group of all ranks."""
        return self.mesh.world

    @property
    def has_loss(self) -> bool:
        """Whether this rank has the last pipeline stage, which computes the loss."""
        return any(stage.head is not None for stage in self.stages.values())

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Train on this rank's part of a global batch; see `loop.Trainer.step`."""
        losses = self._accumulate(tokens, targets) if self.schedule is None else self._run_schedule(tokens, targets)
        with marker("grad_sync"):
            self.synchroniser.finish()
            sum_over_tp(self.trained_parameters, self.mesh.tp_group)
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

    def facts(self) -> dict[str, Any]:
        """Return facts for the manifest."""
        return {
            "num_parameters": self._count(self.all_parameters),
            "num_parameters_rank": sum(local(item.parameter).numel() for item in self.all_parameters),
            "num_trained_parameters": self._count(self.trained_parameters),
            "num_gradient_buckets": self.synchroniser.num_buckets,
            "gradient_norm": float(self.gradient_norm),
        }

    def _count(self, parameters: list[Placed]) -> int:
        """Return the number of elements of these parameters in the whole model."""
        num_counted = sum(local(item.parameter).numel() for item in parameters if item.is_counted)
        total = torch.tensor(num_counted, device=local(self.all_parameters[0].parameter).device)
        dist.all_reduce(total, group=self.mesh.world)
        return int(total)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return a micro-batch's share of the mean loss of the global batch, so that gradients need only be summed."""
        num_shares = self.point.num_microbatches * self.point.layout.dp
        return mean_cross_entropy(logits, targets, self.mesh.tp_group) / num_shares

    def _accumulate(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        """Run all micro-batches without a pipeline and return their losses."""
        (stage,) = self.stages.values()
        count, losses = self.point.num_microbatches, []
        for number, (inputs, labels) in enumerate(zip(tokens.chunk(count), targets.chunk(count), strict=True)):
            is_last = number == count - 1
            self._prepare_fsdp(stage, is_last)
            with marker(phase("forward", 0, number)):
                loss = self._loss(stage(inputs), labels)
            if is_last:
                self.synchroniser.arm(0)
            with marker(phase("backward", 0, number)):
                loss.backward()
            losses.append(loss.detach())
        self.synchroniser.flush(0)
        return losses

    def _prepare_fsdp(self, stage: Stage, is_last: bool) -> None:
        """Set when FSDP reduces gradients and frees parameters. In a pipeline torch's stages do this."""
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
        """Return AdamW over the local parts: it works element by element, so it needs no DTensors."""
        parts = [part for part in self._local_parts.values() if part.numel()]
        groups = [
            {"params": [part for part in parts if part.ndim > 1], "weight_decay": WEIGHT_DECAY},
            {"params": [part for part in parts if part.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW([group for group in groups if group["params"]], LEARNING_RATE, BETAS, fused=True)

    def _update(self) -> None:
        """Clip gradients, run the optimizer, and drop the gradients and cast weights of this step."""
        self.gradient_norm = clip(self.trained_parameters, MAX_GRADIENT_NORM, self.mesh.world)
        for parameter, part in self._local_parts.items():
            part.grad = local_gradient(parameter)
        self._optimizer.step()
        for parameter, part in self._local_parts.items():
            parameter.grad = part.grad = None
        for linear in self._linears:
            linear.forget_cast()


def run(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train this rank's part of `point` and return facts for the manifest; see `Engine.train`.

    An existing process group is used and left in place, so that one gang can train several points.
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
    dp, dp_rank = point.layout.dp, mesh.dp.get_local_rank()
    batcher = Batcher(corpus, point.num_microbatches, point.micro_batch_size, dp, dp_rank)
    train_steps(point, trainer, batcher, Tracer(point, context, mesh.roles(), device), recorder, device)
    facts = {
        **trainer.facts(),
        "backend": dist.get_backend(mesh.world),
        "device_name": device_name(device),
        "num_threads": torch.get_num_threads(),
        **corpus.facts(),
    }
    if is_owner:
        # Only after a normal end: if a rank has failed, this would wait for it forever.
        dist.destroy_process_group()
    return facts
