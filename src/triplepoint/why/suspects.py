"""Which workers make a job slow, in what respect, and how much of its step each of them costs, by replay.

A worker is compared with those that do the same work: of its stage where there are three, else with all. What it costs
is the mean of two replays: it alone as fast as the others, and all other suspects mended before it. Two that are
equally slow in parallel share what they cost; the parts add up to what mending all of them would save.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from triplepoint.metrics import robust_sigma
from triplepoint.why.operations import Bool, Float, Operations
from triplepoint.why.replay import Order, find_gaps, find_order, replay, with_unrecorded_waits

Respect = Literal["computation", "transfer", "launch", "data"]
Place = tuple[int, int]
"""Replica and stage."""

LEAST_EXCESS = 0.02
"""Computation beyond that of peers: below 2 % an outlier costs nobody much."""
LEAST_Z = 3.5
"""Source: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, chapter 3."""
_LEAST_SIGMA = 0.002
"""Workers that do the same differ by as much at least. Our choice."""
_LEAST_SLOWER = 1.1
"""Time of transfers over that of equal ones, with every partner. Our choice: those of one network differ by a few %."""
_LEAST_SHARE = 0.005
"""Share of the step from which lateness is looked at. Our choice."""
_LEAST_PEERS = 3
"""Of two neither is the odd one."""
_MOST = 24
"""Suspects that are replayed, those with the most time beyond that of the others."""


@dataclass(frozen=True)
class Suspect:
    """A worker that is slower than its peers in one respect.

    Attributes:
        place: Replica and stage.
        ranks: Its recorded ranks.
        respect: computation; transfer, of data at equal bytes; launch, of operations that could start; data, at the
            start of a step.
        excess: Time beyond that of its peers over theirs; of launch and data over the step.
        excess_s: Time beyond that of its peers, in a step. Unit: s.
        has_peers: Whether those it is compared with do the same work; else stages are compared.
        lost_s: What it costs of a step. Unit: s.
    """

    place: Place
    ranks: tuple[int, ...]
    respect: Respect
    excess: float
    excess_s: float
    has_peers: bool
    lost_s: float = 0.0


@dataclass(frozen=True)
class _Mended:
    """A suspect, and how long its operations and the time before them would be if it were as its peers."""

    suspect: Suspect
    work_s: Float
    gap_s: Float


class Scene:
    """Operations with their order, gaps and places."""

    def __init__(self, operations: Operations, order: Order) -> None:
        """Find waits and gaps."""
        self.operations = operations
        self.order = with_unrecorded_waits(operations, order, find_gaps(operations, order)[0])
        self.gap_s, self.is_first = find_gaps(operations, self.order)
        dp, stage = operations.of_worker("dp"), operations.of_worker("stage")
        places = sorted({(worker.dp, worker.stage) for worker in operations.workers})
        number = {place: index for index, place in enumerate(places)}
        self.places: Sequence[Place] = places
        self.place = np.array([number[found] for found in zip(dp.tolist(), stage.tolist(), strict=True)])
        self.step_s = float(operations.step_time_s.mean())

    def ranks(self, place: Place) -> tuple[int, ...]:
        """Return the recorded ranks of a place."""
        return tuple(sorted(one.rank for one in self.operations.workers if (one.dp, one.stage) == place))

    def peers(self) -> tuple[list[Bool], bool]:
        """Return the places that are compared with one another, and whether they do the same work."""
        stages = np.array([stage for _, stage in self.places])
        groups = [stages == stage for stage in np.unique(stages)]
        if all(group.sum() >= _LEAST_PEERS for group in groups):
            return groups, True
        return [np.ones(len(stages), dtype=np.bool_)], len(groups) == 1

    def per_place(self, values: Float, of: Bool) -> Float:
        """Return the sum over operations of each place, mean over steps, of its slowest rank; shape (num_places,)."""
        by_worker = np.zeros(len(self.operations.workers))
        np.add.at(by_worker, self.operations.worker[of], values[of].mean(axis=1))
        found = np.zeros(len(self.places))
        for index, worker in enumerate(self.operations.workers):
            at = self.places.index((worker.dp, worker.stage))
            found[at] = max(found[at], by_worker[index])
        return found


def find_suspects(operations: Operations, order: Order | None = None) -> list[Suspect]:
    """Return the suspects with what each costs, most first; the order of operations is found if not given."""
    scene = Scene(operations, order or find_order(operations))
    found = [*_slow_computation(scene), *_slow_transfers(scene), *_late(scene, "launch"), *_late(scene, "data")]
    found = sorted(found, key=lambda one: -one.suspect.excess_s)[:_MOST]
    return _with_lost(scene, found)


def outlier_scores(values: Float) -> Float:
    """Return how far values, relative ones, are above their median in robust standard deviations of 0.2 % at least.

    Of four equal workers and one that is not the deviation would be 0.
    """
    return np.asarray((values - np.median(values)) / max(robust_sigma(values), _LEAST_SIGMA))


def _slow_computation(scene: Scene) -> Iterator[_Mended]:
    operations = scene.operations
    work_s = scene.per_place(operations.work_s, ~operations.is_comm)
    groups, are_peers = scene.peers()
    for group in groups:
        usual_s = float(np.median(work_s[group]))
        if group.sum() < _LEAST_PEERS or usual_s <= 0:
            continue
        excess = work_s / usual_s - 1
        z_scores = np.zeros(len(work_s))
        z_scores[group] = outlier_scores(excess[group])
        for at in np.flatnonzero(group & (excess >= LEAST_EXCESS) & (z_scores > LEAST_Z)).tolist():
            mended = operations.work_s.copy()
            mended[(scene.place == at) & ~operations.is_comm] /= 1 + excess[at]
            place = scene.places[at]
            yield _Mended(
                Suspect(
                    place, scene.ranks(place), "computation", float(excess[at]), float(work_s[at] - usual_s), are_peers
                ),
                mended,
                scene.gap_s,
            )


def _late(scene: Scene, respect: Literal["launch", "data"]) -> Iterator[_Mended]:
    of = scene.is_first if respect == "data" else ~scene.is_first
    late_s = scene.per_place(scene.gap_s, of)
    groups, are_peers = scene.peers() if respect == "data" else ([np.ones(len(late_s), dtype=np.bool_)], True)
    for group in groups:
        if group.sum() < _LEAST_PEERS:
            continue
        usual_s = float(np.median(late_s[group]))
        z_scores = np.zeros(len(late_s))
        z_scores[group] = outlier_scores(late_s[group] / scene.step_s)
        share = (late_s - usual_s) / scene.step_s
        for at in np.flatnonzero(group & (share >= _LEAST_SHARE) & (z_scores > LEAST_Z)).tolist():
            gap_s = scene.gap_s.copy()
            gap_s[(scene.place == at) & of] *= usual_s / late_s[at]
            place = scene.places[at]
            suspect = Suspect(
                place, scene.ranks(place), respect, float(share[at]), float(late_s[at] - usual_s), are_peers
            )
            yield _Mended(suspect, scene.operations.work_s, gap_s)


def _slow_transfers(scene: Scene) -> Iterator[_Mended]:
    """Yield places whose transfers are slow with every partner, those with most time in them first."""
    operations = scene.operations
    ratio, usual_s = _ratios(scene)
    lasts_s = operations.work_s.mean(axis=1)
    members = [frozenset(scene.place[of].tolist()) for of in scene.order.members]
    known = [number for number, of in enumerate(scene.order.members) if np.isfinite(ratio[of[0]]) and len(of) > 1]
    while True:
        best = _slowest_partner(scene, known, members, ratio)
        if best is None:
            return
        at, slower = best
        own = [number for number in known if at in members[number]]
        indices = np.concatenate([scene.order.members[number] for number in own])
        mended = operations.work_s.copy()
        factor = usual_s[indices] / np.maximum(lasts_s[indices], 1e-12)
        mended[indices] *= np.minimum(factor, 1.0)[:, None]
        excess_s = float(sum((lasts_s - usual_s)[scene.order.members[number][0]] for number in own))
        place = scene.places[at]
        yield _Mended(Suspect(place, scene.ranks(place), "transfer", slower - 1, excess_s, True), mended, scene.gap_s)
        known = [number for number in known if at not in members[number]]


def _ratios(scene: Scene) -> tuple[Float, Float]:
    """Return each transfer's time over that of others at equal bytes, NaN of computation, and that time.

    Of three groups of partners and more the usual time is the median over groups, of two that of the faster.
    """
    operations = scene.operations
    lasts_s = operations.work_s.mean(axis=1)
    partners = np.empty(len(lasts_s), dtype=np.int64)
    numbers: dict[frozenset[int], int] = {}
    for of in scene.order.members:
        partners[of] = numbers.setdefault(frozenset(scene.place[of].tolist()), len(numbers))
    ratio, usual_s = np.full(len(lasts_s), np.nan), np.zeros(len(lasts_s))
    for alike in np.unique(operations.rate_class[operations.is_comm]):
        own = np.flatnonzero((operations.rate_class == alike) & operations.is_comm)
        among, per_byte = np.unique(partners[own]), lasts_s[own] / operations.size_bytes[own]
        medians = [float(np.median(per_byte[partners[own] == one])) for one in among]
        usual_s[own] = operations.size_bytes[own] * (np.median(medians) if len(among) >= _LEAST_PEERS else min(medians))
        if len(among) > 1 and usual_s[own[0]] > 0:
            ratio[own] = lasts_s[own] / usual_s[own]
    return ratio, usual_s


def _slowest_partner(
    scene: Scene, known: Sequence[int], members: Sequence[frozenset[int]], ratio: Float
) -> tuple[int, float] | None:
    """Return the place whose transfers are slow with all its partners and take the most time beyond the usual."""
    by_pair: dict[tuple[int, frozenset[int]], list[float]] = {}
    for number in known:
        for at in members[number]:
            by_pair.setdefault((at, members[number]), []).append(float(ratio[scene.order.members[number][0]]))
    slowest: dict[int, float] = {}
    worst: dict[int, float] = {}
    for (at, _), ratios in by_pair.items():
        value = float(np.median(ratios))
        slowest[at] = min(slowest.get(at, np.inf), value)
        worst[at] = worst.get(at, 0.0) + max(value - 1, 0.0)
    slow = [at for at, value in slowest.items() if value >= _LEAST_SLOWER]
    if not slow:
        return None
    at = max(slow, key=lambda one: (worst[one], -one))
    return at, slowest[at]


def _with_lost(scene: Scene, found: Sequence[_Mended]) -> list[Suspect]:
    """Return suspects with what each costs of the step, most first."""
    as_is = _Mended(Suspect((0, 0), (), "computation", 0, 0, True), scene.operations.work_s, scene.gap_s)
    every = _all_but(as_is, found, None)
    cases = [as_is, every, *found, *(_all_but(as_is, found, index) for index in range(len(found)))]
    times = _replayed(scene.operations, scene.order, cases)
    original, best = times[0], times[1]
    alone, last = np.split(np.array(times[2:]), 2)
    lost = np.maximum((original - alone) + (last - best), 0.0) / 2
    if lost.sum() > 0:
        lost *= max(original - best, 0.0) / lost.sum()
    suspects = [
        Suspect(**{**one.suspect.__dict__, "lost_s": float(cost)}) for one, cost in zip(found, lost, strict=True)
    ]
    return sorted(suspects, key=lambda one: -one.lost_s)


def _all_but(as_is: _Mended, found: Sequence[_Mended], kept: int | None) -> _Mended:
    """Return all suspects mended but one."""
    work_s, gap_s = as_is.work_s.copy(), as_is.gap_s.copy()
    for index, one in enumerate(found):
        if index != kept:
            np.minimum(work_s, one.work_s, out=work_s)
            np.minimum(gap_s, one.gap_s, out=gap_s)
    return _Mended(as_is.suspect, work_s, gap_s)


def _replayed(operations: Operations, order: Order, cases: Sequence[_Mended]) -> list[float]:
    """Return the mean time of a step of each case. Unit: s."""
    work_s = np.concatenate([case.work_s for case in cases], axis=1)
    gap_s = np.concatenate([case.gap_s for case in cases], axis=1)
    times = replay(operations, order, work_s, gap_s).step_time_s
    return [float(part.mean()) for part in np.split(times, len(cases))]
