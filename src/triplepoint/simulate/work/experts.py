"""Mixture of experts in one layer: router, exchange of tokens, grouped GEMMs; as Megatron-Core does it."""

import math
from functools import lru_cache
from math import gcd

from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.work.feed_forward import activation, gates, gemms
from triplepoint.simulate.work.layer_parts import (
    FLOPS_PER_MAC,
    FP32_BYTES,
    Operations,
    Part,
    Share,
    Weights,
    cast,
    ceil_div,
    communication,
    gemm,
    join,
    streaming,
)
from triplepoint.simulate.work.linear import Linear, linear, norm, residual


def share_sent_once(job: Job, num_places: int) -> float:
    """Return the share of a token's copies that travel where each place gets one for all its experts.

    Args:
        job: A job of a model with experts.
        num_places: Ranks, or nodes, that the experts are spread over.

    Source:
        deepseek-ai/DeepEP README: tokens cross the network once per node and fan out over NVLink there; limited to
        some of the nodes: DeepSeek-V3, arXiv:2412.19437, section 2.1.2.
    """
    moe = job.model.moe
    if moe is None:
        return 1.0
    if job.software.routes_in_turn:
        return _places_in_turn(moe.num_experts, moe.top_k, num_places) / moe.top_k
    if job.software.token_nodes:
        num_nodes = ceil_div(job.layout.ep * job.layout.expert_tp, job.fabric.gpus_per_node)
        num_places = max(1, min(num_places, num_places * job.software.token_nodes // num_nodes))
    return num_places * (1 - (1 - 1 / num_places) ** moe.top_k) / moe.top_k


@lru_cache(maxsize=256)
def _places_in_turn(num_experts: int, top_k: int, num_places: int) -> float:
    """Return the mean number of places of `top_k` experts in a row, where one token's row follows that of the last."""
    each = num_experts / num_places
    starts = range(0, num_experts, gcd(num_experts, top_k))
    rows = [{int((start + place) % num_experts / each) for place in range(top_k)} for start in starts]
    return sum(map(len, rows)) / len(rows)


FP8_TOKEN = 1 + 4 / 128
"""Bytes of one number of a token sent in fp8: each 128 have a scale of 4 bytes. Source: deepseek-ai/DeepEP README,
dispatch; DeepSeek-V3, arXiv:2412.19437, section 3.3.3, also for what is sent in which format."""

_ROUTER_PASSES = 4
"""Arrays of one score per expert that choosing touches: softmax reads and writes, top-k reads, the map is written."""


class Experts:
    """How tokens and experts are spread.

    Attributes:
        group: Expert parallel degree.
        split: Tensor parallel degree inside an expert.
        count: Experts on the rank.
        tokens: Tokens routed on the rank.
        copies: Tokens the rank sends to experts, each as often as it has experts, as the fullest rank has it.
        rows: Tokens the experts of the rank work on.
        inner: Inner width of an expert on the rank.
        width: Width of what goes to experts and comes back.
        working: Experts of the rank that have a token; all of them but where few tokens are generated at a time.
    """

    def __init__(self, share: Share) -> None:
        """Work out the spread of a model that has experts."""
        job, moe = share.job, share.job.model.moe
        assert moe is not None
        self.group = job.layout.ep
        self.split = job.layout.expert_tp
        self.count = ceil_div(moe.num_experts, self.group)
        self.tokens = share.split_tokens
        self.copies = round(self.tokens * moe.top_k * self._load(share))
        self.gathered = self.split if share.is_sequence_parallel else 1
        self.rows = self.copies * self.gathered
        self.inner = ceil_div(job.model.ffn_hidden_size, self.split)
        self.width = job.model.expert_width
        self.working = self.count if share.cached is None else self._hit()

    def _hit(self) -> int:
        """Return how many experts of the rank a random choice meets: each copy misses one with the same chance."""
        return max(1, min(self.count, round(self.count * -math.expm1(-self.rows / self.count))))

    def _load(self, share: Share) -> float:
        """Return the load of the fullest rank over the mean of what the router hands out.

        With a capacity factor every expert is filled up to it, or the fullest rank takes no more than that; without,
        the fullest rank sets the pace, and where every rank has all experts none is fuller.
        """
        moe = share.job.model.moe
        factor = moe.capacity_factor if moe else None
        if moe and factor is not None and moe.pads_experts:
            return factor
        stated = share.job.expert_imbalance
        usual = share.software.expert_imbalance if stated is None else stated
        load = 1.0 if self.group == 1 else usual
        return load if factor is None else min(factor, load)


def experts(share: Share) -> Part:
    """Return the feed-forward block of experts: norm, router, exchange, experts, exchange, residual add.

    Experts that every token passes run after the others, as a dense block without a norm.
    """
    assert share.job.model.moe is not None
    shared = share.job.model.moe.shared_ffn_hidden_size
    spread = Experts(share)
    width, inner, rows = spread.width, spread.inner, spread.rows
    down, up = _latent(share)
    return join(
        (
            norm(share, is_quantized_output=False),
            _router(share, spread),
            *down,
            _dispatch(share, spread),
            _grouped(share, spread, (inner * gates(share), width)),
            activation(share, rows, inner, _kept_in(share)),
            _grouped(share, spread, (width, inner)),
            _combine(share, spread),
            *up,
            *(gemms(share, shared) if shared else ()),
            residual(share),
        )
    )


def _latent(share: Share) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Return the projections of tokens before they go to experts, and of the sum of their results.

    Source:
        NVIDIA Nemotron 3, arXiv:2512.20856, section 2.2 (LatentMoE); NVIDIA/Megatron-LM --moe-latent-size, whose
        projections every tensor parallel rank has whole.
    """
    model = share.job.model
    if model.moe is None or model.moe.latent_size is None:
        return (), ()
    width, latent = model.hidden_size, model.moe.latent_size
    # The router keeps the same input.
    down = Linear(width, latent, "none", name="fc1_latent_proj", keeps_input=False)
    return (linear(share, down),), (linear(share, Linear(latent, width, "none", name="fc2_latent_proj")),)


def _router(share: Share, spread: Experts) -> Part:
    """Return the choice of experts: a small GEMM, softmax and top-k."""
    model = share.job.model
    assert model.moe is not None
    num_experts, width, tokens = model.moe.num_experts, model.hidden_size, spread.tokens
    precision, elements = share.wide_precision, (share.element, share.element, FP32_BYTES)
    choice = streaming("moe", "router", _ROUTER_PASSES * tokens * num_experts * FP32_BYTES)
    weight = (gemm((num_experts, width, tokens), "weight", precision, elements),)
    return Part(
        (gemm((tokens, num_experts, width), "forward", precision, elements), choice),
        (choice, gemm((tokens, width, num_experts), "backward", precision, elements)),
        () if share.has_adapters else weight,
        float(tokens * (width * share.element + 2 * num_experts * FP32_BYTES)),
        Weights(shared=float(num_experts * width)),
    )


def _kept_in(share: Share) -> float:
    """Return bytes of a number of what the activation inside experts keeps."""
    if share.is_quantized and "expert_activation" in share.software.saves_fp8:
        return 1 + share.recipe.scale_bytes
    return share.element


def _exchange(share: Share, spread: Experts) -> tuple[Operations, Operations]:
    """Return the communication of tokens to experts, and that back: a gather one way is a reduce-scatter the other.

    Gradients of results go to the experts as tokens do, in fp8 where those are; what comes back is in 16 bits.
    """
    sent = spread.copies * spread.width * share.element
    there: Operations = ()
    back: Operations = ()
    if spread.group > 1:
        is_overlapped, is_fp8 = "ep" in share.job.overlap, share.software.dispatch_precision == "fp8"
        dispatched = sent * FP8_TOKEN / share.element if is_fp8 else sent
        there = (communication("all_to_all", "ep", dispatched, is_overlapped),)
        back = (communication("all_to_all", "ep", sent, is_overlapped),)
    if spread.gathered > 1:
        there = (*there, communication("all_gather", "etp", sent * spread.gathered))
        back = (communication("reduce_scatter", "etp", sent * spread.gathered), *back)
    return there, back


def _dispatch(share: Share, spread: Experts) -> Part:
    """Return the way to the experts: a copy for each choice, the exchange, sorting by expert."""
    there, back = _exchange(share, spread)
    before, after = _sorting(share, spread, "permute")
    return Part((*before, *there, *after), (*after, *back, *before), (), 0.0)


def _sorting(share: Share, spread: Experts, kind: str) -> tuple[Operations, Operations]:
    """Return the copying and sorting on the side of the tokens and on that of the experts.

    Copies are made before the exchange and sorted by expert after it; where a token is sent once, all on arrival.
    """
    one = spread.width * share.element
    if spread.group == 1 or share.software.dispatch != "once_per_node":
        copy = streaming("moe", kind, (spread.tokens + spread.copies) * one)
        is_sorted = (spread.group > 1 or spread.gathered > 1) and spread.count > 1
        return (copy,), (streaming("moe", "sort", 2 * spread.rows * one),) if is_sorted else ()
    arrived = spread.rows * share_sent_once(share.job, spread.group)
    return (), (streaming("moe", kind, (arrived + spread.rows) * one),)


def _combine(share: Share, spread: Experts) -> Part:
    """Return the way back: sorting, the exchange, the sum of a token's experts, which keeps its inputs if it weighs.

    Without sequence parallelism every tensor parallel rank holds all tokens and a part of each expert: results are
    added up over them as in a dense block.
    """
    there, back = _exchange(share, spread)
    before, after = _sorting(share, spread, "unpermute")
    one = spread.width * share.element
    reduced: Operations = ()
    if share.tp > 1 and not share.is_sequence_parallel and spread.split > 1:
        reduced = (communication("all_reduce", "tp", spread.tokens * one),)
    kept = float(spread.copies * one) if share.software.weighs_results else 0.0
    return Part((*after, *back, *before, *reduced), (*reduced, *before, *there, *after), (), kept)


def _grouped(share: Share, spread: Experts, shape: tuple[int, int]) -> Part:
    """Return the GEMM of each expert with its tokens; `shape` is output and input width of an expert on the rank."""
    outputs, inputs = shape
    rows, count = ceil_div(spread.rows, spread.working), spread.working
    casts = _casts(share, spread.rows, inputs, outputs)
    weight = _group_gemm(share, "weight", (count, outputs, inputs, rows), 2 * share.gradient_element)
    bias = _bias(share, spread, outputs)
    return Part(
        (*casts[0], _group_gemm(share, "forward", (count, rows, outputs, inputs), share.element)),
        (*casts[1], _group_gemm(share, "backward", (count, rows, inputs, outputs), share.element)),
        () if share.has_adapters else (weight,),
        float(spread.rows * inputs * share.gemm_element),
        Weights(experts=spread.count * (inputs * outputs + bias)),
    )


def _group_gemm(share: Share, kind: str, shape: tuple[int, int, int, int], output_element: int) -> Kernel:
    groups, m, n, k = shape
    flops = float(FLOPS_PER_MAC * groups * m * n * k)
    num_bytes = groups * (share.gemm_element * (m * k + k * n) + output_element * m * n)
    return Kernel("gemm", _GROUPED[kind], flops, float(num_bytes), shape, share.gemm_precision)


_GROUPED = {"forward": "grouped", "backward": "grouped_backward", "weight": "grouped_weight"}


def _casts(share: Share, rows: int, inputs: int, outputs: int) -> tuple[Operations, Operations]:
    """Return the casts to fp8 of a grouped GEMM, forward and backward, each with its transpose."""
    if not share.is_quantized:
        return (), ()
    return cast(share, rows * inputs, across=True), cast(share, rows * outputs, across=True)


def _bias(share: Share, spread: Experts, outputs: int) -> float:
    """Return the parameters of an expert's bias on the rank: that of the down projection is one for all its parts."""
    if not share.job.model.add_bias:
        return 0.0
    return outputs / spread.split if outputs == spread.width else float(outputs)
