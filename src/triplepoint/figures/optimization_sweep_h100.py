"""What recomputation and overlap change on 64 H100: `optimization_sweep` of another cluster."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.figures import optimization_sweep


def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots: see `optimization_sweep.draw`."""
    return optimization_sweep.draw(tables)
