"""Which workers make a job slow, in what respect, and how much of its step each of them costs, by replay.

A worker is compared with those that do the same work: of its stage where there are three, else with all. Of two that
do the same neither is the odd one, but what the slower one takes beyond the other is lost all the same. What it costs
is the mean of two replays: it alone as fast as the others, and all other suspects mended before it. Two that are
equally slow in parallel share what they cost; the parts add up to what mending all of them would save.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from triplepoint.metrics import robust_sigma
from triplepoint.why.operations import WORK, Bool, Float, Operations
from triplepoint.why.replay import Order, find_gaps, find_order, replay, with_unrecorded_waits

Respect = Literal["computation", "work", "transfer", "launch", "data"]
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
_PAIR = 2
PAIR_EXCESS, _PAIR_SHARE, _PAIR_STEPS = 0.1, 0.02, 0.75
"""Of two that do the same the slower is named from this excess on, this share of the step, and in this share of the
steps: there are no others to say how much is usual. Our choice."""
_MOST = 24
"""Suspects that are replayed, those with the most time beyond that of the others."""


@dataclass(frozen=True)
class Suspect:
    """A worker that is slower than its peers in one respect.

    Attributes:
        place: Replica and stage.
        ranks: Its recorded ranks.
        respect: computation; work, of whatever kind between collectives; transfer, of data at equal bytes; launch, of
            operations that could start; data, at the start of a step.
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
        self.gap_s, self.is_first = find_gaps(operations, order)
        self.order = with_unrecorded_waits(operations, order, self.gap_s)
        if not np.array_equal(self.order.awaited, order.awaited):
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
        """Return the sum over operations of each place, of its slowest rank; shape (num_places, num_steps)."""
        by_worker = np.zeros((len(self.operations.workers), values.shape[1]))
        np.add.at(by_worker, self.operations.worker[of], values[of])
        found = np.zeros((len(self.places), values.shape[1]))
        for index, worker in enumerate(self.operations.workers):
            at = self.places.index((worker.dp, worker.stage))
            if by_worker[index].mean() > found[at].mean():
                found[at] = by_worker[index]
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
    times_s = scene.per_place(operations.work_s, ~operations.is_comm)
    groups, are_peers = scene.peers()
    respect: Respect = "work" if WORK in operations.kinds else "computation"
    for group in groups:
        usual_s = _usual(times_s.mean(axis=1)[group])
        if usual_s <= 0:
            continue
        for at in _outliers(scene, times_s, group, LEAST_EXCESS, usual_s, are_peers):
            excess_s, place = float(times_s[at].mean() - usual_s), scene.places[at]
            suspect = Suspect(place, scene.ranks(place), respect, excess_s / usual_s, excess_s, are_peers)
            yield _Mended(suspect, _as_peers_s(scene, at, group), scene.gap_s)


def _usual(values: Float) -> float:
    """Return the median, of two the smaller: what the slower one takes beyond the other is lost."""
    return float(np.median(values) if len(values) > _PAIR else values.min())


def _outliers(
    scene: Scene, times_s: Float, group: Bool, least: float, scale_s: float, are_peers: bool
) -> Sequence[int]:
    """Return the places of a group that take longer than its others.

    Args:
        scene: The operations.
        times_s: Time of every place in every step. Unit: s.
        group: Places that are compared.
        least: Excess over the usual time from which a place counts.
        scale_s: What excess is a share of. Unit: s.
        are_peers: Whether they do the same work.
    """
    means_s = times_s.mean(axis=1)
    if group.sum() >= _LEAST_PEERS:
        z_scores = np.zeros(len(means_s))
        z_scores[group] = outlier_scores(means_s[group] / scale_s)
        is_large = (means_s - np.median(means_s[group])) / scale_s >= least
        return np.flatnonzero(group & is_large & (z_scores > LEAST_Z)).tolist()
    if group.sum() < _PAIR or not are_peers:
        return []
    fast, slow = sorted(np.flatnonzero(group).tolist(), key=lambda at: float(means_s[at]))
    is_usually = float((times_s[slow] > times_s[fast]).mean()) >= _PAIR_STEPS
    is_large = means_s[slow] >= (1 + PAIR_EXCESS) * means_s[fast]
    is_felt = means_s[slow] - means_s[fast] >= _PAIR_SHARE * scene.step_s
    return [slow] if is_usually and is_large and is_felt else []


def _as_peers_s(scene: Scene, at: int, group: Bool) -> Float:
    """Return durations with computation at a place as long as with its peers, for each kind of operation. Unit: s."""
    operations, mended_s = scene.operations, scene.operations.work_s.copy()
    of = np.flatnonzero(~operations.is_comm)
    sums_s = np.zeros((len(scene.places), operations.alike.max() + 1))
    np.add.at(sums_s, (scene.place[of], operations.alike[of]), mended_s[of].mean(axis=1))
    own = of[scene.place[of] == at]
    for alike in np.unique(operations.alike[own]):
        if sums_s[at, alike] > 0:
            mended_s[own[operations.alike[own] == alike]] *= _usual(sums_s[group, alike]) / sums_s[at, alike]
    return mended_s


def _late(scene: Scene, respect: Literal["launch", "data"]) -> Iterator[_Mended]:
    of = scene.is_first if respect == "data" else ~scene.is_first
    late_s = scene.per_place(scene.gap_s, of)
    groups, are_peers = scene.peers()
    if respect == "launch" and len(scene.places) > _PAIR:
        groups, are_peers = [np.ones(len(late_s), dtype=np.bool_)], True
    for group in groups:
        usual_s = _usual(late_s.mean(axis=1)[group])
        for at in _outliers(scene, late_s, group, _LEAST_SHARE, scene.step_s, are_peers):
            gap_s = scene.gap_s.copy()
            gap_s[(scene.place == at) & of] *= usual_s / late_s[at].mean()
            excess_s, place = float(late_s[at].mean() - usual_s), scene.places[at]
            share = excess_s / scene.step_s
            suspect = Suspect(place, scene.ranks(place), respect, share, excess_s, are_peers)
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
    if not found:
        return []
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
