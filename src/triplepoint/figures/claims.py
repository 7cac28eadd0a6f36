"""Every published number beside ours: a row per claim, a point per run, ours over published with both intervals."""

import re
import textwrap
from collections.abc import Mapping

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from triplepoint.figures import marks, style
from triplepoint.verdicts.sum_up import answer_values, deviations

NOTE = (
    "Lines: 90 % interval of ours and the accuracy of reading the published figure, together; a number "
    "agrees where its line meets 1, or 0 K. Title: the range is from the 5th to the 95th percentile of ratios. At the "
    "right: how many agree, and where they are published. * constants of the simulator were set by this figure."
)
RATIOS = (0.3, 3.0)
"""Ends of the axis of ratios; what lies beyond is drawn at its edge, as an arrow with its number."""
KELVIN = 12.0
"""Likewise of differences."""
_NAMES = [
    "figure", "claim", "says", "point", "quantity", "unit", "published", "ours", "deviation", "low", "high",
    "is_kelvin", "was_fitted", "verdict", "origin",
]  # fmt: skip
_ROW_IN, _HEAD_IN = 0.24, 2.1
_LONGEST = 72
"""Characters of a row's label."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per published number that has one of ours.

    Args:
        tables: `claims`, and `points`, which stamp and provenance are made from.
    """
    found = deviations(tables["claims"])
    points = behind(found, tables["points"])
    parts = [DataFrame(part) for is_kelvin in (False, True) if len(part := found[found["is_kelvin"] == is_kelvin])]
    rows = [part["claim"].nunique() for part in parts] or [1]
    page = style.new_page(
        answer_values(found), points, len(rows), 1, style.PAGE,
        min(style.TALLEST, _HEAD_IN + _ROW_IN * sum(rows)), NOTE, height_ratios=rows,
    )  # fmt: skip
    for axes, part in zip(page.all_axes, parts, strict=False):
        _draw_rows(axes, part)
    if not parts:
        style.say(page.axes[0][0], "no finished run of a published point")
        return page.finish(), found[_NAMES]
    page.legend(_legend(found))
    return page.finish(), found[_NAMES]


def behind(found: DataFrame, points: DataFrame) -> DataFrame:
    """Return the points that rows of claims are from; all where there are none."""
    runs = {run for names in found["runs"] for run in names}
    own = points[points["run"].isin(runs)]
    return points if own.empty else own


def name_of(says: str, was_fitted: bool) -> str:
    """Return what a claim says as rows are labelled, shortened, with an asterisk where constants were fitted."""
    # What follows names the statements that are judged by themselves, in rows of their own.
    text = re.split(r", and (?:how|which) ", says.removesuffix("."))[0]
    return textwrap.shorten(text, _LONGEST, placeholder=" …") + "*" * was_fitted


def _draw_rows(axes: Axes, found: DataFrame) -> None:
    """Draw a row per claim, in the order of the table, the points of each beside one another."""
    is_kelvin = bool(found["is_kelvin"].iloc[0])
    low, high = (-KELVIN, KELVIN) if is_kelvin else RATIOS
    names, agreeing = [], []
    for at, ((figure, _), rows) in enumerate(found.groupby(["figure", "claim"], sort=False)):
        names.append(name_of(str(rows["says"].iloc[0]), bool(rows["was_fitted"].any())))
        agreeing.append(f"{int((rows['verdict'] == 'agrees').sum())} of {len(rows)}, {figure}")
        spread = np.linspace(-0.32, 0.32, len(rows)) if len(rows) > 1 else [0.0]
        for offset, (_, row) in zip(spread, rows.iterrows(), strict=True):
            mark = marks.VERDICTS[str(row["verdict"])]
            place, value = at + offset, float(np.clip(row["deviation"], low, high))
            ends = np.clip([row["low"], row["high"]], low, high)
            axes.plot(ends, [place, place], color=mark.colour, linewidth=0.6, alpha=0.6)
            beyond = "<" if row["deviation"] < low else ">" if row["deviation"] > high else mark.marker
            axes.plot([value], [place], beyond, color=mark.colour, markersize=3, clip_on=False)
    _finish_axes(axes, is_kelvin, (low, high))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(len(names)), agreeing)
    right.spines["right"].set_visible(False)
    for ticks in (axes, right):
        ticks.tick_params(axis="y", length=0)


def _finish_axes(axes: Axes, is_kelvin: bool, ends: tuple[float, float]) -> None:
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.axvline(0 if is_kelvin else 1, color=marks.BLACK, linewidth=0.7)
    if is_kelvin:
        axes.set_xlabel("ours less published (K)")
    else:
        axes.set_xscale("log")
        axes.set_xticks([0.3, 0.5, 0.7, 1, 1.4, 2, 3], ["0.3", "0.5", "0.7", "1", "1.4", "2", "3"])
        axes.minorticks_off()
        axes.set_xlabel("ours over published")
    axes.set_xlim(*ends)


def _legend(found: DataFrame) -> list[Artist]:
    shown: list[Artist] = [
        style.as_line(marks.VERDICTS[name], markersize=3) for name in marks.VERDICTS if (found["verdict"] == name).any()
    ]
    return [*shown, Line2D([], [], color=marks.GREY, marker=">", linestyle="none", label="beyond the axis")]
