"""The figure of what factors do: time, energy and money, one row of panels for each point or difference."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from triplepoint.errors import UserError
from triplepoint.figures import marks, style

_PANELS = (
    ("step_time_s", "step time (s)", marks.BLUE, 1.0),
    ("node_energy_j", "energy of a step (kJ)", marks.ORANGE, 1e-3),
    ("cost", "cost of a day's steps ({unit})", marks.GREEN, 1.0),
)
"""Quantity, words, colour and scale of each panel, as far as known; cost is that of the steps of a day as it is."""
_NOTE = (
    "Each factor changed alone; 'interaction' is what these leave unexplained of 'all together'. {parts}Lines with "
    "caps: 90 % interval. {prices}"
)
_HEAD_IN, _PART_IN = 1.3, 0.17
"""Height of a page without bars, and of a bar."""


@style.styled
def draw(rows: Sequence[dict[str, Any]]) -> Figure:
    """Return the figure.

    Args:
        rows: Of table `whatif`; of differences these alone are drawn.

    Raises:
        UserError: If there are more points than a page holds.
    """
    table = DataFrame(rows).astype({"factor": object, "value": object})
    table[["factor", "value"]] = table[["factor", "value"]].where(table[["factor", "value"]].notna(), None)
    is_difference = bool((table["side"] == "difference").any())
    table = table[table["side"] == "difference"] if is_difference else table
    table = _of_a_day(table)
    blocks = [block for _, block in table.groupby(["model", "case"], sort=False)]
    panels = [panel for panel in _PANELS if panel[0] in set(table["quantity"])]
    num_parts = sum(len(block[block["quantity"] == "step_time_s"]) for block in blocks)
    height_in = _HEAD_IN + _PART_IN * num_parts + 0.5 * len(blocks)
    if height_in > style.TALLEST:
        raise UserError(f"whatif: {len(blocks)} points do not fit on one page; draw fewer, such as one as FILE:ID")
    prices = table["prices"].iloc[0]
    note = _NOTE.format(
        parts="Parts add up to the difference. " if is_difference else "", prices=f"Prices: {prices}." if prices else ""
    )
    page = style.new_page(
        _title(blocks, is_difference), _made_by(table), len(blocks), len(panels), style.PAGE, height_in, note,
        sharey="row",
    )  # fmt: skip
    for axes, block in zip(page.axes, blocks, strict=True):
        for panel, (name, words, colour, scale) in zip(axes, panels, strict=True):
            own = block[block["quantity"] == name]
            _draw_parts(panel, own, colour, scale)
            panel.set_xlabel(f"change of {words.format(unit=own['unit'].iloc[0])}")
        axes[0].set_title(block["case"].iloc[0], loc="left")
    return page.finish()


def _of_a_day(table: DataFrame) -> DataFrame:
    """Return the rows with costs of the steps of a day; of points with other tokens a step, without cost."""
    is_cost = table["quantity"] == "cost"
    table = table[~(is_cost & table["steps_per_day"].isna())].copy()
    paid = table["quantity"] == "cost"
    for column in ("effect", "effect_lo", "effect_hi"):
        table.loc[paid, column] *= table.loc[paid, "steps_per_day"].astype(float)
    return table


def _title(blocks: Sequence[DataFrame], is_difference: bool) -> str:
    """Return what the largest factor does to each point, or makes of each difference."""
    return "\n".join(_said(block[block["quantity"] == "step_time_s"], is_difference) for block in blocks)


def _said(rows: DataFrame, is_difference: bool) -> str:
    factors = rows[rows["part"] == "factor"]
    largest = factors.iloc[int(factors["effect"].abs().to_numpy().argmax())]
    whole = rows[rows["part"] == "whole"].iloc[0]
    of = "The largest part of the difference is" if is_difference else "The largest change of step time is by"
    return f"{of} {largest['label']}: {_percent(largest)}; all together {_percent(whole)}"


def _percent(row: "Series[Any]") -> str:
    return f"{100 * row['share']:+.1f} % [{100 * row['share_lo']:+.1f}, {100 * row['share_hi']:+.1f}]"


def _draw_parts(axes: Axes, rows: DataFrame, colour: str, scale: float) -> None:
    """Draw a bar with its interval for each part, the first on top."""
    for at, (_, row) in enumerate(rows.iterrows()):
        face = colour if row["part"] == "factor" else marks.GREY
        axes.barh(at, scale * row["effect"], 0.66, color=face, linewidth=0)
        ends = [scale * row["effect_lo"], scale * row["effect_hi"]]
        axes.plot(ends, [at, at], color=marks.BLACK, linewidth=0.8, marker="|", markersize=3, markeredgewidth=0.8)
    named = zip(rows["label"], rows["value"], strict=True)
    axes.set_yticks(range(len(rows)), [label if value is None else f"{label}: {value}" for label, value in named])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.axvline(0, color=marks.BLACK, linewidth=0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.locator_params(axis="x", nbins=4)


def _made_by(table: DataFrame) -> DataFrame:
    """Return what stamp and provenance are made from."""
    return table.assign(engine="simulated", torch_version=None, host=None)
