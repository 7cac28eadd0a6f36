"""Quantities that figures draw in rows of panels: columns of table `points`, their intervals and published values."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from pandas import DataFrame, Series

from triplepoint.tables.schema import column_of

_ENDS = ("p10", "p90", "lo", "hi")


@dataclass(frozen=True)
class Quantity:
    """One row of panels: a column of table `points`, and how it is drawn.

    Attributes:
        column: Column of the quantity.
        title: Label of the y axis; {rank} stands for 'GPU' or 'process'.
        highest: Column of the highest value of any GPU, drawn as a tick; '' for none.
        limit: Column of the limit that is drawn as a line, and its text; '' for none.
        scale: Factor from the unit of the column to the unit of the axis.
        from_zero: Whether the axis begins at zero. Values are then drawn as bars, else as points.
    """

    column: str
    title: str
    highest: str = ""
    limit: tuple[str, str] = ("", "")
    scale: float = 1.0
    from_zero: bool = True


def known(quantities: Sequence[Quantity], points: DataFrame) -> list[Quantity]:
    """Return the quantities that some point has a value of, and always the first."""
    return [
        quantity for number, quantity in enumerate(quantities) if not number or points[quantity.column].notna().any()
    ]


def columns_of(quantities: Iterable[Quantity], points: DataFrame) -> list[str]:
    """Return the columns of `points` that quantities are drawn from: values, ends of intervals, highest and limits."""
    names = [
        name
        for quantity in quantities
        for name in (
            quantity.column, *(column_of(quantity.column, end) for end in _ENDS), quantity.highest, quantity.limit[0]
        )
    ]  # fmt: skip
    return [name for name in dict.fromkeys(names) if name in points]


def interval_of(row: Series, column: str, scale: float = 1.0) -> tuple[float, float]:
    """Return the ends of the interval of a quantity; NaN where there is none.

    Args:
        row: Row of table `points`.
        column: Column of the quantity.
        scale: Factor that both ends are multiplied by.

    Returns:
        The 90 % interval of the model for a simulated run, the 10th and 90th percentile for a measured one.
    """
    ends = ("lo", "hi") if row["origin"] == "simulated" else ("p10", "p90")
    low, high = (float(row.get(column_of(column, end), np.nan)) * scale for end in ends)
    return low, high


def published_of(published: DataFrame | None, runs: Series, column: str) -> Series:
    """Return the published value of a quantity for each run; null where there is none.

    Args:
        published: Table `published`, or None.
        runs: Run ids.
        column: Column of the quantity.
    """
    if published is None:
        return Series(np.nan, runs.index)
    rows = published[(published["quantity"] == column) & published["node"].isna()].drop_duplicates("run")
    return runs.map(rows.set_index("run")["published"]).astype(float)


def share_y(row: Sequence[Axes]) -> None:
    """Give all panels of a row the same range of y."""
    lows, highs = zip(*(axes.get_ylim() for axes in row), strict=True)
    for axes in row:
        axes.set_ylim(min(lows), max(highs))
