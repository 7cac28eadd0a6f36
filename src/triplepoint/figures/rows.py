"""Charts with one row per layout or run, in titled blocks, one or two columns of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from pandas import DataFrame

from triplepoint.figures import old_page as style
from triplepoint.figures.old_page import HEAD_IN, MARGIN_IN, Canvas, shortened, split_in_columns, text_width_in, wrapped

ROW_IN = 0.17
_LINE_IN = 0.105
"""Height of a line of small text. Unit: inch."""
_TITLE_IN = 0.15
_AXIS_IN = 0.36
"""Below the rows: ticks, axis label, and the gap to the next block. Unit: inch."""
_LABEL_SHARE = 0.4
"""Largest part of a column that row labels may take."""
_COLUMN_LIMIT_IN = 5.5
"""Height up to which one column is used. Unit: inch."""
_LEGEND_LINE_IN = 0.125

Part = tuple[str, str, str]
"""Label, colour and hatch of one part of a bar."""


@dataclass(frozen=True)
class Block:
    """Rows that may be compared with each other, on axes of their own."""

    title: str
    subtitle: str
    rows: Sequence[tuple[str, DataFrame]]
    """Label of each row, and its points."""

    def lines(self, width_in: float) -> list[str]:
        """Return the subtitle in lines that fit."""
        return wrapped(self.subtitle, width_in, style.SMALL_PT)

    def height_in(self, width_in: float) -> float:
        """Return the height with title, rows and axis. Unit: inch."""
        return _TITLE_IN + _LINE_IN * len(self.lines(width_in)) + 0.04 + ROW_IN * len(self.rows) + _AXIS_IN


def place_blocks(
    blocks: Sequence[Block], points: DataFrame, legend: Sequence[Part], is_wide: bool = False
) -> tuple[Canvas, list[style.Place[Block]]]:
    """Return a page with everything but the axes, and the place left for each block's axes.

    Args:
        blocks: What to draw, in order.
        points: Points in them, for the stamp.
        legend: Parts of the bars.
        is_wide: Whether each block has the page's whole width.
    """
    inner_in = (style.PAGE_WIDTH_IN if is_wide else style.COLUMN_WIDTH_IN) - 2 * MARGIN_IN
    heights = [block.height_in(inner_in) for block in blocks]
    columns = [list(range(len(blocks)))] if is_wide else split_in_columns(heights, _COLUMN_LIMIT_IN)
    width_in = style.COLUMN_WIDTH_IN if len(columns) == 1 and not is_wide else style.PAGE_WIDTH_IN
    tallest = max(sum(heights[number] for number in column) for column in columns)
    legend_columns = (3 if len(legend) > 4 else 2) * (2 if is_wide else len(columns))
    legend_in = _LEGEND_LINE_IN * -(-len(legend) // legend_columns)
    canvas = Canvas.make(width_in, HEAD_IN + tallest + legend_in + MARGIN_IN)
    canvas.stamp(points)
    _write_legend(canvas, legend, legend_columns)
    column_in = (width_in - (len(columns) + 1) * MARGIN_IN) / len(columns)
    places = []
    for number, column in enumerate(columns):
        left_in, top_in = MARGIN_IN + number * (column_in + MARGIN_IN), HEAD_IN
        names = [label for index in column for label, _ in blocks[index].rows]
        label_in = min(max(text_width_in(name, style.TEXT_PT) for name in names), column_in * _LABEL_SHARE)
        for index in column:
            top_rows_in = _write_block(canvas, blocks[index], (left_in, top_in, inner_in), label_in)
            used_in, num_rows = label_in + 0.06, len(blocks[index].rows)
            width_rows_in = column_in - used_in - 0.08
            places.append(style.Place(blocks[index], num_rows, ROW_IN, left_in + used_in, top_rows_in, width_rows_in))
            top_in += heights[index]
    return canvas, places


def _write_legend(canvas: Canvas, legend: Sequence[Part], ncols: int) -> None:
    canvas.figure.legend(
        [Patch(facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0) for _, colour, hatch in legend],
        [label for label, _, _ in legend], ncols=ncols, loc="lower center", borderpad=0, borderaxespad=0,
        bbox_to_anchor=(0.5, MARGIN_IN / canvas.height_in), handlelength=1.4, columnspacing=1.0, labelspacing=0.3,
        handletextpad=0.4,
    )  # fmt: skip


def _write_block(canvas: Canvas, block: Block, place: tuple[float, float, float], label_in: float) -> float:
    """Write title and labels of a block at left, top and width; return where its first row begins. Unit: inch."""
    left_in, top_in, width_in = place
    canvas.text(left_in, top_in + 0.02, shortened(block.title, width_in, style.TEXT_PT + 0.8), weight="bold")
    top_in += _TITLE_IN
    for line in block.lines(width_in):
        canvas.text(left_in, top_in, line, fontsize=style.SMALL_PT, color=style.GREY)
        top_in += _LINE_IN
    top_in += 0.04
    for number, (label, _) in enumerate(block.rows):
        text = shortened(label, label_in + 0.01, style.TEXT_PT)
        canvas.text(left_in + label_in, top_in + (number + 0.5) * ROW_IN, text, ha="right", va="center")
    return top_in


def row_axes(canvas: Canvas, place: style.Place[Block], start: float, end: float) -> Axes:
    """Return axes for a block's rows, row 0 on top at y = 0.

    Args:
        canvas: The page.
        place: The block's place.
        start: Where the axes begin, as a part of the place's width, 0-1.
        end: Where they end, 0-1.
    """
    axes = place.axes(canvas, start, end)
    axes.grid(axis="x")
    return axes


def mark_slot(axes: Axes, number: int, text: str) -> None:
    """Hatch one row and write in its place why there is nothing."""
    axes.add_patch(
        Rectangle(
            (0, number - 0.38), 1, 0.76, transform=axes.get_yaxis_transform(), facecolor=style.FAINT,
            edgecolor=style.PALE, hatch="//////", linewidth=0,
        )
    )  # fmt: skip
    if text:
        axes.text(
            0.5, number, text, transform=axes.get_yaxis_transform(), ha="center", va="center", fontsize=style.SMALL_PT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
