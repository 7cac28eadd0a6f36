"""Mixture-of-experts block of one layer: router, token exchange, grouped GEMMs; as in Megatron-Core."""

import math
from functools import lru_cache

from triplepoint.simulate.job import Job
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.work.feed_forward import activation, num_up_projections, projections
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


def share_sent_once(job: Job, num_destinations: int) -> float:
    """Return the share of a token's copies that travel if each destination gets one copy for all its experts.

    Args:
        job: A job of a model with experts.
        num_destinations: Ranks, or nodes, that the experts are spread over.

    Source:
        deepseek-ai/DeepEP README: tokens cross the network once per node and fan out over NVLink there. With a limit on
        nodes per token: DeepSeek-V3, arXiv:2412.19437, section 2.1.2.
    """
    moe = job.model.moe
    if moe is None:
        return 1.0
    if job.software.routes_in_turn:
        return _destinations_in_turn(moe.num_experts, moe.top_k, num_destinations) / moe.top_k
    if job.software.token_nodes:
        num_nodes = ceil_div(job.layout.ep * job.layout.expert_tp, job.fabric.gpus_per_node)
        num_destinations = max(1, min(num_destinations, num_destinations * job.software.token_nodes // num_nodes))
    return num_destinations * (1 - (1 - 1 / num_destinations) ** moe.top_k) / moe.top_k


@lru_cache(maxsize=256)
def _destinations_in_turn(num_experts: int, top_k: int, num_destinations: int) -> float:
    """Return the mean number of destinations of a token whose `top_k` experts follow those of the token before it."""
    experts_each = num_experts / num_destinations
    first_experts = range(0, num_experts, math.gcd(num_experts, top_k))
    destinations = [
        {int((first + offset) % num_experts / experts_each) for offset in range(top_k)} for first in first_experts
    ]
    return sum(map(len, destinations)) / len(destinations)


FP8_TOKEN = 1 + 4 / 128
"""Bytes of one number of a token sent in fp8: 128 numbers share a scale of 4 bytes. Source: deepseek-ai/DeepEP README,
dispatch; DeepSeek-V3, arXiv:2412.19437, section 3.3.3, also for the formats of what is sent."""

_ROUTER_PASSES = 4
"""Arrays of one score per expert that the choice of experts touches: softmax reads and writes, top-k reads, the map is
written."""


class Experts:
    """Distribution of tokens and experts over ranks.

    Attributes:
        group: Expert parallel degree.
        split: Tensor parallel degree inside an expert.
        count: Experts on the rank.
        tokens: Tokens routed on the rank.
        copies: Token copies that the fullest rank sends: one for each expert of each token.
        gathered: Ranks inside an expert whose tokens are gathered; 1 without sequence parallelism.
        rows: Token copies that the experts of the rank process.
        inner: Inner width of an expert on the rank.
        width: Width of a token on its way to experts and back.
        working: Experts of the rank that have a token: all, except while few tokens are decoded at a time.
    """

    def __init__(self, share: Share) -> None:
        """Compute the distribution for a model with experts."""
        job, moe = share.job, share.job.model.moe
        assert moe is not None
        self.group = job.layout.ep
        self.split = job.layout.expert_tp
        self.count = ceil_div(moe.num_experts, self.group)
        self.tokens = share.split_tokens
        self.copies = round(self.tokens * moe.top_k * self._load_factor(share))
        self.gathered = self.split if share.is_sequence_parallel else 1
        self.rows = self.copies * self.gathered
        self.inner = ceil_div(job.model.ffn_hidden_size, self.split)
        self.width = job.model.expert_width
        self.working = self.count if share.cached is None else self._num_working()

    def _num_working(self) -> int:
        """Return the expected number of experts of the rank that random routing chooses."""
        return max(1, min(self.count, round(self.count * -math.expm1(-self.rows / self.count))))

    def _load_factor(self, share: Share) -> float:
        """Return the load of the fullest expert parallel rank over the mean.

        A capacity factor is the load if experts are padded to it, else the upper bound of the load. Without expert
        parallelism no rank has more than the mean.
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
    """Return the feed-forward block: norm, router, dispatch, experts, combine, shared experts, residual addition.

    Shared experts, which process every token, run after the others as a dense block without a norm.
    """
    assert share.job.model.moe is not None
    shared_inner = share.job.model.moe.shared_ffn_hidden_size
    spread = Experts(share)
    width, inner, rows = spread.width, spread.inner, spread.rows
    down, up = _latent_projections(share)
    return join(
        (
            norm(share, is_quantized_output=False),
            _router(share, spread),
            *down,
            _dispatch(share, spread),
            _grouped_linear(share, spread, (inner * num_up_projections(share), width)),
            activation(share, rows, inner, _kept_element(share)),
            _grouped_linear(share, spread, (width, inner)),
            _combine(share, spread),
            *up,
            *(projections(share, shared_inner) if shared_inner else ()),
            residual(share),
        )
    )


def _latent_projections(share: Share) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Return the projections of tokens to the latent width, before dispatch, and back from it, after combining.

    Source:
        NVIDIA Nemotron 3, arXiv:2512.20856, section 2.2 (LatentMoE); NVIDIA/Megatron-LM --moe-latent-size, whose
        projections every tensor parallel rank holds whole.
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
    top_k = streaming("moe", "router", _ROUTER_PASSES * tokens * num_experts * FP32_BYTES)
    weight_gradient = (gemm((num_experts, width, tokens), "weight", precision, elements),)
    return Part(
        (gemm((tokens, num_experts, width), "forward", precision, elements), top_k),
        (top_k, gemm((tokens, width, num_experts), "backward", precision, elements)),
        () if share.has_adapters else weight_gradient,
        float(tokens * (width * share.element + 2 * num_experts * FP32_BYTES)),
        Weights(shared=float(num_experts * width)),
    )


def _kept_element(share: Share) -> float:
    """Return the bytes of one number that the activation inside experts keeps."""
    if share.is_quantized and "expert_activation" in share.software.saves_fp8:
        return 1 + share.recipe.scale_bytes
    return share.element


def _exchange(share: Share, spread: Experts) -> tuple[Operations, Operations]:
    """Return the communication that sends tokens to experts, and that which returns results.

    A gather on the way there is a reduce-scatter on the way back. Gradients of results travel to the experts as tokens
    do, in fp8 if those are; the way back is in 16 bits.
    """
    num_bytes = spread.copies * spread.width * share.element
    to_experts: Operations = ()
    from_experts: Operations = ()
    if spread.group > 1:
        is_overlapped, is_fp8 = "ep" in share.job.overlap, share.software.dispatch_precision == "fp8"
        dispatched = num_bytes * FP8_TOKEN / share.element if is_fp8 else num_bytes
        to_experts = (communication("all_to_all", "ep", dispatched, is_overlapped),)
        from_experts = (communication("all_to_all", "ep", num_bytes, is_overlapped),)
    if spread.gathered > 1:
        to_experts = (*to_experts, communication("all_gather", "etp", num_bytes * spread.gathered))
        from_experts = (communication("reduce_scatter", "etp", num_bytes * spread.gathered), *from_experts)
    return to_experts, from_experts


def _dispatch(share: Share, spread: Experts) -> Part:
    """Return the dispatch of tokens to experts: one copy per expert, the exchange, sorting by expert."""
    to_experts, from_experts = _exchange(share, spread)
    token_side, expert_side = _permutations(share, spread, "permute")
    return Part((*token_side, *to_experts, *expert_side), (*expert_side, *from_experts, *token_side))


def _permutations(share: Share, spread: Experts, kind: str) -> tuple[Operations, Operations]:
    """Return the kernels that copy and sort tokens on the ranks of the tokens, and those on the ranks of the experts.

    Copies are made before the exchange and sorted by expert after it. If a token is sent once per node, both happen on
    arrival.
    """
    token_bytes = spread.width * share.element
    if spread.group == 1 or share.software.dispatch != "once_per_node":
        copy = streaming("moe", kind, (spread.tokens + spread.copies) * token_bytes)
        is_sorted = (spread.group > 1 or spread.gathered > 1) and spread.count > 1
        return (copy,), (streaming("moe", "sort", 2 * spread.rows * token_bytes),) if is_sorted else ()
    arrived = spread.rows * share_sent_once(share.job, spread.group)
    return (), (streaming("moe", kind, (arrived + spread.rows) * token_bytes),)


def _combine(share: Share, spread: Experts) -> Part:
    """Return the combination of results: sorting, the exchange, and the weighted sum over a token's experts.

    Without sequence parallelism every tensor parallel rank holds all tokens and a part of each expert. Results are then
    reduced over the ranks, as in a dense block.
    """
    to_experts, from_experts = _exchange(share, spread)
    token_side, expert_side = _permutations(share, spread, "unpermute")
    token_bytes = spread.width * share.element
    reductions: Operations = ()
    if share.tp > 1 and not share.is_sequence_parallel and spread.split > 1:
        reductions = (communication("all_reduce", "tp", spread.tokens * token_bytes),)
    return Part(
        (*expert_side, *from_experts, *token_side, *reductions),
        (*reductions, *token_side, *to_experts, *expert_side),
        # The gradient of the router's weights needs the results that they multiply.
        saved=float(spread.copies * token_bytes) if share.software.weighs_results else 0.0,
    )


def _grouped_linear(share: Share, spread: Experts, shape: tuple[int, int]) -> Part:
    """Return one linear layer of all experts on the rank, as a grouped GEMM.

    Args:
        share: Share of the rank.
        spread: Distribution of tokens and experts.
        shape: Output and input width of an expert on the rank.
    """
    outputs, inputs = shape
    rows, count = ceil_div(spread.rows, spread.working), spread.working
    casts, gradient_casts = _casts(share, spread.rows, inputs, outputs)
    weight_gradient = _grouped_gemm(share, "weight", (count, outputs, inputs, rows), 2 * share.gradient_element)
    bias = _bias_parameters(share, spread, outputs)
    return Part(
        (*casts, _grouped_gemm(share, "forward", (count, rows, outputs, inputs), share.element)),
        (*gradient_casts, _grouped_gemm(share, "backward", (count, rows, inputs, outputs), share.element)),
        () if share.has_adapters else (weight_gradient,),
        float(spread.rows * inputs * share.gemm_element),
        Weights(experts=spread.count * (inputs * outputs + bias)),
    )


def _grouped_gemm(share: Share, kind: str, shape: tuple[int, int, int, int], output_element: int) -> Kernel:
    """Return one grouped GEMM.

    Args:
        share: Share of the rank.
        kind: forward, backward (input gradient) or weight (weight gradient).
        shape: Number of groups, m per group, n, k.
        output_element: Bytes read and written per number of the output.
    """
    groups, m, n, k = shape
    flops = float(FLOPS_PER_MAC * groups * m * n * k)
    num_bytes = groups * (share.gemm_element * (m * k + k * n) + output_element * m * n)
    return Kernel("gemm", _KINDS_OF_GROUPED[kind], flops, float(num_bytes), shape, share.gemm_precision)


_KINDS_OF_GROUPED = {"forward": "grouped", "backward": "grouped_backward", "weight": "grouped_weight"}


def _casts(share: Share, rows: int, inputs: int, outputs: int) -> tuple[Operations, Operations]:
    """Return the casts of the inputs and of the output gradients of a grouped GEMM, each with its transpose."""
    if not share.is_quantized:
        return (), ()
    return cast(share, rows * inputs, with_transpose=True), cast(share, rows * outputs, with_transpose=True)


def _bias_parameters(share: Share, spread: Experts, outputs: int) -> float:
    """Return the bias parameters of an expert on the rank; ranks of an expert share the bias of its down projection."""
    if not share.job.model.add_bias:
        return 0.0
    return outputs / spread.split if outputs == spread.width else float(outputs)
