"""Who came late to each collective, by how much, and how long the others waited.

A rank arrives when its part starts; by then its own work before the collective is done. Times of different ranks are
compared on the aligned clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from triplepoint.trace.arrays import Int64
from triplepoint.trace.cross.clocks import Clock
from triplepoint.trace.cross.matching import Meetings


@dataclass(frozen=True)
class Arrivals:
    """How one rank arrived at its collectives, parallel to them; shape of every array (num_collectives,).

    Only where `is_known` do the others mean anything, `num_seen` apart; elsewhere they are 0. Where fewer ranks were
    seen than took part, the lag, the skew and the wait are the least they can have been.

    Attributes:
        rank: Global rank.
        num_seen: Number of ranks whose trace is known to have the collective, this one included.
        is_known: Whether two ranks or more were seen, and all of them were in it at one moment as far as the clocks are
            sure, which must be so for kinds that no rank leaves before every rank has come.
        lag_ns: Start since the first rank's start. Unit: ns.
        skew_ns: Last rank's start since the first rank's. Unit: ns.
        waited_ns: Time from the start until the last rank's; 0 for the last, and for a part that ended before the last
            rank came (a root that had sent its data). Unit: ns.
        last_rank: Rank that came last; of several the lowest.
        last_start: When it came, on the aligned clock. Unit: ns since 1970.
    """

    rank: int
    num_seen: Int64
    is_known: npt.NDArray[np.bool_]
    lag_ns: Int64
    skew_ns: Int64
    waited_ns: Int64
    last_rank: Int64
    last_start: Int64


def find_arrivals(meetings: Meetings, clocks: Mapping[int, Clock]) -> list[Arrivals]:
    """Return the arrivals of every rank, by rank.

    Args:
        meetings: Which collectives belong together.
        clocks: Clock of every rank.
    """
    ranks = np.array([own.rank for own in meetings.collectives], dtype=np.int64)
    start, end = _aligned(meetings, clocks)
    num_seen = _over_meeting(np.add, np.ones_like(start), meetings)
    earliest = _over_meeting(np.minimum, start, meetings)
    last_start = _over_meeting(np.maximum, start, meetings)
    candidate = np.where(start == last_start, ranks[meetings.lane], np.iinfo(np.int64).max)
    last_rank = _over_meeting(np.minimum, candidate, meetings)
    unsure = np.array([clocks[rank].uncertainty_ns for rank in ranks.tolist()], dtype=np.int64)[meetings.lane]
    latest_start = _over_meeting(np.minimum, end, meetings) + _over_meeting(np.maximum, unsure, meetings)
    is_known = (num_seen > 1) & ((last_start <= latest_start) | ~meetings.ends_together)
    is_waiting = meetings.ends_together | (last_start <= end)
    waited = np.where(is_waiting, np.minimum(last_start, end) - start, 0)
    values = [start - earliest, last_start - earliest, waited, last_rank, last_start]
    return [
        _scattered(meetings, lane, num_seen, is_known, [np.where(is_known, value, 0) for value in values])
        for lane in range(len(ranks))
    ]


def _aligned(meetings: Meetings, clocks: Mapping[int, Clock]) -> tuple[Int64, Int64]:
    start, end = meetings.start.copy(), meetings.end.copy()
    for lane, own in enumerate(meetings.collectives):
        here = meetings.lane == lane
        start[here], end[here] = clocks[own.rank].aligned(start[here]), clocks[own.rank].aligned(end[here])
    return start, end


def _over_meeting(function: np.ufunc, values: Int64, meetings: Meetings) -> Int64:
    """Return, for every part, the function over all parts of its meeting."""
    firsts = meetings.firsts()
    return function.reduceat(values, firsts)[meetings.meeting] if len(firsts) else values


def _scattered(
    meetings: Meetings, lane: int, num_seen: Int64, is_known: npt.NDArray[np.bool_], values: list[Int64]
) -> Arrivals:
    """Return the values of one rank's parts, put where its collectives are."""
    own = meetings.collectives[lane]
    num = len(own.meeting)
    here = meetings.lane == lane
    index = meetings.index[here]
    seen, known = np.ones(num, dtype=np.int64), np.zeros(num, dtype=bool)
    seen[index], known[index] = num_seen[here], is_known[here]
    spread_out = []
    for value in values:
        full = np.zeros(num, dtype=np.int64)
        full[index] = value[here]
        spread_out.append(full)
    return Arrivals(own.rank, seen, known, *spread_out)
