"""Differences between the GPUs of a run: hottest and coolest, rear and front, and the use of links."""

import math
from collections.abc import Sequence

import numpy as np
from pandas import DataFrame

from triplepoint.effects import COVERAGE, Effect, over_settings

REAR, FRONT = "rear", "front"
"""Values of column `airflow_place`."""
INTERVAL = f"{100 * COVERAGE:.0f} % t interval"
"""Name of the intervals of this module, for notes."""


def single(change: float, is_relative: bool) -> Effect:
    """Return a change without an interval."""
    return Effect(change, math.nan, math.nan, "none", 1, is_relative)


def spread(gpus: DataFrame, column: str) -> Effect | None:
    """Return the difference between the highest and the lowest GPU of a run: mean over runs with its t interval.

    Args:
        gpus: Rows of table `gpus`.
        column: The quantity. Temperatures (`_c`) give a difference, all others a ratio.

    Returns:
        The effect; None if no run has two GPUs with a value.
    """
    is_relative = not column.endswith("_c")
    changes = []
    for _, rows in gpus.groupby("run", sort=False):
        values = rows[column].astype(float).dropna()
        if len(values) > 1:
            low, high = float(values.min()), float(values.max())
            changes.append(single(high / low - 1 if is_relative else high - low, is_relative))
    return over_settings(changes) if changes else None


def spread_by_place(gpus: DataFrame, column: str) -> dict[str, Effect]:
    """Return the `spread` of each cluster, by column `place`; without clusters that have none."""
    spreads = {str(place): spread(rows, column) for place, rows in gpus.groupby("place", sort=False)}
    return {place: effect for place, effect in spreads.items() if effect is not None}


def rear_over_front(gpus: DataFrame, column: str = "gpu_temp_c") -> Effect | None:
    """Return by how much rear GPUs are hotter than the front GPUs of the same airflow lane.

    Differences are averaged over the lanes and runs of each node. The t interval is over nodes.

    Args:
        gpus: Rows of table `gpus` of one cluster.
        column: A temperature. Unit: degC.

    Returns:
        The difference; None if no lane has temperatures of both a rear and a front GPU.
    """
    pairs = lane_differences(gpus, column)
    if pairs.empty:
        return None
    return over_settings([single(float(of_node["difference_k"].mean()), False) for _, of_node in pairs.groupby("node")])


def lane_differences(gpus: DataFrame, column: str = "gpu_temp_c") -> DataFrame:
    """Return rear minus front temperature: one row per (run, node, airflow_lane), with column `difference_k`."""
    placed = gpus[gpus["airflow_place"].isin([REAR, FRONT]) & gpus[column].notna()]
    by_place = placed.astype({column: float}).pivot_table(
        index=["run", "node", "airflow_lane"], columns="airflow_place", values=column, sort=False
    )
    if not {REAR, FRONT} <= set(by_place.columns):
        return DataFrame(columns=["run", "node", "airflow_lane", "difference_k"])
    differences = (by_place[REAR] - by_place[FRONT]).dropna()
    return differences.rename("difference_k").reset_index()


def mean_share(rows: DataFrame, columns: Sequence[str]) -> tuple[float, float, float] | None:
    """Return the mean share of their capacity that links use, over runs, with its t interval.

    Args:
        rows: Rows of table `traffic` of one kind of link.
        columns: Columns of shares, one per direction; the larger value of each row is used.

    Returns:
        Mean, lower and upper end, 0-1; the ends are NaN for one run. None if no share is known.
    """
    shares = rows[list(columns)].astype(float).max(axis=1).groupby(rows["run"]).mean().dropna()
    if shares.empty:
        return None
    mean = over_settings([single(100 * float(share), False) for share in shares])
    return mean.value / 100, mean.low / 100, mean.high / 100


def share_text(share: tuple[float, float, float]) -> str:
    """Return a share and its interval, 0-1, as text: '30 % [21, 39]'."""
    value, low, high = (f"{100 * part:.2g}" for part in share)
    return f"{value} %" if np.isnan(share[1]) else f"{value} % [{low}, {high}]"


def rank_correlation(gpus: DataFrame, ours: str, published: str) -> float | None:
    """Return Spearman's rank correlation over the GPUs that have both numbers.

    Args:
        gpus: One row per GPU of one run.
        ours: Column of our number.
        published: Column of the published number.

    Returns:
        The correlation; None for fewer than three GPUs, or if all of one column are equal.
    """
    both = gpus[[ours, published]].astype(float).dropna()
    if len(both) < 3 or both[ours].nunique() < 2 or both[published].nunique() < 2:
        return None
    ranks = both.rank()  # corr(method="spearman") would import scipy, which takes a second
    return float(ranks[ours].corr(ranks[published]))
