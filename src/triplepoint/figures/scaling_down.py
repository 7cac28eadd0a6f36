"""Figure `scaling_down`: models scaled down to 30 billion parameters against the full ones, in the same layouts."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from triplepoint.effects.equal_work import FAMILIES, SCALED_DOWN, answer_order, change_of_pairs
from triplepoint.effects.titles import Change, at_place
from triplepoint.figures import marks, style
from triplepoint.figures.grouped import NAMES, comparable, draw_groups
from triplepoint.figures.quantities import Quantity

QUANTITIES = (
    Quantity("mfu", "MFU (%)", scale=100),
    Quantity("gpu_power_w", "GPU power\n(W)", limit=("gpu_power_limit_w", "limit {:.0f} W")),
    Quantity("gpu_temp_c", "GPU (°C)", limit=("gpu_throttle_temp_c", "throttled at {:.0f} °C"), from_zero=False),
    Quantity("sm_clock_busy_mhz", "clock while\nbusy (GHz)", scale=1e-3, from_zero=False),
)
_ALIKE = 0.1
"""Largest relative difference of MFU, with its interval, at which a scaled-down model represents the full one. Our
choice."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots: layouts that both sizes of a model ran on a cluster, else all."""
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
    names = {quantity.column: NAMES[quantity.column] for quantity in QUANTITIES}
    change = change_of_pairs(by_size, keys, "size", ("whole", "30b"), names, ("", "they"))
    page, numbers = draw_groups(_answer(change, order), {"": change}, points, QUANTITIES, marks.MODEL_SIZES)
    return page.finish(), numbers


def _answer(change: Change, order: str) -> list[str]:
    """Return the title: whether both sizes have the same MFU, and whether the same layout is fastest for both."""
    if not change.effects["MFU"]:
        return ["No layout ran with both sizes of a model"]
    mean = change.mean("MFU")
    verb = "may not stand" if np.isnan(mean.low) or mean.is_tie else "do not stand"
    if max(abs(mean.low), abs(mean.high)) < _ALIKE:
        verb = "stand"
    sentence = f"Models scaled down to 30B {verb} for whole ones: {change.sentence}"
    return [sentence, at_place("", order)] if order else [sentence]
