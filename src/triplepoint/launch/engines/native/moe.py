# mypy: disallow-subclassing-any=False
"""Mixture of experts: router, exchange of tokens between expert parallel ranks, experts.

There is no auxiliary loss: it would depend on the micro-batch of a rank, and every layout must train the same model.
With a capacity factor dropped tokens do depend on the layout: capacity is counted per rank and micro-batch.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from triplepoint.config.model import ModelConfig
from triplepoint.launch.engines.native.model import FeedForward, Linear
from triplepoint.launch.engines.native.tensor_parallel import NOT_SPLIT, Boundary


class AllToAll(torch.autograd.Function):
    """All-to-all of rows between ranks; the backward pass sends gradients the opposite way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        """Send rows of `x` and return the rows received.

        Args:
            ctx: State for the backward pass.
            x: Rows in the order of the ranks they go to, shape (sum(sent), hidden).
            sent: Number of rows to each rank.
            received: Number of rows from each rank.
            group: The ranks.
        """
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchange(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of the rows that this rank sent."""
        return _exchange(grad, ctx.received, ctx.sent, ctx.group), None, None, None


def _exchange(x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out


class MixtureOfExpertsBlock(nn.Module):
    """Sends every token to its top-k experts and adds their weighted outputs.

    Attributes:
        boundary: Where the input comes to all ranks, and their outputs are summed, if experts are split over tp.
    """

    boundary: Boundary = NOT_SPLIT

    def __init__(self, config: ModelConfig, ep_rank: int, ep_group: dist.ProcessGroup | None) -> None:
        """Build the block with this rank's experts.

        Args:
            config: Architecture; `config.moe` is set.
            ep_rank: Rank in the expert parallel group; decides which experts this rank has.
            ep_group: Expert parallel ranks; None if this rank has all experts.
        """
        super().__init__()
        assert config.moe is not None
        self.moe, self.group = config.moe, ep_group
        self.ep = 1 if ep_group is None else ep_group.size()
        num_local = self.moe.num_experts // self.ep
        self.router = Linear(config.hidden_size, self.moe.num_experts, bias=False)
        numbers = range(ep_rank * num_local, (ep_rank + 1) * num_local)
        self.experts = nn.ModuleDict({str(number): FeedForward(config) for number in numbers})

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of `x`: (batch, sequence, hidden)."""
        x = self.boundary.enter(x)
        tokens = x.flatten(0, 1)
        weight, expert = self._route(tokens)
        choices, counts = self._sort_by_expert(expert)
        token_of_choice = choices // self.moe.top_k
        results = self._run_experts(tokens[token_of_choice], counts)
        weighted = results * weight.flatten()[choices].unsqueeze(-1).to(results.dtype)
        return self.boundary.leave(torch.zeros_like(tokens).index_add(0, token_of_choice, weighted).view_as(x))

    def _route(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight and number of each token's experts, shape (tokens, top_k); in fp32, as Mixtral does."""
        probability = self.router(tokens.float()).softmax(-1)
        weight, expert = probability.topk(self.moe.top_k, dim=-1)
        return weight / weight.sum(-1, keepdim=True), expert

    def _sort_by_expert(self, expert: Tensor) -> tuple[Tensor, Tensor]:
        """Sort the choices of all tokens by expert, and drop those beyond an expert's capacity.

        Args:
            expert: Expert numbers, shape (tokens, top_k).

        Returns:
            Indices into the flattened `expert`, in the order of experts; number of choices of each expert, shape
            (num_experts,).
        """
        flat = expert.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=self.moe.num_experts)
        if self.moe.capacity_factor is None:
            return order, counts
        capacity = math.ceil(self.moe.capacity_factor * flat.numel() / self.moe.num_experts)
        place_in_expert = torch.arange(flat.numel(), device=flat.device) - (counts.cumsum(0) - counts)[flat[order]]
        return order[place_in_expert < capacity], counts.clamp(max=capacity)

    def _run_experts(self, x: Tensor, counts: Tensor) -> Tensor:
        """Return the experts' outputs, on whichever rank they are.

        Args:
            x: Rows sorted by expert number, shape (rows, hidden).
            counts: Rows of each expert, shape (num_experts,).

        Returns:
            Outputs in the order of `x`.
        """
        if self.group is None:
            return self._run_local_experts(x, [counts.tolist()])
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        sent = counts.view(self.ep, -1).sum(1).tolist()
        by_rank = arriving.view(self.ep, -1).tolist()
        received = [sum(row) for row in by_rank]
        results = self._run_local_experts(AllToAll.apply(x, sent, received, self.group), by_rank)
        return AllToAll.apply(results, received, sent, self.group)

    def _run_local_experts(self, x: Tensor, by_rank: list[list[int]]) -> Tensor:
        """Return the outputs of this rank's experts.

        Args:
            x: Rows by sending rank, then by expert, shape (rows, hidden).
            by_rank: Rows of each local expert, by sending rank.

        Returns:
            Outputs in the order of `x`.
        """
        chunks = x.split([count for row in by_rank for count in row])
        num_local = len(self.experts)
        outputs: list[Tensor] = list(chunks)
        for number, expert in enumerate(self.experts.values()):
            inputs = chunks[number::num_local]
            out = expert(inputs[0] if len(inputs) == 1 else torch.cat(inputs))
            outputs[number::num_local] = out.split([chunk.shape[0] for chunk in inputs])
        return torch.cat(outputs)
