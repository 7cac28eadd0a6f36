"""Ranks over time in the fastest GPT-3 run on 32 H200, drawn as `timeline`, with power and temperature."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.figures import timeline

CLUSTER = "h200x32"


def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the spans it draws; of other clusters where this one is not among the points."""
    points = tables["points"]
    here = points[points["cluster"] == CLUSTER]
    return timeline.draw({**tables, "points": points if here.empty else here})
