"""Match a collective across ranks.

A rank counts the collectives of each kind in each process group from the start of its own trace, so the numbers agree
only where the traces begin at the same collective. Where they do not, one rank's row of collectives is shifted along
the other's until their kinds agree and the times between their ends fit. A shift that is not clearly better than the
others is not taken: the rank is left out of that group, and a note says so.

A send belongs to a receive of another rank. Whose is known where the trace names the peer, and in a group of two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.trace import Int64
from triplepoint.trace.lanes import Collectives, Meeting
from triplepoint.trace.taxonomy import POINT_TO_POINT

ENDS_TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Kinds no rank leaves before every rank has come: each needs something of all others."""

_CLEARLY = 3.0
"""A shift is taken if the ends deviate this many times less than with any other one."""

_MIN_OVERLAP = 5
"""Collectives that must lie over each other: the deviation of fewer is small by chance too often."""

_MIN_SAME_KIND = 0.9
"""Share of collectives whose kinds must agree: worker threads of one group may swap two that start together."""

_MAX_SHIFT = 8192
_NUM_SAMPLED = 128
"""Shifts tried, and collectives each is tried on, so that long traces cost megabytes and milliseconds a pair."""


@dataclass(frozen=True)
class MatchedCollectives:
    """The parts that ranks had in collectives, by (number, lane); shape of every array (num_parts,).

    A collective nobody else can be told to have taken part in (no process group, a send within a larger group, a group
    that would not match) is not among them.

    Attributes:
        collectives: The collectives of every rank, by rank.
        number: Number of the collective; parts of one collective have one number.
        lane: Position of the rank in `collectives`.
        index: Position of the part within the rank's collectives.
        start: Start of the part by the rank's own clock. Unit: ns since 1970.
        end: End of the part by the rank's own clock. Unit: ns since 1970.
        ends_together: Whether the kind is one that no rank leaves before every rank has come.
        notes: What was shifted and what was left out, one line each.
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
        """Return the position of the first part of every collective."""
        return np.flatnonzero(np.diff(self.number, prepend=-1))


class _Group(NamedTuple):
    """A process group: its name, and its ranks where the traces tell, since groups apart may share a name."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class _Row:
    """What one rank did in one group, by start; shape of every array (num_collectives,)."""

    index: Int64
    kind: Int64
    sequence: Int64
    end: Int64


def match_collectives(collectives: Sequence[Collectives]) -> MatchedCollectives:
    """Return which collectives of different ranks belong together."""
    by_rank = sorted(collectives, key=lambda own: own.rank)
    kinds: dict[str, int] = {}
    # One rank alone met nobody, however much it communicated.
    rows = _rows(by_rank, kinds) if len(by_rank) > 1 else {}
    notes: list[str] = []
    columns = [np.zeros((5, 0), dtype=np.int64)]
    for number, (group, lanes) in enumerate(rows.items()):
        reference = max(lanes, key=lambda lane: (len(lanes[lane].index), -lane))
        for lane, row in lanes.items():
            shift = _shift(lanes[reference], row) if lane != reference else 0
            notes += _note(group, by_rank[lane].rank, by_rank[reference].rank, shift)
            if shift is not None:
                sequence = row.sequence + _lead_of_kinds(lanes[reference], row, shift, len(kinds))
                fixed = [np.full(len(sequence), number), row.kind, sequence, np.full(len(sequence), lane), row.index]
                columns.append(np.stack(fixed))
    return _matched(by_rank, np.concatenate(columns, axis=1), kinds, notes)


def _matched(
    collectives: list[Collectives], parts: Int64, kinds: dict[str, int], notes: list[str]
) -> MatchedCollectives:
    parts = parts[:, np.lexsort(parts[3::-1])]
    group, kind, sequence, lane, index = parts
    is_new = (np.diff(parts[:3], axis=1, prepend=-1) != 0).any(axis=0)
    start, end = np.zeros_like(index), np.zeros_like(index)
    for position, own in enumerate(collectives):
        here = lane == position
        start[here], end[here] = own.start[index[here]], own.end[index[here]]
    together = np.array([name in ENDS_TOGETHER for name in kinds], dtype=bool)
    return MatchedCollectives(collectives, np.cumsum(is_new) - 1, lane, index, start, end, together[kind], notes)


def _rows(collectives: list[Collectives], kinds: dict[str, int]) -> dict[_Group, dict[int, _Row]]:
    """Return what each rank (by position) did in each group; numbers the kinds on the way."""
    groups = _groups(collectives)
    found: dict[_Group, dict[int, list[tuple[int, Int64]]]] = {}
    for lane, own in enumerate(collectives):
        for met, index in zip(own.meetings, _by_meeting(own), strict=True):
            if met.group is None:
                continue
            group = groups[lane][met.group]
            kind = _kind(met, own.rank, group.ranks)
            if met.peer is not None:
                # The two of a message are a row of their own: the others of a pipeline send something else.
                group = _Group(group.name, (min(own.rank, met.peer), max(own.rank, met.peer)))
            if kind is not None:
                of_lane = found.setdefault(group, {}).setdefault(lane, [])
                of_lane.append((kinds.setdefault(kind, len(kinds)), index))
    return {
        group: {lane: _row(collectives[lane], parts) for lane, parts in lanes.items()} for group, lanes in found.items()
    }


def _by_meeting(own: Collectives) -> list[Int64]:
    """Return the positions of the collectives of each meeting."""
    last = np.cumsum(np.bincount(own.meeting, minlength=len(own.meetings)))
    return np.split(np.argsort(own.meeting, kind="stable"), last)[:-1]


def _row(own: Collectives, parts: Sequence[tuple[int, Int64]]) -> _Row:
    """Return what a rank did in one group, from the positions of each kind."""
    index = np.concatenate([positions for _, positions in parts])
    kind = np.repeat([kind for kind, _ in parts], [len(positions) for _, positions in parts])
    order = np.argsort(index)
    index, kind = index[order], kind[order]
    return _Row(index, kind, own.sequence[index], own.end[index])


def _groups(collectives: list[Collectives]) -> list[dict[str, _Group]]:
    """Return the process group behind each name, for every rank; the ranks may be written on some collectives only."""
    told: list[dict[str, tuple[int, ...]]] = []
    for own in collectives:
        here: dict[str, tuple[int, ...]] = {}
        for met in own.meetings:
            if met.group is not None and not here.get(met.group):
                here[met.group] = tuple(sorted(met.ranks))
        told.append(here)
    anywhere: dict[str, set[tuple[int, ...]]] = {}
    for here in told:
        for name, ranks in here.items():
            anywhere.setdefault(name, set()).add(ranks)
    groups = []
    for own, here in zip(collectives, told, strict=True):
        named = {}
        for name, ranks in here.items():
            fitting = [other for other in anywhere[name] if own.rank in other]
            named[name] = _Group(name, ranks or (fitting[0] if len(fitting) == 1 else ()))
        groups.append(named)
    return groups


def _kind(met: Meeting, rank: int, ranks: tuple[int, ...]) -> str | None:
    """Return the kind both sides agree on, None where nobody can tell who the other side is."""
    kind = met.kind
    if kind not in POINT_TO_POINT:
        return kind
    if met.peer is not None and kind != "send_recv":
        return f"send from {rank} to {met.peer}" if kind == "send" else f"send from {met.peer} to {rank}"
    if (len(ranks) or met.num_ranks) != 2:
        return None
    if kind == "send_recv":
        return kind
    if rank not in ranks:
        return None
    other = ranks[0] if ranks[1] == rank else ranks[1]
    return f"send from {rank} to {other}" if kind == "send" else f"send from {other} to {rank}"


def _shift(reference: _Row, row: _Row) -> int | None:
    """Return how many collectives of `reference` come before the first of `row`; None where that cannot be told."""
    num_reference, num = len(reference.index), len(row.index)
    shorter = min(num_reference, num)
    is_alike = np.array_equal(np.sort(reference.kind), np.sort(row.kind))
    if shorter < _MIN_OVERLAP:
        return 0 if is_alike else None
    if is_alike and _is_in_time(reference, row):
        return 0
    overlap = max(_MIN_OVERLAP, shorter // 2)
    shifts = np.arange(max(overlap - num, -_MAX_SHIFT), min(num_reference - overlap, _MAX_SHIFT) + 1)
    deviation = _deviations(reference, row, shifts)
    best = int(np.argmin(deviation))
    if is_alike and deviation[shifts == 0][0] <= _CLEARLY * deviation[best]:
        return 0
    rivals = np.delete(deviation, best)
    is_clear = np.isfinite(deviation[best]) and (_CLEARLY * deviation[best] < rivals).all()
    return int(shifts[best]) if is_clear else None


def _is_in_time(reference: _Row, row: _Row) -> bool:
    """Return whether rows of equal length end together by the clocks as they are, which then tell without a fit.

    Of a few evenly spaced collectives whose ends scatter, another shift may fit better by chance.
    """
    apart_ns = np.median(np.abs(row.end - reference.end))
    return bool(apart_ns < np.median(np.diff(np.sort(reference.end))) / 2)


def _deviations(reference: _Row, row: _Row, shifts: Int64) -> npt.NDArray[np.float64]:
    """Return the mean deviation of the differences between ends for every shift. Unit: ns.

    The mean and not the median: in a row of evenly spaced collectives only the few gaps tell one shift from another.
    """
    sampled = np.unique(np.linspace(0, len(row.index) - 1, _NUM_SAMPLED).astype(np.int64))
    over = sampled + shifts[:, None]
    is_over = (over >= 0) & (over < len(reference.index))
    over = np.clip(over, 0, len(reference.index) - 1)
    is_same = is_over & (reference.kind[over] == row.kind[sampled])
    num_same = np.maximum(is_same.sum(axis=1), 1)
    # Each row from its own first end, so that the differences are small enough to be exact as floats.
    later = (row.end[sampled] - row.end[0]) - (reference.end[over] - reference.end[0])
    mean = np.sum(later * is_same, axis=1) / num_same
    deviation = np.sum(np.abs(later - mean[:, None]) * is_same, axis=1) / num_same
    fits = is_same.sum(axis=1) >= np.maximum(_MIN_SAME_KIND * is_over.sum(axis=1), 1)
    return np.where(fits, deviation, np.inf)


def _lead_of_kinds(reference: _Row, row: _Row, shift: int, num_kinds: int) -> Int64:
    """Return what to add to the sequence number of every collective of `row` for those of `reference`."""
    before = reference.kind[:shift] if shift > 0 else row.kind[: -shift or 0]
    lead: Int64 = np.bincount(before, minlength=num_kinds)[row.kind]
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
