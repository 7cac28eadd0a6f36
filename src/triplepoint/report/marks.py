"""Colours of phases, kernels and communication in the report."""

from triplepoint.figures import style

_PHASES = {
    "forward": style.SKY,
    "backward": style.BLUE,
    "backward_weight": "#4b6fb5",
    "optimizer": style.GREEN,
    "grad_sync": style.YELLOW,
}
_COMPUTE = {
    "gemm": style.BLUE,
    "attention": style.SKY,
    "norm": style.GREEN,
    "elementwise": style.YELLOW,
    "moe": style.PURPLE,
    "conv": "#4b6fb5",
    "optimizer": "#7ac7a8",
    "loss": style.ORANGE,
    "embedding": style.TAN,
}
_LANES = {"phase": _PHASES, "compute": _COMPUTE, "comm": style.COMMS}
OTHER = "#868d98"


def colour_of(lane: str, label: str) -> str | None:
    """Return the colour of a label in a lane; None where it has none of its own."""
    return _LANES.get(lane, {}).get(label)
