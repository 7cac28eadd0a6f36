"""Figure `claims`: ratio of our numbers to the published ones, a row per claim, a point per run."""

import re
import textwrap
from collections.abc import Mapping

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from triplepoint.effects.titles import Statement
from triplepoint.figures import drawing, marks, style
from triplepoint.verdicts.sum_up import answer_values, deviations, range_of_ratios

NOTE = (
    "Lines: 90 % interval of ours with how well the published number can be read; it agrees where its line meets 1, or "
    "0 K. * the simulator was fitted to this figure. Right: how many agree, and their source."
)
RATIOS = (0.3, 3.0)
"""Range of the axis of ratios. Values beyond it are drawn at its edge as arrows."""
KELVIN = 12.0
"""Upper end of the axis of differences; the lower end is its negative. Unit: K."""
_COLUMNS = [
    "figure", "claim", "says", "point", "quantity", "unit", "published", "ours", "deviation", "low", "high",
    "is_kelvin", "was_fitted", "verdict", "origin",
]  # fmt: skip
_ROW_IN, _HEAD_IN = 0.25, 1.8
"""Heights of a row and of the head of the page. Unit: inch."""
_CHARACTERS = 34
"""Characters per line of the label of a row; two lines fit."""
_CHARACTERS_RIGHT = 20
"""Characters per line of the text at the right of a row."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per published number that has one of ours.

    Args:
        tables: `claims`, and `points` for the stamp and the provenance.
    """
    values = deviations(tables["claims"])
    points = points_behind(values, tables["points"])
    parts = [DataFrame(part) for is_kelvin in (False, True) if len(part := values[values["is_kelvin"] == is_kelvin])]
    rows = [part["claim"].nunique() for part in parts] or [1]
    page = style.new_page(
        _answers(values), points, len(rows), 1, style.PAGE,
        min(style.TALLEST, _HEAD_IN + _ROW_IN * sum(rows)), _left_out(tables["claims"], values) + NOTE,
        height_ratios=rows,
    )  # fmt: skip
    for axes, part in zip(page.all_axes, parts, strict=False):
        _draw_rows(axes, part)
    if not parts:
        drawing.write_reason(page.axes[0][0], "no finished run of a published point")
        return page.finish(), values[_COLUMNS]
    page.legend(_legend(values))
    return page.finish(), values[_COLUMNS]


def _answers(values: DataFrame) -> list[str | Statement]:
    """Return the lines of the title: how many numbers agree, and the range of ratios."""
    has_ratios = not values["is_kelvin"].all()
    return [answer_values(values), *([f"Ours over published: {range_of_ratios(values)}"] if has_ratios else [])]


def _left_out(claims: DataFrame, values: DataFrame) -> str:
    """Return a sentence on the published numbers that are not drawn; '' if there are none.

    Args:
        claims: Table `claims`.
        values: Rows that are drawn.
    """
    numbers = claims[claims["kind"] == "value"]
    num_unknown = int((numbers["ours"].isna() | numbers["published"].isna()).sum())
    reasons = {
        "may be 0": len(numbers) - num_unknown - len(values),
        "have no run": num_unknown,
    }
    parts = [f"{num} {reason}" for reason, num in reasons.items() if num]
    return f"Not drawn of {len(numbers)}: {', '.join(parts)}. " if parts else ""


def points_behind(claims: DataFrame, points: DataFrame) -> DataFrame:
    """Return the points that rows of claims were computed from; all points if there are none."""
    runs = {run for names in claims["runs"] for run in names}
    used = points[points["run"].isin(runs)]
    return points if used.empty else used


def name_of(says: str, was_fitted: bool) -> str:
    """Return the label of a claim from its sentence, with an asterisk if constants were fitted to it."""
    # The rest of the sentence is on statements that have rows of their own.
    return re.split(r", and (?:how|which) ", says.removesuffix("."))[0] + "*" * was_fitted


def agreement_text(num_agree: int, num: int, source: str) -> str:
    """Return the text at the right of a row: how many values agree, unless there are none, and their source."""
    return in_even_lines((f"{num_agree} of {num}, " if num else "") + source, _CHARACTERS_RIGHT)


def in_even_lines(text: str, width: int) -> str:
    """Return text in the fewest lines of at most `width` characters, with lines of similar length."""
    num = len(textwrap.wrap(text, width))
    least = -(-len(text) // max(num, 1))
    even = next(length for length in range(least, width + 1) if len(textwrap.wrap(text, length)) == num)
    return textwrap.fill(text, even)


def _draw_rows(axes: Axes, values: DataFrame) -> None:
    """Draw a row per claim, in the order of the table, with the points of a claim below each other."""
    is_kelvin = bool(values["is_kelvin"].iloc[0])
    low, high = (-KELVIN, KELVIN) if is_kelvin else RATIOS
    names, agreements = [], []
    for index, ((figure, _), rows) in enumerate(values.groupby(["figure", "claim"], sort=False)):
        name = name_of(str(rows["says"].iloc[0]), bool(rows["was_fitted"].any()))
        names.append(in_even_lines(name, _CHARACTERS))
        agreements.append(agreement_text(int((rows["verdict"] == "agrees").sum()), len(rows), str(figure)))
        offsets = np.linspace(-0.32, 0.32, len(rows)) if len(rows) > 1 else [0.0]
        for offset, (_, row) in zip(offsets, rows.iterrows(), strict=True):
            mark = marks.VERDICTS[str(row["verdict"])]
            y, value = index + offset, float(np.clip(row["deviation"], low, high))
            ends = np.clip([row["low"], row["high"]], low, high)
            axes.plot(ends, [y, y], color=mark.colour, linewidth=0.6, alpha=0.6)
            marker = "<" if row["deviation"] < low else ">" if row["deviation"] > high else mark.marker
            axes.plot([value], [y], marker, color=mark.colour, markersize=3, clip_on=False)
    _finish_axes(axes, is_kelvin, (low, high))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(len(names)), agreements)
    right.spines["right"].set_visible(False)
    for ticks in (axes, right):
        ticks.tick_params(axis="y", length=0)


def _finish_axes(axes: Axes, is_kelvin: bool, ends: tuple[float, float]) -> None:
    """Finish the x axis.

    Args:
        axes: The panel.
        is_kelvin: Whether it has differences in kelvin, not ratios.
        ends: Range of the axis.
    """
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


def _legend(values: DataFrame) -> list[Artist]:
    """Return the legend entries of the verdicts that occur, and of arrows."""
    handles: list[Artist] = [
        drawing.as_line(mark, markersize=3)
        for name, mark in marks.VERDICTS.items()
        if (values["verdict"] == name).any()
    ]
    return [*handles, Line2D([], [], color=marks.GREY, marker=">", linestyle="none", label="beyond the axis")]
