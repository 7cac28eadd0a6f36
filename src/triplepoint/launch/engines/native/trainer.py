"""The run of one rank: process groups, model, training steps (forward, backward, gradient sums, optimizer), traces."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from triplepoint.config.point import Point
from triplepoint.launch.context import RankContext, StepRecorder
from triplepoint.launch.engines.data import Batcher, open_corpus
from triplepoint.launch.engines.device import BACKENDS, device_name, open_device
from triplepoint.launch.engines.loop import Tracer, enable_flight_recorder, marker, train_steps
from triplepoint.launch.engines.native.generate import Generator
from triplepoint.launch.engines.native.gradients import (
    GradientSynchroniser,
    Placed,
    clip,
    local,
    local_gradient,
    sum_over_tp,
)
from triplepoint.launch.engines.native.model import Linear, Stage, mean_cross_entropy
from triplepoint.launch.engines.native.parallel import Mesh, build_mesh, build_stages, is_sharded
from triplepoint.launch.engines.native.pipeline import build_schedule, phase
from triplepoint.launch.engines.shared import BETAS, LEARNING_RATE, MAX_GRADIENT_NORM, WEIGHT_DECAY


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


def place(stage: Stage, point: Point, mesh: Mesh) -> list[Placed]:
    """Return the stage's parameters with their ranks, in the order of the forward pass.

    | parameter           | repeated over   | gradient summed over                       |
    |---------------------|-----------------|--------------------------------------------|
    | split linear layer  | dp              | dp                                         |
    | norm, positions     | dp, tp          | dp, and tp with sequence parallelism       |
    | router              | dp, tp          | dp, and tp (sequence or experts are split) |
    | expert              | edp, tp         | edp, and tp with expert parallelism        |
    | expert split over tp| dp              | dp                                         |

    FSDP shards what is repeated over dp (edp) and sums it itself.
    """
    return [_place(name, parameter, point, mesh) for name, parameter in stage.named_parameters()]


def _place(name: str, parameter: nn.Parameter, point: Point, mesh: Mesh) -> Placed:
    layout = point.layout
    is_expert = ".experts." in name
    repeats = mesh.edp if is_expert else mesh.dp
    is_reduced_by_fsdp = is_sharded(point) and repeats.size() > 1
    # On the tensor parallel mesh: FSDP hides its own split behind a mesh of its own.
    is_split = is_split_over_tp(parameter, mesh)
    return Placed(
        parameter,
        None if is_reduced_by_fsdp or repeats.size() == 1 else repeats.get_group(),
        is_tp_partial=layout.tp > 1 and not is_split and _sees_part(name, parameter, point, mesh),
        is_counted=(is_reduced_by_fsdp or repeats.get_local_rank() == 0)
        and (is_split or mesh.tp.get_local_rank() == 0),
    )


def is_split_over_tp(parameter: nn.Parameter, mesh: Mesh) -> bool:
    """Return whether tensor parallel ranks hold different parts of the parameter."""
    if mesh.layout.tp == 1 or not isinstance(parameter, DTensor):
        return False
    names = parameter.device_mesh.mesh_dim_names or ()
    return "tp" in names and isinstance(parameter.placements[names.index("tp")], Shard)


def _sees_part(name: str, parameter: nn.Parameter, point: Point, mesh: Mesh) -> bool:
    """Return whether a parameter that is whole on every tensor parallel rank gets a part of its gradient there."""
    if isinstance(parameter, DTensor) and "tp" in (parameter.device_mesh.mesh_dim_names or ()):
        return False  # The bias of a row-wise layer: DTensor sums it.
    if ".router." in name:
        return True
    return point.layout.sequence_parallel or (".experts." in name and mesh.ep is not None)


def run(point: Point, context: RankContext, recorder: StepRecorder) -> dict[str, Any]:
    """Train `point` in this rank and return facts for the manifest; see the engine's `train`.

    A process group that is there already is used and left in place, so that one gang can train several points.
    """
    corpus = open_corpus(point)
    device = open_device(point.cluster.device, context.local_rank)
    torch.manual_seed(point.seed)
    is_owner = not dist.is_initialized()
    if is_owner:
        enable_flight_recorder()
        dist.init_process_group(BACKENDS[point.cluster.device])
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
