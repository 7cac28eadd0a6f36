"""The parallelism sweep on 64 H100, drawn as that on 32 H200; the catalogue names the cluster."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.figures import parallelism_sweep


def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots: see `parallelism_sweep.draw`."""
    return parallelism_sweep.draw(tables)
