"""Comparison of the ranks: clocks, arrivals, stragglers, exposed waiting and critical paths."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from triplepoint.trace.cross.arrivals import Arrivals, find_arrivals
from triplepoint.trace.cross.clocks import Clock, align
from triplepoint.trace.cross.critical_path import CriticalPath, find_critical_paths
from triplepoint.trace.cross.matching import match_meetings
from triplepoint.trace.cross.stragglers import Standing, find_stragglers
from triplepoint.trace.lanes import Collectives, Lane
from triplepoint.trace.rank import intervals
from triplepoint.trace.taxonomy import POINT_TO_POINT
from triplepoint.units import MEGA


class Waited(NamedTuple):
    """Exposed waiting of one rank, over its profiled steps. Unit: ns.

    Attributes:
        bubble: For a neighbour in the pipeline, in point-to-point messages.
        straggler: For the last rank of a collective.
    """

    bubble: int
    straggler: int


def exposed_waits(lane: Lane, collectives: Collectives, arrived: Arrivals) -> Waited:
    """Return how long a rank waited for others while nothing else of it counted.

    Args:
        lane: Its segments.
        collectives: Its collectives.
        arrived: How it arrived at them.
    """
    category = np.array([label.category in ("comm", "idle") for label in lane.labels], dtype=bool)
    idle = intervals.union(*(border[category[lane.label]] for border in (lane.start, lane.end)))
    steps = np.array([step[1:] for step in lane.steps], dtype=np.int64).reshape(-1, 2)
    idle = intervals.intersection(idle, intervals.union(steps[:, 0], steps[:, 1]))
    is_message = np.array([met is not None and met.kind in POINT_TO_POINT for met in collectives.meeting], dtype=bool)
    until = np.minimum(collectives.start + arrived.waited_ns, collectives.end)
    waits = (intervals.union(collectives.start[own], until[own]) for own in (is_message, ~is_message))
    return Waited(*(intervals.overlap_length(wait, idle) for wait in waits))


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
