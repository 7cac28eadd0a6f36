"""What a step's time hangs on: the chain of work, over ranks, that ends when the last rank does.

The path is walked from the end. On a rank it goes back through what the rank did, until a moment at which the rank
stood waiting in a collective for the last to come: only that rank could have ended the wait sooner, so before the
moment the path is on it. A wait with computation running beside it held nobody up and is passed by. Shortening what is
off the path does not shorten the step; what is on it, at most by as much.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.trace.arrays import Int64
from triplepoint.trace.cross.arrivals import Arrivals
from triplepoint.trace.cross.clocks import Clock
from triplepoint.trace.lanes import Label, Lane, time_by_label

_NOT_TRACED = Label("idle", "other")
_BEFORE = Label("idle", "before")

_WAITING = ("comm", "idle")


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
    # Of several that end last the lowest, as of several that come last.
    rank = min(tracks, key=lambda rank: (-tracks[rank].steps[step][1], rank))
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
