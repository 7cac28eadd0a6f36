"""Comparison of the ranks: clocks, arrivals, stragglers, exposed waiting and critical paths.

A straggler computes longer than its peers, step by step, and comes last more often than by turns: the others wait for
it. Someone always comes last, and work divided unevenly need not be on the critical path, so neither is enough.

The critical path of a step is the chain of work, over ranks, that ends when the last rank does. It is walked from the
end: on a rank back through what the rank did, until a moment at which the rank waited in a collective for the last to
come. Only that rank could have ended the wait sooner, so before that moment the path is on it. A wait overlapped with
computation delayed nobody. Shortening what is off the path does not shorten the step; what is on it, at most by as
much.

A rank waits inside a kernel of communication from its own start to the last rank's, whether the trace was recorded or
simulated. Of that, exposed waiting is the time in which nothing of the rank computed and no other communication of it
moved data: `bubble` where the group is the pipeline's, `straggler` otherwise.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.metrics import modified_z_scores
from triplepoint.trace import Int64
from triplepoint.trace.clocks import Arrivals, Clock, align, find_arrivals
from triplepoint.trace.lanes import Collectives, Label, Lane, time_by_label
from triplepoint.trace.matching import match_collectives
from triplepoint.trace.rank import intervals
from triplepoint.trace.taxonomy import is_of_pipeline
from triplepoint.units import MEGA

_MIN_Z_SCORE = 3.5
"""Source: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, chapter 3."""

_MIN_EXCESS = 0.02
"""Ranks that hardly differ make any difference an outlier; below 2 % of the computation it costs nobody much."""

_MIN_PEERS = 3
"""Of two ranks neither is the odd one."""
_NOT_TRACED = Label("idle", "other")
_BEFORE = Label("idle", "before")

_WAITING = ("comm", "idle")


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


class Stretch(NamedTuple):
    """A stretch of the path on one rank. Unit: ns since 1970, on the aligned clock."""

    rank: int
    start: int
    end: int


@dataclass(frozen=True)
class CriticalPath:
    """The path of one step.

    Attributes:
        step: Step number.
        stretches: From the step's earliest start to its latest end, by time; they touch.
        num_jumps: How often it goes from one rank to another.
        times: What it consists of: time by (rank, label), `idle` `before` the rank's own start of the step included.
            Unit: ns.
    """

    step: int
    stretches: list[Stretch]
    num_jumps: int
    times: dict[tuple[int, Label], int]


@dataclass(frozen=True)
class _Track:
    """A lane on the aligned clock, its steps by number, and by time when the path may leave it for which rank."""

    lane: Lane
    steps: dict[int, tuple[int, int]]
    jump_at: Int64
    jump_to: Int64


def find_critical_paths(
    lanes: Sequence[Lane], arrivals: Sequence[Arrivals], clocks: Mapping[int, Clock]
) -> list[CriticalPath]:
    """Return the critical path of every step that all ranks have, by step number.

    Args:
        lanes: Every rank's segments.
        arrivals: Arrivals of these ranks; a rank without any is never left.
        clocks: Clock of every rank.
    """
    by_rank = {arrived.rank: arrived for arrived in arrivals}
    ranks = np.array([lane.rank for lane in lanes], dtype=np.int64)
    tracks = {lane.rank: _track(lane, by_rank.get(lane.rank), clocks[lane.rank], ranks) for lane in lanes}
    numbers = set.intersection(*(set(track.steps) for track in tracks.values())) if tracks else set()
    return [_walk(tracks, number) for number in sorted(numbers)]


def path_rows(paths: Iterable[CriticalPath]) -> list[dict[str, object]]:
    """Return the rows of table CRITICAL_PATH."""
    return [
        {"step": path.step, "rank": rank, **label._asdict(), "duration_ns": time, "num_jumps": path.num_jumps}
        for path in paths
        for (rank, label), time in sorted(path.times.items(), key=lambda item: (item[0][0], str(item[0][1])))
    ]


def _walk(tracks: Mapping[int, _Track], step: int) -> CriticalPath:
    begin = min(track.steps[step][0] for track in tracks.values())
    # Of several that end last the one that worked longest, then the lowest, as of several that come last.
    ends = {rank: (-track.steps[step][1], -_worked_until(track, step), rank) for rank, track in tracks.items()}
    rank = min(ends, key=lambda rank: ends[rank])
    at = tracks[rank].steps[step][1]
    stretches = []
    while (jump := _jump_before(tracks[rank], at)) and jump[0] > tracks[rank].steps[step][0]:
        stretches.append(Stretch(rank, jump[0], at))
        at, rank = jump
    num_jumps = len(stretches)
    if at > begin:
        stretches.append(Stretch(rank, begin, at))
    stretches.reverse()
    times: dict[tuple[int, Label], int] = {}
    for stretch in stretches:
        track = tracks[stretch.rank]
        for label, time in _times(track.lane, stretch, track.steps[step][0]):
            times[stretch.rank, label] = times.get((stretch.rank, label), 0) + time
    return CriticalPath(step, stretches, num_jumps, times)


def _worked_until(track: _Track, step: int) -> int:
    """Return when the rank's last work in a step ended, the step's start if it did none. Unit: ns."""
    lane, (start, end) = track.lane, track.steps[step]
    position = int(np.searchsorted(lane.start, end, side="left")) - 1
    while position >= 0 and lane.end[position] > start:
        if lane.labels[lane.label[position]].category != "idle":
            return min(int(lane.end[position]), end)
        position -= 1
    return start


def _jump_before(track: _Track, at: int) -> tuple[int, int] | None:
    """Return time and rank of the last jump before `at`; strictly, so that a path never stays where it was."""
    position = int(np.searchsorted(track.jump_at, at, side="left")) - 1
    return (int(track.jump_at[position]), int(track.jump_to[position])) if position >= 0 else None


def _times(lane: Lane, stretch: Stretch, step_start: int) -> list[tuple[Label, int]]:
    """Return what a stretch consists of; nothing of length 0."""
    own_start = min(max(step_start, stretch.start), stretch.end)
    known = time_by_label(lane, own_start, stretch.end)
    times = list(zip(lane.labels, known.tolist(), strict=True))
    times.append((_NOT_TRACED, stretch.end - own_start - int(known.sum())))
    times.append((_BEFORE, own_start - stretch.start))
    return [(label, time) for label, time in times if time]


def _track(lane: Lane, arrived: Arrivals | None, clock: Clock, ranks: Int64) -> _Track:
    moved = replace(lane, start=clock.aligned(lane.start), end=clock.aligned(lane.end))
    borders = clock.aligned(np.array([(step.start, step.end) for step in lane.steps], dtype=np.int64))
    steps = {step.number: (start, end) for step, (start, end) in zip(lane.steps, borders.tolist(), strict=True)}
    if arrived is None:
        nothing = np.zeros(0, dtype=np.int64)
        return _Track(moved, steps, nothing, nothing)
    is_wait = (arrived.waited_ns > 0) & np.isin(arrived.last_rank, ranks)
    at, to = arrived.last_start[is_wait], arrived.last_rank[is_wait]
    is_exposed = _stands_waiting(moved, at)
    order = np.argsort(at[is_exposed], kind="stable")
    return _Track(moved, steps, at[is_exposed][order], to[is_exposed][order])


def _stands_waiting(lane: Lane, at: Int64) -> npt.NDArray[np.bool_]:
    """Return whether the rank was communicating or idle just before each moment, outside its lane included."""
    is_waiting = np.array([label.category in _WAITING for label in lane.labels] + [True])
    position = np.searchsorted(lane.start, at, side="left") - 1
    is_inside = (position >= 0) & (at <= np.append(lane.end, 0)[position])
    return is_waiting[np.where(is_inside, np.append(lane.label, 0)[position], -1)]


class Waited(NamedTuple):
    """Exposed waiting of one rank, over its profiled steps. Unit: ns.

    Attributes:
        bubble: For another stage of the pipeline: in point-to-point messages, and in collectives of its group.
        straggler: For the last rank of another collective.
    """

    bubble: int
    straggler: int


def exposed_waits(lane: Lane, collectives: Collectives, arrived: Arrivals) -> Waited:
    """Return how long a rank only waited for others: nothing of it computed, and no communication moved data."""
    category = np.array([label.category in ("comm", "idle") for label in lane.labels], dtype=bool)
    idle = intervals.union(*(border[category[lane.label]] for border in (lane.start, lane.end)))
    steps = np.array([step[1:] for step in lane.steps], dtype=np.int64).reshape(-1, 2)
    idle = intervals.intersection(idle, intervals.union(steps[:, 0], steps[:, 1]))
    of_pipeline = [met.group is not None and is_of_pipeline(met.kind, met.role) for met in collectives.meetings]
    in_pipeline = np.array(of_pipeline, dtype=bool)[collectives.meeting]
    until = np.minimum(collectives.start + arrived.waited_ns, collectives.end)
    idle = intervals.difference(idle, intervals.union(until, collectives.end))
    bubble = intervals.union(collectives.start[in_pipeline], until[in_pipeline])
    straggler = intervals.difference(intervals.union(collectives.start[~in_pipeline], until[~in_pipeline]), bubble)
    return Waited(*(intervals.overlap_length(wait, idle) for wait in (bubble, straggler)))


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
    matched = match_collectives(collectives)
    clocks = align(matched)
    by_rank = sorted(lanes, key=lambda lane: lane.rank)
    arrivals = find_arrivals(matched, clocks)
    return Comparison(
        clocks,
        arrivals,
        find_stragglers(lanes, arrivals, peers),
        {
            lane.rank: exposed_waits(lane, own, arrived)
            for lane, own, arrived in zip(by_rank, matched.collectives, arrivals, strict=False)
        },
        find_critical_paths(lanes, arrivals, clocks),
        matched.notes,
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
