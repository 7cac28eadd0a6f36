"""Gradients across ranks: data parallel reduction without FSDP, sums over tensor parallel ranks, clipping."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from triplepoint.config.point import Point
from triplepoint.launch.engines.loop import marker
from triplepoint.launch.engines.native.model import Stage
from triplepoint.launch.engines.native.parallel import Mesh, is_sharded
from triplepoint.launch.engines.native.parameters import ADAPTER
from triplepoint.launch.engines.native.tensor_parallel import parts_of
from triplepoint.units import MIB

BUCKET_BYTES = 25 * MIB
"""Gradients reduced in one collective. Source: torch DistributedDataParallel, `bucket_cap_mb`, default 25."""


@dataclass(frozen=True)
class Placed:
    """A parameter, and the ranks over which it is replicated and its gradient summed."""

    parameter: nn.Parameter
    reduce_over: dist.ProcessGroup | None
    """Ranks over which the synchroniser sums the gradient; None if there is one rank only, or FSDP sums it."""
    is_tp_partial: bool
    """Whether each tensor parallel rank has only a partial sum of the gradient, of its part of the sequence."""
    is_counted: bool
    """Whether this rank, of all with the same values, counts the parameter in norms and sizes of the whole model."""


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a parameter or gradient, which FSDP may have sharded; shares its memory."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def local_gradient(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of the gradient; zeros if there is none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return local(parameter.grad)


@dataclass
class Bucket:
    """Parameters whose gradients are reduced in one collective."""

    group: dist.ProcessGroup
    parameters: list[nn.Parameter] = field(default_factory=list)
    size_bytes: int = 0
    num_pending: int = 0
    """Gradients that the last backward pass of the step has still to complete."""
    flat: Tensor | None = None
    """All gradients, concatenated, from `launch` to `finish`."""
    work: Any = None

    def launch(self) -> None:
        """Start the all-reduce."""
        self.flat = torch.cat([local_gradient(parameter).flatten() for parameter in self.parameters])
        self.work = dist.all_reduce(self.flat, group=self.group, async_op=True)

    def finish(self) -> None:
        """Wait for the all-reduce and copy the sums into the gradients."""
        assert self.flat is not None
        self.work.wait()
        gradients = [local_gradient(parameter) for parameter in self.parameters]
        for gradient, total in zip(gradients, self.flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))
        self.flat = self.work = None


class GradientSynchroniser:
    """Sums gradients over data parallel ranks, in buckets, after the last backward pass or overlapped with it.

    Torch's DistributedDataParallel is no alternative: it takes no parameters with different groups (experts), and
    schedules that split the backward pass bypass its hooks.
    """

    def __init__(self, stages: dict[int, list[Placed]], is_overlapped: bool) -> None:
        """Build the buckets.

        Args:
            stages: Trained parameters of each stage, in the order of the forward pass.
            is_overlapped: Whether a bucket is reduced as soon as the last backward pass has filled it.
        """
        self.is_overlapped = is_overlapped
        self._buckets = {stage: _buckets(placed) for stage, placed in stages.items()}
        self._armed: set[int] = set()
        if is_overlapped:
            for stage, buckets in self._buckets.items():
                for bucket in buckets:
                    for parameter in bucket.parameters:
                        parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, stage, bucket))

    @property
    def num_buckets(self) -> int:
        """Collectives per step."""
        return sum(map(len, self._buckets.values()))

    def arm(self, stage: int) -> None:
        """Reduce the stage's buckets as they fill. Call it before the stage's last backward pass of the step."""
        if self.is_overlapped:
            self._armed.add(stage)
            for bucket in self._buckets[stage]:
                bucket.num_pending = len(bucket.parameters)

    def flush(self, stage: int) -> None:
        """Start the buckets that hooks did not start. Call it after the stage's last backward pass of the step.

        Zero-bubble schedules compute weight gradients without running hooks, so with them this starts all buckets.
        """
        if self.is_overlapped:
            self._armed.discard(stage)
            not_started = [bucket for bucket in self._buckets[stage] if bucket.flat is None]
            if not_started:
                with marker("grad_sync"):
                    for bucket in not_started:
                        bucket.launch()

    def finish(self) -> None:
        """Complete all reductions. Call it once per step, after all backward passes."""
        all_buckets = [bucket for buckets in self._buckets.values() for bucket in buckets]
        for bucket in all_buckets:
            if bucket.flat is None:
                bucket.launch()
        for bucket in all_buckets:
            bucket.finish()

    def _on_gradient(self, stage: int, bucket: Bucket, parameter: nn.Parameter) -> None:
        if stage in self._armed:
            bucket.num_pending -= 1
            if bucket.num_pending == 0:
                with marker("grad_sync"):
                    bucket.launch()


def _buckets(parameters: Sequence[Placed]) -> list[Bucket]:
    """Return buckets in the order in which the backward pass fills them; each has one group and one dtype."""
    buckets: list[Bucket] = []
    open_buckets: dict[tuple[dist.ProcessGroup, torch.dtype], Bucket] = {}
    for item in reversed(parameters):
        if item.reduce_over is None:
            continue
        key = (item.reduce_over, item.parameter.dtype)
        if key not in open_buckets or open_buckets[key].size_bytes >= BUCKET_BYTES:
            open_buckets[key] = Bucket(item.reduce_over)
            buckets.append(open_buckets[key])
        bucket, part = open_buckets[key], local(item.parameter)
        bucket.parameters.append(item.parameter)
        bucket.size_bytes += part.numel() * part.element_size()
    return buckets


def sum_over_tp(placed: Sequence[Placed], group: dist.ProcessGroup | None) -> None:
    """Complete gradients that are partial sums on each tensor parallel rank, in place, one collective per dtype."""
    by_dtype: dict[torch.dtype, list[Tensor]] = defaultdict(list)
    for item in placed:
        if item.is_tp_partial:
            gradient = local_gradient(item.parameter)
            by_dtype[gradient.dtype].append(gradient)
    for gradients in by_dtype.values():
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=group)
        for gradient, total in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))


def clip(placed: Sequence[Placed], max_norm: float, world: dist.ProcessGroup) -> Tensor:
    """Scale all gradients so that their norm over the whole model is at most `max_norm`.

    Returns:
        The norm before clipping, the same on every rank.
    """
    gradients = [local_gradient(item.parameter) for item in placed]
    counted = [gradient for gradient, item in zip(gradients, placed, strict=True) if item.is_counted]
    sum_of_squares = torch.zeros((), device=gradients[0].device)
    if counted:
        sum_of_squares += torch.stack(torch._foreach_norm(counted)).square().sum()
    dist.all_reduce(sum_of_squares, group=world)
    norm = sum_of_squares.sqrt()
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def place(stage: Stage, point: Point, mesh: Mesh) -> list[Placed]:
    """Return the stage's parameters, in the order of the forward pass, with the ranks that share them.

    | parameter           | replicated over | gradient summed over                       |
    |---------------------|-----------------|--------------------------------------------|
    | split linear layer  | dp              | dp                                         |
    | norm, positions     | dp, tp          | dp, and tp with sequence parallelism       |
    | router              | dp, tp          | dp, and tp (sequence or experts are split) |
    | adapter's whole half| dp, tp          | dp, and tp (its other half is split)       |
    | expert              | edp, tp         | edp, and tp with expert parallelism        |
    | expert split over tp| dp              | dp                                         |

    FSDP shards what is replicated over dp (edp), and sums its gradients itself.
    """
    split = {id(getattr(module, key)) for module in stage.modules() for key in parts_of(module)}
    return [_place(name, p, id(p) in split, point, mesh) for name, p in stage.named_parameters()]


def _place(name: str, parameter: nn.Parameter, is_split: bool, point: Point, mesh: Mesh) -> Placed:
    layout = point.layout
    is_expert = ".experts." in name
    replicas = mesh.edp if is_expert else mesh.dp
    is_reduced_by_fsdp = is_sharded(point) and replicas.size() > 1
    return Placed(
        parameter,
        None if is_reduced_by_fsdp or replicas.size() == 1 else replicas.get_group(),
        is_tp_partial=layout.tp > 1 and not is_split and _has_partial_gradient(name, point, mesh),
        is_counted=(is_reduced_by_fsdp or replicas.get_local_rank() == 0)
        and (is_split or mesh.tp.get_local_rank() == 0),
    )


def _has_partial_gradient(name: str, point: Point, mesh: Mesh) -> bool:
    """Return whether a parameter that every tensor parallel rank has whole gets a partial sum as its gradient there."""
    if ".router." in name or ADAPTER in name:
        return True
    return point.layout.sequence_parallel or (".experts." in name and mesh.ep is not None)
