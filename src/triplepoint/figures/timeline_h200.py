"""Ranks over time in the fastest GPT-3 run on 32 H200, drawn as `timeline`; the catalogue names the cluster."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.figures import timeline

runs_to_draw = timeline.runs_to_draw


def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots: see `timeline.draw`."""
    return timeline.draw(tables)
