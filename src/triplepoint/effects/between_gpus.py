"""Differences between the GPUs of runs: highest to lowest, rear to front, what links carry; with intervals."""

import math
from collections.abc import Sequence

import numpy as np
from pandas import DataFrame

from triplepoint.effects import COVERAGE, Effect, over_settings

REAR, FRONT = "rear", "front"


def single(change: float, is_relative: bool) -> Effect:
    """Return a change that has no interval of its own."""
    return Effect(change, math.nan, math.nan, "none", 1, is_relative)


def spread(gpus: DataFrame, column: str) -> Effect | None:
    """Return by how much the highest GPU of a run is above the lowest: mean over runs with its t interval.

    Args:
        gpus: Rows of table `gpus`.
        column: A temperature (`_c`), whose difference is taken, or else a quantity whose ratio is.

    Returns:
        The effect, None where no run has two GPUs with a value.
    """
    is_relative = not column.endswith("_c")
    changes = []
    for _, own in gpus.groupby("run", sort=False):
        values = own[column].astype(float).dropna()
        if len(values) > 1:
            low, high = float(values.min()), float(values.max())
            changes.append(single(high / low - 1 if is_relative else high - low, is_relative))
    return over_settings(changes) if changes else None


def spread_by_place(gpus: DataFrame, column: str) -> dict[str, Effect]:
    """Return the same of each cluster that has such a run, by column `place`."""
    found = {str(place): spread(own, column) for place, own in gpus.groupby("place", sort=False)}
    return {place: apart for place, apart in found.items() if apart is not None}


def rear_over_front(gpus: DataFrame, column: str = "gpu_temp_c") -> Effect | None:
    """Return by how much rear GPUs are hotter than those before them in the same lane.

    Pairs are averaged in each node over lanes and runs; the t interval is over nodes, whose parts differ.

    Args:
        gpus: Rows of table `gpus` of one cluster.
        column: A temperature. Unit: degC.

    Returns:
        The difference, None where no lane has GPUs with a temperature in both rows.
    """
    pairs = lane_differences(gpus, column)
    if pairs.empty:
        return None
    return over_settings([single(float(own["difference_k"].mean()), False) for _, own in pairs.groupby("node")])


def lane_differences(gpus: DataFrame, column: str = "gpu_temp_c") -> DataFrame:
    """Return rear less front of each run, node and lane: columns run, node, airflow_lane, difference_k."""
    placed = gpus[gpus["airflow_place"].isin([REAR, FRONT]) & gpus[column].notna()]
    by_place = placed.astype({column: float}).pivot_table(
        index=["run", "node", "airflow_lane"], columns="airflow_place", values=column, sort=False
    )
    if not {REAR, FRONT} <= set(by_place.columns):
        return DataFrame(columns=["run", "node", "airflow_lane", "difference_k"])
    found = (by_place[REAR] - by_place[FRONT]).dropna()
    return found.rename("difference_k").reset_index()


def mean_share(rows: DataFrame, columns: Sequence[str]) -> tuple[float, float, float] | None:
    """Return the mean share of capacity of links over runs, and the ends of its t interval.

    Args:
        rows: Rows of table `traffic` of one kind of link.
        columns: Columns of shares, one per direction; the larger of each row counts.

    Returns:
        Mean and ends, 0 to 1, ends NaN of one run; None where no share is known.
    """
    shares = rows[list(columns)].astype(float).max(axis=1).groupby(rows["run"]).mean().dropna()
    if shares.empty:
        return None
    changes = over_settings([single(100 * float(share), False) for share in shares])
    return changes.value / 100, changes.low / 100, changes.high / 100


def said_share(share: tuple[float, float, float]) -> str:
    """Return a share with its interval: '30 % [21, 39]'."""
    value, low, high = (f"{100 * part:.2g}" for part in share)
    return f"{value} %" if np.isnan(share[1]) else f"{value} % [{low}, {high}]"


def same_order(gpus: DataFrame, ours: str, published: str) -> float | None:
    """Return Spearman's rank correlation over GPUs that have both numbers; None of fewer than three, or all alike.

    Args:
        gpus: A row per GPU of one run.
        ours: Column of our number.
        published: Column of the published one.
    """
    both = gpus[[ours, published]].astype(float).dropna()
    if len(both) < 3 or both[ours].nunique() < 2 or both[published].nunique() < 2:
        return None
    ranks = both.rank()  # pandas' own method would import scipy, which takes a second
    return float(ranks[ours].corr(ranks[published]))


ABOUT = f"{100 * COVERAGE:.0f} % t interval"
"""Of every interval here."""
