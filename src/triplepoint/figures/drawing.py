"""What figures draw in a panel besides their values: names of bars, limits, published values, outliers, words."""

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
from matplotlib.transforms import blended_transform_factory
from pandas import DataFrame

from triplepoint.figures import marks
from triplepoint.figures.style import BAR_NAMES, TEXT_PT, absent, word
from triplepoint.status import Status

_LIMIT: dict[str, Any] = {"color": marks.LIMIT.colour, "linewidth": 0.7, "linestyle": (0, (4, 2))}
"""How lines of limits look."""


def name_bars(axes: Axes, names: Sequence[str]) -> None:
    """Name bars by their layouts: degrees below one another, or upright where `Page.finish` finds no room for that."""
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_xticks(range(len(names)), [re.sub(r"[· ]", "\n", name) for name in names])
    axes.tick_params(axis="x", length=0)
    setattr(axes, BAR_NAMES, names)


def draw_limit(axes: Axes, value: float, name: str, vertical: bool = False) -> None:
    """Draw a limit as a line with its name along it, and let the axis reach it.

    Args:
        axes: Where.
        value: In the unit of the axis; nothing is drawn where it is not known.
        name: Such as 'power limit 700 W'; empty where a panel beside it says so.
        vertical: Whether it is a limit of x.
    """
    if not math.isfinite(value):
        return
    how = _LIMIT | {"zorder": 1.5}
    if vertical:
        axes.axvline(value, **how)
        place = blended_transform_factory(axes.transData, axes.transAxes)
        axes.text(value, 0.98, f"{name} ", transform=place, ha="right", va="top", rotation=90, fontsize=TEXT_PT)
        return
    axes.axhline(value, **how)
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, value + 0.16 * (value - low)))
    place = blended_transform_factory(axes.transAxes, axes.transData)
    axes.text(0.99, value, name, transform=place, ha="right", va="bottom", fontsize=TEXT_PT)


def limit_line(name: str) -> Artist:
    """Return what a legend shows of limits."""
    return Line2D([], [], label=name, **_LIMIT)


def draw_published(axes: Axes, x: Sequence[float], y: Sequence[float]) -> Artist:
    """Draw published values as hollow diamonds, and return what the legend shows of them."""
    drawn = axes.plot(
        x, y, marks.ORIGINS["published"].marker, color=marks.BLACK, markerfacecolor="none", markersize=4.5,
        markeredgewidth=0.8, linestyle="none", label=marks.ORIGINS["published"].name, zorder=4,
    )  # fmt: skip
    return drawn[0]


def draw_interval(axes: Axes, at: float, low: float, high: float, colour: str) -> None:
    """Draw the interval of one value as a thin line with caps; nothing where it has none."""
    if math.isfinite(low) and math.isfinite(high):
        axes.plot([at, at], [low, high], color=colour, linewidth=0.8, marker="_", markersize=3, markeredgewidth=0.8)


OUTLIER = 4.0
"""So many times the median of at least five values, and a value is broken off."""


def limit_of(values: Iterable[float]) -> float:
    """Return up to where an axis from zero shows values: to the highest that is no outlier."""
    known = sorted(value for value in values if math.isfinite(value) and value > 0)
    if not known:
        return 1.0
    most = OUTLIER * statistics.median(known) if len(known) >= 5 else math.inf
    return max(value for value in known if value <= most)


def break_off(axes: Axes, at: float, value: float, limit: float, text: str) -> bool:
    """Write the number of a value beyond a limit at the edge of its panel, with an arrow; return whether it is beyond.

    Args:
        axes: Where; its limits stay as they are.
        at: Place along x.
        value: The value along y.
        limit: As `limit_of` says, in the same unit.
        text: The number as it is written.
    """
    if not value > limit:
        return False
    place = blended_transform_factory(axes.transData, axes.transAxes)
    arrow = {"arrowstyle": "->", "linewidth": 0.7, "color": marks.BLACK, "shrinkA": 0, "shrinkB": 0}
    axes.annotate(
        text, (at, 1.0), (at, 0.8), xycoords=place, textcoords=place, ha="center", va="top", rotation=90,
        fontsize=TEXT_PT, arrowprops=arrow, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
    )  # fmt: skip
    return True


def log_axis(axes: Axes) -> None:
    """Make the axis of values logarithmic, with plain numbers at 1, 2 and 5 of each decade, or at the decades alone."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    name_decades(axes.yaxis, low, high)
    axes.set_ylim(low, high)


def name_decades(axis: Axis, low: float, high: float, steps: Sequence[int] = (1, 2, 5)) -> None:
    """Write plain numbers at some steps of each decade of a logarithmic axis, at decades alone where those are many."""
    for leading in (steps, (1,)):
        ticks = [step * 10.0**power for power in range(-9, 10) for step in leading]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) < 7:
            break
    axis.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def write_status(axes: Axes, at: float, rows: DataFrame) -> None:
    """Write in the place of a bar what became of a point, or that the quantity of a finished one is not there."""
    status = rows["status"].iloc[0]
    text = word(status) if status != Status.OK else absent(rows)
    axes.text(
        at, 0.03, text, transform=axes.get_xaxis_transform(), ha="center", va="bottom", rotation=90, fontsize=TEXT_PT,
        color=marks.GREY,
    )  # fmt: skip


def say_absent(axes: Axes, found: DataFrame) -> None:
    """Write in a panel without values that they were not measured or simulated."""
    axes.set_yticks([])
    axes.text(0.5, 0.5, absent(found), transform=axes.transAxes, ha="center", va="center", fontsize=TEXT_PT)


def say(axes: Axes, text: str) -> None:
    """Write in a panel why it is empty."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, textwrap.fill(text, 24), transform=axes.transAxes, ha="center", va="center", fontsize=TEXT_PT)


def as_line(mark: marks.Mark, **how: Any) -> Line2D:
    """Return what a legend shows of a mark that is drawn as a line with markers."""
    return Line2D([], [], color=mark.colour, marker=mark.marker, label=mark.name, **how)
