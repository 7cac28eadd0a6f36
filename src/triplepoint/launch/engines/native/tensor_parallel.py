# mypy: disallow-subclassing-any=False
"""Tensor parallelism: parts of parameters, and the collectives around blocks whose linear layers are split.

Parts are plain tensors. With torch's DTensor, which dispatches operators in Python, steps of tiny models on CPUs take
more than twice the CPU time and four times as long (measured on 2026-11-28).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

SEQUENCE_DIM = 1
"""Dimension of the sequence in activations, which are (batch, sequence, hidden)."""


@dataclass(frozen=True)
class Part:
    """Which part of a parameter this rank has."""

    dim: int
    """Dimension that is split."""
    rank: int
    size: int
    """Tensor parallel ranks."""

    def shape(self, full: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the part by the shape of the full parameter."""
        return tuple(length // self.size if dim == self.dim else length for dim, length in enumerate(full))

    def full_shape(self, part: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the full parameter by the shape of the part."""
        return tuple(length * self.size if dim == self.dim else length for dim, length in enumerate(part))

    def of(self, full: Tensor) -> Tensor:
        """Return the part of a full parameter, sharing its memory."""
        return full.chunk(self.size, self.dim)[self.rank]


def parts_of(module: nn.Module) -> dict[str, Part]:
    """Return the parts of a module's own parameters that are split, by the parameter's key."""
    parts: dict[str, Part] = getattr(module, "parts", {})
    return parts


def split_parameter(module: nn.Module, key: str, part: Part) -> None:
    """Replace a parameter, which is on the meta device, by this rank's part of it."""
    full = module._parameters[key]
    assert full is not None and full.is_meta
    module.register_parameter(key, nn.Parameter(full.new_empty(part.shape(tuple(full.shape)))))
    module.parts = {**parts_of(module), key: part}


@dataclass(frozen=True)
class Boundary:
    """Exchange between a block whose linear layers are split and the activations outside it.

    Source:
        Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2: f and its conjugate without sequence parallelism, g
        and its conjugate with it.
    """

    group: dist.ProcessGroup | None = None
    """Tensor parallel ranks; None if the block is not split."""
    is_sequence_split: bool = False
    """Whether each rank has only its part of the sequence outside the block (sequence parallelism)."""

    def enter(self, x: Tensor) -> Tensor:
        """Return the block's input, which is the whole sequence. Its gradients are summed over the ranks."""
        return x if self.group is None else _Exchange.apply(x, self.spread, self.sum)

    def leave(self, x: Tensor) -> Tensor:
        """Return the sum of the ranks' partial outputs, placed like the activations outside."""
        return x if self.group is None else _Exchange.apply(x, self.sum, self.spread)

    def spread(self, x: Tensor) -> Tensor:
        """Return what every rank has of activations outside as every rank needs them inside."""
        return _gather(x, self.group) if self.is_sequence_split else x.view_as(x)

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over ranks of activations inside, placed as outside."""
        if self.is_sequence_split:
            return _reduce_scatter(x, self.group)
        total = x.clone(memory_format=torch.contiguous_format)
        _wait(dist.all_reduce(total, group=self.group, async_op=True))
        return total


NOT_SPLIT = Boundary()


class _Exchange(torch.autograd.Function):
    """One exchange forward, and its conjugate for the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grad), None, None


# The collectives divide and concatenate along the first dimension, which is the batch.
def _gather(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    size = dist.get_world_size(group)
    whole = x.new_empty((size * x.shape[0], *x.shape[1:]))
    _wait(dist.all_gather_into_tensor(whole, x.contiguous(), group=group, async_op=True))
    return torch.cat(whole.chunk(size), SEQUENCE_DIM)


def _reduce_scatter(x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    whole = torch.cat(x.chunk(dist.get_world_size(group), SEQUENCE_DIM))
    total = x.new_empty((x.shape[0], whole.shape[1], *x.shape[2:]))
    _wait(dist.reduce_scatter_tensor(total, whole, group=group, async_op=True))
    return total


def _wait(work: dist.Work | None) -> None:
    # A collective that is not asynchronous would run on the stream of the computation, not on NCCL's own.
    assert work is not None
    work.wait()
