"""Temperature of every GPU in every run, with its spread: one block per model and cluster."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.figures import old_page as style
from triplepoint.figures.heatmap import Band, draw_grid, draw_scale, grid_of, place_bands, with_gpus

_COLOURS = "inferno"
_PLOTTED = [
    "group", "label", "run", "origin", "rank", "node", "number", "gpu_temp_c", "gpu_temp_p10_c", "gpu_temp_p90_c",
    "gpu_temp_max_c",
]  # fmt: skip


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and GPU."""
    points, gpus = with_gpus(tables)
    bands = [_band(str(name), found, gpus) for name, found in points.groupby("group", sort=False)]
    canvas, places = place_bands(bands, points if bands else tables["points"], "no run with a GPU finished")
    numbers = gpus.merge(points[["run", "label"]], on="run", sort=False)[_PLOTTED]
    known = gpus.loc[gpus["run"].isin(points["run"]), ["gpu_temp_c", "gpu_temp_max_c"]].astype(float)
    if places:
        scale = _COLOURS, Normalize(float(known["gpu_temp_c"].min()) - 0.5, float(known["gpu_temp_c"].max()) + 0.5)
        for place in places:
            values, starts, _ = grid_of(place.block, gpus, "gpu_temp_c")
            draw_grid(place.axes(canvas, 0.0, 0.72), values, starts, scale)
            _draw_spread(place, place.axes(canvas, 0.76, 1.0))
        draw_scale(canvas, scale, "mean °C")
    return canvas.figure, numbers


def _band(name: str, found: DataFrame, gpus: DataFrame) -> Band:
    known = gpus.loc[gpus["run"].isin(found["run"]), "gpu_temp_c"].notna()
    return Band(name, found, None if known.any() else f"temperature: {style.absent(found)}")


def _draw_spread(place: style.Place[Band], axes: Axes) -> None:
    for number, (_, row) in enumerate(place.block.runs.iterrows()):
        low, high = row["gpu_temp_p10_c"], row["gpu_temp_p90_c"]
        axes.plot([low, high], [number] * 2, color=style.VERMILION, linewidth=1.6, alpha=0.45, solid_capstyle="butt")
        axes.plot([row["gpu_temp_c"]], [number], "o", color=style.VERMILION, markersize=2.4, markeredgewidth=0)
        axes.plot([row["gpu_temp_max_c"]], [number], "|", color=style.BLACK, markersize=4)
    axes.grid(axis="x")
    axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel("°C: mean, P10 to P90, | highest", labelpad=1, fontsize=style.SMALL_PT)
