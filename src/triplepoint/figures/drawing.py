"""Drawing in a panel: names of bars, limits, intervals, published values, outliers, texts, and entries of legends."""

import math
import re
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import blended_transform_factory
from pandas import DataFrame

from triplepoint.figures import marks
from triplepoint.figures.style import BAR_NAMES, TEXT_PT, absent_text, status_text
from triplepoint.status import Status

_LIMIT: dict[str, Any] = {"color": marks.LIMIT.colour, "linewidth": 0.7, "linestyle": (0, (4, 2))}
"""Line style of limits."""


def name_bars(axes: Axes, names: Sequence[str]) -> None:
    """Name bars by their layouts, one degree per line. `Page.finish` rotates the names if they overlap."""
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_xticks(range(len(names)), [re.sub(r"[· ]", "\n", name) for name in names])
    axes.tick_params(axis="x", length=0)
    setattr(axes, BAR_NAMES, names)


def draw_limit(axes: Axes, value: float, name: str, vertical: bool = False) -> None:
    """Draw a limit as a line with its name, and extend the y axis to it.

    Args:
        axes: The panel.
        value: The limit in the unit of the axis; nothing is drawn for NaN.
        name: Text at the line, such as 'power limit 700 W'; '' for none.
        vertical: Whether the limit is one of x.
    """
    if not math.isfinite(value):
        return
    line = _LIMIT | {"zorder": 1.5}
    if vertical:
        axes.axvline(value, **line)
        transform = blended_transform_factory(axes.transData, axes.transAxes)
        axes.text(value, 0.98, f"{name} ", transform=transform, ha="right", va="top", rotation=90, fontsize=TEXT_PT)
        return
    axes.axhline(value, **line)
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, value + 0.16 * (value - low)))
    transform = blended_transform_factory(axes.transAxes, axes.transData)
    axes.text(0.99, value, name, transform=transform, ha="right", va="bottom", fontsize=TEXT_PT)


def limit_line(name: str) -> Artist:
    """Return the legend entry of limits."""
    return Line2D([], [], label=name, **_LIMIT)


def draw_published(axes: Axes, x: Sequence[float], y: Sequence[float]) -> Artist:
    """Draw published values as hollow diamonds, and return their legend entry."""
    lines = axes.plot(
        x, y, marks.ORIGINS["published"].marker, color=marks.BLACK, markerfacecolor="none", markersize=4.5,
        markeredgewidth=0.8, linestyle="none", label=marks.ORIGINS["published"].name, zorder=4,
    )  # fmt: skip
    return lines[0]


def draw_interval(axes: Axes, at: float, low: float, high: float, colour: str) -> None:
    """Draw an interval at x = `at` as a thin vertical line with caps; nothing if an end is NaN."""
    if math.isfinite(low) and math.isfinite(high):
        axes.plot([at, at], [low, high], color=colour, linewidth=0.8, marker="_", markersize=3, markeredgewidth=0.8)


OUTLIER = 4.0
"""Multiple of the median, of at least five values, above which a value is an outlier."""


def highest_shown(values: Iterable[float]) -> float:
    """Return the highest positive value that is no outlier; 1 without positive values."""
    positive = sorted(value for value in values if math.isfinite(value) and value > 0)
    if not positive:
        return 1.0
    threshold = OUTLIER * statistics.median(positive) if len(positive) >= 5 else math.inf
    return max(value for value in positive if value <= threshold)


def break_off(axes: Axes, at: float, value: float, limit: float, text: str) -> bool:
    """Mark a value above a limit with an arrow and its number at the top of the panel.

    Args:
        axes: The panel; its range stays the same.
        at: Position on the x axis.
        value: The value on the y axis.
        limit: Upper end of the values that are drawn to scale.
        text: The number as text.

    Returns:
        Whether the value is above the limit.
    """
    if not value > limit:
        return False
    transform = blended_transform_factory(axes.transData, axes.transAxes)
    arrow = {"arrowstyle": "->", "linewidth": 0.7, "color": marks.BLACK, "shrinkA": 0, "shrinkB": 0}
    axes.annotate(
        text, (at, 1.0), (at, 0.8), xycoords=transform, textcoords=transform, ha="center", va="top", rotation=90,
        fontsize=TEXT_PT, arrowprops=arrow, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
    )  # fmt: skip
    return True


def log_axis(axes: Axes) -> None:
    """Make the y axis logarithmic, with plain numbers at its ticks."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    name_decades(axes.yaxis, low, high)
    axes.set_ylim(low, high)


def name_decades(axis: Axis, low: float, high: float, steps: Sequence[int] = (1, 2, 5)) -> None:
    """Put ticks with plain numbers on a logarithmic axis.

    Args:
        axis: The axis.
        low: Lower end of its range.
        high: Upper end of its range.
        steps: Multiples of each power of ten that get a tick. If they give seven ticks or more, only powers of ten do.
    """
    for leading in (steps, (1,)):
        ticks = [step * 10.0**power for power in range(-9, 10) for step in leading]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) < 7:
            break
    axis.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def write_status(axes: Axes, at: float, rows: DataFrame) -> None:
    """Write in the place of a missing bar why it is missing.

    Args:
        axes: The panel.
        at: Position of the bar on the x axis.
        rows: Rows of the point. If it finished, the quantity was not measured or simulated.
    """
    status = rows["status"].iloc[0]
    write_upright(axes, at, status_text(status) if status != Status.OK else absent_text(rows))


def write_upright(axes: Axes, at: float, text: str) -> None:
    """Write a rotated grey text at the bottom of a panel, at x = `at`."""
    axes.text(
        at, 0.03, text, transform=axes.get_xaxis_transform(), ha="center", va="bottom", rotation=90, fontsize=TEXT_PT,
        color=marks.GREY,
    )  # fmt: skip


def write_absent(axes: Axes, points: DataFrame) -> None:
    """Write in a panel without values that they were not measured or simulated."""
    axes.set_yticks([])
    axes.text(0.5, 0.5, absent_text(points), transform=axes.transAxes, ha="center", va="center", fontsize=TEXT_PT)


def write_reason(axes: Axes, text: str) -> None:
    """Write in an empty panel why it is empty, and hide its axes."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, textwrap.fill(text, 24), transform=axes.transAxes, ha="center", va="center", fontsize=TEXT_PT)


def as_line(mark: marks.Mark, **properties: Any) -> Line2D:
    """Return the legend entry of a mark that is drawn as a line with markers."""
    return Line2D([], [], color=mark.colour, marker=mark.marker, label=mark.name, **properties)


def as_patch(mark: marks.Mark) -> Patch:
    """Return the legend entry of a mark that is drawn as an area."""
    return Patch(facecolor=mark.colour, hatch=mark.hatch, edgecolor="white", linewidth=0, label=mark.name)
