"""What links carry on 64 H100, drawn as on 32 H200; the catalogue names the cluster."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.figures import traffic_heatmap


def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots: see `traffic_heatmap.draw`."""
    return traffic_heatmap.draw(tables)
