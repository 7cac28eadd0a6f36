"""The node drawn as it stands in its air, front and rear, and how much hotter rear GPUs are: a column per cluster."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Rectangle
from pandas import DataFrame

from triplepoint.effects import between_gpus
from triplepoint.effects.titles import Statement, at_place
from triplepoint.figures import drawing, gpu_map, marks, style

_COLOURS = "inferno"
_DARK = 0.55
"""Text on colours below this share of the scale is white."""
_PLOTTED = [
    "place", "what", "label", "run", "number", "airflow_row", "airflow_lane", "gpu_temp_c", "gpu_power_w",
    "difference_k", "difference_lo_k", "difference_hi_k", "published_difference_k",
]  # fmt: skip
NOTE = (
    "Top: mean of each slot over nodes and runs; arrows lead along the air to the GPU it warms. Bottom: a mark is a "
    "run. Lines with caps and brackets: {about} over nodes."
)


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots: rows `slot`, one per cluster and slot, and `run`, one per run.

    Args:
        tables: `points`, `gpus` and `published`.
    """
    points, known, why = gpu_map.with_values(tables, "gpu_temp_c", "temperature")
    if why:
        return gpu_map.empty_page(tables["points"], why).finish(), DataFrame(columns=_PLOTTED)
    places = [(str(place), DataFrame(found)) for place, found in known.groupby("place", sort=False)]
    slots = {place: _slots(place, found) for place, found in places}
    runs = {place: _runs(place, found) for place, found in places}
    values = [float(value) for found in slots.values() for value in found["gpu_temp_c"]]
    scale = Normalize(min(values) - 1, max(values) + 1)
    page = style.new_page(
        _answers([(gpu_map.title_of(place, points), found) for place, found in places]),
        points, 2, len(places),
        style.PAGE if len(places) > 1 else style.COLUMN, 4.7, NOTE.format(about=between_gpus.ABOUT), sharey="row",
        height_ratios=[1.3, 1],
    )  # fmt: skip
    for col, (place, _) in enumerate(places):
        page.axes[0][col].set_title(gpu_map.title_of(place, points))
        _draw_node(page.axes[0][col], slots[place], scale)
        _draw_differences(page.axes[1][col], runs[place])
        page.axes[1][col].set_xlabel("mean GPU power (W)")
    page.axes[1][0].set_ylabel("rear less front (K)")
    page.legend(_legend(list(runs.values())))
    rows = [row for found in (*slots.values(), *runs.values()) for row in found.to_dict("records")]
    return page.finish(), DataFrame(rows).reindex(columns=_PLOTTED)


def _answers(places: Sequence[tuple[str, DataFrame]]) -> list[str | Statement]:
    lines: list[str | Statement] = []
    for place, found in places:
        apart = between_gpus.rear_over_front(found)
        if apart is None:
            lines.append(f"{place}: which GPUs stand in the air of others is not known")
            continue
        said = f"rear GPUs are {apart.text} hotter than front ones"
        if apart.is_tie:
            said = f"rear GPUs are as warm as front ones, difference {apart.text}"
        lines.append(Statement(at_place(place if len(places) > 1 else "", said), "airflow", apart, "node"))
    return lines


def _slots(place: str, found: DataFrame) -> DataFrame:
    """Return the mean temperature of each slot, with its row and lane; one row of all where rows are not known."""
    rows = []
    for number, own in found.groupby("number"):
        first = own.iloc[0]
        is_placed = own["airflow_row"].notna().all()
        rows.append(
            {
                "place": place,
                "what": "slot",
                "number": number,
                "airflow_row": int(first["airflow_row"]) if is_placed else 0,
                "airflow_lane": int(first["airflow_lane"]) if is_placed else number,
                "gpu_temp_c": float(own["gpu_temp_c"].astype(float).mean()),
                "gpu_power_w": float(own["gpu_power_w"].astype(float).mean()),
            }
        )
    return DataFrame(rows)


def _runs(place: str, found: DataFrame) -> DataFrame:
    """Return the paired difference of each run with its interval over nodes, ours and the published one."""
    rows = []
    for run, own in found.groupby("run", sort=False):
        apart = between_gpus.rear_over_front(own)
        if apart is None:
            continue
        published = between_gpus.rear_over_front(own.assign(published_c=own["published"]), "published_c")
        rows.append(
            {
                "place": place,
                "what": "run",
                "label": own["label"].iloc[0],
                "run": run,
                "gpu_power_w": float(own["gpu_power_w"].astype(float).mean()),
                "difference_k": apart.value,
                "difference_lo_k": apart.low,
                "difference_hi_k": apart.high,
                "published_difference_k": np.nan if published is None else published.value,
            }
        )
    return DataFrame(rows)


def _draw_node(axes: Axes, slots: DataFrame, scale: Normalize) -> None:
    """Draw GPUs as boxes, front below and rear above, with arrows along the air."""
    num_rows, num_lanes = (int(slots[name].max()) + 1 for name in ("airflow_row", "airflow_lane"))
    colours = matplotlib.colormaps[_COLOURS]
    how: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": style.TEXT_PT}
    for _, slot in slots.iterrows():
        x, y = float(slot["airflow_lane"]), 1.5 * float(slot["airflow_row"])
        level = float(scale(slot["gpu_temp_c"]))
        axes.add_patch(Rectangle((x - 0.45, y - 0.45), 0.9, 0.9, facecolor=colours(level), edgecolor=marks.GREY))
        colour = "white" if level < _DARK else marks.BLACK
        axes.text(x, y, f"GPU {int(slot['number'])}\n{slot['gpu_temp_c']:.1f}", color=colour, **how)
        for start, end in ((y - 1.0, y - 0.47),) if num_rows > 1 or not y else ():
            axes.add_patch(
                FancyArrowPatch(
                    (x, start), (x, end), arrowstyle="-|>", mutation_scale=7, color=marks.GREY, linewidth=0.8
                )
            )
    axes.set_xlim(-0.7, num_lanes - 0.3)
    axes.set_ylim(-1.25, 1.5 * num_rows - 0.6)
    names = ["front", "rear"] if num_rows == 2 else [f"row {row}" for row in range(num_rows)]
    axes.set_yticks([1.5 * row for row in range(num_rows)], names if num_rows > 1 else [""])
    axes.tick_params(length=0, labelleft=True)
    axes.text((num_lanes - 1) / 2, -1.13, "air in; slots in °C", **how)
    axes.set_xticks([])
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)


def _draw_differences(axes: Axes, runs: DataFrame) -> None:
    if runs.empty:
        axes.text(
            0.5, 0.5, "rows not known", transform=axes.transAxes, ha="center", va="center", fontsize=style.TEXT_PT
        )
        return
    for _, row in runs.iterrows():
        at = float(row["gpu_power_w"])
        drawing.draw_interval(axes, at, row["difference_lo_k"], row["difference_hi_k"], marks.VERMILION)
        axes.plot([at], [row["difference_k"]], "o", color=marks.VERMILION)
    known = runs[runs["published_difference_k"].notna()]
    if len(known):
        drawing.draw_published(axes, list(known["gpu_power_w"]), list(known["published_difference_k"]))
    axes.axhline(0, color=marks.GREY, linewidth=0.5)
    lows = runs[["difference_k", "difference_lo_k"]].min().min()
    low, high = axes.get_ylim()
    axes.set_ylim(min(0.0, low, lows - 0.5), max(high, 1.0))
    axes.locator_params(axis="x", nbins=4)


def _legend(runs: Sequence[DataFrame]) -> list[Artist]:
    found: list[Artist] = []
    if any(len(one) for one in runs):
        found.append(Line2D([], [], color=marks.VERMILION, marker="o", linestyle="none", label="run"))
    if any(len(one) and one["published_difference_k"].notna().any() for one in runs):
        look: dict[str, Any] = {"color": marks.BLACK, "marker": "D", "markerfacecolor": "none", "linestyle": "none"}
        found.append(Line2D([], [], label="published, at our power", **look))
    return found
