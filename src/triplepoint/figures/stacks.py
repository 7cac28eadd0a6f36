"""Stacked bars of kernel seconds by part, in a grid of panels by model and cluster."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from pandas import DataFrame, concat

from triplepoint.effects import shares
from triplepoint.figures import drawing, marks, style
from triplepoint.status import Status

MOST_COLUMNS = 4
"""Largest number of panels in a row."""
_CUT = 1.05
"""Multiple of the highest bar that is no outlier, at which higher bars are cut."""

PUBLISHED = Patch(
    facecolor="white", edgecolor=marks.BLACK, linewidth=0.8, label="published (computation not divided)"
)  # fmt: skip


def mark_of(part: str) -> marks.Mark:
    """Return the mark of a part."""
    special = {
        shares.OTHER_COMM: marks.COMMUNICATION["other"],
        shares.OVERLAPPED: marks.OVERLAPPED,
        "compute": marks.STEP_PARTS["compute"],
    }
    if part in special:
        return special[part]
    return marks.COMMUNICATION[part] if part in shares.KINDS else marks.KERNEL_CLASSES[part]


def grid(groups: Sequence[DataFrame]) -> list[list[DataFrame]]:
    """Return groups of points in rows of panels: a new row per cluster and after `MOST_COLUMNS` groups."""
    by_place: dict[str, list[DataFrame]] = {}
    for group in groups:
        by_place.setdefault(str(group["place"].iloc[0]), []).append(group)
    return [row[at : at + MOST_COLUMNS] for row in by_place.values() for at in range(0, len(row), MOST_COLUMNS)]


def new_page(rows: Sequence[Sequence[DataFrame]], answer: style.Answer, note: str, row_in: float = 2.1) -> style.Page:
    """Return a page with a panel per group of points, named by its model, and by its cluster if there are several."""
    cols = max(len(row) for row in rows)
    widths = [max(width_of(row[col]) for row in rows if col < len(row)) for col in range(cols)]
    points = [group for row in rows for group in row]
    is_wide = cols > 1 or widths[0] > 8
    page = style.new_page(
        answer, concat(points, ignore_index=True), len(rows), cols, style.PAGE if is_wide else style.COLUMN,
        min(style.TALLEST, 1.5 + row_in * len(rows)), note, width_ratios=widths,
    )  # fmt: skip
    places = {str(group["place"].iloc[0]) for group in points}
    for row, axes_of_row in zip(rows, page.axes, strict=True):
        for axes in axes_of_row[len(row) :]:
            axes.set_axis_off()
    for number, row in enumerate(rows):
        models = [str(group["group"].iloc[0]).split(" on ")[0] for group in row]
        page.head([(model, place_of(row[0]) if len(places) > 1 else "") for model in models], number)
    return page


def place_of(group: DataFrame) -> str:
    """Return the cluster and engine of a group, without 'simulated', which the stamp tells."""
    return str(group["place"].iloc[0]).removesuffix(", simulated")


def width_of(group: DataFrame) -> int:
    """Return the relative width of the panel of a group: its number of bars, at least three for the title."""
    return max(int(group["layout"].nunique()), 3)


def limit_of(totals: Iterable[float]) -> float:
    """Return the highest bar that is no outlier, which exceeds `drawing.OUTLIER` times the median of three or more."""
    positive = sorted(value for value in totals if math.isfinite(value) and value > 0)
    if not positive:
        return 1.0
    threshold = drawing.OUTLIER * statistics.median_low(positive) if len(positive) > 2 else math.inf
    return max(value for value in positive if value <= threshold)


def draw_stack(
    axes: Axes,
    at: float,
    width: float,
    seconds: Mapping[str, float],
    limit: float = math.inf,
    is_published: bool = False,
) -> bool:
    """Draw one stacked bar.

    A bar above `limit` is scaled down to the height of the highest other bar, with the right proportions of its parts.
    It gets a break, and its total is written above it.

    Args:
        axes: The panel.
        at: Position of the middle of the bar on the x axis.
        width: Width of the bar.
        seconds: Height of each part.
        limit: Height of the highest bar that is drawn to scale.
        is_published: Whether the bar gets the black edge of published values.

    Returns:
        Whether the bar is drawn to scale.
    """
    cut, total = limit * _CUT, sum(seconds.values())
    scale = cut / total if total > cut else 1.0
    bottom = 0.0
    for part in shares.in_order(list(seconds)):
        top = bottom + seconds[part] * scale
        mark = mark_of(part)
        axes.bar(at, top - bottom, width, bottom, color=mark.colour, hatch=mark.hatch, edgecolor="white", linewidth=0)
        bottom = top
    if is_published:
        axes.bar(at, bottom, width, fill=False, edgecolor=marks.BLACK, linewidth=0.7)
    if total <= cut:
        return True
    _draw_break(axes, at, width, cut)
    text = f" {total:.0f} ↑" if total >= 100 else f" {total:.3g} ↑"
    axes.text(at, cut, text, ha="center", va="bottom", rotation=90, fontsize=style.TEXT_PT)
    return False


def _draw_break(axes: Axes, at: float, width: float, height: float) -> None:
    """Draw a gap with slanted edges across a bar at half its height, which marks that it is not to scale."""
    ends, rise, gap = [at - 0.58 * width, at + 0.58 * width], 0.06 * height, 0.05 * height
    low = [0.5 * height - gap - rise, 0.5 * height - gap + rise]
    high = [value + 2 * gap for value in low]
    axes.fill_between(ends, low, high, color="white", linewidth=0, zorder=3)
    for edge in (low, high):
        axes.plot(ends, edge, color=marks.BLACK, linewidth=0.8, zorder=3.1)


def write_missing(axes: Axes, at: float, status: str | None) -> None:
    """Write in the place of a missing bar the status of its point, or that it has no trace."""
    drawing.write_upright(axes, at, "no trace" if status == Status.OK else style.status_text(status))


def finish_axes(axes: Axes, names: Sequence[str], totals: Iterable[float], highest: float = 0.0) -> float:
    """Name the bars of a panel and set the range of its y axis.

    Args:
        axes: The panel.
        names: Names of the bars.
        totals: Heights of the bars.
        highest: Another value that the axis has to include, such as the upper end of an interval.

    Returns:
        Height of the highest bar that is no outlier.
    """
    positive = [value for value in totals if value > 0]
    limit = limit_of(positive)
    has_outlier = any(value > limit * _CUT for value in positive)
    drawing.name_bars(axes, names)
    axes.locator_params(axis="y", nbins=5)
    axes.set_ylim(0, max(limit * (1.6 if has_outlier else 1.18), highest * 1.18))
    return limit


def legend_of(parts: Iterable[str]) -> list[Artist]:
    """Return the legend entries of parts in the order of a stack, without undivided computation."""
    return [drawing.as_patch(mark_of(part)) for part in shares.in_order(list(parts)) if part != "compute"]
