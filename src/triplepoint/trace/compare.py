"""Compare ranks: clocks, arrivals, stragglers, exposed waiting and critical paths.

A straggler computes longer than its peers, step by step, and arrives last at collectives more often than if ranks took
turns. Neither condition is sufficient: one rank always arrives last, and unequal work need not be on the critical path.

The critical path of a step is the chain of work, across ranks, that ends with the last rank. It is followed backwards
from there: on a rank through its work, up to a moment at which that rank waited in a collective for the last one to
arrive. Only the last rank could have ended the wait earlier, so before that moment the path is on the last rank. A wait
overlapped with computation delayed nothing. To shorten work off the path does not shorten the step; to shorten work on
the path shortens the step by at most the same time.

A rank waits inside a communication kernel from its own start to the last rank's, in recorded and in simulated traces.
Exposed waiting is the part in which the rank neither computed nor moved data in other communication: `bubble` in groups
of the pipeline, `straggler` otherwise.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.metrics import modified_z_scores
from triplepoint.trace import Int64
from triplepoint.trace.clocks import Arrivals, Clock, align, find_arrivals
from triplepoint.trace.matching import match_collectives
from triplepoint.trace.rank import intervals
from triplepoint.trace.rank_results import Collectives, Label, Segments, time_by_label
from triplepoint.trace.taxonomy import is_of_pipeline
from triplepoint.units import MEGA

_MIN_Z_SCORE = 3.5
"""Source: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, chapter 3."""

_MIN_EXCESS = 0.02
"""Smallest relevant excess. Among ranks that hardly differ any difference is an outlier, and one below 2 % of the
computation costs little."""

_MIN_PEERS = 3
"""Smallest number of ranks with an outlier among them: of two ranks neither is one."""
_NOT_TRACED = Label("idle", "other")
_BEFORE = Label("idle", "before")

_WAITING = ("comm", "idle")


class Standing(NamedTuple):
    """Lateness and computation of one rank compared with its peers.

    Attributes:
        rank: Global rank.
        num_collectives: Number of collectives with a known order of arrival.
        share_last: Share of them at which the rank arrived last; None without any.
        lateness_ns: Median lag behind the first rank in those at which it arrived last; None without any. Unit: ns.
        waited_ns: Total time the rank waited for the last rank in collectives. Unit: ns.
        compute_ns: Computation per step, median over steps; None without steps. Unit: ns.
        compute_excess: Computation over the median of its peers in the same step, minus 1, median over steps; None with
            fewer than three peers, no common step, or no computation.
        z_score: Modified z-score of that excess among the peers.
        is_straggler: Whether the excess is an outlier and at least 2 %, and the rank arrived last more often than if
            all ranks took turns (if that is known).
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
    segments: Sequence[Segments], arrivals: Sequence[Arrivals], peers: Sequence[Collection[int]] = ()
) -> list[Standing]:
    """Return the standing of every rank that has segments, by rank.

    Args:
        segments: Segments of every rank.
        arrivals: Arrivals of every rank.
        peers: Disjoint groups of ranks that have the same work by design: since pipeline stages differ, the ranks of
            each stage, or its data parallel groups. Empty: all ranks have the same work.
    """
    compute = {of_rank.rank: _compute_by_step(of_rank) for of_rank in segments}
    excess: dict[int, tuple[float, float]] = {}
    for group in peers or [compute.keys()]:
        members = sorted(set(group) & compute.keys())
        excess |= _excess({rank: compute[rank] for rank in members})
    by_rank = {of_rank.rank: of_rank for of_rank in arrivals}
    return [_standing(rank, by_rank.get(rank), compute[rank], excess.get(rank)) for rank in sorted(compute)]


def _standing(
    rank: int, arrivals: Arrivals | None, compute: dict[int, int], excess_and_score: tuple[float, float] | None
) -> Standing:
    lateness = _lateness(arrivals) if arrivals else np.zeros(0, dtype=np.int64)
    num_seen = arrivals.num_seen[arrivals.is_known] if arrivals else np.zeros(0, dtype=np.int64)
    num = len(num_seen)
    excess, z_score = excess_and_score or (None, None)
    is_outlier = excess is not None and z_score is not None and excess >= _MIN_EXCESS and z_score > _MIN_Z_SCORE
    return Standing(
        rank=rank,
        num_collectives=num,
        share_last=len(lateness) / num if num else None,
        lateness_ns=round(np.median(lateness)) if len(lateness) else None,
        waited_ns=int(arrivals.waited_ns.sum()) if arrivals else 0,
        compute_ns=round(np.median(list(compute.values()))) if compute else None,
        compute_excess=excess,
        z_score=z_score,
        is_straggler=is_outlier and (not num or len(lateness) > float(np.sum(1 / num_seen))),
    )


def _lateness(arrivals: Arrivals) -> Int64:
    """Return the lags in collectives at which the rank arrived last; without skew no rank is last. Unit: ns."""
    is_last = arrivals.is_known & (arrivals.last_rank == arrivals.rank) & (arrivals.skew_ns > 0)
    lateness: Int64 = arrivals.lag_ns[is_last]
    return lateness


def _compute_by_step(segments: Segments) -> dict[int, int]:
    is_compute = np.array([label.category == "compute" for label in segments.labels], dtype=bool)
    return {
        step.number: int(time_by_label(segments, step.start, step.end)[is_compute].sum()) for step in segments.steps
    }


def _excess(compute: dict[int, dict[int, int]]) -> dict[int, tuple[float, float]]:
    """Return excess computation and its z-score of every rank.

    Args:
        compute: Computation of each peer, by step number. Unit: ns.
    """
    steps = sorted(set.intersection(*(set(by_step) for by_step in compute.values()))) if compute else []
    times = np.array([[by_step[step] for step in steps] for by_step in compute.values()], dtype=float)
    if len(compute) < _MIN_PEERS or not steps:
        return {}
    median = np.median(times, axis=0)
    times, median = times[:, median > 0], median[median > 0]
    if not len(median):
        return {}
    excess = np.median(times / median - 1, axis=1)
    return dict(zip(compute, zip(excess.tolist(), modified_z_scores(excess).tolist(), strict=True), strict=True))


class PathSegment(NamedTuple):
    """Part of a critical path on one rank. Unit: ns since 1970, on the aligned clock."""

    rank: int
    start: int
    end: int


@dataclass(frozen=True)
class CriticalPath:
    """The critical path of one step.

    Attributes:
        step: Step number.
        segments: Parts of the path from the step's earliest start to its latest end; sorted by time and adjacent.
        num_jumps: Number of changes from one rank to another.
        times: Time by (rank, label). Label (idle, before) is the time before the rank's own start of the step.
            Unit: ns.
    """

    step: int
    segments: list[PathSegment]
    num_jumps: int
    times: dict[tuple[int, Label], int]


@dataclass(frozen=True)
class _Track:
    """One rank on the aligned clock, with the moments at which the path may change to another rank."""

    segments: Segments
    steps: dict[int, tuple[int, int]]
    """Start and end of every step, by number."""
    jump_at: Int64
    """Moments at which the rank waited for another one, by time. Unit: ns since 1970."""
    jump_to: Int64
    """Rank that it waited for at each of them."""


def find_critical_paths(
    segments: Sequence[Segments], arrivals: Sequence[Arrivals], clocks: Mapping[int, Clock]
) -> list[CriticalPath]:
    """Return the critical path of every step that all ranks have, by step number.

    Args:
        segments: Segments of every rank.
        arrivals: Arrivals of these ranks. A path never leaves a rank without arrivals.
        clocks: Clock of every rank.
    """
    arrivals_of = {of_rank.rank: of_rank for of_rank in arrivals}
    ranks = np.array([of_rank.rank for of_rank in segments], dtype=np.int64)
    tracks = {
        of_rank.rank: _track(of_rank, arrivals_of.get(of_rank.rank), clocks[of_rank.rank], ranks)
        for of_rank in segments
    }
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
    # Start at the rank that ends last; of several, at the one whose last work ended last, then at the lowest.
    order = {rank: (-track.steps[step][1], -_last_work_end(track, step), rank) for rank, track in tracks.items()}
    rank = min(order, key=lambda rank: order[rank])
    at = tracks[rank].steps[step][1]
    segments = []
    while (jump := _jump_before(tracks[rank], at)) and jump[0] > tracks[rank].steps[step][0]:
        segments.append(PathSegment(rank, jump[0], at))
        at, rank = jump
    num_jumps = len(segments)
    if at > begin:
        segments.append(PathSegment(rank, begin, at))
    segments.reverse()
    times: dict[tuple[int, Label], int] = {}
    for segment in segments:
        track = tracks[segment.rank]
        for label, time in _times(track.segments, segment, track.steps[step][0]):
            times[segment.rank, label] = times.get((segment.rank, label), 0) + time
    return CriticalPath(step, segments, num_jumps, times)


def _last_work_end(track: _Track, step: int) -> int:
    """Return the end of the rank's last work in a step, or the start of the step if there is none. Unit: ns."""
    segments, (start, end) = track.segments, track.steps[step]
    position = int(np.searchsorted(segments.start, end, side="left")) - 1
    while position >= 0 and segments.end[position] > start:
        if segments.labels[segments.label[position]].category != "idle":
            return min(int(segments.end[position]), end)
        position -= 1
    return start


def _jump_before(track: _Track, at: int) -> tuple[int, int] | None:
    """Return time and rank of the last jump strictly before `at`, so that a path always makes progress."""
    position = int(np.searchsorted(track.jump_at, at, side="left")) - 1
    return (int(track.jump_at[position]), int(track.jump_to[position])) if position >= 0 else None


def _times(segments: Segments, on_path: PathSegment, step_start: int) -> list[tuple[Label, int]]:
    """Return the time of every label in a part of the path; labels without time are left out. Unit: ns."""
    own_start = min(max(step_start, on_path.start), on_path.end)
    traced = time_by_label(segments, own_start, on_path.end)
    times = list(zip(segments.labels, traced.tolist(), strict=True))
    times.append((_NOT_TRACED, on_path.end - own_start - int(traced.sum())))
    times.append((_BEFORE, own_start - on_path.start))
    return [(label, time) for label, time in times if time]


def _track(segments: Segments, arrivals: Arrivals | None, clock: Clock, ranks: Int64) -> _Track:
    aligned = replace(segments, start=clock.aligned(segments.start), end=clock.aligned(segments.end))
    borders = clock.aligned(np.array([(step.start, step.end) for step in segments.steps], dtype=np.int64))
    steps = {step.number: (start, end) for step, (start, end) in zip(segments.steps, borders.tolist(), strict=True)}
    if arrivals is None:
        empty = np.zeros(0, dtype=np.int64)
        return _Track(aligned, steps, empty, empty)
    is_wait = (arrivals.waited_ns > 0) & np.isin(arrivals.last_rank, ranks)
    at, to = arrivals.last_start[is_wait], arrivals.last_rank[is_wait]
    is_exposed = _is_waiting_before(aligned, at)
    order = np.argsort(at[is_exposed], kind="stable")
    return _Track(aligned, steps, at[is_exposed][order], to[is_exposed][order])


def _is_waiting_before(segments: Segments, at: Int64) -> npt.NDArray[np.bool_]:
    """Return whether the rank was communicating or idle just before each moment; outside its segments, it was."""
    is_waiting = np.array([label.category in _WAITING for label in segments.labels] + [True])
    position = np.searchsorted(segments.start, at, side="left") - 1
    is_inside = (position >= 0) & (at <= np.append(segments.end, 0)[position])
    return is_waiting[np.where(is_inside, np.append(segments.label, 0)[position], -1)]


class ExposedWaits(NamedTuple):
    """Exposed waiting of one rank, over its profiled steps. Unit: ns.

    Attributes:
        bubble: Waiting for another pipeline stage, in point-to-point transfers and in collectives of the pipeline.
        straggler: Waiting for the last rank of other collectives.
    """

    bubble: int
    straggler: int


def find_exposed_waits(segments: Segments, collectives: Collectives, arrivals: Arrivals) -> ExposedWaits:
    """Return the time in which a rank only waited for others: it neither computed nor moved data."""
    is_waiting = np.array([label.category in _WAITING for label in segments.labels], dtype=bool)[segments.label]
    idle = intervals.union(segments.start[is_waiting], segments.end[is_waiting])
    steps = np.array([step[1:] for step in segments.steps], dtype=np.int64).reshape(-1, 2)
    idle = intervals.intersection(idle, intervals.union(steps[:, 0], steps[:, 1]))
    of_pipeline = [
        signature.group is not None and is_of_pipeline(signature.kind, signature.role)
        for signature in collectives.signatures
    ]
    in_pipeline = np.array(of_pipeline, dtype=bool)[collectives.signature]
    # A collective waits for the last rank first, and moves data from then on.
    wait_end = np.minimum(collectives.start + arrivals.waited_ns, collectives.end)
    idle = intervals.difference(idle, intervals.union(wait_end, collectives.end))
    bubble = intervals.union(collectives.start[in_pipeline], wait_end[in_pipeline])
    straggler = intervals.difference(intervals.union(collectives.start[~in_pipeline], wait_end[~in_pipeline]), bubble)
    return ExposedWaits(*(intervals.overlap_length(wait, idle) for wait in (bubble, straggler)))


@dataclass(frozen=True)
class Comparison:
    """Results of the analysis across ranks.

    Attributes:
        clocks: Clock of every rank.
        arrivals: Arrivals of every rank at its collectives, by rank.
        standings: Standing of every rank among its peers, by rank.
        waits: Exposed waiting of every rank.
        paths: Critical path of every step that all ranks have, by step number.
        notes: Ranks that were shifted or left out in matching collectives, one line each.
    """

    clocks: dict[int, Clock]
    arrivals: list[Arrivals]
    standings: list[Standing]
    waits: dict[int, ExposedWaits]
    paths: list[CriticalPath]
    notes: list[str]

    def rank_rows(self) -> list[dict[str, object]]:
        """Return the rows of table RANKS."""
        return [
            _rank_row(self.clocks[standing.rank], standing, self.waits[standing.rank]) for standing in self.standings
        ]


def compare_ranks(
    segments: Sequence[Segments], collectives: Sequence[Collectives], peers: Sequence[Collection[int]] = ()
) -> Comparison:
    """Compare the ranks of a job.

    Args:
        segments: Segments of every rank.
        collectives: Collectives of the same ranks.
        peers: Groups of ranks that have the same work by design, see `find_stragglers`.
    """
    matched = match_collectives(collectives)
    clocks = align(matched)
    by_rank = sorted(segments, key=lambda of_rank: of_rank.rank)
    arrivals = find_arrivals(matched, clocks)
    return Comparison(
        clocks,
        arrivals,
        find_stragglers(segments, arrivals, peers),
        {
            of_rank.rank: find_exposed_waits(of_rank, rank_collectives, rank_arrivals)
            for of_rank, rank_collectives, rank_arrivals in zip(by_rank, matched.collectives, arrivals, strict=False)
        },
        find_critical_paths(segments, arrivals, clocks),
        matched.notes,
    )


def _rank_row(clock: Clock, standing: Standing, waits: ExposedWaits) -> dict[str, object]:
    is_aligned = clock.num_matched > 0
    return standing._asdict() | {
        "clock_reference": clock.reference if is_aligned else None,
        "clock_offset_ns": clock.offset_ns,
        "clock_drift_ppm": clock.drift * MEGA,
        "clock_measured_ns": clock.measured_ns if is_aligned else None,
        "clock_spread_ns": clock.spread_ns if is_aligned else None,
        "num_matched": clock.num_matched,
        "bubble_ns": waits.bubble,
        "straggler_ns": waits.straggler,
    }
