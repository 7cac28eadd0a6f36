# mypy: disallow-subclassing-any=False
"""The transformer model, whole or one pipeline stage of it, and its loss.

Parameters are fp32 (or what FSDP gathers) and are cast to the activations' type where they are used, as autocast does,
without its cache. With tensor parallelism `parallel.py` splits parameters and sets the boundaries of blocks. Module
names contain global layer and expert numbers, so that a parameter has the same name in every layout.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Recompute
from triplepoint.launch.engines import padded_vocab_size
from triplepoint.launch.engines.data import IGNORED
from triplepoint.launch.engines.native.tensor_parallel import NOT_SPLIT, Boundary, parts_of

NORM_EPS = 1e-5
"""Source: Llama 3 and GPT-2 reference code, both 1e-5."""

Caller = Callable[..., Tensor]
"""Calls its first argument, a function, on the other arguments, with or without activation recomputation."""


def call_plain(function: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    """Call a function without activation recomputation."""
    return function(*inputs)


def recompute_callers(recompute: Recompute) -> tuple[Caller, Caller]:
    """Return the callers of a whole layer and of the core of its attention.

    Args:
        recompute: With `full` the layer is recomputed. With `selective` the attention core is recomputed from queries,
            keys and values, as Megatron-LM recomputes `core_attn`.
    """
    call_recomputed = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    return (
        call_recomputed if recompute == "full" else call_plain,
        call_recomputed if recompute == "selective" else call_plain,
    )


class Cache(Protocol):
    """KV cache of one layer."""

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values of new tokens and return all; shapes (batch, heads, tokens, head_size)."""
        ...


class Linear(nn.Linear):
    """A linear layer that casts its weight to the type of the activations.

    The fp32 weight is cast once per step and the copy is shared by all micro-batches. Otherwise each micro-batch in
    flight in a pipeline would keep its own copy until its backward pass. Under FSDP nothing is cast here: it gathers
    weights that are cast already.

    Attributes:
        exit: Where the ranks' partial outputs are summed, if the weight is split by inputs.
    """

    exit: Boundary = NOT_SPLIT
    _cast_weight: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return `x @ weight.T + bias`."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        y = F.linear(x, self._weight_as(x.dtype), bias if self.exit is NOT_SPLIT else None)
        if (adapter := self._modules.get("adapter")) is not None:
            y = y + adapter(x)
        if self.exit is NOT_SPLIT:
            return y
        # The bias is added once, not by every rank.
        y = self.exit.leave(y)
        return y if bias is None else y + bias

    def forget_cast(self) -> None:
        """Drop the cast copy of the weight. Call it whenever the weight has changed."""
        self._cast_weight = None

    def _weight_as(self, dtype: torch.dtype) -> Tensor:
        if self.weight.dtype != torch.float32 or dtype == torch.float32:
            return self.weight.to(dtype)
        if self._cast_weight is None:
            self._cast_weight = self.weight.to(dtype)
        return self._cast_weight


class Embedding(nn.Embedding):
    """An embedding whose rows may be split over tensor parallel ranks.

    Attributes:
        exit: Where the ranks' outputs are summed, if the rows are split: all but one have zeros for a token.
    """

    exit: Boundary = NOT_SPLIT

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of tokens, shape (batch, sequence, hidden)."""
        if self.exit is NOT_SPLIT:
            return super().forward(tokens)
        rows = self.weight.shape[0]
        row = tokens - parts_of(self)["weight"].rank * rows
        is_elsewhere = (row < 0) | (row >= rows)
        x = F.embedding(row.masked_fill(is_elsewhere, 0), self.weight)
        return self.exit.leave(x.masked_fill(is_elsewhere.unsqueeze(-1), 0.0))


class Norm(nn.Module):
    """RMSNorm or LayerNorm over the last dimension."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.hidden_size))
        self.bias = nn.Parameter(torch.empty(config.hidden_size)) if config.normalization == "layernorm" else None

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` normalised; torch's kernels compute the statistics in fp32."""
        weight = self.weight.to(x.dtype)
        if self.bias is None:
            return F.rms_norm(x, weight.shape, weight, NORM_EPS)
        return F.layer_norm(x, weight.shape, weight, self.bias.to(x.dtype), NORM_EPS)


class Attention(nn.Module):
    """Causal grouped-query attention.

    Attributes:
        cache: Keys and values of earlier tokens; None in training.
        entry: Where the input comes to all ranks, if heads are split.
    """

    cache: "Cache | None" = None
    entry: Boundary = NOT_SPLIT

    def __init__(self, config: ModelConfig, call_core: Caller = call_plain) -> None:
        super().__init__()
        self._call_core = call_core
        self.head_size = config.head_size
        hidden, kv_width = config.hidden_size, config.num_query_groups * config.head_size
        self.query = Linear(hidden, hidden, bias=config.add_bias)
        self.key = Linear(hidden, kv_width, bias=config.add_bias)
        self.value = Linear(hidden, kv_width, bias=config.add_bias)
        self.output = Linear(hidden, hidden, bias=config.add_bias)

    def forward(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        """Return the attention output.

        Args:
            x: Shape (batch, sequence, hidden).
            rotary: Cosines and sines, shape (2, sequence, head_size / 2); None with learned positions.
        """
        # With tensor parallelism the projections return the heads of this rank only: their number follows from the
        # width of the output.
        x = self.entry.enter(x)
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        if self.cache is not None:
            k, v = self.cache.extend(k, v)
        is_grouped = q.shape[1] != k.shape[1]
        # A single new token of a decode step attends to all tokens before it, and needs no mask.
        is_causal = q.shape[2] == k.shape[2]
        core = partial(F.scaled_dot_product_attention, is_causal=is_causal, enable_gqa=is_grouped)
        attended = self._call_core(core, q, k, v)
        return self.output(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Feed-forward block: GELU with two matrices or SwiGLU with three.

    Attributes:
        entry: Where the input comes to all ranks, if the block is split.
    """

    entry: Boundary = NOT_SPLIT

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.ffn_hidden_size
        self.gate = Linear(hidden, inner, bias=config.add_bias) if config.activation == "swiglu" else None
        self.up = Linear(hidden, inner, bias=config.add_bias)
        self.down = Linear(inner, hidden, bias=config.add_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, of the shape of `x`."""
        x = self.entry.enter(x)
        inner = F.gelu(self.up(x), approximate="tanh") if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        return self.down(inner)


class TransformerLayer(nn.Module):
    """Attention and feed-forward, each after a normalisation and around a residual connection."""

    def __init__(
        self,
        config: ModelConfig,
        feed_forward: nn.Module,
        call_layer: Caller = call_plain,
        call_core: Caller = call_plain,
    ) -> None:
        super().__init__()
        self.attention_norm = Norm(config)
        self.attention = Attention(config, call_core)
        self.feed_forward_norm = Norm(config)
        self.feed_forward = feed_forward
        self._call_layer = call_layer

    def forward(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        """Return the residual stream after the layer. Recomputation is inside, so that FSDP gathers around it."""
        return self._call_layer(self._compute, x, rotary)

    def _compute(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotary)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Stage(nn.Module):
    """Consecutive layers of the model; the first stage also has the embedding, the last one the head.

    Attributes:
        entry: Where the head's input comes to all ranks, if the vocabulary is split.
    """

    entry: Boundary = NOT_SPLIT

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
        """Position of this rank's first token; above 0 with sequence parallelism and in decoding."""
        rows, hidden = padded_vocab_size(config.vocab_size), config.hidden_size
        is_first, is_last = 0 in layers, config.num_layers - 1 in layers
        has_positions = is_first and config.position_embedding == "learned"
        self.embedding = Embedding(rows, hidden) if is_first else None
        self.positions = nn.Embedding(sequence_length, hidden) if has_positions else None
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        self.norm = Norm(config) if is_last else None
        self.head = Linear(hidden, rows, bias=False) if is_last else None
        self._rotary: Tensor | None = None

    def tie(self) -> None:
        """Let the head use the embedding's weight, if the model ties them. Call it after splitting over tp."""
        if self.config.tie_embeddings and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return the stage's output.

        Args:
            x: In the first stage tokens, shape (batch, sequence); else the residual stream, shape (batch, sequence,
                hidden). With sequence parallelism, this rank's part of the sequence.

        Returns:
            From the last stage logits, shape (batch, sequence, vocabulary), with tensor parallelism this rank's part
            of the vocabulary; else the residual stream.
        """
        if self.embedding is not None:
            x = self._embed(x)
        rotary = self._rotary_tables(x.device)
        for layer in self.layers.values():
            x = layer(x, rotary)
        return x if self.head is None or self.norm is None else self.head(self.entry.enter(self.norm(x)))

    def advance(self, x: Tensor, start: int) -> Tensor:
        """Return the stage's output for new tokens of sequences whose earlier tokens are in the KV caches.

        Args:
            x: Input for the new tokens, as for `forward`.
            start: Position of the first new token.

        Returns:
            From the last stage logits of the last token, shape (batch, 1, vocabulary), with tensor parallelism this
            rank's part of the vocabulary; else the residual stream of all new tokens.
        """
        self.sequence_start = start
        if self.embedding is not None:
            x = self._embed(x)
        rotary = self._rotary_tables(x.device)
        if rotary is not None:
            rotary = rotary[:, start : start + x.shape[1]]
        for layer in self.layers.values():
            x = layer(x, rotary)
        return x if self.head is None or self.norm is None else self.head(self.entry.enter(self.norm(x[:, -1:])))

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
    exponent = torch.arange(0, config.head_size, 2, dtype=torch.float32, device=device) / config.head_size
    frequency = torch.exp(-math.log(config.rope_base) * exponent)
    angle = torch.outer(torch.arange(sequence_length, dtype=torch.float32, device=device), frequency)
    return torch.stack((angle.cos(), angle.sin()))


def rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Apply the rotary embedding to `x`, shape (batch, heads, sequence, head_size), in fp32."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = rotary
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def mean_cross_entropy(logits: Tensor, target: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the mean cross entropy over all tokens except padding, in fp32; 0 if all are padding. Unit: nat.

    Args:
        logits: Shape (batch, sequence, vocabulary), this rank's part of the vocabulary if `group` is given.
        target: Next tokens, `data.IGNORED` for padding; shape (batch, sequence).
        group: Tensor parallel ranks; None if the vocabulary is not split.
    """
    flat_logits, flat_target = logits.flatten(0, 1).float(), target.flatten()
    is_text = flat_target >= 0
    if group is None:
        per_token = F.cross_entropy(flat_logits, flat_target, reduction="none", ignore_index=IGNORED)
    else:
        per_token = SplitCrossEntropy.apply(flat_logits, flat_target, group)
    return (per_token * is_text).sum() / is_text.sum().clamp(min=1)


class SplitCrossEntropy(torch.autograd.Function):
    """Cross entropy per token of a vocabulary split over tensor parallel ranks, without gathering the logits.

    Source:
        Shoeybi et al. 2019 (Megatron-LM), arXiv:1909.08053, section 3.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the loss of each token, shape (tokens,)."""
        vocab_part = logits.shape[1]
        largest = logits.amax(1)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        exponential = (logits - largest.unsqueeze(1)).exp()
        local_target = target - group.rank() * vocab_part
        is_here = (local_target >= 0) & (local_target < vocab_part)
        column = local_target.clamp(0, vocab_part - 1).unsqueeze(1)
        target_logit = logits.gather(1, column).squeeze(1) - largest
        # One collective for both: the normaliser of the softmax, and the target's logit, which one rank has.
        sums = torch.stack((exponential.sum(1), target_logit * is_here))
        dist.all_reduce(sums, group=group)
        ctx.save_for_backward(exponential.div_(sums[0].unsqueeze(1)), column, is_here)
        return sums[0].log() - sums[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the logits: probability minus one-hot target, times the gradient of the loss."""
        probability, column, is_here = ctx.saved_tensors
        # Out of place: the zero-bubble schedule may run this backward pass twice.
        one_hot = torch.zeros_like(probability).scatter_(1, column, is_here.unsqueeze(1).to(probability.dtype))
        return (probability - one_hot) * grad.unsqueeze(1), None, None
