"""Feed-forward block of one layer: dense here, of experts in `experts`."""

from triplepoint.simulate.work.layer_parts import Part, Share, ceil_div, join, streaming
from triplepoint.simulate.work.linear import Linear, linear, norm, residual


def feed_forward(share: Share) -> Part:
    """Return the dense feed-forward block: norm, up (and gate), activation, down, residual add.

    Beside attention it may have its norm, and then its input, in common with it.
    """
    model = share.job.model
    is_shared = model.parallel_norms == 1
    own = () if is_shared else (norm(share, is_quantized_output=True),)
    return join((*own, *gemms(share, model.dense_ffn_hidden_size, is_shared), residual(share)))


def gemms(share: Share, inner_width: int, is_shared: bool = False) -> tuple[Part, ...]:
    """Return up (and gate), activation and down of a given inner width, over all tensor parallel ranks.

    Args:
        share: What the rank has.
        inner_width: Over all tensor parallel ranks.
        is_shared: Whether the input is that of attention too, which brings it together and keeps it.
    """
    model = share.job.model
    inner = ceil_div(inner_width, share.tp)
    width = inner * gates(share)
    kept = {"keeps_input": not is_shared, "is_beside": is_shared}
    up = Linear(model.hidden_size, width, "column", model.add_bias, name="linear_fc1", **kept)
    down = Linear(inner, model.hidden_size, "row", model.add_bias, name="linear_fc2")
    return linear(share, up), activation(share, share.tokens, inner), linear(share, down)


def gates(share: Share) -> int:
    """Return how many times the inner width the first GEMM gives: two with a gate."""
    return 2 if share.job.model.activation == "swiglu" else 1


def activation(share: Share, rows: int, inner: int, kept_element: float | None = None) -> Part:
    """Return the activation of `rows` tokens, its input kept; where kernels are not fused each is one more pass.

    Fused: forward reads the projections and writes one array, backward reads both and the gradient and writes as many
    as it read projections. Not fused: with a gate, silu (read, write) and multiply (two reads, a write), in backward
    two GEMMs and silu's own; the result of silu is kept too. `kept_element` is bytes of a number of what is kept, those
    of an activation if not given.
    """
    one, num_inputs = rows * inner * share.element, gates(share)
    is_fused = share.software.fuses_activation
    passes = {(1, True): (2, 3), (2, True): (3, 5), (1, False): (2, 3), (2, False): (5, 9)}
    forward, backward = passes[num_inputs, is_fused]
    name = share.job.model.activation
    kept = num_inputs + (num_inputs == 2 and not is_fused)
    return Part(
        (streaming("elementwise", name, forward * one),),
        (streaming("elementwise", name, backward * one),),
        (),
        float(kept * rows * inner * (kept_element or share.element)),
    )
