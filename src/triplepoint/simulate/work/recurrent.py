"""Mixers with a state on one rank: projections, convolution, the recurrence, a gated norm.

A chunk of tokens meets itself as in attention, by matrix products under the causal mask; what came before it is in a
state per head, which each chunk reads, decays and adds to. Mamba-1 has a kernel without matrix products. Heads are
split over tensor parallel ranks. Context parallel ranks exchange pieces of the sequence for heads and back again.
"""

from collections.abc import Iterable

from triplepoint.config.recurrence import Mamba1, Recurrent
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.work.layer_parts import (
    FLOPS_PER_MAC,
    FP32_BYTES,
    Operations,
    Part,
    Share,
    Weights,
    ceil_div,
    communication,
    join,
    streaming,
)
from triplepoint.simulate.work.linear import Linear, linear, norm, residual

_STATE, _CHUNK, _SCORES = "state", "chunk", "scores"
"""Matrix products of a chunk: of a head's state; of a head inside the chunk; of a group, vectors with vectors."""

_MAMBA = {"forward": {_STATE: 2, _CHUNK: 1, _SCORES: 1}, "backward": {_STATE: 5, _CHUNK: 3, _SCORES: 3}}
"""Products of a pass of Mamba-2, those that are worked out again in the backward pass among its own. Forward: to states
and from them; a chunk with itself. Source: state-spaces/mamba mamba_ssm/ops/triton/ssd_combined.py,
_mamba_chunk_scan_combined_fwd and _bwd."""

_DELTA = {"forward": {_STATE: 3, _CHUNK: 3, _SCORES: 2}, "backward": {_STATE: 8, _CHUNK: 9, _SCORES: 7}}
"""Those of the gated delta rule, whose chunks are also solved for what keys held before; products of the inverse count
with the scores. Those of Kimi delta attention are as many. Source: fla-org/flash-linear-attention
fla/ops/gated_delta_rule/chunk.py and fla/ops/kda/chunk.py."""

_SCAN_FLOPS = {"forward": 24, "backward": 72}
"""FP32 operations of a pass of Mamba-1 for each number of a state: an exponential, which takes as long as 16 (16
results per cycle of a multiprocessor against 128 multiply-adds), input times B, two products and sums of a parallel
scan, C. Backward, assumed: the same again, and twice as much for gradients. Source: state-spaces/mamba
csrc/selective_scan; NVIDIA CUDA C++ Programming Guide, table of arithmetic throughput."""

_SCAN_PASSES = {"forward": 4, "backward": 9}
"""Arrays of the inner width that the scan of Mamba-1 touches: input, time steps, gate and output; backward these once
more, the gradient of the output, and gradients of the first four. Source: state-spaces/mamba csrc/selective_scan."""

_CAUSAL = 0.5
"""Share of a chunk's products with itself under the causal mask, which the kernels of Mamba-2 skip the rest of; those
of the delta rule, whose chunks are one tile, do not."""

_CONV_PASSES = {"forward": 2, "backward": 5}
"""Arrays of its channels that the convolution touches; backward runs it once more (two) before its own (three). Source:
state-spaces/mamba, mamba_split_conv1d_scan_combined, which keeps the output of the projection only."""

_GATE_PASSES = {"forward": 3, "backward": 5}
"""Arrays of the inner width that the gated norm touches: two inputs and an output; in backward their gradients too."""


class Recurrence:
    """The recurrence of the heads on one rank.

    Attributes:
        mixer: Its shapes.
        heads: Heads on the rank.
        groups: Groups of heads on the rank.
        inner: Width of its output on the rank.
        channels: Of the convolution on the rank.
        projected: Width of the projection into the mixer on the rank.
    """

    def __init__(self, share: Share, mixer: Recurrent) -> None:
        """Work out what `share` has of the heads."""
        self.share, self.mixer = share, mixer
        self.heads = ceil_div(mixer.heads, share.tp)
        self.groups = ceil_div(mixer.groups, share.tp)
        self.inner = self.heads * mixer.state_shape[0]
        self.channels = ceil_div(mixer.conv_channels, share.tp)
        self.projected = ceil_div(mixer.projected, share.tp)

    def part(self) -> Part:
        """Return what stands between the projections, and what it keeps: their ends, and the output before its gate."""
        share, mixer = self.share, self.mixer
        forward, backward = (self._pass(kind) for kind in ("forward", "backward"))
        kept = share.tokens * ceil_div(mixer.kept, share.tp) * share.element
        vectors = float(ceil_div(mixer.num_vectors, share.tp))
        return Part(forward, backward, (), float(kept), Weights(split=vectors))

    def decode(self) -> Part:
        """Return the step of one token of each sequence: states are read, changed and written."""
        share, mixer = self.share, self.mixer
        one = share.tokens * share.element
        rows = share.tokens * self.heads * mixer.state_shape[0] * mixer.state_shape[1]
        conv = streaming("conv", "forward", one * self.channels * 2 * mixer.conv_width)
        step = streaming("attention", "decode", 2.0 * rows * FP32_BYTES)
        gated = streaming("norm", "forward", _GATE_PASSES["forward"] * one * self.inner)
        return Part((conv, step, gated), weights=Weights(split=float(ceil_div(mixer.num_vectors, share.tp))))

    def _pass(self, kind: str) -> Operations:
        share = self.share
        one = share.tokens * share.element
        conv = streaming("conv", kind, _CONV_PASSES[kind] * one * self.channels)
        into, out = self._exchange(self.projected), self._exchange(self.inner)
        if isinstance(self.mixer, Mamba1):
            selective = self._selective(kind)
            return (*into, conv, selective, *out) if kind == "forward" else (*out, selective, conv, *into)
        gated = streaming("norm", kind, _GATE_PASSES[kind] * one * self.inner)
        scan = tuple(self._products(kind))
        # States of chunks are made, passed on, and read; in backward their gradients likewise, after them.
        states = streaming("attention", "linear", (3 if kind == "forward" else 6) * self._num_states * FP32_BYTES)
        if kind == "forward":
            return (*into, conv, *scan, states, *out, gated)
        return (gated, *out, states, *scan, conv, *into)

    def _selective(self, kind: str) -> Kernel:
        """Return the scan of Mamba-1, which works on the vector units; states stay on the chip."""
        share, numbers = self.share, self.share.tokens * self.inner
        flops = float(_SCAN_FLOPS[kind] * numbers * self.mixer.state_shape[1])
        num_bytes = float(_SCAN_PASSES[kind] * numbers * share.element)
        return Kernel("elementwise", "scan", flops, num_bytes, (), "fp32")

    @property
    def _num_chunks(self) -> int:
        return ceil_div(self.share.tokens, self._chunk)

    @property
    def _chunk(self) -> int:
        return min(self.mixer.chunk_size, self.share.job.sequence_length)

    @property
    def _num_states(self) -> float:
        value, key = self.mixer.state_shape
        return float(self._num_chunks * self.heads * value * key)

    def _products(self, kind: str) -> Iterable[Kernel]:
        """Yield the matrix products of a pass, each kind as one kernel per product."""
        is_delta = self.mixer.kind == "delta"
        counts = (_DELTA if is_delta else _MAMBA)[kind]
        (value, key), chunk = self.mixer.state_shape, self._chunk
        met = chunk if is_delta else max(1, round(_CAUSAL * chunk))
        yield self._batched((value, key, chunk), self.heads, counts[_STATE])
        yield self._batched((chunk, value, met), self.heads, counts[_CHUNK])
        yield self._batched((chunk, chunk, key), self.heads if is_delta else self.groups, counts[_SCORES])

    def _batched(self, shape: tuple[int, int, int], per_chunk: int, count: int) -> Kernel:
        """Return one product for each chunk and head, or group; results of 32 bits."""
        m, n, k = shape
        batch = per_chunk * self._num_chunks
        num_bytes = batch * ((m + n) * k * self.share.element + m * n * FP32_BYTES)
        flops = float(FLOPS_PER_MAC * batch * m * n * k)
        return Kernel(
            "attention", "linear", flops, float(num_bytes), (batch, m, n, k), self.share.wide_precision, count=count
        )

    def _exchange(self, width: int) -> Operations:
        """Return what changes pieces of the sequence for heads, or back.

        Source:
            NVIDIA/Megatron-LM megatron/core/ssm/mamba_context_parallel.py: all-to-all before the convolution and after
            the scan.
        """
        if self.share.job.layout.cp == 1:
            return ()
        return (communication("all_to_all", "cp", self.share.tokens * width * self.share.element),)


def recurrent(share: Share, mixer: Recurrent) -> Part:
    """Return the block of a mixer with a state: norm, projections, convolution, recurrence, norm, projection, add."""
    width, inside = share.job.model.hidden_size, Recurrence(share, mixer)
    besides = (
        Linear(
            ceil_div(one.inputs, share.tp if one.split == "row" else 1),
            ceil_div(one.outputs, share.tp if one.split == "column" else 1),
            one.split,
            keeps_input=False,
        )
        for one in mixer.projections(width)
    )
    return join(
        (
            norm(share, is_quantized_output=True),
            linear(share, Linear(width, inside.projected, "column", name="in_proj")),
            *(linear(share, one) for one in besides),
            inside.part() if share.cached is None else inside.decode(),
            linear(share, Linear(inside.inner, width, "row", name="out_proj")),
            residual(share),
        )
    )


def state_bytes(share: Share, mixer: Recurrent) -> float:
    """Return what a rank keeps of one sequence in a layer while it generates: states, and tokens of the convolution."""
    inside = Recurrence(share, mixer)
    states = inside.inner * mixer.state_shape[1] * FP32_BYTES
    return float(states + inside.channels * mixer.conv_width * share.element)


def gradient_bytes(share: Share, mixer: Recurrent) -> float:
    """Return what the backward pass holds for a while: gradients of the projections' ends, and states of all chunks."""
    inside = Recurrence(share, mixer)
    states = 0
    if mixer.kind != "selective":
        chunks = ceil_div(share.tokens, min(mixer.chunk_size, share.job.sequence_length))
        states = 2 * chunks * inside.inner * mixer.state_shape[1] * FP32_BYTES
    return float(share.tokens * (inside.projected + inside.channels + inside.inner) * share.element + states)
