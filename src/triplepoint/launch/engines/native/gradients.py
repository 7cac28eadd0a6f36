"""Gradients across ranks: synchronisation of plain data parallelism, sums over tensor parallel ranks, clipping."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from triplepoint.config.point import Point
from triplepoint.launch.engines.loop import marker
from triplepoint.launch.engines.native.model import Stage
from triplepoint.launch.engines.native.parallel import Mesh, is_sharded
from triplepoint.units import MIB

BUCKET_BYTES = 25 * MIB
"""Gradients reduced in one collective. Source: torch DistributedDataParallel, `bucket_cap_mb`, default 25."""


@dataclass(frozen=True)
class Placed:
    """A parameter, and over which ranks it is repeated or summed."""

    parameter: nn.Parameter
    reduce_over: dist.ProcessGroup | None
    """Ranks whose gradients are summed by the synchroniser; None if there is one rank or FSDP does it."""
    is_tp_partial: bool
    """Whether each tensor parallel rank has a part of the gradient: it saw its part of the sequence only."""
    is_counted: bool
    """Whether this rank answers for the parameter among the ranks that hold the same values."""


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a parameter or gradient, sharing its memory."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def local_gradient(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of the gradient, placed like the parameter; zeros if there is none.

    A pending sum over tensor parallel ranks is carried out here. Every rank must come to the same parameter in turn.
    """
    gradient = parameter.grad
    if gradient is None:
        gradient = parameter.grad = torch.zeros_like(parameter)
    if isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
        gradient = parameter.grad = gradient.redistribute(placements=parameter.placements)
    return local(gradient)


@dataclass
class Bucket:
    """Gradients reduced together."""

    group: dist.ProcessGroup
    parameters: list[nn.Parameter] = field(default_factory=list)
    size_bytes: int = 0
    missing: int = 0
    """Gradients not yet final in this step, counted in the last backward pass."""
    flat: Tensor | None = None
    work: Any = None

    def launch(self) -> None:
        """Start the reduction."""
        self.flat = torch.cat([local_gradient(parameter).flatten() for parameter in self.parameters])
        self.work = dist.all_reduce(self.flat, group=self.group, async_op=True)

    def finish(self) -> None:
        """Wait for the reduction and put the sums back."""
        assert self.flat is not None
        self.work.wait()
        gradients = [local_gradient(parameter) for parameter in self.parameters]
        for gradient, total in zip(gradients, self.flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))
        self.flat = self.work = None


class GradientSynchroniser:
    """Sums gradients over data parallel ranks, in buckets, after the backward pass or during the last one.

    Not torch's DistributedDataParallel: that takes neither DTensor parameters (tensor parallelism) nor parameters with
    different groups (experts), and pipeline schedules that split the backward pass go around its hooks.
    """

    def __init__(self, stages: dict[int, list[Placed]], is_overlapped: bool) -> None:
        """Make the buckets.

        Args:
            stages: Parameters of each stage in the order of the forward pass.
            is_overlapped: Whether a bucket is reduced as soon as the last backward pass has filled it.
        """
        self.is_overlapped = is_overlapped
        self._buckets = {stage: _buckets(placed) for stage, placed in stages.items()}
        self._armed: set[int] = set()
        if is_overlapped:
            for stage, buckets in self._buckets.items():
                for bucket in buckets:
                    for parameter in bucket.parameters:
                        parameter.register_post_accumulate_grad_hook(partial(self._note, stage, bucket))

    @property
    def num_buckets(self) -> int:
        """Collectives per step."""
        return sum(map(len, self._buckets.values()))

    def arm(self, stage: int) -> None:
        """Say that the stage's last backward pass of the step starts."""
        if self.is_overlapped:
            self._armed.add(stage)
            for bucket in self._buckets[stage]:
                bucket.missing = len(bucket.parameters)

    def flush(self, stage: int) -> None:
        """Say that the stage's last backward pass is over: reduce what its hooks did not.

        Zero-bubble schedules compute weight gradients without running hooks, so there this starts all buckets.
        """
        if self.is_overlapped:
            self._armed.discard(stage)
            late = [bucket for bucket in self._buckets[stage] if bucket.flat is None]
            if late:
                with marker("grad_sync"):
                    for bucket in late:
                        bucket.launch()

    def finish(self) -> None:
        """Leave the summed gradients in place; call it once per step, after all backward passes."""
        every = [bucket for buckets in self._buckets.values() for bucket in buckets]
        for bucket in every:
            if bucket.flat is None:
                bucket.launch()
        for bucket in every:
            bucket.finish()

    def _note(self, stage: int, bucket: Bucket, parameter: nn.Parameter) -> None:
        if stage in self._armed:
            bucket.missing -= 1
            if bucket.missing == 0:
                with marker("grad_sync"):
                    bucket.launch()


def _buckets(placed: Iterable[Placed]) -> list[Bucket]:
    """Return buckets in the order in which the backward pass fills them; one group and type in each."""
    done: list[Bucket] = []
    filling: dict[tuple[dist.ProcessGroup, torch.dtype], Bucket] = {}
    for item in reversed(list(placed)):
        if item.reduce_over is None:
            continue
        key = (item.reduce_over, item.parameter.dtype)
        if key not in filling or filling[key].size_bytes >= BUCKET_BYTES:
            filling[key] = Bucket(item.reduce_over)
            done.append(filling[key])
        filling[key].parameters.append(item.parameter)
        part = local(item.parameter)
        filling[key].size_bytes += part.numel() * part.element_size()
    return done


def sum_over_tp(placed: Sequence[Placed], group: dist.ProcessGroup | None) -> None:
    """Sum the gradients of which each tensor parallel rank has a part, in place, one collective per type."""
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
    total = torch.zeros((), device=gradients[0].device)
    if counted:
        total += torch.stack(torch._foreach_norm(counted)).square().sum()
    dist.all_reduce(total, group=world)
    norm = total.sqrt()
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


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
