"""A block of attention and feed-forward network whose weights several layers share, on one rank."""

from dataclasses import replace

from triplepoint.config.model import LayerKind
from triplepoint.simulate.work.cores import core_of, positions
from triplepoint.simulate.work.feed_forward import gates, gemms
from triplepoint.simulate.work.layer_parts import Part, Share, Weights, ceil_div, join, streaming
from triplepoint.simulate.work.linear import Linear, linear, norm, residual


def shared_block(share: Share, kind: LayerKind) -> Part:
    """Return the block of one layer: two inputs side by side, attention, feed-forward network, a projection.

    Weights that an earlier layer has counted are run and have gradients, but are not counted again.

    Source:
        Zamba2, arXiv:2411.15242, section II; huggingface/transformers models/zamba2, Zamba2AttentionDecoderLayer.
    """
    model, block = share.job.model, share.job.model.shared_block
    assert block is not None
    width, inner = model.hidden_size, ceil_div(model.ffn_hidden_size, share.tp) * gates(share)
    common = join((*_attention(share), norm(share, is_quantized_output=True), *gemms(share, model.ffn_hidden_size)))
    if kind.reuses_weights:
        common = replace(common, weights=Weights())
    own = (
        linear(share, Linear(width, block.adapter_rank, "none", keeps_input=False)),
        linear(share, Linear(block.adapter_rank, inner, "column")),
        linear(share, Linear(width, width, "none")),
    )
    return join((_beside(share), common, *own, residual(share)))


def _beside(share: Share) -> Part:
    """Return the two inputs written side by side; gradients are taken apart again."""
    moved = 4 * share.split_tokens * share.job.model.hidden_size * share.element
    return Part((streaming("elementwise", "pack", moved),), (streaming("elementwise", "pack", moved),))


def _attention(share: Share) -> tuple[Part, ...]:
    model, core = share.job.model, core_of(share, None)
    both = 2 * model.hidden_size
    into = Linear(both, (core.heads + 2 * core.groups) * core.size, "column")
    out = Linear(core.heads * core.value_size, model.hidden_size, "row")
    return (
        norm(share, is_quantized_output=True, width=both),
        linear(share, into),
        positions(share, core),
        core.part(),
        linear(share, out),
    )
