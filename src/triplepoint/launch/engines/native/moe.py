# mypy: disallow-subclassing-any=False
"""Mixture of experts: router, exchange of tokens between expert parallel ranks, experts.

There is no auxiliary loss: load balance changes with the micro-batch a rank sees, and every layout must train
the same model. A capacity factor counts tokens per rank and micro-batch, so with it the drops do depend on the layout.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate

from triplepoint.config.model import ModelConfig
from triplepoint.launch.engines.native.model import FeedForward, Linear


class AllToAll(torch.autograd.Function):
    """Exchange rows between ranks; the gradient goes the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        """Return the rows the other ranks sent here."""
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchange(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of the rows this rank sent."""
        return _exchange(grad, ctx.received, ctx.sent, ctx.group), None, None, None


def _exchange(x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out


@dataclass(frozen=True)
class TensorSplit:
    """How the experts are split over tensor parallel ranks: the block's input gathered once, its output summed once."""

    mesh: DeviceMesh
    placement: Placement
    """Of the activations outside the block: a part of the sequence, or all of it."""

    def enter(self, x: Tensor) -> Tensor:
        """Return the whole sequence; every rank's gradient of it is a part of the sum."""
        whole = DTensor.from_local(x, self.mesh, [self.placement], run_check=False).redistribute(
            placements=[Replicate()]
        )
        return whole.to_local(grad_placements=[Partial()])

    def leave(self, x: Tensor) -> Tensor:
        """Return the sum over ranks, split as the activations outside."""
        total = DTensor.from_local(x, self.mesh, [Partial()], run_check=False)
        return total.redistribute(placements=[self.placement]).to_local()


class MixtureOfExpertsBlock(nn.Module):
    """Sends every token to its top-k experts and adds their weighted outputs."""

    def __init__(self, config: ModelConfig, ep_rank: int, ep_group: dist.ProcessGroup | None) -> None:
        """Build the block with this rank's experts.

        Args:
            config: Architecture; `config.moe` is set.
            ep_rank: Place in the expert parallel group, which decides the experts held.
            ep_group: Expert parallel ranks; None if all experts are here.
        """
        super().__init__()
        assert config.moe is not None
        self.moe, self.group = config.moe, ep_group
        self.ep = 1 if ep_group is None else ep_group.size()
        held = self.moe.num_experts // self.ep
        self.router = Linear(config.hidden_size, self.moe.num_experts, bias=False)
        numbers = range(ep_rank * held, (ep_rank + 1) * held)
        self.experts = nn.ModuleDict({str(number): FeedForward(config) for number in numbers})
        self.tensor_split: TensorSplit | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of `x`: (batch, sequence, hidden)."""
        if self.tensor_split is not None:
            x = self.tensor_split.enter(x)
        tokens = x.flatten(0, 1)
        weight, expert = self._route(tokens)
        order, counts = self._arrange(expert)
        source = order // self.moe.top_k
        results = self._through_experts(tokens[source], counts)
        weighted = results * weight.flatten()[order].unsqueeze(-1).to(results.dtype)
        out = torch.zeros_like(tokens).index_add(0, source, weighted).view_as(x)
        return out if self.tensor_split is None else self.tensor_split.leave(out)

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight and number of each token's experts, shape (tokens, top_k); in fp32, as Mixtral does."""
        probability = self.router(tokens.float()).softmax(-1)
        weight, expert = probability.topk(self.moe.top_k, dim=-1)
        return weight / weight.sum(-1, keepdim=True), expert

    def _arrange(self, expert: Tensor) -> tuple[Tensor, Tensor]:
        """Return (token, choice) pairs in the order of their experts, without dropped ones, and pairs per expert."""
        flat = expert.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=self.moe.num_experts)
        if self.moe.capacity_factor is None:
            return order, counts
        capacity = math.ceil(self.moe.capacity_factor * flat.numel() / self.moe.num_experts)
        place = torch.arange(flat.numel(), device=flat.device) - (counts.cumsum(0) - counts)[flat[order]]
        return order[place < capacity], counts.clamp(max=capacity)

    def _through_experts(self, x: Tensor, counts: Tensor) -> Tensor:
        """Return the experts' outputs for rows sorted by expert number, in the same order."""
        if self.group is None:
            return self._compute(x, [counts.tolist()])
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        sent = counts.view(self.ep, -1).sum(1).tolist()
        by_rank = arriving.view(self.ep, -1).tolist()
        received = [sum(row) for row in by_rank]
        results = self._compute(AllToAll.apply(x, sent, received, self.group), by_rank)
        return AllToAll.apply(results, received, sent, self.group)

    def _compute(self, x: Tensor, by_rank: list[list[int]]) -> Tensor:
        """Return the local experts' outputs; `by_rank` counts rows per sending rank and local expert."""
        chunks = x.split([count for row in by_rank for count in row])
        held = len(self.experts)
        outputs: list[Tensor] = list(chunks)
        for number, expert in enumerate(self.experts.values()):
            mine = chunks[number::held]
            out = expert(mine[0] if len(mine) == 1 else torch.cat(mine))
            outputs[number::held] = out.split([chunk.shape[0] for chunk in mine])
        return torch.cat(outputs)
