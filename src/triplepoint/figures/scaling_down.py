"""Whether models scaled down to 30 billion parameters stand for the whole ones: both in the same layouts and batch."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from triplepoint.effects.equal_work import FAMILIES, SCALED_DOWN, answer_order, change_of_pairs
from triplepoint.effects.titles import Change, at_place
from triplepoint.figures import marks, style
from triplepoint.figures.grouped import CALLED, comparable, draw_groups
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
    asked = {one.column: CALLED[one.column] for one in QUANTITIES}
    change = change_of_pairs(by_size, keys, "size", ("whole", "30b"), asked, ("", "they"))
    page, numbers = draw_groups(_answer(change, order), {"": change}, points, QUANTITIES, marks.MODEL_SIZES)
    return page.finish(), numbers


def _answer(change: Change, order: str) -> list[str]:
    """Return whether both sizes have one MFU, by how much they differ, and whether one layout is fastest for both."""
    if not change.found["MFU"]:
        return ["No layout ran with both sizes of a model"]
    mean = change.mean("MFU")
    stand = "may not stand" if np.isnan(mean.low) or mean.is_tie else "do not stand"
    if max(abs(mean.low), abs(mean.high)) < _ALIKE:
        stand = "stand"
    said = f"Models scaled down to 30B {stand} for whole ones: {change.sentence}"
    return [said, at_place("", order)] if order else [said]
