"""Figure `clock_heatmap`: clock of every GPU in every run, a map per cluster."""

import operator
from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.effects import between_gpus
from triplepoint.figures import gpu_map, style

BUSY, MEAN = "sm_clock_busy_mhz", "sm_clock_mhz"
_PLOTTED = ["place", "row", "run", "origin", "node", "number", "rank", "value", BUSY, MEAN]
NOTE = "A cell is a GPU's {what}; the ring is the slowest.{waits} Brackets: {about} over runs."


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and GPU.

    The figure draws the clock while kernels run if it is known for every GPU with a clock, else the mean clock, idle
    time included.

    Args:
        tables: `points` and `gpus`.
    """
    points, known, reason = gpu_map.with_values(tables, MEAN, "clocks")
    if reason:
        return gpu_map.empty_page(tables["points"], reason).finish(), DataFrame(columns=_PLOTTED)
    column = BUSY if known[BUSY].notna().all() else MEAN
    what = "mean clock while kernels run" if column == BUSY else "mean clock over steps, idle time included"
    waits = "" if column == BUSY else " GPUs that wait clock high."
    note = NOTE.format(what=what, waits=waits, about=between_gpus.INTERVAL)
    spreads = between_gpus.spread_by_place(known, column)
    answers = [
        f"{place.removesuffix(', simulated')}: the fastest GPU of a run clocks {spread.text} above its slowest"
        for place, spread in spreads.items()
    ]
    slowest, colours = operator.methodcaller("idxmin"), ("viridis", f"{what} (MHz)")
    page, cells = gpu_map.draw_maps(
        answers or "No run has two GPUs with a clock", note, points, known, column, colours, slowest
    )
    return page.finish(), cells[_PLOTTED]
