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
    panels = [(str(place), gpu_map.rows_of(found, "gpu_temp_c")) for place, found in known.groupby("place", sort=False)]
    note = NOTE.format(about=between_gpus.ABOUT)
    page = gpu_map.draw_maps(_answer(known), note, points, panels, ("inferno", "GPU temperature (°C)"))
    numbers = DataFrame([row for _, found in panels for row in found.to_dict("records")])[_PLOTTED]
    return page.finish(), numbers.rename(columns={"value": "gpu_temp_c"})


def _answer(known: DataFrame) -> str:
    """Return an answer per cluster: GPUs of two types have no mean."""
    parts = [(str(place), DataFrame(found)) for place, found in known.groupby("place", sort=False)]
    return "\n".join(f"{place.removesuffix(', simulated')}: {_answer_of(found)}" for place, found in parts)


def _answer_of(known: DataFrame) -> str:
    apart = between_gpus.spread(known, "gpu_temp_c")
    hottest = known.sort_values("gpu_temp_c", ascending=False, kind="stable").iloc[0]
    where = f"node {hottest['node']} GPU {hottest['number']}, {hottest['label']}"
    said = f"the hottest of all has {float(hottest['gpu_temp_c']):.0f} °C ({where})"
    if apart is None:
        return said
    return f"a run's hottest GPU is {apart.text} hotter than its coolest ({titles.mean_of(apart.num, 'run')}); {said}"
