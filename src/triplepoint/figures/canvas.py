"""Figure page measured in inches from its top left corner, so that what is drawn keeps its size."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from pandas import DataFrame

from triplepoint.figures import style

POINTS_PER_INCH = 72
HEAD_IN = 0.28
"""Height of the stamp line on top of every figure. Unit: inch."""
MARGIN_IN = 0.05
"""Free at every edge. Unit: inch."""


@functools.cache
def text_width_in(text: str, size_pt: float, weight: str = "normal") -> float:
    """Return the width of one line of text. Unit: inch."""
    if not text.strip():
        return 0.0
    path = TextPath((0, 0), text, size=size_pt, prop=FontProperties(family="DejaVu Sans", weight=weight), usetex=False)
    # Outlines have vertices where they reach farthest: their exact extent is the same, at hundreds of times the cost.
    return float(path.vertices[:, 0].max()) / POINTS_PER_INCH


def shortened(text: str, width_in: float, size_pt: float) -> str:
    """Return `text`, with an ellipsis in place of the end that does not fit `width_in`."""
    if text_width_in(text, size_pt) <= width_in:
        return text
    while text and text_width_in(text + "…", size_pt) > width_in:
        text = text[:-1]
    return text.rstrip() + "…"


def wrapped(text: str, width_in: float, size_pt: float) -> list[str]:
    """Return `text` in lines no wider than `width_in`; a word too long for a line is shortened."""
    lines = [""]
    for part in text.split():
        longer = f"{lines[-1]} {part}".strip()
        if text_width_in(longer, size_pt) <= width_in:
            lines[-1] = longer
        else:
            lines.append(shortened(part, width_in, size_pt))
    return [line for line in lines if line]


@dataclass(frozen=True)
class Canvas:
    """A figure whose places are given in inches from the top left corner."""

    figure: Figure
    width_in: float
    height_in: float

    @classmethod
    def make(cls, width_in: float, height_in: float) -> "Canvas":
        """Return an empty page."""
        return cls(Figure(figsize=(width_in, height_in)), width_in, height_in)

    def axes(self, left_in: float, top_in: float, width_in: float, height_in: float) -> Axes:
        """Return axes in a rectangle given by its top left corner and size. Unit: inch."""
        bottom = 1 - (top_in + height_in) / self.height_in
        return self.figure.add_axes(
            (left_in / self.width_in, bottom, width_in / self.width_in, height_in / self.height_in)
        )

    def text(self, left_in: float, top_in: float, text: str, **how: Any) -> None:
        """Write text with its top left corner (or as `ha` and `va` say) at a place. Unit: inch."""
        given: dict[str, Any] = {"ha": "left", "va": "top", "fontsize": style.TEXT_PT} | how
        self.figure.text(left_in / self.width_in, 1 - top_in / self.height_in, text, **given)

    def stamp(self, points: DataFrame, origin: str | None = None) -> None:
        """Write on the face of the figure whether it was measured or simulated, and what made the numbers.

        Args:
            points: Those that are drawn, and no others.
            origin: Where the numbers are from; None for what the points say.
        """
        origin = (origin or style.origin(points)).upper()
        is_simulated = "SIMULATED" in origin
        size = style.TEXT_PT + 1 if is_simulated else style.SMALL_PT
        box = {
            "boxstyle": "square,pad=0.25",
            "facecolor": style.VERMILION if is_simulated else "white",
            "edgecolor": style.VERMILION if is_simulated else style.GREY,
            "linewidth": 0.6,
        }
        colour = "white" if is_simulated else style.GREY
        middle_in = HEAD_IN / 2 + 0.01
        left_in = MARGIN_IN + 0.04
        self.text(left_in, middle_in, origin, va="center", fontsize=size, weight="bold", color=colour, bbox=box)
        after_in = left_in + text_width_in(origin, size, "bold") + 0.12
        line = shortened(style.provenance(points), self.width_in - after_in - MARGIN_IN, style.SMALL_PT)
        self.text(after_in, middle_in, line, va="center", fontsize=style.SMALL_PT, color=style.GREY)


def split_in_columns(heights_in: Sequence[float], limit_in: float) -> list[list[int]]:
    """Return the numbers of blocks in each column: one column while they fit, else two of about the same height.

    Args:
        heights_in: Height of each block, in order. Unit: inch.
        limit_in: Height up to which one column is used. Unit: inch.
    """
    numbers = list(range(len(heights_in)))
    if sum(heights_in) <= limit_in or len(numbers) < 2:
        return [numbers]
    cut = min(numbers[1:], key=lambda at: max(sum(heights_in[:at]), sum(heights_in[at:])))
    return [numbers[:cut], numbers[cut:]]
