"""The core of attention on one rank: scores, softmax and their product with the values."""

from triplepoint.simulate.operations import Kernel, Operation
from triplepoint.simulate.work.layer_parts import (
    FLOPS_PER_MAC,
    FP32_BYTES,
    MASK_BYTES,
    Operations,
    Part,
    Share,
    ceil_div,
    communication,
    repeat,
    streaming,
)

_PRODUCTS = {"forward": (1, 1), "backward": (3, 2)}
"""Products of flash attention over the width of a key and of a value: scores and output; in backward the scores once
more, and gradients of queries, keys, values and scores. Source: Dao 2023, arXiv:2307.08691, section 3.2."""

_CAUSAL = 0.5
"""Share of the scores under the causal mask; tiles on the diagonal are not counted whole."""

_SAVED_12_BIT = (12 - 8) / 16
"""What the output of attention takes besides the 8 bits that the projection after it keeps, over 16 bits, where both
keep one copy of 12 bits. Source: DeepSeek-V3, arXiv:2412.19437, section 3.3.3, E5M6."""

_ROWS_DECODING = 16
"""Rows of the smallest tile of matrix units. Source: NVIDIA PTX ISA, mma.m16n8k16."""

_BLOCKS_DECODING = 128
_LEAST_KEYS = 256
"""A new token's attention is split along the keys until there are as many blocks as compute units (104 to 144 on the
GPUs of config/kernels), none shorter than the second. Source: Dao et al. 2023, Flash-Decoding for long-context
inference, PyTorch blog; the numbers are a choice."""


def core_of(share: Share, window: int | None) -> "Core":
    """Return the core of layers that see `window` tokens, all of them where it is None."""
    if share.cached is not None:
        return _Decode(share, window)
    return _Unfused(share, window) if share.software.attention == "unfused" else _Flash(share, window)


class Core:
    """Scores, softmax and their product with the values, of the heads on one rank.

    Attributes:
        heads: Query heads on the rank.
        groups: Key/value heads on the rank; copied where there are fewer than tensor parallel ranks.
        size: Width of a head's query and key.
        value_size: Width of a head's value.
        batch: Sequences.
        length: Tokens of each sequence on the rank.
        keys: Keys a query of a whole sequence meets on average.
        window: Tokens a query sees; None for all.
    """

    def __init__(self, share: Share, window: int | None) -> None:
        """Work out the core of `share`."""
        job, model = share.job, share.job.model
        self.share = share
        self.heads = ceil_div(model.num_attention_heads, share.tp)
        self.groups = self.heads if model.latent else ceil_div(model.num_query_groups, share.tp)
        self.size, self.value_size = model.head_size, model.value_head_size
        self.batch, self.length = job.micro_batch_size, job.sequence_length // job.layout.cp
        there = job.sequence_length if share.cached is None else share.cached
        self.window = window if window and window < there else None
        seen = self.window or there
        self.keys = seen * (1 - _CAUSAL * seen / there) if there else 0.0

    def part(self) -> Part:
        """Return what it runs and keeps."""
        raise NotImplementedError

    @property
    def query_bytes(self) -> float:
        """Bytes of the queries; their gradients are as large."""
        return self.share.tokens * self.heads * self.size * self.share.element

    @property
    def output_bytes(self) -> float:
        """Bytes of the output; its gradient is as large."""
        return self.share.tokens * self.heads * self.value_size * self.share.element

    @property
    def pair_bytes(self) -> float:
        """Bytes of keys and values together."""
        return self.share.tokens * self.groups * (self.size + self.value_size) * self.share.element


class _Flash(Core):
    """Attention in one kernel; with context parallelism a step per rank, all keys gathered, or a part of the heads."""

    def part(self) -> Part:
        lse = self.share.tokens * self.heads * FP32_BYTES
        ends = self.query_bytes + self.output_bytes
        forward = self._kernels("forward", ends + self.pair_bytes + lse)
        backward = self._kernels("backward", 2 * ends + 2 * self.pair_bytes + 2 * lse)
        if self.share.job.layout.cp > 1:
            forward, backward = self._exchange(forward, backward)
        # The output is kept by the projection after it, but for an fp8 one, which keeps its own cast.
        narrower = _SAVED_12_BIT if "attention" in self.share.software.saves_fp8 else 1.0
        output = self.output_bytes * self.share.is_quantized * narrower
        return Part(forward, backward, (), self.query_bytes + self.pair_bytes + lse + output)

    def _kernels(self, kind: str, num_bytes: float) -> Operations:
        """Return the kernels of one pass.

        Of the ring's steps one is causal; the others see half of the queries or of the keys, since every rank holds a
        piece from the front and one from the back: all steps and all ranks do the same work. Windows, and gathered
        keys, are met in one kernel, and so is a whole sequence by a part of the heads.

        Source:
            Llama 3 report, arXiv:2407.21783, section 3.3.2; Jacobs et al. 2023 (DeepSpeed Ulysses), arXiv:2309.14509;
            TransformerEngine, attention with context parallelism.
        """
        cp = self.share.job.layout.cp
        if cp > 1 and not self.window and self._how == "all_to_all":
            return (self._kernel(kind, num_bytes, self.keys, self.length * cp, is_causal=True),)
        if self.window or (cp > 1 and self._how == "all_gather"):
            return (self._kernel(kind, num_bytes, self.keys, round(self.keys), is_causal=False),)
        causal = self._kernel(kind, num_bytes, _CAUSAL * self.length, self.length, is_causal=True)
        if cp == 1:
            return (causal,)
        half = self._kernel(kind, num_bytes, _CAUSAL * self.length, self.length // 2, is_causal=False)
        return (causal, repeat(half, cp - 1))

    def _kernel(self, kind: str, num_bytes: float, met: float, keys: int, is_causal: bool) -> Kernel:
        """Return a kernel whose queries meet `met` keys each on average, shaped as of `keys`."""
        of_keys, of_values = _PRODUCTS[kind]
        pairs = self.batch * self.heads * self.length * met
        flops = FLOPS_PER_MAC * (of_keys * self.size + of_values * self.value_size) * pairs
        size = round((of_keys * self.size + of_values * self.value_size) / (of_keys + of_values))
        heads, groups, length = self.heads, self.groups, self.length
        if self._how == "all_to_all":
            cp = self.share.job.layout.cp
            heads, groups, length = ceil_div(heads, cp), ceil_div(groups, cp), length * cp
        shape = (self.batch, heads, groups, length, keys, size)
        return Kernel("attention", kind, flops, num_bytes, shape, self.share.wide_precision, is_causal)

    @property
    def _how(self) -> str:
        layout = self.share.job.layout
        return layout.context_exchange if layout.cp > 1 else ""

    def _exchange(self, forward: Operations, backward: Operations) -> tuple[Operations, Operations]:
        """Return both passes with what context parallel ranks send.

        Ring: keys and values go round, in backward their gradients too, and one step further to home; the steps'
        results are added up. Gathered: before each pass, and the gradients are reduced and scattered after. Heads:
        queries, keys and values go one way, the output the other; in backward their gradients the other way round.
        """
        cp = self.share.job.layout.cp
        if self._how == "all_to_all":
            there = communication("all_to_all", "cp", self.query_bytes + self.pair_bytes)
            back = communication("all_to_all", "cp", self.output_bytes)
            return (there, *forward, back), (back, *backward, there)
        if self._how == "all_gather":
            gathered = communication("all_gather", "cp", cp * self.pair_bytes)
            scattered = communication("reduce_scatter", "cp", cp * self.pair_bytes)
            return (gathered, *forward), (gathered, *backward, scattered)
        one = communication("send_recv", "cp", self.pair_bytes, overlapped=True)
        added = repeat(streaming("elementwise", "add", 3 * self.output_bytes), cp - 1)
        return (repeat(one, cp - 1), *forward, added), (repeat(one, 2 * cp - 1), *backward, added)


_FUSED_KEYS = 2048
_FUSED_MULTIPLE = 4
"""Longest row of scores the fused masked softmax takes, and what sequences times heads on a rank must be a multiple of.
Source: NVIDIA/Megatron-LM v2.5 megatron/model/fused_softmax.py, is_kernel_available."""


class _Unfused(Core):
    """Attention kernel by kernel: scores, masked softmax, dropout, product with the values.

    The fused softmax reads the unmasked half and writes all. Where it cannot be used there are five kernels in fp32:
    cast, scale, mask, softmax, cast back.

    Source:
        NVIDIA/Megatron-LM v2.5 megatron/model/transformer.py, CoreAttention; fused_softmax.py; megatron/fused_kernels,
        scaled_upper_triang_masked_softmax.h; kept for the backward pass as in Korthikanti et al. 2022,
        arXiv:2205.05198, section 4.1.
    """

    def part(self) -> Part:
        share, mask = self.share, MASK_BYTES * self.share.software.has_dropout
        keys = share.job.sequence_length
        scores = self.batch * self.heads * self.length * keys
        score_bytes = scores * share.element
        softmax = self._softmax(scores)
        forward: list[Operation] = [self._bmm("forward", (self.length, keys, self.size)), *softmax[0]]
        backward: list[Operation] = [
            self._bmm("backward", (self.length, keys, self.value_size)),
            self._bmm("backward", (keys, self.value_size, self.length)),
        ]
        if mask:
            dropout = streaming("elementwise", "dropout", 2 * score_bytes + scores * mask)
            forward.append(dropout)
            backward.append(dropout)
        forward.append(self._bmm("forward", (self.length, self.value_size, keys)))
        backward += [
            *softmax[1],
            self._bmm("backward", (self.length, self.size, keys)),
            self._bmm("backward", (keys, self.size, self.length)),
        ]
        # Softmax output, its mask, and what the values are multiplied with.
        kept = score_bytes + scores * mask + score_bytes * bool(mask)
        return Part(tuple(forward), tuple(backward), (), self.query_bytes + self.pair_bytes + kept)

    def _softmax(self, scores: int) -> tuple[Operations, Operations]:
        """Return masking and softmax of all scores, forward and backward."""
        element = self.share.element
        is_fused = (
            self.share.job.sequence_length <= _FUSED_KEYS
            and self.batch * self.heads % _FUSED_MULTIPLE == 0
            and element < FP32_BYTES
        )
        if is_fused:
            one = scores * element
            passes = 1 + _CAUSAL, 1 + 2 * _CAUSAL
            return tuple((streaming("attention", "softmax", each * one),) for each in passes)  # type: ignore[return-value]
        cast = streaming("elementwise", "cast", scores * (element + FP32_BYTES))
        scale = streaming("elementwise", "scale", 2 * scores * FP32_BYTES)
        mask = streaming("elementwise", "mask", scores * (2 * FP32_BYTES + MASK_BYTES))
        softmax = [streaming("attention", "softmax", passes * scores * FP32_BYTES) for passes in (2, 3)]
        return (cast, scale, mask, softmax[0], cast), (cast, softmax[1], mask, scale, cast)

    def _bmm(self, kind: str, shape: tuple[int, int, int]) -> Kernel:
        """Return one GEMM per head and sequence: class gemm, shape (groups, m, n, k)."""
        m, n, k = shape
        groups = self.batch * self.heads
        num_bytes = groups * (m * k + k * n + m * n) * self.share.element
        flops = FLOPS_PER_MAC * groups * m * n * k
        return Kernel("gemm", kind, float(flops), float(num_bytes), (groups, *shape), self.share.wide_precision)


class _Decode(Core):
    """One new token of each sequence against all cached before it; query heads that share a key go in one block.

    With latent attention the projections to keys and values are multiplied into those of queries and outputs, so that
    all heads meet the one compressed vector.

    Source:
        DeepSeek-V2, arXiv:2405.04434, section 2.1.2; Dao et al. 2023, Flash-Decoding.
    """

    def part(self) -> Part:
        share, latent = self.share, self.share.job.model.latent
        keys = self.window or share.cached or 0
        rotated = latent.qk_pos_emb_head_dim if latent else 0
        size, value = (latent.kv_lora_rank + rotated, latent.kv_lora_rank) if latent else (self.size, self.value_size)
        groups = 1 if latent else self.groups
        ends = share.tokens * self.heads * (size + value) * share.element
        num_bytes = ends + self.batch * (keys + 1) * cache_bytes_per_token(share)
        least = max(_LEAST_KEYS, ceil_div(keys * self.batch * groups, _BLOCKS_DECODING))
        together = max(1, min(keys, least))
        # Blocks of all keys and splits stand as one head: a block of few queries is not worked out as a full one.
        rows = ceil_div(groups * keys, together) * ceil_div(self.heads // groups, _ROWS_DECODING) * _ROWS_DECODING
        shape = (self.batch, 1, 1, rows, together, (size + value) // 2)
        flops = float(FLOPS_PER_MAC * self.batch * self.heads * keys * (size + value))
        return Part((Kernel("attention", "decode", flops, num_bytes, shape, share.wide_precision),))


def cache_bytes_per_token(share: Share) -> float:
    """Return what one layer caches of one token on a rank: keys and values, or the compressed vector. Unit: byte."""
    model = share.job.model
    if model.latent:
        return (model.latent.kv_lora_rank + model.latent.qk_pos_emb_head_dim) * share.cache_element
    return 2 * ceil_div(model.num_query_groups, share.tp) * model.head_size * share.cache_element


_STEPS_OF_ROTATION = 5
"""Bytes that rotation moves in steps, over those of one kernel: to fp32, multiplied as complex numbers, to 16 bits
again, 6 + 8 + 6 bytes of an element against 4. Source: pytorch/torchtitan models/llama3, apply_rotary_emb."""


def positions(share: Share, core: Core) -> Part:
    """Return what turns the projection's output into queries, keys and values, rotated where the model does so.

    Rotation reads and writes queries and keys; in backward the gradients of the three are put side by side again.
    """
    all_bytes = core.query_bytes + core.pair_bytes
    turned = core.query_bytes + core.pair_bytes * core.size / (core.size + core.value_size)
    pack = streaming("elementwise", "pack", 2 * all_bytes)
    if share.job.model.position_embedding != "rope":
        return Part((), (pack,))
    passes = 2 if share.software.fuses_norms else 2 * _STEPS_OF_ROTATION
    rotate = streaming("elementwise", "rope", passes * turned)
    return Part((rotate,), (rotate, pack))
