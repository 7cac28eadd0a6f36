"""Suspects: workers that make a job slow, the respect in which they do, and what each costs of the step, by replay.

A worker is compared with its peers, which do the same work: the workers of its stage if every stage has three or more,
else the ranks of its tensor parallel group, then all workers. Of two neither is the outlier, but the excess of the
slower one is lost all the same. To repair a suspect is to make it as fast as its peers. Its cost is the mean of what
two repairs save by replay: that of it alone, and that of it after all others. Costs are scaled so that they add up to
what the repair of all suspects saves; so two equally slow workers in parallel share their cost. Stages that are
compared with other stages are repaired last, since their work may differ by design.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from triplepoint.metrics import robust_sigma
from triplepoint.why.operations import WORK, Bool, Float, Operations
from triplepoint.why.repairs import LEAST_PEERS, Recorded, Repair, Respect, Suspect
from triplepoint.why.replay import Order, find_order, replay
from triplepoint.why.sensed import Sensed
from triplepoint.why.slow_transfers import slow_transfers

LEAST_EXCESS = 0.02
"""Smallest excess of computation over peers: an outlier below 2 % costs little."""
LEAST_Z = 3.5
"""Smallest robust z-score of an outlier. Source: Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers,
chapter 3."""
_LEAST_SIGMA = 0.002
"""Smallest standard deviation of workers with the same work, relative. Our choice."""
_LEAST_SHARE = 0.005
"""Smallest lateness that is examined, as a share of the step. Our choice."""
_PAIR = 2
PAIR_EXCESS, _PAIR_SHARE, _PAIR_STEPS = 0.1, 0.02, 0.75
"""The slower of two peers is a suspect from this excess on, from this share of the step on, and, if it is a place, if
it is the slower one in this share of the steps. No other worker shows the usual spread, so the limits are high. Our
choice."""
_MAX_SUSPECTS = 24
"""Suspects that are replayed: those with the largest excess time."""


def find_suspects(
    operations: Operations, order: Order | None = None, sensed: Mapping[int, Sensed] = MappingProxyType({})
) -> list[Suspect]:
    """Return the suspects with their costs, most costly first.

    Args:
        operations: Operations of the job.
        order: Order of their events; determined here if not given.
        sensed: Measurements of GPUs, by rank; of these the times inside of passes count here.
    """
    recorded = Recorded(operations, order or find_order(operations))
    repairs = [
        *_slow_computation(recorded, sensed), *slow_transfers(recorded),
        *_late(recorded, "launch"), *_late(recorded, "data"),
    ]  # fmt: skip
    repairs = sorted(repairs, key=lambda repair: -repair.suspect.excess_s)[:_MAX_SUSPECTS]
    return _with_costs(recorded, repairs)


def outlier_scores(values: Float) -> Float:
    """Return the distances of relative values above their median, in robust standard deviations.

    The deviation is 0.2 % at least; for four equal workers and a different one it would be 0.
    """
    return np.asarray((values - np.median(values)) / max(robust_sigma(values), _LEAST_SIGMA))


def _slow_computation(recorded: Recorded, sensed: Mapping[int, Sensed]) -> Iterator[Repair]:
    """Yield the places whose computation takes longer than that of their peers, and single slow ranks of places."""
    operations = recorded.operations
    times_s = recorded.per_place(operations.work_s, ~operations.is_comm)
    groups, are_peers = recorded.peers()
    respect: Respect = "work" if WORK in operations.kinds else "computation"
    left = np.ones(len(recorded.places))
    if max(group.sum() for group in groups) < LEAST_PEERS or not are_peers:
        for index, repair in _slow_ranks(recorded, sensed, times_s):
            yield repair
            left[index] = min(left[index], 1.0 - repair.suspect.excess_s / times_s[index].mean())
        times_s = times_s * left[:, None]
    for group in groups:
        usual_s = _usual(times_s.mean(axis=1)[group])
        if usual_s <= 0:
            continue
        for index in _outliers(recorded, times_s, group, LEAST_EXCESS, usual_s, are_peers):
            excess_s, place = float(times_s[index].mean() - usual_s), recorded.places[index]
            suspect = Suspect(place, recorded.ranks(place), respect, excess_s / usual_s, excess_s, are_peers)
            yield Repair(suspect, _as_fast_as_peers_s(recorded, index, group, left), recorded.gap_s)


def _slow_ranks(recorded: Recorded, sensed: Mapping[int, Sensed], times_s: Float) -> Iterator[tuple[int, Repair]]:
    """Yield the ranks that compute longer than the others of their place, with the index of the place.

    The ranks of a place, such as a tensor parallel group, do the same work and wait for each other inside of passes.
    The time of the slow rank between these waits, beyond that of the others, is what its repair saves of the passes.
    That is less than the excess of its computation if the others wait for their hosts meanwhile.

    Args:
        recorded: The recorded operations.
        sensed: Measurements of GPUs, by rank.
        times_s: Time of each place with these waits; shape (num_places, num_steps). Unit: s.
    """
    operations = recorded.operations
    of_place = [
        {
            rank: sensed[rank].compute_s
            for rank in recorded.ranks(place)
            if rank in sensed and sensed[rank].compute_s > 0
        }
        for place in recorded.places
    ]
    between_s = _times_between_waits_s(operations, sensed)
    slow = _slower_of_pairs(recorded, of_place)
    for index, by_rank in enumerate(of_place):
        values_s = np.array(list(by_rank.values()))
        if len(by_rank) >= LEAST_PEERS:
            relative = values_s / np.median(values_s)
            is_slow = (relative - 1.0 >= LEAST_EXCESS) & (outlier_scores(relative) > LEAST_Z)
            slow |= {(index, list(by_rank)[number]) for number in np.flatnonzero(is_slow).tolist()}
    for index, rank in sorted(slow):
        usual_s = _usual(np.array(list(of_place[index].values())))
        excess_s = between_s[rank] - _usual(np.array([between_s[other] for other in of_place[index]]))
        repaired_s, is_work = operations.work_s.copy(), (recorded.place == index) & ~operations.is_comm
        repaired_s[is_work] *= 1.0 - min(max(excess_s / times_s[index].mean(), 0.0), 1.0)
        excess = of_place[index][rank] / usual_s - 1.0
        suspect = Suspect(recorded.places[index], (rank,), "computation", excess, excess_s, True, is_single=True)
        yield index, Repair(suspect, repaired_s, recorded.gap_s)


def _times_between_waits_s(operations: Operations, sensed: Mapping[int, Sensed]) -> dict[int, float]:
    """Return the time of each rank in a step between waits for the ranks of its place, by rank. Unit: s."""
    if WORK not in operations.kinds:
        return {rank: gpu.passes_s for rank, gpu in sensed.items()}
    is_work = ~operations.is_comm
    sums_s = np.bincount(operations.worker[is_work], operations.work_s[is_work].mean(axis=1), len(operations.workers))
    return {worker.rank: time_s for worker, time_s in zip(operations.workers, sums_s.tolist(), strict=True)}


def _slower_of_pairs(recorded: Recorded, of_place: Sequence[Mapping[int, float]]) -> set[tuple[int, int]]:
    """Return the ranks that compute much longer than the only other one of their place, each after its place's index.

    The excess of three pairs or more shows what is usual.

    Args:
        recorded: The recorded operations.
        of_place: Computation in a step by rank, of each place. Unit: s.
    """
    pairs = [index for index, by_rank in enumerate(of_place) if len(by_rank) == _PAIR]
    if not pairs:
        return set()
    fast_s, slow_s = np.sort([list(of_place[index].values()) for index in pairs]).T
    excess = slow_s / fast_s - 1.0
    if len(pairs) >= LEAST_PEERS:
        is_slow = (excess >= LEAST_EXCESS) & (outlier_scores(excess) > LEAST_Z)
    else:
        is_slow = (excess >= PAIR_EXCESS) & (slow_s - fast_s >= _PAIR_SHARE * recorded.step_s)
    found = [index for index, is_one in zip(pairs, is_slow.tolist(), strict=True) if is_one]
    return {(index, max(of_place[index], key=lambda rank: of_place[index][rank])) for index in found}


def _usual(values: Float) -> float:
    """Return the median, or the smaller of two values: the excess of the slower one is lost."""
    return float(np.median(values) if len(values) > _PAIR else values.min())


def _outliers(
    recorded: Recorded, times_s: Float, group: Bool, least: float, scale_s: float, are_peers: bool
) -> Sequence[int]:
    """Return the indices of the places that take longer than the others of their group.

    Args:
        recorded: The recorded operations.
        times_s: Time of each place; shape (num_places, num_steps). Unit: s.
        group: Places that are compared; shape (num_places,).
        least: Smallest excess over the usual time, as a share of `scale_s`.
        scale_s: Time that the excess is a share of. Unit: s.
        are_peers: Whether the places do the same work.
    """
    means_s = times_s.mean(axis=1)
    if group.sum() >= LEAST_PEERS:
        z_scores = np.zeros(len(means_s))
        z_scores[group] = outlier_scores(means_s[group] / scale_s)
        is_large = (means_s - np.median(means_s[group])) / scale_s >= least
        return np.flatnonzero(group & is_large & (z_scores > LEAST_Z)).tolist()
    if group.sum() < _PAIR or not are_peers:
        return []
    fast, slow = sorted(np.flatnonzero(group).tolist(), key=lambda index: float(means_s[index]))
    is_usually = float((times_s[slow] > times_s[fast]).mean()) >= _PAIR_STEPS
    is_large = means_s[slow] >= (1 + PAIR_EXCESS) * means_s[fast]
    is_felt = means_s[slow] - means_s[fast] >= _PAIR_SHARE * recorded.step_s
    return [slow] if is_usually and is_large and is_felt else []


def _as_fast_as_peers_s(recorded: Recorded, place: int, group: Bool, left: Float) -> Float:
    """Return durations with the computation of one place as long as that of its peers, class by class. Unit: s.

    Args:
        recorded: The recorded operations.
        place: Index of the place.
        group: Places that are compared; shape (num_places,).
        left: Share of the computation of each place that is left once its slow ranks are repaired; same shape.
    """
    operations, repaired_s = recorded.operations, recorded.operations.work_s.copy()
    compute = np.flatnonzero(~operations.is_comm)
    sums_s = np.zeros((len(recorded.places), operations.duration_class.max() + 1))
    np.add.at(sums_s, (recorded.place[compute], operations.duration_class[compute]), repaired_s[compute].mean(axis=1))
    sums_s *= left[:, None]
    here = compute[recorded.place[compute] == place]
    for number in np.unique(operations.duration_class[here]):
        if sums_s[place, number] > 0:
            of_class = here[operations.duration_class[here] == number]
            repaired_s[of_class] *= _usual(sums_s[group, number]) / sums_s[place, number]
    return repaired_s


def _late(recorded: Recorded, respect: Literal["launch", "data"]) -> Iterator[Repair]:
    """Yield the places that start their steps late (data), or their other operations (launch)."""
    chosen = recorded.is_first if respect == "data" else ~recorded.is_first
    late_s = recorded.per_place(recorded.gap_s, chosen)
    groups, are_peers = recorded.peers()
    if respect == "launch" and len(recorded.places) > _PAIR:
        groups, are_peers = [np.ones(len(late_s), dtype=np.bool_)], True
    for group in groups:
        usual_s = _usual(late_s.mean(axis=1)[group])
        for index in _outliers(recorded, late_s, group, _LEAST_SHARE, recorded.step_s, are_peers):
            gap_s = recorded.gap_s.copy()
            gap_s[(recorded.place == index) & chosen] *= usual_s / late_s[index].mean()
            excess_s, place = float(late_s[index].mean() - usual_s), recorded.places[index]
            share = excess_s / recorded.step_s
            suspect = Suspect(place, recorded.ranks(place), respect, share, excess_s, are_peers)
            yield Repair(suspect, recorded.operations.work_s, gap_s)


def _with_costs(recorded: Recorded, repairs: Sequence[Repair]) -> list[Suspect]:
    """Return the suspects with their costs, most costly first.

    Stages that are compared with other stages may have more work by design, and the job keeps it. So the costs of
    other suspects hold with these stages as they are, and those of these stages hold once the others are repaired.
    """
    faults = [repair for repair in repairs if repair.suspect.has_peers]
    uneven = [repair for repair in repairs if not repair.suspect.has_peers]
    suspects = [*_share_costs(recorded, faults, []), *_share_costs(recorded, uneven, faults)]
    return sorted(suspects, key=lambda suspect: -suspect.lost_s)


def _share_costs(recorded: Recorded, repairs: Sequence[Repair], done: Sequence[Repair]) -> list[Suspect]:
    """Return the suspects of repairs with their costs, if other repairs are done before."""
    if not repairs:
        return []
    cases = [_repaired(recorded, done), _repaired(recorded, [*done, *repairs])]
    cases += [_repaired(recorded, [*done, repair]) for repair in repairs]
    cases += [_repaired(recorded, [*done, *repairs[:index], *repairs[index + 1 :]]) for index in range(len(repairs))]
    times_s = _step_times(recorded, cases)
    original_s, best_s = times_s[0], times_s[1]
    alone_s, without_s = np.split(np.array(times_s[2:]), 2)
    lost_s = np.maximum((original_s - alone_s) + (without_s - best_s), 0.0) / 2
    if lost_s.sum() > 0:
        lost_s *= max(original_s - best_s, 0.0) / lost_s.sum()
    num_stages = len({stage for _, stage in recorded.places})
    return [
        replace(repair.suspect, lost_s=cost_s, num_stages=num_stages)
        for repair, cost_s in zip(repairs, lost_s.tolist(), strict=True)
    ]


def _repaired(recorded: Recorded, repairs: Sequence[Repair]) -> tuple[Float, Float]:
    """Return durations and gaps with several repairs; shapes (num_operations, num_steps). Unit: s."""
    work_s, gap_s = recorded.operations.work_s.copy(), recorded.gap_s.copy()
    for repair in repairs:
        np.minimum(work_s, repair.work_s, out=work_s)
        np.minimum(gap_s, repair.gap_s, out=gap_s)
    return work_s, gap_s


def _step_times(recorded: Recorded, cases: Sequence[tuple[Float, Float]]) -> list[float]:
    """Return the mean time of a step for each case of durations and gaps. Unit: s."""
    work_s = np.concatenate([work_s for work_s, _ in cases], axis=1)
    gap_s = np.concatenate([gap_s for _, gap_s in cases], axis=1)
    times_s = replay(recorded.operations, recorded.order, work_s, gap_s).step_time_s
    return [float(part.mean()) for part in np.split(times_s, len(cases))]
