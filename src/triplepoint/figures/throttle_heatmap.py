"""Share of time that every GPU was throttled, by cause: one block per model and cluster."""

from collections.abc import Mapping

from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.figures import old_page as style
from triplepoint.figures.heatmap import Band, draw_grid, draw_scale, grid_of, place_bands, with_gpus

CAUSES = {
    "power_cap_share": "power limit",
    "sw_thermal_share": "heat (driver)",
    "hw_thermal_share": "heat (hardware)",
    "power_brake_share": "power brake",
    "sync_boost_share": "other GPUs",
}
"""Causes that drivers count, and what they are called."""

_COLOURS = "viridis", Normalize(0.0, 1.0)
_PLOTTED = ["group", "label", "run", "origin", "rank", "node", "number", *CAUSES]


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and GPU; causes nobody met are only named."""
    points, gpus = with_gpus(tables)
    counted = {name: gpus.loc[gpus["run"].isin(points["run"]), name].astype(float) for name in CAUSES}
    met = [name for name in CAUSES if (counted[name] > 0).any()] or [next(iter(CAUSES))]
    bands = [_band(str(name), found, gpus, met) for name, found in points.groupby("group", sort=False)]
    canvas, places = place_bands(bands, points if bands else tables["points"], "no run with a GPU finished")
    for place in places:
        width = 1.0 / len(met)
        for number, cause in enumerate(met):
            values, starts, _ = grid_of(place.block, gpus, cause)
            axes = place.axes(canvas, number * width, (number + 1) * width - 0.025)
            draw_grid(axes, values, starts, _COLOURS)
            axes.set_title(CAUSES[cause], fontsize=style.SMALL_PT, pad=1.5)
    if places:
        draw_scale(canvas, _COLOURS, "share of time")
    return canvas.figure, gpus.merge(points[["run", "label"]], on="run", sort=False)[_PLOTTED]


def _band(name: str, found: DataFrame, gpus: DataFrame, met: list[str]) -> Band:
    own = gpus[gpus["run"].isin(found["run"])]
    if not own[list(CAUSES)].notna().any(axis=None):
        return Band(name, found, "time under throttling was not counted: this GPU's driver has no counters of it")
    never = [CAUSES[cause] for cause in CAUSES if cause not in met and own[cause].notna().any()]
    if not (own[met].astype(float) > 0).any(axis=None):
        return Band(name, found, "clocks were never held down, by any cause that the driver counts")
    return Band(f"{name} (never: {', '.join(never)})" if never else name, found, None)
