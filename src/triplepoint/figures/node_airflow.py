"""Figure `node_airflow`: temperature of GPUs by their place in the air of the node, front to rear, by cluster."""

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
"""Position on the colour scale, 0-1, below which text is white."""
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
    points, known, reason = gpu_map.with_values(tables, "gpu_temp_c", "temperature")
    if reason:
        return gpu_map.empty_page(tables["points"], reason).finish(), DataFrame(columns=_PLOTTED)
    places = [(str(place), DataFrame(gpus)) for place, gpus in known.groupby("place", sort=False)]
    slots = {place: _slots(place, gpus) for place, gpus in places}
    runs = {place: _runs(place, gpus) for place, gpus in places}
    values = [float(value) for gpus in slots.values() for value in gpus["gpu_temp_c"]]
    scale = Normalize(min(values) - 1, max(values) + 1)
    page = style.new_page(
        _answers([(gpu_map.title_of(place, points), gpus) for place, gpus in places]),
        points, 2, len(places),
        style.PAGE if len(places) > 1 else style.COLUMN, 4.7, NOTE.format(about=between_gpus.INTERVAL), sharey="row",
        height_ratios=[1.3, 1],
    )  # fmt: skip
    for col, (place, _) in enumerate(places):
        page.axes[0][col].set_title(gpu_map.title_of(place, points))
        _draw_node(page.axes[0][col], slots[place], scale)
        _draw_differences(page.axes[1][col], runs[place])
        page.axes[1][col].set_xlabel("mean GPU power (W)")
    page.axes[1][0].set_ylabel("rear less front (K)")
    page.legend(_legend(list(runs.values())))
    rows = [row for gpus in (*slots.values(), *runs.values()) for row in gpus.to_dict("records")]
    return page.finish(), DataFrame(rows).reindex(columns=_PLOTTED)


def _answers(places: Sequence[tuple[str, DataFrame]]) -> list[str | Statement]:
    """Return a line of the title per cluster: the difference between rear and front GPUs."""
    lines: list[str | Statement] = []
    for place, gpus in places:
        difference = between_gpus.rear_over_front(gpus)
        if difference is None:
            lines.append(f"{place}: which GPUs stand in the air of others is not known")
            continue
        warmer = f"{difference.text} hotter" if difference.value > 0 else f"{difference.negated.text} cooler"
        sentence = f"rear GPUs are {warmer} than front ones"
        if difference.is_tie:
            sentence = f"rear GPUs are as warm as front ones, difference {difference.text}"
        lines.append(Statement(at_place(place if len(places) > 1 else "", sentence), "airflow", difference, "node"))
    return lines


def _slots(place: str, gpus: DataFrame) -> DataFrame:
    """Return mean temperature and power of each slot, with its row and lane; all in row 0 if rows are unknown."""
    rows = []
    for number, of_slot in gpus.groupby("number"):
        first = of_slot.iloc[0]
        is_placed = of_slot["airflow_row"].notna().all()
        rows.append(
            {
                "place": place,
                "what": "slot",
                "number": number,
                "airflow_row": int(first["airflow_row"]) if is_placed else 0,
                "airflow_lane": int(first["airflow_lane"]) if is_placed else number,
                "gpu_temp_c": float(of_slot["gpu_temp_c"].astype(float).mean()),
                "gpu_power_w": float(of_slot["gpu_power_w"].astype(float).mean()),
            }
        )
    return DataFrame(rows)


def _runs(place: str, gpus: DataFrame) -> DataFrame:
    """Return the difference between rear and front GPUs by run: ours with its interval over nodes, and published."""
    rows = []
    for run, of_run in gpus.groupby("run", sort=False):
        difference = between_gpus.rear_over_front(of_run)
        if difference is None:
            continue
        published = between_gpus.rear_over_front(of_run.assign(published_c=of_run["published"]), "published_c")
        rows.append(
            {
                "place": place,
                "what": "run",
                "label": of_run["label"].iloc[0],
                "run": run,
                "gpu_power_w": float(of_run["gpu_power_w"].astype(float).mean()),
                "difference_k": difference.value,
                "difference_lo_k": difference.low,
                "difference_hi_k": difference.high,
                "published_difference_k": np.nan if published is None else published.value,
            }
        )
    return DataFrame(rows)


def _draw_node(axes: Axes, slots: DataFrame, scale: Normalize) -> None:
    """Draw GPUs as boxes, front row at the bottom, with arrows in the direction of the air."""
    num_rows, num_lanes = (int(slots[name].max()) + 1 for name in ("airflow_row", "airflow_lane"))
    colours = matplotlib.colormaps[_COLOURS]
    text_style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": style.TEXT_PT}
    for _, slot in slots.iterrows():
        x, y = float(slot["airflow_lane"]), 1.5 * float(slot["airflow_row"])
        level = float(scale(slot["gpu_temp_c"]))
        axes.add_patch(Rectangle((x - 0.45, y - 0.45), 0.9, 0.9, facecolor=colours(level), edgecolor=marks.GREY))
        colour = "white" if level < _DARK else marks.BLACK
        axes.text(x, y, f"GPU {int(slot['number'])}\n{slot['gpu_temp_c']:.1f}", color=colour, **text_style)
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
    axes.text((num_lanes - 1) / 2, -1.13, "air in; slots in °C", **text_style)
    axes.set_xticks([])
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)


def _draw_differences(axes: Axes, runs: DataFrame) -> None:
    """Draw the difference between rear and front GPUs of each run over its mean power."""
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
    """Return the legend entries of runs and published differences."""
    handles: list[Artist] = []
    if any(len(of_place) for of_place in runs):
        handles.append(Line2D([], [], color=marks.VERMILION, marker="o", linestyle="none", label="run"))
    if any(len(of_place) and of_place["published_difference_k"].notna().any() for of_place in runs):
        look: dict[str, Any] = {"color": marks.BLACK, "marker": "D", "markerfacecolor": "none", "linestyle": "none"}
        handles.append(Line2D([], [], label="published, at our power", **look))
    return handles
