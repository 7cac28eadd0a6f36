"""Colours of the zoomable timeline, those of the figures where these have one: on light ground and on dark."""

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
_OTHER = "#868d98"

_ON_DARK = {style.BLACK: "#f2f2f2", style.BROWN: "#b5824f", style.BLUE: "#2b8fcc"}
"""What would be hard to see on dark ground."""


def colours(lane: str, label: str) -> tuple[str, str]:
    """Return a label's colour on light ground, and on dark."""
    plain = _LANES.get(lane, {}).get(label, _OTHER)
    return plain, _ON_DARK.get(plain, plain)
