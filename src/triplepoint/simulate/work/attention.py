"""Attention of one layer: projections, rotary embedding, scores; the ring of context parallel ranks."""

from triplepoint.simulate.operations import Kernel, Operation
from triplepoint.simulate.work.linear import Linear, linear, norm, residual
from triplepoint.simulate.work.parts import (
    FLOPS_PER_MAC,
    FP32_BYTES,
    MASK_BYTES,
    Operations,
    Part,
    Share,
    ceil_div,
    join,
    message,
    repeat,
    streaming,
)

_PRODUCTS_FORWARD = 2
_PRODUCTS_BACKWARD = 5
"""Products of flash attention in backward: the scores once more, and gradients of values, scores, queries and keys.
Source: Dao 2023, arXiv:2307.08691, section 3.2."""

_CAUSAL = 0.5
"""Share of the scores under the causal mask; tiles on the diagonal are not counted whole."""


def attention(share: Share) -> tuple[Part, Part, Part]:
    """Return the attention block in three parts: before its core, the core, after it.

    The core alone is what selective recomputation repeats.
    """
    model, core = share.job.model, _core(share)
    width = core.heads * core.size
    into = Linear(model.hidden_size, width + 2 * core.groups * core.size, "column", model.add_bias)
    out = Linear(width, model.hidden_size, "row", model.add_bias)
    return (
        join((norm(share, is_fp8_output=True), linear(share, into), _positions(share, core))),
        core.part(),
        join((linear(share, out), residual(share))),
    )


def _core(share: Share) -> "_Core":
    return _Flash(share) if share.software.has_flash_attention else _Unfused(share)


class _Core:
    """Scores, softmax and their product with the values, of the heads on one rank.

    Attributes:
        heads: Query heads on the rank.
        groups: Key/value heads on the rank; copied where there are fewer than tensor parallel ranks.
        size: Width of a head.
        batch: Sequences.
        length: Tokens of each sequence on the rank.
    """

    def __init__(self, share: Share) -> None:
        job = share.job
        self.share = share
        self.heads = ceil_div(job.model.num_attention_heads, share.tp)
        self.groups = ceil_div(job.model.num_query_groups, share.tp)
        self.size = job.model.head_size
        self.batch = job.micro_batch_size
        self.length = job.sequence_length // job.layout.cp

    def part(self) -> Part:
        raise NotImplementedError

    @property
    def query_bytes(self) -> float:
        """Bytes of the queries; output and gradients are as large."""
        return self.share.tokens * self.heads * self.size * self.share.element

    @property
    def pair_bytes(self) -> float:
        """Bytes of keys and values together."""
        return 2 * self.share.tokens * self.groups * self.size * self.share.element


class _Flash(_Core):
    """Attention in one kernel, a step for each rank of the context parallel ring."""

    def part(self) -> Part:
        cp = self.share.job.layout.cp
        lse = self.share.tokens * self.heads * FP32_BYTES
        forward = self._kernels("forward", 2 * self.query_bytes + self.pair_bytes + lse)
        backward = self._kernels("backward", 4 * self.query_bytes + 2 * self.pair_bytes + 2 * lse)
        if cp > 1:
            forward = (*self._sends(cp - 1, 0), *forward, *self._corrections(cp))
            backward = (*self._sends(cp - 1, cp), *backward, *self._corrections(cp))
        # The output is kept by the projection after it, but for an fp8 one, which keeps its own cast.
        output = self.query_bytes * self.share.is_fp8
        return Part(forward, backward, (), self.query_bytes + self.pair_bytes + lse + output)

    def _kernels(self, kind: str, num_bytes: float) -> Operations:
        """Return the kernels of one pass.

        Of the ring's steps one is causal; the others see half of the queries or of the keys, since every rank holds a
        piece from the front and one from the back: all steps and all ranks do the same work.

        Source:
            Llama 3 report, arXiv:2407.21783, section 3.3.2; TransformerEngine, attention with context parallelism.
        """
        cp = self.share.job.layout.cp
        products = _PRODUCTS_FORWARD if kind == "forward" else _PRODUCTS_BACKWARD
        pairs = self.batch * self.heads * self.length * self.length * _CAUSAL
        flops = FLOPS_PER_MAC * products * pairs * self.size
        shape = (self.batch, self.heads, self.groups, self.length, self.length, self.size)
        precision = self.share.wide_precision
        causal = Kernel("attention", kind, flops, num_bytes, shape, precision, is_causal=True)
        if cp == 1:
            return (causal,)
        half = (*shape[:4], self.length // 2, self.size)
        return (causal, Kernel("attention", kind, flops, num_bytes, half, precision, count=cp - 1))

    def _sends(self, num_pairs: int, num_gradients: int) -> Operations:
        """Return the ring: keys and values go round, in backward their gradients too, and one step further to home."""
        one = message("send_recv", "cp", self.pair_bytes, overlapped=True)
        return (repeat(one, num_pairs + num_gradients),)

    def _corrections(self, cp: int) -> Operations:
        """Return the adding up of the steps' results: reads two, writes one."""
        return (repeat(streaming("elementwise", "add", 3 * self.query_bytes), cp - 1),)


class _Unfused(_Core):
    """Attention kernel by kernel: scores, masked softmax, dropout, product with the values; nothing is skipped.

    Source:
        NVIDIA/Megatron-LM v2.3 megatron/model/transformer.py, CoreAttention; kept for the backward pass as in
        Korthikanti et al. 2022, arXiv:2205.05198, section 4.1.
    """

    def part(self) -> Part:
        share, mask = self.share, MASK_BYTES * self.share.software.has_dropout
        keys = share.job.sequence_length
        scores = self.batch * self.heads * self.length * keys
        score_bytes = scores * share.element
        softmax = streaming("attention", "softmax", 2 * score_bytes)
        forward: list[Operation] = [self._bmm("forward", (self.length, keys, self.size)), softmax]
        backward: list[Operation] = [
            self._bmm("backward", (self.length, keys, self.size)),
            self._bmm("backward", (keys, self.size, self.length)),
        ]
        if mask:
            dropout = streaming("elementwise", "dropout", 2 * score_bytes + scores * mask)
            forward.append(dropout)
            backward.append(dropout)
        forward.append(self._bmm("forward", (self.length, self.size, keys)))
        backward += [
            streaming("attention", "softmax", 3 * score_bytes),
            self._bmm("backward", (self.length, self.size, keys)),
            self._bmm("backward", (keys, self.size, self.length)),
        ]
        # Softmax output, its mask, and what the values are multiplied with.
        kept = score_bytes + scores * mask + score_bytes * bool(mask)
        return Part(tuple(forward), tuple(backward), (), self.query_bytes + self.pair_bytes + kept)

    def _bmm(self, kind: str, shape: tuple[int, int, int]) -> Kernel:
        """Return one product per head and sequence: class gemm, shape (groups, m, n, k)."""
        m, n, k = shape
        groups = self.batch * self.heads
        num_bytes = groups * (m * k + k * n + m * n) * self.share.element
        flops = FLOPS_PER_MAC * groups * m * n * k
        return Kernel("gemm", kind, float(flops), float(num_bytes), (groups, *shape), self.share.wide_precision)


def _positions(share: Share, core: _Core) -> Part:
    """Return what turns the projection's output into queries, keys and values, rotated where the model does so.

    Rotation reads and writes queries and keys; in backward the gradients of the three are put side by side again.
    """
    all_bytes = core.query_bytes + core.pair_bytes
    turned = core.query_bytes + core.pair_bytes / 2
    pack = streaming("elementwise", "pack", 2 * all_bytes)
    if share.job.model.position_embedding != "rope":
        return Part((), (pack,))
    rotate = streaming("elementwise", "rope", 2 * turned)
    return Part((rotate,), (rotate, pack))
