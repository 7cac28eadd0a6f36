"""Match a collective across ranks.

A rank counts the collectives of each kind in each process group from the start of its own trace, so the numbers of two
ranks agree only if their traces begin at the same collective. Otherwise one rank's sequence of collectives is shifted
along the other's until the kinds agree and the times between ends fit. If no shift is clearly the best, the rank is
left out of that group, with a note. Sequences with the same numbers of each kind stay as they are unless a shift fits
better and agrees with the recorded clocks.

A send belongs to a receive of another rank, which is known if the trace names the peer, or if the group has two ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.trace import Int64
from triplepoint.trace.rank_results import Collectives, CollectiveSignature
from triplepoint.trace.taxonomy import POINT_TO_POINT

ENDS_TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Kinds that no rank leaves before every rank has arrived: each rank needs data from all others."""

_CLEARLY = 3.0
"""A shift is accepted if ends deviate this many times less than with any other shift. It is refused if as many
collectives fit without it and it sets the clocks apart by this many times what was recorded."""

_MIN_OVERLAP = 5
"""Collectives that two sequences must have in common: with fewer, the deviation is too often small by chance."""

_MIN_SAME_KIND = 0.9
"""Share of collectives whose kinds must agree: worker threads of a group may swap two that start together."""

_MAX_SHIFT = 8192
_NUM_SAMPLED = 128
"""Shifts that are tried, and collectives that each is tried on: long traces cost megabytes and milliseconds a pair."""
_SEED = 1
"""Seed of the sampled positions, so that a trace gives the same answer every time."""


@dataclass(frozen=True)
class MatchedCollectives:
    """Collectives matched across ranks, one entry per collective and rank, sorted by both.

    The shape of every array is (num_entries,). A collective without a match on any other rank is not in here: its
    process group is unknown, it is a send within a larger group, or the group could not be matched.

    Attributes:
        collectives: The collectives of every rank, by rank.
        number: Number of the collective, the same on all its ranks.
        lane: Position of the rank in `collectives`.
        index: Position of the entry in the rank's collectives.
        start: Start on the rank, on its own clock. Unit: ns since 1970.
        end: End on the rank, on its own clock. Unit: ns since 1970.
        ends_together: Whether no rank leaves this kind before every rank has arrived.
        notes: Shifted and omitted ranks, one line each.
    """

    collectives: list[Collectives]
    number: Int64
    lane: Int64
    index: Int64
    start: Int64
    end: Int64
    ends_together: npt.NDArray[np.bool_]
    notes: list[str]

    def firsts(self) -> Int64:
        """Return the position of the first entry of every collective."""
        return np.flatnonzero(np.diff(self.number, prepend=-1))


class _Group(NamedTuple):
    """A process group. Ranks are part of its identity, if the traces have them: two groups may have the same name."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class _Sequence:
    """The collectives of one rank in one group, sorted by start; shape of every array (num_collectives,)."""

    index: Int64
    kind: Int64
    sequence: Int64
    end: Int64


def match_collectives(collectives: Sequence[Collectives]) -> MatchedCollectives:
    """Match the collectives of all ranks."""
    by_rank = sorted(collectives, key=lambda of_rank: of_rank.rank)
    kinds: dict[str, int] = {}
    # A single rank has no matches.
    sequences = _sequences(by_rank, kinds) if len(by_rank) > 1 else {}
    notes: list[str] = []
    columns = [np.zeros((5, 0), dtype=np.int64)]
    for number, (group, lanes) in enumerate(sequences.items()):
        reference = max(lanes, key=lambda lane: (len(lanes[lane].index), -lane))
        for lane, of_rank in lanes.items():
            shift = _shift(lanes[reference], of_rank) if lane != reference else 0
            notes += _note(group, by_rank[lane].rank, by_rank[reference].rank, shift)
            if shift is not None:
                sequence = of_rank.sequence + _lead_of_kinds(lanes[reference], of_rank, shift, len(kinds))
                num = len(sequence)
                columns.append(
                    np.stack([np.full(num, number), of_rank.kind, sequence, np.full(num, lane), of_rank.index])
                )
    return _matched(by_rank, np.concatenate(columns, axis=1), kinds, notes)


def _matched(
    collectives: list[Collectives], entries: Int64, kinds: dict[str, int], notes: list[str]
) -> MatchedCollectives:
    """Return the matches from rows of group, kind, sequence, lane and index; shape of `entries` (5, num_entries)."""
    entries = entries[:, np.lexsort(entries[3::-1])]
    _, kind, _, lane, index = entries
    is_new = (np.diff(entries[:3], axis=1, prepend=-1) != 0).any(axis=0)
    start, end = np.zeros_like(index), np.zeros_like(index)
    for position, of_rank in enumerate(collectives):
        here = lane == position
        start[here], end[here] = of_rank.start[index[here]], of_rank.end[index[here]]
    ends_together = np.array([name in ENDS_TOGETHER for name in kinds], dtype=bool)
    return MatchedCollectives(collectives, np.cumsum(is_new) - 1, lane, index, start, end, ends_together[kind], notes)


def _sequences(collectives: list[Collectives], kinds: dict[str, int]) -> dict[_Group, dict[int, _Sequence]]:
    """Return the collectives of each group by the position of the rank.

    Args:
        collectives: The collectives of every rank.
        kinds: Number of each kind; new kinds are added.
    """
    groups = _groups(collectives)
    positions: dict[_Group, dict[int, list[tuple[int, Int64]]]] = {}
    for lane, of_rank in enumerate(collectives):
        for signature, indices in zip(of_rank.signatures, _indices_by_signature(of_rank), strict=True):
            if signature.group is None:
                continue
            group = groups[lane][signature.group]
            kind = _common_kind(signature, of_rank.rank, group.ranks)
            if kind is None:
                continue
            if signature.peer is not None:
                # Transfers between two ranks are a sequence of their own: other ranks of a pipeline have others.
                pair = (min(of_rank.rank, signature.peer), max(of_rank.rank, signature.peer))
                group = _Group(group.name, pair)
            in_group = positions.setdefault(group, {}).setdefault(lane, [])
            in_group.append((kinds.setdefault(kind, len(kinds)), indices))
    return {
        group: {lane: _sequence(collectives[lane], parts) for lane, parts in by_lane.items()}
        for group, by_lane in positions.items()
    }


def _indices_by_signature(collectives: Collectives) -> list[Int64]:
    """Return the indices of the collectives of each signature."""
    ends = np.cumsum(np.bincount(collectives.signature, minlength=len(collectives.signatures)))
    return np.split(np.argsort(collectives.signature, kind="stable"), ends)[:-1]


def _sequence(collectives: Collectives, parts: Sequence[tuple[int, Int64]]) -> _Sequence:
    """Return the collectives of a rank in one group from the number of each kind and the indices of its collectives."""
    index = np.concatenate([indices for _, indices in parts])
    kind = np.repeat([kind for kind, _ in parts], [len(indices) for _, indices in parts])
    order = np.argsort(index)
    index, kind = index[order], kind[order]
    return _Sequence(index, kind, collectives.sequence[index], collectives.end[index])


def _groups(collectives: list[Collectives]) -> list[dict[str, _Group]]:
    """Return the process groups of every rank by name.

    A trace may have the ranks of a group on some collectives only, or on none; then another trace may have them.
    """
    ranks_by_lane: list[dict[str, tuple[int, ...]]] = []
    for of_rank in collectives:
        ranks_of: dict[str, tuple[int, ...]] = {}
        for signature in of_rank.signatures:
            if signature.group is not None and not ranks_of.get(signature.group):
                ranks_of[signature.group] = tuple(sorted(signature.ranks))
        ranks_by_lane.append(ranks_of)
    in_any_trace: dict[str, set[tuple[int, ...]]] = {}
    for ranks_of in ranks_by_lane:
        for name, ranks in ranks_of.items():
            in_any_trace.setdefault(name, set()).add(ranks)
    groups = []
    for of_rank, ranks_of in zip(collectives, ranks_by_lane, strict=True):
        by_name = {}
        for name, ranks in ranks_of.items():
            candidates = [other for other in in_any_trace[name] if of_rank.rank in other]
            by_name[name] = _Group(name, ranks or (candidates[0] if len(candidates) == 1 else ()))
        groups.append(by_name)
    return groups


def _common_kind(signature: CollectiveSignature, rank: int, ranks: tuple[int, ...]) -> str | None:
    """Return a kind that is the same on all ranks of the operation, None if the other rank of a transfer is unknown."""
    kind = signature.kind
    if kind not in POINT_TO_POINT:
        return kind
    peer = signature.peer
    if peer is not None and kind != "send_recv":
        return f"send from {rank} to {peer}" if kind == "send" else f"send from {peer} to {rank}"
    if (len(ranks) or signature.num_ranks) != 2:
        return None
    if kind == "send_recv":
        return kind
    if rank not in ranks:
        return None
    other = ranks[0] if ranks[1] == rank else ranks[1]
    return f"send from {rank} to {other}" if kind == "send" else f"send from {other} to {rank}"


def _shift(reference: _Sequence, other: _Sequence) -> int | None:
    """Return the number of collectives of `reference` before the first of `other`; None if no shift is clearly best."""
    num_reference, num_other = len(reference.index), len(other.index)
    shorter = min(num_reference, num_other)
    has_same_kinds = np.array_equal(np.sort(reference.kind), np.sort(other.kind))
    if shorter < _MIN_OVERLAP:
        return 0 if has_same_kinds else None
    if has_same_kinds and _is_in_time(reference, other):
        return 0
    overlap = max(_MIN_OVERLAP, shorter // 2)
    shifts = np.arange(max(overlap - num_other, -_MAX_SHIFT), min(num_reference - overlap, _MAX_SHIFT) + 1)
    deviation = _deviations(reference, other, shifts)
    best = int(np.argmin(deviation))
    if has_same_kinds:
        is_in_place_as_good = deviation[shifts == 0][0] <= _CLEARLY * deviation[best]
        if is_in_place_as_good or _parts_clocks(reference, other, int(shifts[best])):
            return 0
    others = np.delete(deviation, best)
    is_clear = np.isfinite(deviation[best]) and (_CLEARLY * deviation[best] < others).all()
    return int(shifts[best]) if is_clear else None


def _is_in_time(reference: _Sequence, other: _Sequence) -> bool:
    """Return whether two sequences of equal length end together on their own clocks, so that no shift is needed.

    In a short, evenly spaced sequence with scattered ends another shift may fit better by chance.
    """
    apart_ns = np.median(np.abs(other.end - reference.end))
    return bool(apart_ns < np.median(np.diff(np.sort(reference.end))) / 2)


def _parts_clocks(reference: _Sequence, other: _Sequence, shift: int) -> bool:
    """Return whether a shift of a sequence of equal length sets its clock clearly further off than no shift does.

    Steps repeat, so another step may fit better than the right one. But clocks of nodes differ less than steps last.
    """
    of_reference, of_other = (reference.end, other.end) if shift >= 0 else (other.end, reference.end)
    shifted_ns = np.median(np.abs(of_other[: len(of_other) - abs(shift)] - of_reference[abs(shift) :]))
    return bool(shifted_ns > _CLEARLY * np.median(np.abs(other.end - reference.end)))


def _deviations(reference: _Sequence, other: _Sequence, shifts: Int64) -> npt.NDArray[np.float64]:
    """Return the mean deviation of the differences between ends, for every shift; inf if kinds differ. Unit: ns.

    The mean, and not the median: in an evenly spaced sequence only its few gaps distinguish one shift from another.
    """
    sampled = _sampled(len(other.index))
    partner = sampled + shifts[:, None]
    has_partner = (partner >= 0) & (partner < len(reference.index))
    partner = np.clip(partner, 0, len(reference.index) - 1)
    is_same = has_partner & (reference.kind[partner] == other.kind[sampled])
    num_same = np.maximum(is_same.sum(axis=1), 1)
    # Relative to the first end of each sequence, the differences are small enough to be exact as floats.
    difference = (other.end[sampled] - other.end[0]) - (reference.end[partner] - reference.end[0])
    mean = np.sum(difference * is_same, axis=1) / num_same
    deviation = np.sum(np.abs(difference - mean[:, None]) * is_same, axis=1) / num_same
    fits = is_same.sum(axis=1) >= np.maximum(_MIN_SAME_KIND * has_partner.sum(axis=1), 1)
    return np.where(fits, deviation, np.inf)


def _sampled(num: int) -> Int64:
    """Return positions to try shifts on: all of few, else one at random in each of equal parts of the sequence.

    At equal distances they could meet the same part of every pass, since passes repeat, and miss where ranks differ.
    """
    if num <= _NUM_SAMPLED:
        return np.arange(num)
    within = np.random.default_rng(_SEED).random(_NUM_SAMPLED)
    return ((np.arange(_NUM_SAMPLED) + within) * num / _NUM_SAMPLED).astype(np.int64)


def _lead_of_kinds(reference: _Sequence, other: _Sequence, shift: int, num_kinds: int) -> Int64:
    """Return the number to add to each sequence number of `other` so that it counts like `reference`."""
    before = reference.kind[:shift] if shift > 0 else other.kind[: -shift or 0]
    lead: Int64 = np.bincount(before, minlength=num_kinds)[other.kind]
    return lead if shift > 0 else -lead


def _note(group: _Group, rank: int, reference: int, shift: int | None) -> list[str]:
    if shift is None:
        return [f"rank {rank}: its collectives in process group {group.name} match those of rank {reference} in no way"
                " that is clearly best; left out"]  # fmt: skip
    if shift:
        than = "later" if shift > 0 else "earlier"
        return [f"rank {rank}: its trace of process group {group.name} begins {abs(shift)} collectives {than} than that"
                f" of rank {reference}"]  # fmt: skip
    return []
