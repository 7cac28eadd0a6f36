"""Stacked bars of kernel seconds by part, in a grid of models and clusters."""

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
_CUT = 1.05
"""Bars beyond so many times the highest other one end there, to a scale of their own."""

PUBLISHED = Patch(
    facecolor="white", edgecolor=marks.BLACK, linewidth=0.8, label="published (computation not divided)"
)  # fmt: skip


def mark_of(part: str) -> marks.Mark:
    """Return how a part looks."""
    special = {
        shares.OTHER_COMM: marks.COMMUNICATION["other"],
        shares.OVERLAPPED: marks.OVERLAPPED,
        "compute": marks.STEP_PARTS["compute"],
    }
    if part in special:
        return special[part]
    return marks.COMMUNICATION[part] if part in shares.KINDS else marks.KERNEL_CLASSES[part]


def grid(groups: Sequence[DataFrame]) -> list[list[DataFrame]]:
    """Return groups of points, which have one model and cluster each, in rows by cluster, at most four in one."""
    places: dict[str, list[DataFrame]] = {}
    for found in groups:
        places.setdefault(str(found["place"].iloc[0]), []).append(found)
    return [row[at : at + MOST_COLUMNS] for row in places.values() for at in range(0, len(row), MOST_COLUMNS)]


def new_page(rows: Sequence[Sequence[DataFrame]], answer: style.Answer, note: str, row_in: float = 2.1) -> style.Page:
    """Return a page with a panel for each group of points, its title the model and, of several, the cluster."""
    cols = max(len(row) for row in rows)
    widths = [max(len_of(row[col]) for row in rows if col < len(row)) for col in range(cols)]
    points = [found for row in rows for found in row]
    is_wide = cols > 1 or widths[0] > 8
    page = style.new_page(
        answer, concat(points, ignore_index=True), len(rows), cols, style.PAGE if is_wide else style.COLUMN,
        min(style.TALLEST, 1.5 + row_in * len(rows)), note, width_ratios=widths,
    )  # fmt: skip
    places = {str(found["place"].iloc[0]) for found in points}
    for row, axes_of_row in zip(rows, page.axes, strict=True):
        for axes in axes_of_row[len(row) :]:
            axes.set_axis_off()
    for number, row in enumerate(rows):
        models = [str(found["group"].iloc[0]).split(" on ")[0] for found in row]
        page.head([(model, place_of(row[0]) if len(places) > 1 else "") for model in models], number)
    return page


def place_of(found: DataFrame) -> str:
    """Return where a group was run, without what the stamp says."""
    return str(found["place"].iloc[0]).removesuffix(", simulated")


def len_of(found: DataFrame) -> int:
    """Return how wide the panel of a group is, in bars: a title needs two."""
    return max(int(found["layout"].nunique()), 3)


def limit_of(totals: Iterable[float]) -> float:
    """Return the highest bar that is no outlier: at most `drawing.OUTLIER` times the median of three or more."""
    known = sorted(value for value in totals if math.isfinite(value) and value > 0)
    if not known:
        return 1.0
    most = drawing.OUTLIER * statistics.median_low(known) if len(known) > 2 else math.inf
    return max(value for value in known if value <= most)


def draw_stack(
    axes: Axes,
    at: float,
    width: float,
    seconds: Mapping[str, float],
    limit: float = math.inf,
    is_published: bool = False,
) -> bool:
    """Draw one bar of parts, in their order, and return whether it is on the scale of the axis.

    A bar beyond `limit` is drawn to a scale of its own, so that its parts are right among themselves: it ends where the
    highest other one does, has a break, and its number stands above.

    Args:
        axes: Where.
        at: Middle of the bar.
        width: Its width.
        seconds: Height of each part.
        limit: Highest bar that is drawn to the scale of the axis.
        is_published: Whether it gets the black edge of published bars.
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
    """Draw a gap with slanted edges across a bar at half its height: it is not to the scale of the axis."""
    ends, rise, gap = [at - 0.58 * width, at + 0.58 * width], 0.06 * height, 0.05 * height
    low = [0.5 * height - gap - rise, 0.5 * height - gap + rise]
    high = [value + 2 * gap for value in low]
    axes.fill_between(ends, low, high, color="white", linewidth=0, zorder=3)
    for edge in (low, high):
        axes.plot(ends, edge, color=marks.BLACK, linewidth=0.8, zorder=3.1)


def say_why_empty(axes: Axes, at: float, status: str | None, absent: str) -> None:
    """Write at the foot of a bar's place what became of its point."""
    text = absent if status == Status.OK else style.word(status)
    axes.text(
        at, 0.03, text, transform=axes.get_xaxis_transform(), ha="center", va="bottom", rotation=90,
        fontsize=style.TEXT_PT, color=marks.GREY,
    )  # fmt: skip


def finish_axes(axes: Axes, names: Sequence[str], totals: Iterable[float], highest: float = 0.0) -> float:
    """Name the bars of a panel, end its axis above the highest bar that is no outlier, and return that bar's height.

    Args:
        axes: The panel.
        names: Names of the bars.
        totals: Heights of the bars.
        highest: What has to be on the axis besides, such as the end of an interval.
    """
    values = [value for value in totals if value > 0]
    limit = limit_of(values)
    has_outlier = any(value > limit * _CUT for value in values)
    drawing.name_bars(axes, names)
    axes.locator_params(axis="y", nbins=5)
    axes.set_ylim(0, max(limit * (1.6 if has_outlier else 1.18), highest * 1.18))
    return limit


def legend_of(parts: Iterable[str]) -> list[Artist]:
    """Return what a legend shows of parts, in their order."""
    found: list[Artist] = []
    for part in shares.in_order(list(parts)):
        mark = mark_of(part)
        if part != "compute":
            found.append(
                Patch(facecolor=mark.colour, hatch=mark.hatch, edgecolor="white", linewidth=0, label=mark.name)
            )
    return found
