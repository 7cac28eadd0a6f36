"""Temperature of GPUs by their slot in the node, with its spread over nodes and runs: one panel per cluster."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.figures import old_page as style
from triplepoint.figures.heatmap import with_gpus
from triplepoint.figures.old_page import HEAD_IN, MARGIN_IN, Canvas, wrapped

_PANEL_IN, _TITLE_IN, _AXIS_IN, _EMPTY_IN = 1.3, 0.32, 0.36, 0.5
_PLOTTED = [
    "place", "number", "slot_known", "num_gpus", "gpu_temp_c", "gpu_temp_p10_c", "gpu_temp_p90_c", "gpu_power_w",
]  # fmt: skip


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per cluster and slot."""
    points, gpus = with_gpus(tables)
    gpus = gpus[gpus["run"].isin(points["run"])]
    places = [(str(name), found) for name, found in gpus.groupby("place", sort=False)]
    heights = [_TITLE_IN + (_PANEL_IN + _AXIS_IN if _is_known(found) else _EMPTY_IN) for _, found in places]
    width_in = style.COLUMN_WIDTH_IN
    canvas = Canvas.make(width_in, HEAD_IN + (sum(heights) or _EMPTY_IN) + MARGIN_IN)
    canvas.stamp(points if len(points) else tables["points"])
    if not places:
        canvas.text(width_in / 2, HEAD_IN + 0.15, "no run with a GPU finished", ha="center")
    numbers, top_in = [], HEAD_IN
    for (name, found), height_in in zip(places, heights, strict=True):
        canvas.text(MARGIN_IN, top_in + 0.02, name, weight="bold", fontsize=style.TEXT_PT + 0.8)
        slots = _slots(name, found)
        numbers.append(slots)
        line = wrapped(_said(found, slots), width_in - 2 * MARGIN_IN, style.SMALL_PT)[0]
        canvas.text(MARGIN_IN, top_in + 0.15, line, fontsize=style.SMALL_PT, color=style.GREY)
        if _is_known(found):
            axes = canvas.axes(0.4, top_in + _TITLE_IN, width_in - 0.4 - 2 * MARGIN_IN, _PANEL_IN)
            _draw_slots(axes, found, slots)
        top_in += height_in
    empty = DataFrame(columns=_PLOTTED)
    joined = DataFrame([row for found in numbers for row in found.to_dict("records")])[_PLOTTED] if numbers else empty
    return canvas.figure, joined


def _is_known(found: DataFrame) -> bool:
    return bool(found["gpu_temp_c"].notna().any())


def _slots(name: str, found: DataFrame) -> DataFrame:
    """Return mean and spread over nodes and runs of each slot."""
    rows = []
    for number, own in found.groupby("number"):
        temp = own["gpu_temp_c"].astype(float).dropna().to_numpy()
        low, high = np.percentile(temp, [10, 90]) if temp.size else (np.nan, np.nan)
        power = own["gpu_power_w"].astype(float)
        rows.append(
            {
                "place": name,
                "number": number,
                "slot_known": bool(own["slot_known"].all()),
                "num_gpus": len(temp),
                "gpu_temp_c": float(temp.mean()) if temp.size else np.nan,
                "gpu_temp_p10_c": float(low),
                "gpu_temp_p90_c": float(high),
                "gpu_power_w": float(power.mean()),
            }
        )
    return DataFrame(rows)


def _said(found: DataFrame, slots: DataFrame) -> str:
    if not _is_known(found):
        return f"temperature: {style.absent(found)}"
    known = slots.dropna(subset=["gpu_temp_c"]).sort_values("gpu_temp_c")
    (cool, low), (hot, high) = (tuple(known.iloc[at][["number", "gpu_temp_c"]]) for at in (0, -1))
    more = 100 * (high / low - 1)
    what = "slot" if slots["slot_known"].all() else "GPU"
    return f"{found['run'].nunique()} runs; {what} {hot} is {more:.0f} % hotter (°C) than {what} {cool}, in the mean"


def _draw_slots(axes: Axes, found: DataFrame, slots: DataFrame) -> None:
    for _, own in found.groupby(["run", "node"], sort=False):
        line = own.sort_values("number")
        axes.plot(line["number"], line["gpu_temp_c"].astype(float), color=style.PALE, linewidth=0.4, alpha=0.6)
    at = slots["number"].to_numpy(float)
    axes.vlines(at, slots["gpu_temp_p10_c"], slots["gpu_temp_p90_c"], color=style.VERMILION, linewidth=2.2, alpha=0.5)
    axes.plot(at, slots["gpu_temp_c"], "o", color=style.VERMILION, markersize=3.5, markeredgewidth=0)
    axes.set_xticks(at, labels=[str(int(number)) for number in at])
    is_slot = bool(slots["slot_known"].all())
    axes.set_xlabel("slot" if is_slot else "GPU of the node, in the driver's order (slots not known)", labelpad=1)
    axes.set_ylabel("GPU temperature (°C)", labelpad=1)
    axes.grid(axis="y")
