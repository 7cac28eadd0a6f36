"""Temperature of every GPU in every run: a map per cluster, published temperatures below ours."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.effects import between_gpus, titles
from triplepoint.figures import gpu_map, style

_PLOTTED = [
    "place", "row", "run", "origin", "is_published", "node", "number", "rank", "value", "gpu_temp_p10_c",
    "gpu_temp_p90_c", "gpu_temp_max_c",
]  # fmt: skip
NOTE = (
    "A cell is a GPU's mean over the steps without the profiler. Interval of the title: {about} over runs of the "
    "same GPUs; it does not show how others would differ."
)


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and GPU.

    Args:
        tables: `points`, `gpus` and `published`.
    """
    points, known, why = gpu_map.with_values(tables, "gpu_temp_c", "temperature")
    if why:
        return gpu_map.empty_page(tables["points"], why).finish(), DataFrame(columns=_PLOTTED)
    note, colours = NOTE.format(about=between_gpus.ABOUT), ("inferno", "GPU temperature (°C)")
    page, cells = gpu_map.draw_maps(_answer, note, points, known, "gpu_temp_c", colours)
    return page.finish(), cells[_PLOTTED].rename(columns={"value": "gpu_temp_c"})


def _answer(known: DataFrame) -> str:
    apart = between_gpus.spread(known, "gpu_temp_c")
    hottest = known.sort_values("gpu_temp_c", ascending=False, kind="stable").iloc[0]
    where = f"node {hottest['node']} GPU {hottest['number']}, {hottest['label']}"
    said = f"the hottest of all has {float(hottest['gpu_temp_c']):.0f} °C ({where})"
    if apart is None:
        return said
    return f"a run's hottest GPU is {apart.text} hotter than its coolest ({titles.mean_of(apart.num, 'run')}); {said}"
