"""Clock offsets between ranks, from collectives that all ranks leave together, and arrivals at collectives.

A rank that is late makes the others wait, but they all leave within tens of microseconds: what the ends differ by, in
the median over many collectives, is what the clocks differ by. Ranks that never meet are tied through those they meet.

A rank arrives at a collective when its part starts; by then its own work before it is done. Times of different ranks
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
"""Differences below are never taken for a clock's: ranks of one host, which share a clock, leave an NCCL collective up
to 7 us apart (8 V100, public trace of DLRM), each place in the ring a little after the one before."""

_MIN_MATCHED = 5
"""Fewer ends have no scatter to speak of; the longest collective then bounds how wrong their difference may be."""

_MIN_FOR_DRIFT = 30
_MIN_DRIFT_RUN_NS = NS_PER_S
_MAX_DRIFT = 500e-6
"""Drift is looked for among that many collectives over that long, so that 10 us or more can come of 10 ppm; NTP lets
no clock run faster than 500 ppm off (ntpd manual), what looks faster is something else."""


class Clock(NamedTuple):
    """How one rank's clock stands against that of a reference rank.

    The offset is applied only where it is larger than its own uncertainty, so that ranks which share a clock are left
    alone. The uncertainty is the scatter of single collectives, which does not average out because it holds each rank's
    constant place in the ring or tree, plus three standard errors of the median; at least 10 us. With fewer than 5
    collectives it is the length of the longest. Drift is applied only where three standard errors are smaller.
    Scatter and uncertainty add up along a chain of ranks.

    Attributes:
        rank: The rank.
        reference: The lowest rank it is tied to, possibly through others; itself where it is tied to nobody.
        offset_ns: What is taken off its times, at `at_ns`. Unit: ns.
        drift: What the offset grows by per ns.
        at_ns: Time of the offset. Unit: ns since 1970.
        measured_ns: The offset as measured, whether it is applied or not. Unit: ns.
        spread_ns: Robust standard deviation of the difference of ends in single collectives. Unit: ns.
        uncertainty_ns: How far the offset may be off, see above. Unit: ns.
        num_matched: Number of collectives behind it; 0 where the rank is tied to nobody, so that its offset is unknown.
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
        """Return the rank's times on the clock of the reference. Unit: ns since 1970."""
        moved = times - self.offset_ns
        return moved - np.rint(self.drift * (times - self.at_ns)).astype(np.int64) if self.drift else moved


class _Tie(NamedTuple):
    """How the clock of one rank stands against another's: `offset` + `drift` * (time - at)."""

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


def align(matched: MatchedCollectives) -> dict[int, Clock]:
    """Return the clock of every rank, against the lowest rank it is tied to."""
    ends = matched.end[matched.ends_together]
    at = int(ends.min() + (ends.max() - ends.min()) // 2) if len(ends) else 0
    ties = _ties(matched, at)
    ranks = [own.rank for own in matched.collectives]
    clocks: dict[int, Clock] = {}
    for lane, rank in enumerate(ranks):
        if rank in clocks:
            continue
        # Ranks come in order, so the first of those tied together is the lowest.
        most = max((tie.num_matched for tie in ties.get(lane, {}).values()), default=0)
        clocks[rank] = Clock(rank, rank, at_ns=at, num_matched=most)
        for other, tie in _reached(ties, lane).items():
            clocks[ranks[other]] = _clock(ranks[other], rank, tie, at)
    return clocks


def _clock(rank: int, reference: int, tie: _Tie, at: int) -> Clock:
    is_applied = abs(tie.offset) > tie.uncertainty or tie.drift != 0
    measured = round(tie.offset)
    return Clock(
        rank,
        reference,
        offset_ns=measured if is_applied else 0,
        drift=tie.drift,
        at_ns=at,
        measured_ns=measured,
        spread_ns=round(tie.spread),
        uncertainty_ns=round(tie.uncertainty),
        num_matched=tie.num_matched,
    )


def _reached(ties: _Ties, start: int) -> dict[int, _Tie]:
    """Return the least uncertain chain to everyone tied to `start` (Dijkstra), `start` itself left out."""
    reached: dict[int, _Tie] = {}
    queue = [(tie.uncertainty, other, tie) for other, tie in ties.get(start, {}).items()]
    heapq.heapify(queue)
    while queue:
        _, lane, chain = heapq.heappop(queue)
        if lane == start or lane in reached:
            continue
        reached[lane] = chain
        for other, tie in ties[lane].items():
            longer = chain.then(tie)
            heapq.heappush(queue, (longer.uncertainty, other, longer))
    return reached


def _ties(matched: MatchedCollectives, at: int) -> _Ties:
    """Return the tie between the first rank of every collective and each other rank of it, both ways round."""
    firsts = matched.firsts()
    first = np.repeat(firsts, np.diff(firsts, append=len(matched.number)))
    other = np.flatnonzero(matched.ends_together & (first != np.arange(len(first))))
    first = first[other]
    pair = matched.lane[first] * len(matched.collectives) + matched.lane[other]
    order = np.argsort(pair, kind="stable")
    borders = np.flatnonzero(np.diff(pair[order])) + 1
    ties: _Ties = {}
    for members in np.split(order, borders) if len(order) else []:
        one, two = first[members], other[members]
        longest = max(int((matched.end[part] - matched.start[part]).max()) for part in (one, two))
        time = (matched.end[one] - at).astype(float)
        tie = _tie(time, (matched.end[two] - matched.end[one]).astype(float), longest)
        here, there = int(matched.lane[one[0]]), int(matched.lane[two[0]])
        ties.setdefault(here, {})[there] = tie
        ties.setdefault(there, {})[here] = tie.reversed()
    return ties


def _tie(time: Floats, later: Floats, longest: int) -> _Tie:
    """Return the tie of two ranks from how much later the second left, by time."""
    drift = _drift(time, later)
    level = later - drift * time
    spread = robust_sigma(level)
    num = len(time)
    uncertainty = spread + 3 * _median_error(spread, num) if num >= _MIN_MATCHED else longest
    return _Tie(float(np.median(level)), drift, spread, max(uncertainty, _FLOOR_NS), num)


def _drift(time: Floats, later: Floats) -> float:
    """Return the slope between the medians of the first and of the last third; 0 where it is not clear.

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
    rise = float(np.median(later[late]) - np.median(later[early]))
    slope = rise / run
    error = sqrt(2) * _median_error(robust_sigma(later - slope * time), third)
    is_clear = abs(rise) > max(3 * error, _FLOOR_NS) and abs(slope) <= _MAX_DRIFT
    return slope if is_clear else 0.0


def _median_error(spread: float, num: int) -> float:
    """Return the standard error of a median of normal values."""
    return MEAN_TO_SIGMA * spread / sqrt(num)


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


def find_arrivals(matched: MatchedCollectives, clocks: Mapping[int, Clock]) -> list[Arrivals]:
    """Return the arrivals of every rank, by rank."""
    ranks = np.array([own.rank for own in matched.collectives], dtype=np.int64)
    start, end = _aligned(matched, clocks)
    num_seen = _over_collective(np.add, np.ones_like(start), matched)
    earliest = _over_collective(np.minimum, start, matched)
    last_start = _over_collective(np.maximum, start, matched)
    candidate = np.where(start == last_start, ranks[matched.lane], np.iinfo(np.int64).max)
    last_rank = _over_collective(np.minimum, candidate, matched)
    unsure = np.array([clocks[rank].uncertainty_ns for rank in ranks.tolist()], dtype=np.int64)[matched.lane]
    latest_start = _over_collective(np.minimum, end, matched) + _over_collective(np.maximum, unsure, matched)
    is_known = (num_seen > 1) & ((last_start <= latest_start) | ~matched.ends_together)
    is_waiting = matched.ends_together | (last_start <= end)
    waited = np.where(is_waiting, np.minimum(last_start, end) - start, 0)
    values = [start - earliest, last_start - earliest, waited, last_rank, last_start]
    return [
        _scattered(matched, lane, num_seen, is_known, [np.where(is_known, value, 0) for value in values])
        for lane in range(len(ranks))
    ]


def _aligned(matched: MatchedCollectives, clocks: Mapping[int, Clock]) -> tuple[Int64, Int64]:
    start, end = matched.start.copy(), matched.end.copy()
    for lane, own in enumerate(matched.collectives):
        here = matched.lane == lane
        start[here], end[here] = clocks[own.rank].aligned(start[here]), clocks[own.rank].aligned(end[here])
    return start, end


def _over_collective(function: np.ufunc, values: Int64, matched: MatchedCollectives) -> Int64:
    """Return, for every part, the function over all parts of its collective."""
    firsts = matched.firsts()
    return function.reduceat(values, firsts)[matched.number] if len(firsts) else values


def _scattered(
    matched: MatchedCollectives, lane: int, num_seen: Int64, is_known: npt.NDArray[np.bool_], values: list[Int64]
) -> Arrivals:
    """Return the values of one rank's parts, put where its collectives are."""
    own = matched.collectives[lane]
    num = len(own.start)
    here = matched.lane == lane
    index = matched.index[here]
    seen, known = np.ones(num, dtype=np.int64), np.zeros(num, dtype=bool)
    seen[index], known[index] = num_seen[here], is_known[here]
    spread_out = []
    for value in values:
        full = np.zeros(num, dtype=np.int64)
        full[index] = value[here]
        spread_out.append(full)
    return Arrivals(own.rank, seen, known, *spread_out)
