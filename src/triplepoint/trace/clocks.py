"""Align the clocks of ranks by collectives that all ranks leave together, and find the arrivals at collectives.

A late rank makes the others wait, but all leave the collective within tens of microseconds. Therefore the median
difference of the ends over many collectives is the difference of the clocks. Ranks without a common collective are
aligned through other ranks.

A rank arrives at a collective when the collective starts on it, after its own earlier work. Times of different ranks
are compared on the aligned clock.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.metrics import MEAN_TO_SIGMA, robust_sigma
from triplepoint.trace import Int64
from triplepoint.trace.matching import MatchedCollectives
from triplepoint.units import NS_PER_S

Floats = npt.NDArray[np.float64]

_FLOOR_NS = 10_000
"""Smallest uncertainty of an offset. Ranks of one host, which share a clock, leave an NCCL collective up to 7 us apart
(8 V100, public trace of DLRM), each place in the ring a little after the previous one."""

_MIN_MATCHED = 5
"""With fewer collectives the scatter of their ends means nothing, and the longest collective bounds the error."""

_MIN_FOR_DRIFT = 30
_MIN_DRIFT_RUN_NS = NS_PER_S
_MAX_DRIFT = 500e-6
"""Drift is fitted to at least this many collectives over at least this time, in which 10 ppm make 10 us. NTP slews a
clock by at most 500 ppm (ntpd manual); a larger slope has another cause."""


class Clock(NamedTuple):
    """Offset and drift of one rank's clock against that of a reference rank.

    The offset is applied only if it exceeds its uncertainty, so that the clocks of ranks on one host stay as they are.
    The uncertainty is the scatter of single collectives plus three standard errors of the median, at least 10 us. The
    scatter does not average out, because it contains the constant place of a rank in the ring or tree. With fewer than
    5 collectives the uncertainty is the duration of the longest. Drift is applied only if it exceeds three standard
    errors. Scatter and uncertainty add up along a chain of ranks.

    Attributes:
        rank: The rank.
        reference: Lowest rank it is aligned with, perhaps through others; the rank itself if there is none.
        offset_ns: Offset at `at_ns`, to be subtracted from times of the rank. Unit: ns.
        drift: Growth of the offset. Unit: ns per ns.
        at_ns: Time of the offset. Unit: ns since 1970.
        measured_ns: Measured offset, applied or not. Unit: ns.
        spread_ns: Robust standard deviation of the difference of ends in single collectives. Unit: ns.
        uncertainty_ns: Uncertainty of the offset, see above. Unit: ns.
        num_matched: Number of collectives the offset is from; 0 if the offset is unknown.
    """

    rank: int
    reference: int
    offset_ns: int = 0
    drift: float = 0.0
    at_ns: int = 0
    measured_ns: int = 0
    spread_ns: int = 0
    uncertainty_ns: int = 0
    num_matched: int = 0

    def aligned(self, times: Int64) -> Int64:
        """Return times of the rank on the clock of the reference rank. Unit: ns since 1970."""
        shifted = times - self.offset_ns
        return shifted - np.rint(self.drift * (times - self.at_ns)).astype(np.int64) if self.drift else shifted


class _Tie(NamedTuple):
    """Difference of two ranks' clocks: `offset` + `drift` * (time - at)."""

    offset: float
    drift: float
    spread: float
    uncertainty: float
    num_matched: int

    def reversed(self) -> "_Tie":
        return self._replace(offset=-self.offset, drift=-self.drift)

    def then(self, other: "_Tie") -> "_Tie":
        return _Tie(
            self.offset + other.offset,
            self.drift + other.drift,
            self.spread + other.spread,
            self.uncertainty + other.uncertainty,
            min(self.num_matched, other.num_matched),
        )


_Ties = dict[int, dict[int, _Tie]]
"""Ties by the positions of two ranks, in both directions."""


def align(matched: MatchedCollectives) -> dict[int, Clock]:
    """Return the clock of every rank, relative to the lowest rank it is aligned with."""
    ends = matched.end[matched.ends_together]
    at_ns = int(ends.min() + (ends.max() - ends.min()) // 2) if len(ends) else 0
    ties = _ties(matched, at_ns)
    ranks = [of_rank.rank for of_rank in matched.collectives]
    clocks: dict[int, Clock] = {}
    for lane, rank in enumerate(ranks):
        if rank in clocks:
            continue
        # Ranks are sorted, so the first one of a set of tied ranks is the lowest.
        num_matched = max((tie.num_matched for tie in ties.get(lane, {}).values()), default=0)
        clocks[rank] = Clock(rank, rank, at_ns=at_ns, num_matched=num_matched)
        for other, tie in _best_chains(ties, lane).items():
            clocks[ranks[other]] = _clock(ranks[other], rank, tie, at_ns)
    return clocks


def _clock(rank: int, reference: int, tie: _Tie, at_ns: int) -> Clock:
    is_applied = abs(tie.offset) > tie.uncertainty or tie.drift != 0
    measured_ns = round(tie.offset)
    return Clock(
        rank,
        reference,
        offset_ns=measured_ns if is_applied else 0,
        drift=tie.drift,
        at_ns=at_ns,
        measured_ns=measured_ns,
        spread_ns=round(tie.spread),
        uncertainty_ns=round(tie.uncertainty),
        num_matched=tie.num_matched,
    )


def _best_chains(ties: _Ties, start: int) -> dict[int, _Tie]:
    """Return the least uncertain chain of ties from `start` to every other rank it is tied to (Dijkstra)."""
    chains: dict[int, _Tie] = {}
    queue = [(tie.uncertainty, other, tie) for other, tie in ties.get(start, {}).items()]
    heapq.heapify(queue)
    while queue:
        _, lane, chain = heapq.heappop(queue)
        if lane == start or lane in chains:
            continue
        chains[lane] = chain
        for other, tie in ties[lane].items():
            longer = chain.then(tie)
            heapq.heappush(queue, (longer.uncertainty, other, longer))
    return chains


def _ties(matched: MatchedCollectives, at_ns: int) -> _Ties:
    """Return the tie between the first rank of every collective and each of its other ranks, in both directions."""
    firsts = matched.firsts()
    first = np.repeat(firsts, np.diff(firsts, append=len(matched.number)))
    other = np.flatnonzero(matched.ends_together & (first != np.arange(len(first))))
    first = first[other]
    rank_pair = matched.lane[first] * len(matched.collectives) + matched.lane[other]
    order = np.argsort(rank_pair, kind="stable")
    borders = np.flatnonzero(np.diff(rank_pair[order])) + 1
    ties: _Ties = {}
    for members in np.split(order, borders) if len(order) else []:
        entries_1, entries_2 = first[members], other[members]
        longest_ns = max(
            int((matched.end[entries] - matched.start[entries]).max()) for entries in (entries_1, entries_2)
        )
        time = (matched.end[entries_1] - at_ns).astype(float)
        tie = _tie(time, (matched.end[entries_2] - matched.end[entries_1]).astype(float), longest_ns)
        lane_1, lane_2 = int(matched.lane[entries_1[0]]), int(matched.lane[entries_2[0]])
        ties.setdefault(lane_1, {})[lane_2] = tie
        ties.setdefault(lane_2, {})[lane_1] = tie.reversed()
    return ties


def _tie(time: Floats, difference: Floats, longest_ns: int) -> _Tie:
    """Return the tie of two ranks.

    Args:
        time: Time of each collective, from the middle of the trace. Unit: ns.
        difference: End on the second rank after the end on the first. Unit: ns.
        longest_ns: Duration of the longest of these collectives. Unit: ns.
    """
    drift = _drift(time, difference)
    without_drift = difference - drift * time
    spread = robust_sigma(without_drift)
    num = len(time)
    uncertainty = spread + 3 * _median_error(spread, num) if num >= _MIN_MATCHED else longest_ns
    return _Tie(float(np.median(without_drift)), drift, spread, max(uncertainty, _FLOOR_NS), num)


def _drift(time: Floats, difference: Floats) -> float:
    """Return the slope between the medians of the first and of the last third; 0 if it is not significant.

    Source:
        The resistant line of Tukey 1977, Exploratory Data Analysis, without its iterations.
    """
    third = len(time) // 3
    if len(time) < _MIN_FOR_DRIFT:
        return 0.0
    order = np.argsort(time)
    early, late = order[:third], order[-third:]
    run = float(np.median(time[late]) - np.median(time[early]))
    if run < _MIN_DRIFT_RUN_NS:
        return 0.0
    rise = float(np.median(difference[late]) - np.median(difference[early]))
    slope = rise / run
    error = sqrt(2) * _median_error(robust_sigma(difference - slope * time), third)
    is_significant = abs(rise) > max(3 * error, _FLOOR_NS) and abs(slope) <= _MAX_DRIFT
    return slope if is_significant else 0.0


def _median_error(spread: float, num: int) -> float:
    """Return the standard error of the median of `num` normally distributed values."""
    return MEAN_TO_SIGMA * spread / sqrt(num)


@dataclass(frozen=True)
class Arrivals:
    """Arrivals of one rank at its collectives, in their order; shape of every array (num_collectives,).

    Without `is_known` all other values but `num_seen` are 0. If fewer ranks were traced than took part, lag, skew and
    wait are lower bounds.

    Attributes:
        rank: Global rank.
        num_seen: Number of ranks whose trace has the collective, this one included.
        is_known: Whether at least two traces have the collective. For kinds that no rank leaves before every rank has
            arrived, all these ranks must also have been in it at one moment, within the uncertainty of their clocks.
        lag_ns: Start after the first rank's start. Unit: ns.
        skew_ns: Last rank's start after the first rank's start. Unit: ns.
        waited_ns: Time from this rank's start to the last rank's. 0 for the last rank, and for a rank that ended before
            the last one arrived, such as a root that had sent its data. Unit: ns.
        last_rank: Rank that arrived last; of several the lowest.
        last_start: Arrival of that rank, on the aligned clock. Unit: ns since 1970.
    """

    rank: int
    num_seen: Int64
    is_known: npt.NDArray[np.bool_]
    lag_ns: Int64
    skew_ns: Int64
    waited_ns: Int64
    last_rank: Int64
    last_start: Int64


def find_arrivals(matched: MatchedCollectives, clocks: Mapping[int, Clock]) -> list[Arrivals]:
    """Return the arrivals of every rank, by rank."""
    ranks = np.array([of_rank.rank for of_rank in matched.collectives], dtype=np.int64)
    start, end = _aligned(matched, clocks)
    num_seen = _over_collective(np.add, np.ones_like(start), matched)
    first_start = _over_collective(np.minimum, start, matched)
    last_start = _over_collective(np.maximum, start, matched)
    candidate = np.where(start == last_start, ranks[matched.lane], np.iinfo(np.int64).max)
    last_rank = _over_collective(np.minimum, candidate, matched)
    uncertainty = np.array([clocks[rank].uncertainty_ns for rank in ranks.tolist()], dtype=np.int64)[matched.lane]
    latest_start = _over_collective(np.minimum, end, matched) + _over_collective(np.maximum, uncertainty, matched)
    is_known = (num_seen > 1) & ((last_start <= latest_start) | ~matched.ends_together)
    is_waiting = matched.ends_together | (last_start <= end)
    waited = np.where(is_waiting, np.minimum(last_start, end) - start, 0)
    values = [start - first_start, last_start - first_start, waited, last_rank, last_start]
    return [
        _arrivals_of(matched, lane, num_seen, is_known, [np.where(is_known, value, 0) for value in values])
        for lane in range(len(ranks))
    ]


def _aligned(matched: MatchedCollectives, clocks: Mapping[int, Clock]) -> tuple[Int64, Int64]:
    """Return start and end of every entry on the aligned clock."""
    start, end = matched.start.copy(), matched.end.copy()
    for lane, of_rank in enumerate(matched.collectives):
        here, clock = matched.lane == lane, clocks[of_rank.rank]
        start[here], end[here] = clock.aligned(start[here]), clock.aligned(end[here])
    return start, end


def _over_collective(function: np.ufunc, values: Int64, matched: MatchedCollectives) -> Int64:
    """Return, for every entry, the function over all entries of its collective."""
    firsts = matched.firsts()
    return function.reduceat(values, firsts)[matched.number] if len(firsts) else values


def _arrivals_of(
    matched: MatchedCollectives, lane: int, num_seen: Int64, is_known: npt.NDArray[np.bool_], values: list[Int64]
) -> Arrivals:
    """Return the arrivals of one rank, from values of the matched entries to the order of the rank's collectives."""
    of_rank = matched.collectives[lane]
    num = len(of_rank.start)
    here = matched.lane == lane
    index = matched.index[here]
    rank_num_seen, rank_is_known = np.ones(num, dtype=np.int64), np.zeros(num, dtype=bool)
    rank_num_seen[index], rank_is_known[index] = num_seen[here], is_known[here]
    rank_values = []
    for value in values:
        rank_value = np.zeros(num, dtype=np.int64)
        rank_value[index] = value[here]
        rank_values.append(rank_value)
    return Arrivals(of_rank.rank, rank_num_seen, rank_is_known, *rank_values)
