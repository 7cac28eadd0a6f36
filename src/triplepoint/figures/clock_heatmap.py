"""Clock of every GPU in every run: a map per cluster."""

import functools
from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.effects import between_gpus, titles
from triplepoint.figures import gpu_map, style

BUSY, MEAN = "sm_clock_busy_mhz", "sm_clock_mhz"
_PLOTTED = ["place", "row", "run", "origin", "node", "number", "rank", "value", BUSY, MEAN]
NOTE = "A cell is a GPU's {what}.{waits} Interval of the title: {about} over runs of the same GPUs."


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and GPU.

    The clock while kernels run is drawn where every GPU with a clock has it, else the mean clock, idle time included:
    one page has one quantity.

    Args:
        tables: `points` and `gpus`.
    """
    points, known, why = gpu_map.with_values(tables, MEAN, "clocks")
    if why:
        return gpu_map.empty_page(tables["points"], why).finish(), DataFrame(columns=_PLOTTED)
    column = BUSY if known[BUSY].notna().all() else MEAN
    what = "mean clock while kernels run" if column == BUSY else "mean clock over steps, idle time included"
    waits = "" if column == BUSY else " A GPU that waits clocks high, so a high clock is no sign of speed."
    note = NOTE.format(what=what, waits=waits, about=between_gpus.ABOUT)
    answer = functools.partial(_answer, column=column)
    page, cells = gpu_map.draw_maps(answer, note, points, known, column, ("viridis", f"{what} (MHz)"))
    return page.finish(), cells[_PLOTTED]


def _answer(known: DataFrame, column: str) -> str:
    apart = between_gpus.spread(known, column)
    slowest = known.sort_values(column, kind="stable").iloc[0]
    where = f"node {slowest['node']} GPU {slowest['number']}, {slowest['label']}"
    said = f"the slowest of all runs at {float(slowest[column]):.0f} MHz ({where})"
    if apart is None:
        return said
    return f"a run's fastest GPU clocks {apart.text} above its slowest ({titles.mean_of(apart.num, 'run')}); {said}"
