"""Figure `thermal_heatmap`: temperature of every GPU in every run, a map per cluster, published values below ours."""

import operator
from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.effects import between_gpus
from triplepoint.figures import gpu_map, style

_PLOTTED = [
    "place", "row", "run", "origin", "is_published", "node", "number", "rank", "value", "gpu_temp_p10_c",
    "gpu_temp_p90_c", "gpu_temp_max_c",
]  # fmt: skip
NOTE = "A cell is a GPU's mean over steps without the profiler; the ring is the hottest. Brackets: {about} over runs."


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and GPU.

    Args:
        tables: `points`, `gpus` and `published`.
    """
    points, known, reason = gpu_map.with_values(tables, "gpu_temp_c", "temperature")
    if reason:
        return gpu_map.empty_page(tables["points"], reason).finish(), DataFrame(columns=_PLOTTED)
    note, colours = NOTE.format(about=between_gpus.INTERVAL), ("inferno", "GPU temperature (°C)")
    spreads = between_gpus.spread_by_place(known, "gpu_temp_c")
    answers = [
        f"{place.removesuffix(', simulated')}: the hottest GPU of a run is {spread.text} hotter than its coolest"
        for place, spread in spreads.items()
    ]
    hottest = operator.methodcaller("idxmax")
    page, cells = gpu_map.draw_maps(
        answers or "No run has two GPUs with a temperature", note, points, known, "gpu_temp_c", colours, hottest
    )
    return page.finish(), cells[_PLOTTED].rename(columns={"value": "gpu_temp_c"})
