"""Recurrent mixers (Mamba, gated delta rule) on one rank: projections, convolution, recurrence, gated norm.

Inside a chunk, tokens interact as in attention: by matrix products under the causal mask. Earlier tokens are in a state
per head, which each chunk reads, decays and adds to. Mamba-1 has a kernel without matrix products. Heads are split over
tensor parallel ranks. Context parallel ranks exchange pieces of the sequence for heads, and back.
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
"""Kinds of matrix products of a chunk: with the state of a head; inside the chunk of a head; between vectors of a
group."""

_MAMBA = {"forward": {_STATE: 2, _CHUNK: 1, _SCORES: 1}, "backward": {_STATE: 5, _CHUNK: 3, _SCORES: 3}}
"""Number of products of a Mamba-2 pass by kind; products recomputed in the backward pass count there. Forward: two
products with states, one inside the chunk. Source: state-spaces/mamba mamba_ssm/ops/triton/ssd_combined.py,
_mamba_chunk_scan_combined_fwd and _bwd."""

_DELTA = {"forward": {_STATE: 3, _CHUNK: 3, _SCORES: 2}, "backward": {_STATE: 8, _CHUNK: 9, _SCORES: 7}}
"""The same for the gated delta rule, whose chunks are also solved for what keys held before; products of the inverse
count as scores. Kimi delta attention has as many. Source: fla-org/flash-linear-attention
fla/ops/gated_delta_rule/chunk.py and fla/ops/kda/chunk.py."""

_SCAN_FLOPS = {"forward": 24, "backward": 72}
"""fp32 operations of a Mamba-1 pass per number of a state. Forward: an exponential, which takes as long as 16
operations (16 results per cycle of a multiprocessor against 128 multiply-adds), input times B, two products and sums of
a parallel scan, C. Backward, assumed: the same again, and twice as much for gradients. Source: state-spaces/mamba
csrc/selective_scan; NVIDIA CUDA C++ Programming Guide, table of arithmetic throughput."""

_SCAN_PASSES = {"forward": 4, "backward": 9}
"""Arrays of the inner width that the Mamba-1 scan touches. Forward: input, time steps, gate and output. Backward: these
again, the gradient of the output, and gradients of the first four. Source: state-spaces/mamba csrc/selective_scan."""

_CAUSAL = 0.5
"""Share of the products inside a chunk that is under the causal mask. Kernels of Mamba-2 skip the rest; those of the
delta rule, whose chunks are one tile, do not."""

_CONV_PASSES = {"forward": 2, "backward": 5}
"""Arrays of its channels that the convolution touches. The backward pass runs it again (two) before its own three.
Source: state-spaces/mamba, mamba_split_conv1d_scan_combined, which keeps only the output of the projection."""

_GATE_PASSES = {"forward": 3, "backward": 5}
"""Arrays of the inner width that the gated norm touches: two inputs and an output; in the backward pass also their
gradients."""


class Recurrence:
    """The recurrence of the heads on one rank.

    Attributes:
        share: Share of the rank.
        mixer: Shapes of the mixer.
        heads: Heads on the rank.
        groups: Groups of heads on the rank.
        inner: Output width on the rank.
        channels: Channels of the convolution on the rank.
        projected: Output width of the input projection on the rank.
    """

    def __init__(self, share: Share, mixer: Recurrent) -> None:
        """Compute the sizes of the recurrence on the rank of `share`."""
        self.share, self.mixer = share, mixer
        self.heads = ceil_div(mixer.heads, share.tp)
        self.groups = ceil_div(mixer.groups, share.tp)
        self.inner = self.heads * mixer.state_shape[0]
        self.channels = ceil_div(mixer.conv_channels, share.tp)
        self.projected = ceil_div(mixer.projected, share.tp)

    def part(self) -> Part:
        """Return convolution, recurrence and gated norm; they keep their input, and the output before the gate."""
        share, mixer = self.share, self.mixer
        forward, backward = (self._pass(kind) for kind in ("forward", "backward"))
        saved = share.tokens * ceil_div(mixer.kept, share.tp) * share.element
        vectors = float(ceil_div(mixer.num_vectors, share.tp))
        return Part(forward, backward, saved=float(saved), weights=Weights(split=vectors))

    def decode(self) -> Part:
        """Return the step of one token per sequence, which reads, changes and writes the states."""
        share, mixer = self.share, self.mixer
        channel_bytes = share.tokens * share.element
        state_numbers = share.tokens * self.heads * mixer.state_shape[0] * mixer.state_shape[1]
        conv = streaming("conv", "forward", channel_bytes * self.channels * 2 * mixer.conv_width)
        step = streaming("attention", "decode", 2.0 * state_numbers * FP32_BYTES)
        gated = streaming("norm", "forward", _GATE_PASSES["forward"] * channel_bytes * self.inner)
        return Part((conv, step, gated), weights=Weights(split=float(ceil_div(mixer.num_vectors, share.tp))))

    def _pass(self, kind: str) -> Operations:
        share = self.share
        channel_bytes = share.tokens * share.element
        conv = streaming("conv", kind, _CONV_PASSES[kind] * channel_bytes * self.channels)
        to_heads, to_sequence = self._exchange(self.projected), self._exchange(self.inner)
        if isinstance(self.mixer, Mamba1):
            selective = self._selective(kind)
            return (
                (*to_heads, conv, selective, *to_sequence)
                if kind == "forward"
                else (*to_sequence, selective, conv, *to_heads)
            )
        gated = streaming("norm", kind, _GATE_PASSES[kind] * channel_bytes * self.inner)
        scan = tuple(self._products(kind))
        # Chunk states are written, passed on and read; the backward pass repeats that and does the same for gradients.
        states = streaming("attention", "linear", (3 if kind == "forward" else 6) * self._num_states * FP32_BYTES)
        if kind == "forward":
            return (*to_heads, conv, *scan, states, *to_sequence, gated)
        return (gated, *to_sequence, states, *scan, conv, *to_heads)

    def _selective(self, kind: str) -> Kernel:
        """Return the scan of Mamba-1, which runs on the vector units and keeps states on the chip."""
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
        """Yield the matrix products of a pass: one kernel per kind, with the number of products as its count."""
        is_delta = self.mixer.kind == "delta"
        counts = (_DELTA if is_delta else _MAMBA)[kind]
        (value, key), chunk = self.mixer.state_shape, self._chunk
        mean_keys = chunk if is_delta else max(1, round(_CAUSAL * chunk))
        yield self._batched((value, key, chunk), self.heads, counts[_STATE])
        yield self._batched((chunk, value, mean_keys), self.heads, counts[_CHUNK])
        yield self._batched((chunk, chunk, key), self.heads if is_delta else self.groups, counts[_SCORES])

    def _batched(self, shape: tuple[int, int, int], per_chunk: int, count: int) -> Kernel:
        """Return a batched product with 32-bit results.

        Args:
            shape: m, n, k.
            per_chunk: Matrices per chunk: one per head or group.
            count: Number of runs.
        """
        m, n, k = shape
        batch = per_chunk * self._num_chunks
        num_bytes = batch * ((m + n) * k * self.share.element + m * n * FP32_BYTES)
        flops = float(FLOPS_PER_MAC * batch * m * n * k)
        return Kernel(
            "attention", "linear", flops, float(num_bytes), (batch, m, n, k), self.share.wide_precision, count=count
        )

    def _exchange(self, width: int) -> Operations:
        """Return the all-to-all that exchanges pieces of the sequence for heads, or back.

        Source:
            NVIDIA/Megatron-LM megatron/core/ssm/mamba_context_parallel.py: all-to-all before the convolution and after
            the scan.
        """
        if self.share.job.layout.cp == 1:
            return ()
        return (communication("all_to_all", "cp", self.share.tokens * width * self.share.element),)


def recurrent(share: Share, mixer: Recurrent) -> Part:
    """Return the block of a recurrent mixer: norm, projections, convolution, recurrence, projection, residual."""
    width, recurrence = share.job.model.hidden_size, Recurrence(share, mixer)
    further_projections = (
        Linear(
            ceil_div(projection.inputs, share.tp if projection.split == "row" else 1),
            ceil_div(projection.outputs, share.tp if projection.split == "column" else 1),
            projection.split,
            keeps_input=False,
        )
        for projection in mixer.projections(width)
    )
    return join(
        (
            norm(share, is_quantized_output=True),
            linear(share, Linear(width, recurrence.projected, "column", name="in_proj")),
            *(linear(share, projection) for projection in further_projections),
            recurrence.part() if share.cached is None else recurrence.decode(),
            linear(share, Linear(recurrence.inner, width, "row", name="out_proj")),
            residual(share),
        )
    )


def state_bytes(share: Share, mixer: Recurrent) -> float:
    """Return the cache of one sequence in a layer on a rank: states, and the last tokens of the convolution.

    Unit: byte.
    """
    recurrence = Recurrence(share, mixer)
    states = recurrence.inner * mixer.state_shape[1] * FP32_BYTES
    return float(states + recurrence.channels * mixer.conv_width * share.element)


def gradient_bytes(share: Share, mixer: Recurrent) -> float:
    """Return the transient gradients of the backward pass: of the projections' ends, and of all chunk states.

    Unit: byte.
    """
    recurrence = Recurrence(share, mixer)
    states = 0
    if mixer.kind != "selective":
        chunks = ceil_div(share.tokens, min(mixer.chunk_size, share.job.sequence_length))
        states = 2 * chunks * recurrence.inner * mixer.state_shape[1] * FP32_BYTES
    return float(
        share.tokens * (recurrence.projected + recurrence.channels + recurrence.inner) * share.element + states
    )
