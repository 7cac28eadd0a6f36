"""The core of attention on one rank: scores, softmax and multiplication with the values."""

from triplepoint.config.point import ContextExchange
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

_GEMMS = {"forward": (1, 1), "backward": (3, 2)}
"""GEMMs of flash attention over the width of a key and of a value. Forward: scores and output. Backward: the scores
again, and the gradients of queries, keys, values and scores. Source: Dao 2023, arXiv:2307.08691, section 3.2."""

_CAUSAL = 0.5
"""Share of the scores under the causal mask; masked halves of tiles on the diagonal are not counted."""

_SAVED_12_BIT = (12 - 8) / 16
"""Kept bits of attention output in addition to the 8 bits that the next projection keeps, over 16 bits, if both share
one copy of 12 bits. Source: DeepSeek-V3, arXiv:2412.19437, section 3.3.3, E5M6."""

_ROWS_DECODING = 16
"""Rows of the smallest tile of matrix units. Source: NVIDIA PTX ISA, mma.m16n8k16."""

_BLOCKS_DECODING = 128
_LEAST_KEYS = 256
"""Decoding attention is split along the keys into as many blocks as there are compute units (104 to 144 on the GPUs of
config/kernels), at least this many keys each. Source: Dao et al. 2023, Flash-Decoding for long-context inference,
PyTorch blog; both numbers are a choice."""


def core_of(share: Share, window: int | None) -> "Core":
    """Return the attention core of layers.

    Args:
        share: Share of the rank.
        window: Tokens that a query sees; None for all.
    """
    if share.cached is not None:
        return _Decode(share, window)
    return _Unfused(share, window) if share.software.attention == "unfused" else _Flash(share, window)


class Core:
    """Attention core of the heads on one rank.

    Attributes:
        share: Share of the rank.
        heads: Query heads on the rank.
        groups: Key/value heads on the rank; copied if there are fewer than tensor parallel ranks.
        size: Width of a head's query and key.
        value_size: Width of a head's value.
        batch: Sequences.
        length: Tokens of each sequence on the rank.
        keys: Mean number of keys that a query of a whole sequence attends to.
        window: Tokens that a query sees; None for all.
    """

    def __init__(self, share: Share, window: int | None) -> None:
        """Compute the sizes of the core; arguments are those of `core_of`."""
        job, model = share.job, share.job.model
        self.share = share
        self.heads = ceil_div(model.num_attention_heads, share.tp)
        self.groups = self.heads if model.latent else ceil_div(model.num_query_groups, share.tp)
        self.size, self.value_size = model.head_size, model.value_head_size
        self.batch, self.length = job.micro_batch_size, job.sequence_length // job.layout.cp
        context_length = job.sequence_length if share.cached is None else share.cached
        self.window = window if window and window < context_length else None
        visible = self.window or context_length
        self.keys = visible * (1 - _CAUSAL * visible / context_length) if context_length else 0.0

    def part(self) -> Part:
        """Return the operations and the kept activations."""
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
    """Fused attention. With context parallelism: ring steps, gathered keys, or an exchange of heads."""

    def part(self) -> Part:
        logsumexp = self.share.tokens * self.heads * FP32_BYTES
        query_and_output = self.query_bytes + self.output_bytes
        forward = self._kernels("forward", query_and_output + self.pair_bytes + logsumexp)
        backward = self._kernels("backward", 2 * query_and_output + 2 * self.pair_bytes + 2 * logsumexp)
        if self.share.job.layout.cp > 1:
            forward, backward = self._with_exchange(forward, backward)
        # The next projection keeps the output, except in fp8: there it keeps its own cast.
        kept_share = _SAVED_12_BIT if "attention" in self.share.software.saves_fp8 else 1.0
        output = self.output_bytes * self.share.is_quantized * kept_share
        return Part(forward, backward, saved=self.query_bytes + self.pair_bytes + logsumexp + output)

    def _kernels(self, kind: str, num_bytes: float) -> Operations:
        """Return the kernels of one pass.

        One step of the ring is causal. In the others, a rank sees half of the queries or half of the keys, since every
        rank holds a piece from the front and one from the back of the sequence: all steps and ranks do equal work.
        Attention with a window, over gathered keys, or over a whole sequence by some of the heads is one kernel.

        Args:
            kind: forward or backward.
            num_bytes: Bytes that one kernel reads and writes.

        Source:
            Llama 3 report, arXiv:2407.21783, section 3.3.2; Jacobs et al. 2023 (DeepSpeed Ulysses), arXiv:2309.14509;
            TransformerEngine, attention with context parallelism.
        """
        cp = self.share.job.layout.cp
        if cp > 1 and not self.window and self._context_exchange == "all_to_all":
            return (self._kernel(kind, num_bytes, self.keys, self.length * cp, is_causal=True),)
        if self.window or (cp > 1 and self._context_exchange == "all_gather"):
            return (self._kernel(kind, num_bytes, self.keys, round(self.keys), is_causal=False),)
        causal = self._kernel(kind, num_bytes, _CAUSAL * self.length, self.length, is_causal=True)
        if cp == 1:
            return (causal,)
        half = self._kernel(kind, num_bytes, _CAUSAL * self.length, self.length // 2, is_causal=False)
        return (causal, repeat(half, cp - 1))

    def _kernel(self, kind: str, num_bytes: float, mean_keys: float, keys: int, is_causal: bool) -> Kernel:
        """Return one attention kernel.

        Args:
            kind: forward or backward.
            num_bytes: Bytes read and written.
            mean_keys: Mean number of keys that a query attends to, which decides the FLOPs.
            keys: Key length in the shape of the kernel.
            is_causal: Whether the kernel skips the masked half.
        """
        key_gemms, value_gemms = _GEMMS[kind]
        pairs = self.batch * self.heads * self.length * mean_keys
        flops = FLOPS_PER_MAC * (key_gemms * self.size + value_gemms * self.value_size) * pairs
        size = round((key_gemms * self.size + value_gemms * self.value_size) / (key_gemms + value_gemms))
        heads, groups, length = self.heads, self.groups, self.length
        if self._context_exchange == "all_to_all":
            cp = self.share.job.layout.cp
            heads, groups, length = ceil_div(heads, cp), ceil_div(groups, cp), length * cp
        shape = (self.batch, heads, groups, length, keys, size)
        return Kernel("attention", kind, flops, num_bytes, shape, self.share.wide_precision, is_causal)

    @property
    def _context_exchange(self) -> ContextExchange | None:
        """How context parallel ranks exchange keys and values; None without context parallelism."""
        layout = self.share.job.layout
        return layout.context_exchange if layout.cp > 1 else None

    def _with_exchange(self, forward: Operations, backward: Operations) -> tuple[Operations, Operations]:
        """Return both passes with the communication of context parallel ranks.

        Ring (`ring`): keys and values pass from rank to rank. In the backward pass their gradients do too, with one
        step more to return home. The results of the steps are added. `all_gather`: keys and values are gathered before
        each pass, and their gradients reduced and scattered after the backward pass. `all_to_all`: queries, keys and
        values are exchanged before attention, the output after it; gradients go the opposite way.
        """
        cp = self.share.job.layout.cp
        if self._context_exchange == "all_to_all":
            exchange_inputs = communication("all_to_all", "cp", self.query_bytes + self.pair_bytes)
            exchange_output = communication("all_to_all", "cp", self.output_bytes)
            return (exchange_inputs, *forward, exchange_output), (exchange_output, *backward, exchange_inputs)
        if self._context_exchange == "all_gather":
            gather = communication("all_gather", "cp", cp * self.pair_bytes)
            scatter = communication("reduce_scatter", "cp", cp * self.pair_bytes)
            return (gather, *forward), (gather, *backward, scatter)
        send = communication("send_recv", "cp", self.pair_bytes, overlapped=True)
        additions = repeat(streaming("elementwise", "add", 3 * self.output_bytes), cp - 1)
        return (repeat(send, cp - 1), *forward, additions), (repeat(send, 2 * cp - 1), *backward, additions)


_FUSED_KEYS = 2048
_FUSED_MULTIPLE = 4
"""Longest row of scores that the fused masked softmax takes, and the number that sequences times heads on a rank must
be a multiple of. Source: NVIDIA/Megatron-LM v2.5 megatron/model/fused_softmax.py, is_kernel_available."""


class _Unfused(Core):
    """Attention as separate kernels: scores, masked softmax, dropout, multiplication with the values.

    The fused softmax reads the unmasked half of the scores and writes all of them. If it cannot be used, five kernels
    run in fp32: cast, scale, mask, softmax, cast back.

    Source:
        NVIDIA/Megatron-LM v2.5 megatron/model/transformer.py, CoreAttention; fused_softmax.py; megatron/fused_kernels,
        scaled_upper_triang_masked_softmax.h; kept activations as in Korthikanti et al. 2022, arXiv:2205.05198, section
        4.1.
    """

    def part(self) -> Part:
        share, mask = self.share, MASK_BYTES * self.share.software.has_dropout
        keys = share.job.sequence_length
        scores = self.batch * self.heads * self.length * keys
        score_bytes = scores * share.element
        softmax, softmax_backward = self._softmax(scores)
        forward: list[Operation] = [self._bmm("forward", (self.length, keys, self.size)), *softmax]
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
            *softmax_backward,
            self._bmm("backward", (self.length, self.size, keys)),
            self._bmm("backward", (keys, self.size, self.length)),
        ]
        # Softmax output, dropout mask, and dropout output, which the values are multiplied with.
        kept = score_bytes + scores * mask + score_bytes * bool(mask)
        return Part(tuple(forward), tuple(backward), saved=self.query_bytes + self.pair_bytes + kept)

    def _softmax(self, scores: int) -> tuple[Operations, Operations]:
        """Return masking and softmax of `scores` scores, forward and backward."""
        element = self.share.element
        is_fused = (
            self.share.job.sequence_length <= _FUSED_KEYS
            and self.batch * self.heads % _FUSED_MULTIPLE == 0
            and element < FP32_BYTES
        )
        if is_fused:
            score_bytes = scores * element
            return (
                (streaming("attention", "softmax", (1 + _CAUSAL) * score_bytes),),
                (streaming("attention", "softmax", (1 + 2 * _CAUSAL) * score_bytes),),
            )
        cast = streaming("elementwise", "cast", scores * (element + FP32_BYTES))
        scale = streaming("elementwise", "scale", 2 * scores * FP32_BYTES)
        mask = streaming("elementwise", "mask", scores * (2 * FP32_BYTES + MASK_BYTES))
        softmax = streaming("attention", "softmax", 2 * scores * FP32_BYTES)
        softmax_backward = streaming("attention", "softmax", 3 * scores * FP32_BYTES)
        return (cast, scale, mask, softmax, cast), (cast, softmax_backward, mask, scale, cast)

    def _bmm(self, kind: str, shape: tuple[int, int, int]) -> Kernel:
        """Return a batched GEMM with one matrix per head and sequence."""
        m, n, k = shape
        groups = self.batch * self.heads
        num_bytes = groups * (m * k + k * n + m * n) * self.share.element
        flops = FLOPS_PER_MAC * groups * m * n * k
        return Kernel("gemm", kind, float(flops), float(num_bytes), (groups, *shape), self.share.wide_precision)


class _Decode(Core):
    """Attention of one new token per sequence over the KV cache; query heads that share a key form one block.

    With latent attention, the projections to keys and values are absorbed into those of queries and outputs, so that
    all heads attend to the one compressed vector.

    Source:
        DeepSeek-V2, arXiv:2405.04434, section 2.1.2; Dao et al. 2023, Flash-Decoding.
    """

    def part(self) -> Part:
        share, latent = self.share, self.share.job.model.latent
        keys = self.window or share.cached or 0
        if latent:
            key_size, value_size, groups = latent.kv_lora_rank + latent.qk_pos_emb_head_dim, latent.kv_lora_rank, 1
        else:
            key_size, value_size, groups = self.size, self.value_size, self.groups
        query_and_output = share.tokens * self.heads * (key_size + value_size) * share.element
        num_bytes = query_and_output + self.batch * (keys + 1) * cache_bytes_per_token(share)
        keys_per_split = max(_LEAST_KEYS, ceil_div(keys * self.batch * groups, _BLOCKS_DECODING))
        keys_per_split = max(1, min(keys, keys_per_split))
        # All blocks of keys and splits count as one head, so that a block of few queries is not priced as a full tile.
        rows = ceil_div(groups * keys, keys_per_split) * ceil_div(self.heads // groups, _ROWS_DECODING) * _ROWS_DECODING
        shape = (self.batch, 1, 1, rows, keys_per_split, (key_size + value_size) // 2)
        flops = float(FLOPS_PER_MAC * self.batch * self.heads * keys * (key_size + value_size))
        return Part((Kernel("attention", "decode", flops, num_bytes, shape, share.wide_precision),))


def cache_bytes_per_token(share: Share) -> float:
    """Return the cache of one layer per token on a rank: keys and values, or the compressed vector. Unit: byte."""
    model = share.job.model
    if model.latent:
        return (model.latent.kv_lora_rank + model.latent.qk_pos_emb_head_dim) * share.cache_element
    return 2 * ceil_div(model.num_query_groups, share.tp) * model.head_size * share.cache_element


_UNFUSED_ROTATION = 5
"""Bytes that unfused rotation moves, over those of one kernel: to fp32, complex multiplication, back to 16 bits; 6 + 8
+ 6 bytes per element against 4. Source: pytorch/torchtitan models/llama3, apply_rotary_emb."""


def positions(share: Share, core: Core) -> Part:
    """Return the split of the QKV projection's output into queries, keys and values, and their rotary embedding if any.

    Rotation reads and writes queries and keys. The backward pass also packs the three gradients into one tensor.

    Args:
        share: Share of the rank.
        core: Attention core.
    """
    all_bytes = core.query_bytes + core.pair_bytes
    rotated_bytes = core.query_bytes + core.pair_bytes * core.size / (core.size + core.value_size)
    pack = streaming("elementwise", "pack", 2 * all_bytes)
    if share.job.model.position_embedding != "rope":
        return Part(backward_input=(pack,))
    passes = 2 if share.software.fuses_norms else 2 * _UNFUSED_ROTATION
    rotate = streaming("elementwise", "rope", passes * rotated_bytes)
    return Part((rotate,), (rotate, pack))
