"""Which ranks hold the others up.

Who computes longer than its peers, step by step, and comes last more often than by turns, is a straggler: the others
wait for it. Someone always comes last, and work dealt out unevenly need not be on anyone's way, so neither is enough.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from triplepoint.metrics import modified_z_scores
from triplepoint.trace.arrays import Int64
from triplepoint.trace.cross.arrivals import Arrivals
from triplepoint.trace.lanes import Lane, time_by_label

_MIN_Z_SCORE = 3.5
"""Source: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, chapter 3."""

_MIN_EXCESS = 0.02
"""Ranks that hardly differ make any difference an outlier; below 2 % of the computation it costs nobody much."""

_MIN_PEERS = 3
"""Of two ranks neither is the odd one."""


class Standing(NamedTuple):
    """How one rank stands among its peers.

    Attributes:
        rank: Global rank.
        num_collectives: Number of collectives with a known order of arrival.
        share_last: Share of them it came to last; None where there are none.
        lateness_ns: Median time after the first rank in those it came to last; None where there are none. Unit: ns.
        waited_ns: Time it waited for the last rank, all collectives together. Unit: ns.
        compute_ns: Computation per step, median over steps; None without steps. Unit: ns.
        compute_excess: Computation over the median of its peers in the same step, less 1, median over steps; None where
            there are under three peers, no step common to them, or no computation.
        z_score: Modified z-score of that excess among the peers.
        is_straggler: Whether the excess is an outlier and at least 2 %, and the rank came last more often than if all
            ranks took turns (where that is known).
    """

    rank: int
    num_collectives: int
    share_last: float | None
    lateness_ns: int | None
    waited_ns: int
    compute_ns: int | None
    compute_excess: float | None
    z_score: float | None
    is_straggler: bool


def find_stragglers(
    lanes: Sequence[Lane], arrivals: Sequence[Arrivals], peers: Sequence[Collection[int]] = ()
) -> list[Standing]:
    """Return the standing of every rank that has a lane, by rank.

    Args:
        lanes: Every rank's segments.
        arrivals: Every rank's arrivals.
        peers: Ranks that have the same work by design, in groups of which no two share a rank (stages of a pipeline
            differ, so the ranks of each stage, or its data parallel groups); none for all ranks alike.
    """
    compute = {lane.rank: _compute_by_step(lane) for lane in lanes}
    excess: dict[int, tuple[float, float]] = {}
    for group in peers or [compute.keys()]:
        members = sorted(set(group) & compute.keys())
        excess |= _excess({rank: compute[rank] for rank in members})
    by_rank = {arrived.rank: arrived for arrived in arrivals}
    return [_standing(rank, by_rank.get(rank), compute[rank], excess.get(rank)) for rank in sorted(compute)]


def _standing(
    rank: int, arrived: Arrivals | None, compute: dict[int, int], excess: tuple[float, float] | None
) -> Standing:
    lateness = _lateness(arrived) if arrived else np.zeros(0, dtype=np.int64)
    num_seen = arrived.num_seen[arrived.is_known] if arrived else np.zeros(0, dtype=np.int64)
    num = len(num_seen)
    over, z_score = excess or (None, None)
    is_outlier = over is not None and z_score is not None and over >= _MIN_EXCESS and z_score > _MIN_Z_SCORE
    return Standing(
        rank=rank,
        num_collectives=num,
        share_last=len(lateness) / num if num else None,
        lateness_ns=round(np.median(lateness)) if len(lateness) else None,
        waited_ns=int(arrived.waited_ns.sum()) if arrived else 0,
        compute_ns=round(np.median(list(compute.values()))) if compute else None,
        compute_excess=over,
        z_score=z_score,
        is_straggler=is_outlier and (not num or len(lateness) > float(np.sum(1 / num_seen))),
    )


def _lateness(arrived: Arrivals) -> Int64:
    """Return the lags of the collectives the rank came to last; where all came at once nobody did."""
    is_last = arrived.is_known & (arrived.last_rank == arrived.rank) & (arrived.skew_ns > 0)
    lateness: Int64 = arrived.lag_ns[is_last]
    return lateness


def _compute_by_step(lane: Lane) -> dict[int, int]:
    is_compute = np.array([label.category == "compute" for label in lane.labels], dtype=bool)
    return {step.number: int(time_by_label(lane, step.start, step.end)[is_compute].sum()) for step in lane.steps}


def _excess(compute: dict[int, dict[int, int]]) -> dict[int, tuple[float, float]]:
    """Return excess and z-score of every rank among these peers, from their computation by step."""
    steps = sorted(set.intersection(*(set(by_step) for by_step in compute.values()))) if compute else []
    times = np.array([[by_step[step] for step in steps] for by_step in compute.values()], dtype=float)
    if len(compute) < _MIN_PEERS or not steps:
        return {}
    typical = np.median(times, axis=0)
    times, typical = times[:, typical > 0], typical[typical > 0]
    if not len(typical):
        return {}
    over = np.median(times / typical - 1, axis=1)
    return dict(zip(compute, zip(over.tolist(), modified_z_scores(over).tolist(), strict=True), strict=True))
