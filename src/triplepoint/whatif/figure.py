"""The what-if figure: effects of factors on time, energy and cost, with a row of panels per point or difference."""

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.errors import UserError
from triplepoint.figures import marks, style
from triplepoint.whatif.text import headline

_PANELS = (
    ("step_time_s", "step time (s)", marks.BLUE, 1.0),
    ("node_energy_j", "energy of a step (kJ)", marks.ORANGE, 1e-3),
    ("cost", "cost of a day's steps ({unit})", marks.GREEN, 1.0),
)
"""Quantity, axis label, colour and scale of each panel; panels of unknown quantities are left out. Cost is for as many
steps as the unchanged job has in a day."""
_NOTE = (
    "Each factor is changed alone; 'interaction' is what single changes leave unexplained{parts}. Lines with caps: "
    "90 % intervals{prices}."
)
_HEAD_IN, _PART_IN = 1.3, 0.17
"""Height of a page without bars, and of a bar. Unit: inch."""
_LABEL, _PANEL, _CASE = 30, 34, 40
"""Characters per line of the name of a bar, of the axis label of a panel, and of the name of a case."""


@style.styled
def draw(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the what-if figure.

    Args:
        rows: Rows of table `whatif`; if some are differences, only these are drawn.

    Raises:
        UserError: If the points do not fit on one page.
    """
    table = DataFrame(rows).astype({"factor": object, "value": object})
    table[["factor", "value"]] = table[["factor", "value"]].where(table[["factor", "value"]].notna(), None)
    is_difference = bool((table["side"] == "difference").any())
    table = table[table["side"] == "difference"] if is_difference else table
    table = _with_daily_cost(table)
    blocks = [block for _, block in table.groupby(["model", "case"], sort=False)]
    panels = [panel for panel in _PANELS if panel[0] in set(table["quantity"])]
    time_rows = [block[block["quantity"] == "step_time_s"] for block in blocks]
    num_lines = sum(label.count("\n") + 1 for block_rows in time_rows for label in _labels(block_rows))
    case_names = [block["case"].iloc[0].split(" to ") for block in blocks]
    cases = [" to\n".join(textwrap.fill(name, _CASE) for name in names) for names in case_names]
    num_extra_lines = sum(case.count("\n") for case in cases)
    height_in = _HEAD_IN + _PART_IN * (num_lines + num_extra_lines) + 0.5 * len(blocks)
    if height_in > style.TALLEST:
        raise UserError(f"whatif: {len(blocks)} points do not fit on one page; draw fewer, such as one as FILE:ID")
    title = "\n".join(headline(_records(block_rows)).removesuffix(".") for block_rows in time_rows)
    prices = table["prices"].iloc[0]
    note = _NOTE.format(
        parts="; parts add up to the difference" if is_difference else "",
        prices=f"; prices: {prices}" if prices else "",
    )
    page = style.new_page(
        title, _with_origin(table), len(blocks), len(panels), style.PAGE, height_in, note,
        sharey="row",
    )  # fmt: skip
    for axes, block, case in zip(page.axes, blocks, cases, strict=True):
        for panel, (name, label, colour, scale) in zip(axes, panels, strict=True):
            panel_rows = block[block["quantity"] == name]
            _draw_parts(panel, panel_rows, colour, scale)
            unit = textwrap.shorten(str(panel_rows["unit"].iloc[0]), _PANEL // 2, placeholder="...")
            panel.set_xlabel(textwrap.fill(f"change of {label.format(unit=unit)}", _PANEL))
        axes[0].set_title(case, loc="left", fontsize=style.TEXT_PT, fontweight="normal")
    return page.finish()


def _with_daily_cost(table: DataFrame) -> DataFrame:
    """Return the rows with costs per day; cost rows of cases that differ in tokens per step are left out."""
    is_cost = table["quantity"] == "cost"
    table = table[~(is_cost & table["steps_per_day"].isna())].copy()
    is_cost = table["quantity"] == "cost"
    for column in ("effect", "effect_lo", "effect_hi"):
        table.loc[is_cost, column] *= table.loc[is_cost, "steps_per_day"].astype(float)
    return table


def _draw_parts(axes: Axes, rows: DataFrame, colour: str, scale: float) -> None:
    """Draw a bar with its 90 % interval for each part, the first at the top."""
    for index, (_, row) in enumerate(rows.iterrows()):
        face = colour if row["part"] == "factor" else marks.GREY
        axes.barh(index, scale * row["effect"], 0.66, color=face, linewidth=0)
        ends = [scale * row["effect_lo"], scale * row["effect_hi"]]
        axes.plot(ends, [index, index], color=marks.BLACK, linewidth=0.8, marker="|", markersize=3, markeredgewidth=0.8)
    axes.set_yticks(range(len(rows)), _labels(rows))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.axvline(0, color=marks.BLACK, linewidth=0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.locator_params(axis="x", nbins=4)


def _records(rows: DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]


def _labels(rows: DataFrame) -> list[str]:
    """Return the names of bars, wrapped to lines of `_LABEL` characters."""
    labels = zip(rows["label"], rows["value"], strict=True)
    return [textwrap.fill(label if value is None else f"{label}: {value}", _LABEL) for label, value in labels]


def _with_origin(table: DataFrame) -> DataFrame:
    """Return the rows with the columns that the stamp and the provenance of a figure need."""
    return table.assign(engine="simulated", torch_version=None, host=None)
