"""A block of attention and feed-forward network whose weights several layers share (Zamba2)."""

from dataclasses import replace

from triplepoint.config.model import LayerKind
from triplepoint.simulate.work.cores import core_of, positions
from triplepoint.simulate.work.feed_forward import num_up_projections, projections
from triplepoint.simulate.work.layer_parts import Part, Share, Weights, ceil_div, join, streaming
from triplepoint.simulate.work.linear import Linear, linear, norm, residual


def shared_block(share: Share, kind: LayerKind) -> Part:
    """Return the shared block of one layer: concatenated inputs, attention, feed-forward network, own projections.

    Weights that an earlier layer has counted run and have gradients, but are not counted again.

    Source:
        Zamba2, arXiv:2411.15242, section II; huggingface/transformers models/zamba2, Zamba2AttentionDecoderLayer.
    """
    model, block = share.job.model, share.job.model.shared_block
    assert block is not None
    width, inner = model.hidden_size, ceil_div(model.ffn_hidden_size, share.tp) * num_up_projections(share)
    feed_forward = (norm(share, is_quantized_output=True), *projections(share, model.ffn_hidden_size))
    shared = join((*_attention(share), *feed_forward))
    if kind.reuses_weights:
        shared = replace(shared, weights=Weights())
    own_projections = (
        linear(share, Linear(width, block.adapter_rank, "none", keeps_input=False)),
        linear(share, Linear(block.adapter_rank, inner, "column")),
        linear(share, Linear(width, width, "none")),
    )
    return join((_concatenated_inputs(share), shared, *own_projections, residual(share)))


def _concatenated_inputs(share: Share) -> Part:
    """Return the concatenation of the layer's input and the embedding; the backward pass splits the gradient."""
    num_bytes = 4 * share.split_tokens * share.job.model.hidden_size * share.element
    return Part((streaming("elementwise", "pack", num_bytes),), (streaming("elementwise", "pack", num_bytes),))


def _attention(share: Share) -> tuple[Part, ...]:
    """Return attention over the concatenated input, twice as wide as the model."""
    model, core = share.job.model, core_of(share, None)
    input_width = 2 * model.hidden_size
    qkv = Linear(input_width, (core.heads + 2 * core.groups) * core.size, "column")
    output = Linear(core.heads * core.value_size, model.hidden_size, "row")
    return (
        norm(share, is_quantized_output=True, width=input_width),
        linear(share, qkv),
        positions(share, core),
        core.part(),
        linear(share, output),
    )
