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

from triplepoint.figures import drawing, marks, style
from triplepoint.verdicts.sum_up import answer_values, deviations, range_of_ratios

NOTE = (
    "Lines: 90 % interval of ours with how well the published number can be read; it agrees where its line meets 1, or "
    "0 K. Right: how many agree, and where they are published. * the simulator was fitted to this figure."
)
RATIOS = (0.3, 3.0)
"""Ends of the axis of ratios; what lies beyond is drawn at its edge, as an arrow with its number."""
KELVIN = 12.0
"""Likewise of differences."""
_NAMES = [
    "figure", "claim", "says", "point", "quantity", "unit", "published", "ours", "deviation", "low", "high",
    "is_kelvin", "was_fitted", "verdict", "origin",
]  # fmt: skip
_ROW_IN, _HEAD_IN = 0.25, 1.8
_CHARACTERS = 34
"""Of a line of a row's label, of which there is room for two."""
_CHARACTERS_RIGHT = 20
"""The same of how many agree and where they are published."""


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
        drawing.say(page.axes[0][0], "no finished run of a published point")
        return page.finish(), found[_NAMES]
    page.legend(_legend(found))
    return page.finish(), found[_NAMES]


def behind(found: DataFrame, points: DataFrame) -> DataFrame:
    """Return the points that rows of claims are from; all where there are none."""
    runs = {run for names in found["runs"] for run in names}
    own = points[points["run"].isin(runs)]
    return points if own.empty else own


def name_of(says: str, was_fitted: bool) -> str:
    """Return what a claim says as rows are labelled, with an asterisk where constants were fitted."""
    # What follows names the statements that are judged by themselves, in rows of their own.
    return re.split(r", and (?:how|which) ", says.removesuffix("."))[0] + "*" * was_fitted


def told(agree: int, num: int, source: str) -> str:
    """Return how many agree of some and where that is published, in lines; nothing of none."""
    return in_even_lines((f"{agree} of {num}, " if num else "") + source, _CHARACTERS_RIGHT)


def in_even_lines(text: str, width: int) -> str:
    """Return text in as few lines as it takes, none of them much shorter than others."""
    num = len(textwrap.wrap(text, width))
    even = next(one for one in range(-(-len(text) // max(num, 1)), width + 1) if len(textwrap.wrap(text, one)) == num)
    return textwrap.fill(text, even)


def _draw_rows(axes: Axes, found: DataFrame) -> None:
    """Draw a row per claim, in the order of the table, the points of each beside one another."""
    is_kelvin = bool(found["is_kelvin"].iloc[0])
    low, high = (-KELVIN, KELVIN) if is_kelvin else RATIOS
    names, agreeing = [], []
    for at, ((figure, _), rows) in enumerate(found.groupby(["figure", "claim"], sort=False)):
        name = name_of(str(rows["says"].iloc[0]), bool(rows["was_fitted"].any()))
        names.append(in_even_lines(name, _CHARACTERS))
        agreeing.append(told(int((rows["verdict"] == "agrees").sum()), len(rows), str(figure)))
        spread = np.linspace(-0.32, 0.32, len(rows)) if len(rows) > 1 else [0.0]
        for offset, (_, row) in zip(spread, rows.iterrows(), strict=True):
            mark = marks.VERDICTS[str(row["verdict"])]
            place, value = at + offset, float(np.clip(row["deviation"], low, high))
            ends = np.clip([row["low"], row["high"]], low, high)
            axes.plot(ends, [place, place], color=mark.colour, linewidth=0.6, alpha=0.6)
            beyond = "<" if row["deviation"] < low else ">" if row["deviation"] > high else mark.marker
            axes.plot([value], [place], beyond, color=mark.colour, markersize=3, clip_on=False)
    _finish_axes(axes, "" if is_kelvin else range_of_ratios(found), (low, high))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(len(names)), agreeing)
    right.spines["right"].set_visible(False)
    for ticks in (axes, right):
        ticks.tick_params(axis="y", length=0)


def _finish_axes(axes: Axes, ratios: str, ends: tuple[float, float]) -> None:
    """Finish the axis of ratios, with what its label says of them, or that of kelvin."""
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    axes.axvline(1 if ratios else 0, color=marks.BLACK, linewidth=0.7)
    if not ratios:
        axes.set_xlabel("ours less published (K)")
    else:
        axes.set_xscale("log")
        axes.set_xticks([0.3, 0.5, 0.7, 1, 1.4, 2, 3], ["0.3", "0.5", "0.7", "1", "1.4", "2", "3"])
        axes.minorticks_off()
        axes.set_xlabel(f"ours over published: {ratios}")
    axes.set_xlim(*ends)


def _legend(found: DataFrame) -> list[Artist]:
    shown: list[Artist] = [
        drawing.as_line(marks.VERDICTS[name], markersize=3)
        for name in marks.VERDICTS
        if (found["verdict"] == name).any()
    ]
    return [*shown, Line2D([], [], color=marks.GREY, marker=">", linestyle="none", label="beyond the axis")]
