# mypy: disallow-subclassing-any=False
"""The transformer, a stage of it or all of it, and its loss.

Parameters are fp32 (or what FSDP gathers) and are cast to the activations' type where they are used, which is
what autocast does, without its cache. Activations between modules are plain local tensors; only the linear layers
see DTensors, put there by `parallel.py`. Modules carry global layer and expert numbers in their names, so that
a parameter is called the same in every layout.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Recompute
from triplepoint.launch.engines import padded_vocab_size
from triplepoint.launch.engines.data import IGNORED

NORM_EPS = 1e-5
"""Source: Llama 3 and GPT-2 reference code, both 1e-5."""

Run = Callable[..., Tensor]
"""Calls a function, the first argument, on its inputs, the others, with or without recomputation."""


def plain(function: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    """Call a function without recomputation."""
    return function(*inputs)


def runners(recompute: Recompute) -> tuple[Run, Run]:
    """Return what calls a layer, and what calls the core of its attention.

    Args:
        recompute: With `full` the layer is recomputed; with `selective` the core, from queries, keys and values, as
            Megatron-LM recomputes `core_attn`.
    """
    again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    return again if recompute == "full" else plain, again if recompute == "selective" else plain


class Cache(Protocol):
    """Keys and values of earlier tokens."""

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append those of new tokens and return all; shapes (batch, heads, tokens, head_size)."""
        ...


class Linear(nn.Linear):
    """A linear layer whose weight is cast to the type of the activations.

    A cast from fp32 is made once per step and shared by its micro-batches, else each one in flight in a pipeline would
    keep its own copy until its backward pass. FSDP casts before it gathers, and so nothing is left to do here.
    """

    _cast: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return `x @ weight.T + bias`."""
        weight, bias = self._weight_as(x.dtype), self.bias
        if isinstance(weight, DTensor) and not isinstance(x, DTensor):
            # An expert split over tp: its module sums the partial results of all experts at once (moe.py).
            weight = weight.to_local()
        y = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
        adapter = self._modules.get("adapter")
        return y if adapter is None else y + adapter(x)

    def forget_cast(self) -> None:
        """Drop the cast weight; to be called whenever the weight has changed."""
        self._cast = None

    def _weight_as(self, dtype: torch.dtype) -> Tensor:
        if self.weight.dtype != torch.float32 or dtype == torch.float32:
            return self.weight.to(dtype)
        if self._cast is None:
            self._cast = self.weight.to(dtype)
        return self._cast


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last dimension."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.hidden_size))
        self.bias = nn.Parameter(torch.empty(config.hidden_size)) if config.normalization == "layernorm" else None

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` normalised; the kernels keep their statistics in fp32."""
        weight = self.weight.to(x.dtype)
        if self.bias is None:
            return F.rms_norm(x, weight.shape, weight, NORM_EPS)
        return F.layer_norm(x, weight.shape, weight, self.bias.to(x.dtype), NORM_EPS)


class Attention(nn.Module):
    """Causal self-attention with grouped queries.

    Attributes:
        cache: Keys and values of earlier tokens; None in training.
    """

    cache: "Cache | None" = None

    def __init__(self, config: ModelConfig, run_core: Run = plain) -> None:
        super().__init__()
        self._run_core = run_core
        self.head_size = config.head_size
        hidden, groups = config.hidden_size, config.num_query_groups * config.head_size
        self.query = Linear(hidden, hidden, bias=config.add_bias)
        self.key = Linear(hidden, groups, bias=config.add_bias)
        self.value = Linear(hidden, groups, bias=config.add_bias)
        self.output = Linear(hidden, hidden, bias=config.add_bias)

    def forward(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        """Return the attention output.

        Args:
            x: Shape (batch, sequence, hidden).
            rotary: Cosines and sines, shape (2, sequence, head_size / 2); None with learned positions.
        """
        # With tensor parallelism the projections return this rank's heads, so their number is read off the width.
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        if self.cache is not None:
            k, v = self.cache.extend(k, v)
        is_grouped = q.shape[1] != k.shape[1]
        # A single new token sees all before it.
        is_causal = q.shape[2] == k.shape[2]
        core = partial(F.scaled_dot_product_attention, is_causal=is_causal, enable_gqa=is_grouped)
        mixed = self._run_core(core, q, k, v)
        return self.output(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """The feed-forward block: GELU with two matrices or SwiGLU with three."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.ffn_hidden_size
        self.gate = Linear(hidden, inner, bias=config.add_bias) if config.activation == "swiglu" else None
        self.up = Linear(hidden, inner, bias=config.add_bias)
        self.down = Linear(inner, hidden, bias=config.add_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the shape of `x`."""
        inner = F.gelu(self.up(x), approximate="tanh") if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        return self.down(inner)


class TransformerLayer(nn.Module):
    """Attention and feed-forward, each after a normalisation and around a residual connection."""

    def __init__(self, config: ModelConfig, feed_forward: nn.Module, run: Run = plain, run_core: Run = plain) -> None:
        super().__init__()
        self.attention_norm = Norm(config)
        self.attention = Attention(config, run_core)
        self.feed_forward_norm = Norm(config)
        self.feed_forward = feed_forward
        self._run = run

    def forward(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        """Return the residual stream after the layer; recomputation stays inside, so FSDP gathers around it."""
        return self._run(self._compute, x, rotary)

    def _compute(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Stage(nn.Module):
    """A run of layers; the first stage embeds tokens, the last one ends in logits."""

    def __init__(
        self,
        config: ModelConfig,
        layers: dict[int, TransformerLayer],
        sequence_length: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.config, self.sequence_length, self.dtype = config, sequence_length, dtype
        self.sequence_start = 0
        """First position this rank holds, above 0 with sequence parallelism. Unit: token."""
        rows, hidden = padded_vocab_size(config.vocab_size), config.hidden_size
        is_first, is_last = 0 in layers, config.num_layers - 1 in layers
        has_positions = is_first and config.position_embedding == "learned"
        self.embedding = nn.Embedding(rows, hidden) if is_first else None
        self.positions = nn.Embedding(sequence_length, hidden) if has_positions else None
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        self.norm = Norm(config) if is_last else None
        self.head = Linear(hidden, rows, bias=False) if is_last else None
        self._rotary: Tensor | None = None

    def tie(self) -> None:
        """Let the head use the embedding's weight, if the model asks for it; call it after splitting over tp."""
        if self.config.tie_embeddings and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return the stage's output.

        Args:
            x: Tokens of shape (batch, sequence) in the first stage, else the residual stream of shape (batch,
                sequence, hidden); the sequence is this rank's part of it with sequence parallelism.

        Returns:
            Logits of shape (batch, sequence, vocabulary) from the last stage, this rank's part of the vocabulary with
            tensor parallelism; else the residual stream.
        """
        if self.embedding is not None:
            x = self._embed(x)
        rotary = self._rotary_tables(x.device)
        for layer in self.layers.values():
            x = layer(x, rotary)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))

    def advance(self, x: Tensor, start: int) -> Tensor:
        """Return the stage's output for the next tokens of some sequences.

        Args:
            x: As for `forward`, of the new tokens.
            start: Position of the first of them; those before it are in the caches.

        Returns:
            Logits after the last token, of shape (batch, 1, vocabulary), this rank's part of the vocabulary with tensor
            parallelism, from the last stage; else the residual stream of all new tokens.
        """
        self.sequence_start = start
        if self.embedding is not None:
            x = self._embed(x)
        rotary = self._rotary_tables(x.device)
        if rotary is not None:
            rotary = rotary[:, start : start + x.shape[1]]
        for layer in self.layers.values():
            x = layer(x, rotary)
        return x if self.head is None or self.norm is None else self.head(self.norm(x[:, -1:]))

    def _embed(self, tokens: Tensor) -> Tensor:
        assert self.embedding is not None
        x = self.embedding(tokens)
        if self.positions is not None:
            start = self.sequence_start
            x = x + self.positions(torch.arange(start, start + x.shape[1], device=x.device))
        return x.to(self.dtype)

    def _rotary_tables(self, device: torch.device) -> Tensor | None:
        if self.config.position_embedding == "rope" and self._rotary is None:
            self._rotary = rotary_tables(self.config, self.sequence_length, device)
        return self._rotary


def rotary_tables(config: ModelConfig, sequence_length: int, device: torch.device) -> Tensor:
    """Return cosines and sines of the rotary embedding, shape (2, sequence, head_size / 2), fp32.

    Source:
        Su et al. 2021 (RoFormer), arXiv:2104.09864, equation 15.
    """
    half = torch.arange(0, config.head_size, 2, dtype=torch.float32, device=device) / config.head_size
    frequency = torch.exp(-math.log(config.rope_base) * half)
    angle = torch.outer(torch.arange(sequence_length, dtype=torch.float32, device=device), frequency)
    return torch.stack((angle.cos(), angle.sin()))


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Return `x`, shape (batch, heads, sequence, head_size), rotated by position, computed in fp32."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = rotary
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def mean_cross_entropy(logits: Tensor, target: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the mean cross entropy over all tokens but padding, in fp32; 0 where all is padding. Unit: nat.

    Args:
        logits: Shape (batch, sequence, vocabulary), this rank's part of the vocabulary if `group` is given.
        target: Next tokens, `data.IGNORED` for padding; shape (batch, sequence).
        group: Tensor parallel ranks; None if the vocabulary is whole.
    """
    flat, wanted = logits.flatten(0, 1).float(), target.flatten()
    is_text = wanted >= 0
    if group is None:
        per_token = F.cross_entropy(flat, wanted, reduction="none", ignore_index=IGNORED)
    else:
        per_token = SplitCrossEntropy.apply(flat, wanted, group)
    return (per_token * is_text).sum() / is_text.sum().clamp(min=1)


class SplitCrossEntropy(torch.autograd.Function):
    """Cross entropy per token without gathering the logits.

    Source:
        Shoeybi et al. 2019 (Megatron-LM), arXiv:1909.08053, section 3.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the loss of each token, shape (tokens,)."""
        size = logits.shape[1]
        peak = logits.amax(1)
        dist.all_reduce(peak, op=dist.ReduceOp.MAX, group=group)
        exponential = (logits - peak.unsqueeze(1)).exp()
        local = target - group.rank() * size
        is_here = (local >= 0) & (local < size)
        column = local.clamp(0, size - 1).unsqueeze(1)
        wanted = logits.gather(1, column).squeeze(1) - peak
        sums = torch.stack((exponential.sum(1), wanted * is_here))
        dist.all_reduce(sums, group=group)
        ctx.save_for_backward(exponential.div_(sums[0].unsqueeze(1)), column, is_here)
        return sums[0].log() - sums[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return probability minus one-hot target, times the gradient of the loss."""
        probability, column, is_here = ctx.saved_tensors
        # Out of place: the zero-bubble schedule may walk this node twice.
        one_hot = torch.zeros_like(probability).scatter_(1, column, is_here.unsqueeze(1).to(probability.dtype))
        return (probability - one_hot) * grad.unsqueeze(1), None, None
