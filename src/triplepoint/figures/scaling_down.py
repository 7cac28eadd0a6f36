"""Whether models scaled down to 30 billion parameters stand for the whole ones: both in the same layouts and batch."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame, Series

from triplepoint.effects import pair_points
from triplepoint.effects.equal_work import FAMILIES, SCALED_DOWN, answer_order
from triplepoint.effects.titles import Change, at_place
from triplepoint.figures import marks, style
from triplepoint.figures.grouped import comparable, draw_groups
from triplepoint.figures.parallelism_sweep import Quantity

QUANTITIES = (
    Quantity("mfu", "MFU (%)", scale=100),
    Quantity("gpu_power_w", "GPU power\n(W)", limit=("gpu_power_limit_w", "limit {:.0f} W")),
    Quantity("gpu_temp_c", "GPU (°C)", limit=("gpu_throttle_temp_c", "throttled at {:.0f} °C"), from_zero=False),
    Quantity("sm_clock_busy_mhz", "clock while\nbusy (GHz)", scale=1e-3, from_zero=False),
)
_ALIKE = 0.1
"""Sizes stand for each other where the interval of the ratio of their MFU, less 1, ends nearer to 0; set by hand."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots: layouts that both sizes of a model have on a cluster.

    Where there are no two sizes, all points are drawn.
    """
    points = comparable(tables["points"])
    points = points.assign(
        family=points["model"].map(lambda name: FAMILIES.get(name, name)),
        series=Series(["30b" if name in SCALED_DOWN else "whole" for name in points["model"]], points.index),
    )
    points["panel"] = points["family"] + " on " + points["cluster"]
    keys = ["family", "cluster", "num_gpus", "layout"]
    both = points.groupby(keys)["series"].transform("nunique") > 1
    points = points[both] if both.any() else points
    by_size = points.assign(size=points["series"])
    order = answer_order(by_size, ["family", "cluster"], "size", "mfu")
    found = pair_points(by_size, "mfu", keys, "size", "whole", "30b")
    change = Change("With the 30B model instead of the whole one", {"model FLOP utilisation": found})
    lines = [_answer(change), *([order] if order else [])]
    page, numbers = draw_groups(lines, points, QUANTITIES, marks.MODEL_SIZES)
    return page.finish(), numbers


def _answer(change: Change) -> str:
    """Return whether both sizes have one MFU, and by how much they differ."""
    (found,) = change.found.values()
    if len(found) < 2:
        return change.title
    (mean,) = change.means
    is_alike = max(abs(mean.low), abs(mean.high)) < _ALIKE
    return at_place("Yes" if is_alike else "Not known" if mean.is_tie else "No", change.title)
