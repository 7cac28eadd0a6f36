"""The ranks together, in one call."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from triplepoint.trace.cross.arrivals import Arrivals, find_arrivals
from triplepoint.trace.cross.clocks import Clock, align
from triplepoint.trace.cross.critical_path import CriticalPath, find_critical_paths
from triplepoint.trace.cross.meetings import match_meetings
from triplepoint.trace.cross.stragglers import Standing, find_stragglers
from triplepoint.trace.cross.waits import Waited, exposed_waits
from triplepoint.trace.lanes import Collectives, Lane
from triplepoint.units import MEGA


@dataclass(frozen=True)
class Comparison:
    """What only all ranks together tell.

    Attributes:
        clocks: Clock of every rank.
        arrivals: Arrivals of every rank at its collectives, by rank.
        standings: Standing of every rank among its peers, by rank.
        waits: Exposed waiting of every rank.
        paths: Critical path of every step that all ranks have, by step number.
        notes: What was shifted or left out in matching collectives, one line each.
    """

    clocks: dict[int, Clock]
    arrivals: list[Arrivals]
    standings: list[Standing]
    waits: dict[int, Waited]
    paths: list[CriticalPath]
    notes: list[str]

    def rank_rows(self) -> list[dict[str, object]]:
        """Return the rows of table RANKS."""
        return [_rank_row(self.clocks[one.rank], one, self.waits[one.rank]) for one in self.standings]


def compare_ranks(
    lanes: Sequence[Lane], collectives: Sequence[Collectives], peers: Sequence[Collection[int]] = ()
) -> Comparison:
    """Return what the ranks' traces tell together.

    Args:
        lanes: Segments of every rank, one entry per rank.
        collectives: Collectives of the same ranks.
        peers: Ranks that have the same work by design, see `find_stragglers`; none for all ranks alike.
    """
    meetings = match_meetings(collectives)
    clocks = align(meetings)
    by_rank = sorted(lanes, key=lambda lane: lane.rank)
    arrivals = find_arrivals(meetings, clocks)
    return Comparison(
        clocks,
        arrivals,
        find_stragglers(lanes, arrivals, peers),
        {
            lane.rank: exposed_waits(lane, own, arrived)
            for lane, own, arrived in zip(by_rank, meetings.collectives, arrivals, strict=False)
        },
        find_critical_paths(lanes, arrivals, clocks),
        meetings.notes,
    )


def _rank_row(clock: Clock, standing: Standing, waited: Waited) -> dict[str, object]:
    is_tied = clock.num_matched > 0
    return standing._asdict() | {
        "clock_reference": clock.reference if is_tied else None,
        "clock_offset_ns": clock.offset_ns,
        "clock_drift_ppm": clock.drift * MEGA,
        "clock_measured_ns": clock.measured_ns if is_tied else None,
        "clock_spread_ns": clock.spread_ns if is_tied else None,
        "num_matched": clock.num_matched,
        "bubble_ns": waited.bubble,
        "straggler_ns": waited.straggler,
    }
