"""The figures: one module each, found by name; only the module of the figure that is drawn is imported."""

import importlib
from typing import TYPE_CHECKING, Protocol, cast

from triplepoint.errors import UserError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from pandas import DataFrame

NAMES = (
    "parallelism_sweep",
    "microbatch_power",
    "kernel_breakdown",
    "timeline",
    "telemetry_validation",
    "thermal_heatmap",
    "throttle_heatmap",
    "node_airflow",
    "inference_batch",
)
"""Figure = module here = `figs/<name>.pdf` = `workflow/report/<name>.rst`, in the order of the report."""


class FigureModule(Protocol):
    """What a figure's module offers."""

    TABLES: tuple[str, ...]
    """Names of the result tables it needs."""

    def draw(self, tables: "Mapping[str, DataFrame]") -> "tuple[Figure, DataFrame]":
        """Return the figure and the numbers it plots."""
        ...


def load(name: str) -> FigureModule:
    """Return the module of the figure called `name`.

    Raises:
        UserError: If there is no such figure.
    """
    if name not in NAMES:
        raise UserError(f"no figure {name!r}{nearest(name, NAMES)}")
    return cast(FigureModule, importlib.import_module(f"triplepoint.figures.{name}"))
