"""The page in inches that figures not yet drawn by `style` stand on; it goes with the last of them."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from pandas import DataFrame

from triplepoint.figures.marks import (
    BLACK,
    BLUE,
    BROWN,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    TAN,
    VERMILION,
    YELLOW,
)
from triplepoint.figures.style import NOT_RUN, absent, origin, provenance, word

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Block = TypeVar("Block")

__all__ = [
    "BLACK", "BLUE", "BROWN", "FAINT", "GREEN", "GREY", "NOT_RUN", "ORANGE", "PALE", "PURPLE", "SKY", "TAN",
    "VERMILION", "YELLOW", "absent", "origin", "provenance", "word",
]  # fmt: skip

COLUMN_WIDTH_IN = 3.35
"""One column of a two-column page. Unit: inch."""
PAGE_WIDTH_IN = 7.0
"""Both columns. Unit: inch."""
TEXT_PT = 7.0
"""Labels. Unit: point."""
SMALL_PT = 5.8
"""Ticks and settings. Unit: point."""

LINES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
"""Colours of lines in order; yellow is too pale on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Markers in the same order, so that no line is told by colour alone."""

COMMS = {
    "all_reduce": VERMILION,
    "all_gather": ORANGE,
    "reduce_scatter": PURPLE,
    "all_to_all": BLACK,
    "send": BROWN,
    "recv": TAN,
    "send_recv": BROWN,
}
"""Colour of each kind of communication, the same in every figure; other kinds are grey."""

_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": TEXT_PT,
    "axes.labelsize": TEXT_PT,
    "axes.titlesize": TEXT_PT,
    "xtick.labelsize": SMALL_PT,
    "ytick.labelsize": SMALL_PT,
    "legend.fontsize": SMALL_PT,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.0,
    "hatch.linewidth": 0.4,
    "legend.frameon": False,
    "xtick.major.size": 2,
    "ytick.major.size": 2,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.pad": 1.5,
    "ytick.major.pad": 1.5,
    # Embedded as TrueType: publishers refuse Type 3 fonts.
    "pdf.fonttype": 42,
    "axes.unicode_minus": False,
    # A user's matplotlibrc must not change a figure.
    "text.usetex": False,
    "text.parse_math": False,
    "savefig.bbox": None,
    "savefig.facecolor": "white",
}


def styled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return `function` run under this style, with matplotlib's settings as they were afterwards."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_RC)
            return function(*args, **kwargs)

    return run


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
        given: dict[str, Any] = {"ha": "left", "va": "top", "fontsize": TEXT_PT} | how
        self.figure.text(left_in / self.width_in, 1 - top_in / self.height_in, text, **given)

    def stamp(self, points: DataFrame, of_numbers: str | None = None) -> None:
        """Write on the face of the figure whether it was measured or simulated, and what made the numbers.

        Args:
            points: Those that are drawn, and no others.
            of_numbers: Where the numbers are from; None for what the points say.
        """
        stamped = (of_numbers or origin(points)).upper()
        is_simulated = "SIMULATED" in stamped
        size = TEXT_PT + 1 if is_simulated else SMALL_PT
        box = {
            "boxstyle": "square,pad=0.25",
            "facecolor": VERMILION if is_simulated else "white",
            "edgecolor": VERMILION if is_simulated else GREY,
            "linewidth": 0.6,
        }
        colour = "white" if is_simulated else GREY
        middle_in = HEAD_IN / 2 + 0.01
        left_in = MARGIN_IN + 0.04
        self.text(left_in, middle_in, stamped, va="center", fontsize=size, weight="bold", color=colour, bbox=box)
        after_in = left_in + text_width_in(stamped, size, "bold") + 0.12
        line = shortened(provenance(points), self.width_in - after_in - MARGIN_IN, SMALL_PT)
        self.text(after_in, middle_in, line, va="center", fontsize=SMALL_PT, color=GREY)


@dataclass(frozen=True)
class Place(Generic[Block]):
    """Where the rows of a block stand on a page, one below the other. Unit: inch."""

    block: Block
    num_rows: int
    row_in: float
    """Height of a row."""
    left_in: float
    top_in: float
    width_in: float

    def axes(self, canvas: Canvas, start: float, end: float) -> Axes:
        """Return axes for the rows over a part of the width, 0-1; row 0 is on top at y = 0."""
        left_in, width_in = self.left_in + start * self.width_in, (end - start) * self.width_in
        axes = canvas.axes(left_in, self.top_in, width_in, self.row_in * self.num_rows)
        axes.set_ylim(self.num_rows - 0.5, -0.5)
        axes.set_yticks([])
        return axes


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
