"""One training step of one rank: forward, backward, gradient synchronisation, optimizer."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from triplepoint.config.point import Point
from triplepoint.launch.engines.markers import marker
from triplepoint.launch.engines.native.gradients import (
    GradientSynchroniser,
    Placed,
    clip,
    local,
    local_gradient,
    sum_over_tp,
)
from triplepoint.launch.engines.native.loss import mean_cross_entropy
from triplepoint.launch.engines.native.mesh import Mesh
from triplepoint.launch.engines.native.model import Linear, Stage
from triplepoint.launch.engines.native.parallel import build_stages
from triplepoint.launch.engines.native.pipeline import build_schedule, phase
from triplepoint.launch.engines.native.placement import place
from triplepoint.launch.engines.optimizer import BETAS, LEARNING_RATE, MAX_GRADIENT_NORM, WEIGHT_DECAY


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
