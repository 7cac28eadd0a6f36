"""Dense feed-forward block of one layer; `experts` has that of mixture-of-experts layers."""

from triplepoint.simulate.work.layer_parts import Part, Share, ceil_div, join, streaming
from triplepoint.simulate.work.linear import Linear, linear, norm, residual


def feed_forward(share: Share) -> Part:
    """Return the dense feed-forward block: norm, up (and gate) projection, activation, down projection, residual.

    A block beside attention may share the norm, and so the input, with attention.
    """
    model = share.job.model
    shares_input = model.parallel_norms == 1
    norms = () if shares_input else (norm(share, is_quantized_output=True),)
    return join((*norms, *projections(share, model.dense_ffn_hidden_size, shares_input), residual(share)))


def projections(share: Share, inner_width: int, shares_input: bool = False) -> tuple[Part, ...]:
    """Return up (and gate) projection, activation and down projection.

    Args:
        share: Share of the rank.
        inner_width: Inner width over all tensor parallel ranks.
        shares_input: Whether the input is that of attention too, which gathers and keeps it.
    """
    model = share.job.model
    inner = ceil_div(inner_width, share.tp)
    up = Linear(
        model.hidden_size,
        inner * num_up_projections(share),
        "column",
        model.add_bias,
        name="linear_fc1",
        keeps_input=not shares_input,
        is_beside=shares_input,
    )
    down = Linear(inner, model.hidden_size, "row", model.add_bias, name="linear_fc2")
    return linear(share, up), activation(share, share.tokens, inner), linear(share, down)


def num_up_projections(share: Share) -> int:
    """Return the number of projections to the inner width: two with a gate, else one."""
    return 2 if share.job.model.activation == "swiglu" else 1


def activation(share: Share, rows: int, inner: int, kept_element: float | None = None) -> Part:
    """Return the activation function, which keeps its input.

    Fused: the forward pass reads the projections and writes one array. The backward pass reads both and the gradient,
    and writes one array per projection. Not fused and gated: silu (read, write) and multiply (two reads, a write); the
    backward pass has two multiplications and the gradient of silu, whose result is kept too.

    Args:
        share: Share of the rank.
        rows: Tokens.
        inner: Inner width on the rank.
        kept_element: Bytes of one kept number; None for those of an activation.
    """
    array_bytes, num_inputs = rows * inner * share.element, num_up_projections(share)
    is_fused = share.software.fuses_activation
    passes = {(1, True): (2, 3), (2, True): (3, 5), (1, False): (2, 3), (2, False): (5, 9)}
    forward, backward = passes[num_inputs, is_fused]
    name = share.job.model.activation
    num_kept = num_inputs + (num_inputs == 2 and not is_fused)
    return Part(
        (streaming("elementwise", name, forward * array_bytes),),
        (streaming("elementwise", name, backward * array_bytes),),
        saved=float(num_kept * rows * inner * (kept_element or share.element)),
    )
