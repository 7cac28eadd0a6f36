"""What links carry on 64 H100, drawn as on 32 H200."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.figures.traffic_heatmap import draw_cluster

CLUSTER = "h100x64"


def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and link."""
    return draw_cluster(tables, CLUSTER)
