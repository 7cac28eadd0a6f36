"""Judges what published figures show, row by row and GPU by GPU."""

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from triplepoint.status import Status
from triplepoint.verdicts.file import Cells, Rows, Slots
from triplepoint.verdicts.number import Number, Verdict, judge_sign, judge_values, mean_of, overlap
from triplepoint.verdicts.quantities import Slot, by_slot, largest_ratio, rear_excess
from triplepoint.verdicts.rows import (
    NO_NUMBER,
    ClaimRow,
    Context,
    begin,
    cannot_tell,
    numbers,
    of_group,
    verdict,
    why_not,
)
from triplepoint.verdicts.runs import Group, own_spread


@dataclass(frozen=True)
class _Pair:
    """A row of a figure and the point of ours it speaks of, with both numbers where there are any."""

    cells: Cells
    name: str
    group: Group
    published: Number | None
    ours: Number | None

    @property
    def why_not(self) -> str:
        """Why our number is missing."""
        return why_not(self.group) or NO_NUMBER


def judge_rows(claim: Rows, context: Context) -> Iterator[ClaimRow]:
    """Yield the rows of a claim about what a figure shows."""
    figure = context.published.figure(claim.figure)
    pairs = []
    for cells in context.published.rows(claim.figure):
        group = context.runs.find(figure.settings_of(cells))
        ours = context.runs.number(group, claim.quantity) if group.has_run else None
        pairs.append(_Pair(cells, figure.name.format(**cells), group, claim.published.number(cells), ours))
    if claim.is_relative:
        pairs = _over_median(pairs)
    keys = [column for column in figure.keys if column != claim.along]
    judges = {
        "value": lambda: _values(pairs),
        "trend": lambda: _trends(pairs, claim.along or "", keys),
        "order": lambda: _order(pairs),
        "fits": lambda: _fits(pairs),
    }
    for kind in claim.judged:
        row = begin(claim, kind, figure.source, None if kind == "fits" else claim.quantity)
        # What was fitted to a figure is time, power and heat; which points fit in memory was not.
        row["fitted"] = None if kind == "fits" else figure.fitted
        if kind in ("order", "fits") or claim.is_relative:
            row["unit"] = "1"
        yield from (row | found for found in judges[kind]())


def _over_median(pairs: Sequence[_Pair]) -> list[_Pair]:
    """Return both numbers of each row over the median of those rows that have both."""
    whole = [(one.published.value, one.ours.value) for one in pairs if one.published and one.ours]
    alone = [(one.published.value, 1.0) for one in pairs if one.published]
    published, ours = (statistics.median(values) for values in zip(*(whole or alone or [(1.0, 1.0)]), strict=True))
    return [
        replace(one, published=one.published and one.published / published, ours=one.ours and one.ours / ours)
        for one in pairs
    ]


def _values(pairs: Sequence[_Pair]) -> Iterator[ClaimRow]:
    """Yield a row for every number of a figure."""
    for one in pairs:
        if one.published is None:
            continue
        row = {"point": one.name} | of_group(one.group) | numbers(one.published, one.ours)
        yield row | (verdict(judge_values(one.published, one.ours)) if one.ours else cannot_tell(one.why_not))


def _trends(pairs: Sequence[_Pair], axis: str, keys: Sequence[str]) -> Iterator[ClaimRow]:
    """Yield a row for the change along an axis in each group of rows, between its ends that ran in both."""
    groups: dict[str, list[_Pair]] = {}
    for one in pairs:
        if one.published:
            groups.setdefault(", ".join(one.cells[column] for column in keys), []).append(one)
    for name, of_name in groups.items():
        ends = sorted((one for one in of_name if one.ours), key=lambda one: float(one.cells[axis])) or of_name
        row: ClaimRow = {"point": f"{name}, {axis} {ends[0].cells[axis]} to {ends[-1].cells[axis]}"}
        yield row | _trend(ends[0], ends[-1])


def _trend(first: _Pair, last: _Pair) -> ClaimRow:
    assert first.published and last.published
    change = last.published - first.published
    row = numbers(change, None)
    if not first.ours or not last.ours:
        return row | cannot_tell(first.why_not if not first.ours else last.why_not)
    if first is last:
        return row | of_group(first.group) | cannot_tell("only one point of the figure has run in the results")
    row |= {"runs": [*first.group.runs, *last.group.runs], "origin": last.group.origin}
    ours = own_spread(last.ours, last.group) - own_spread(first.ours, first.group)
    row |= numbers(change, ours)
    if change.low <= 0 <= change.high:
        return row | cannot_tell("the published change is smaller than what could be read off")
    return row | verdict(judge_sign(change.sign, ours, change.half_width))


def _order(pairs: Sequence[_Pair]) -> Iterator[ClaimRow]:
    """Yield one row: the rank correlation, and pairs of rows that both tell apart and that are reversed."""
    known = [(one, one.published, one.ours) for one in pairs if one.published and one.ours]
    row: ClaimRow = {"point": f"{len(known)} points", "runs": [run for one, *_ in known for run in one.group.runs]}
    row["origin"] = known[0][0].group.origin if known else None
    told, reversed_pairs = 0, []
    for (one, published, ours), (other, their_published, their_ours) in itertools.combinations(known, 2):
        least = math.hypot(published.half_width, their_published.half_width)
        change = own_spread(their_ours, other.group) - own_spread(ours, one.group)
        if overlap(published, their_published) or abs(change.value) <= math.hypot(least, change.half_width):
            continue
        told += 1
        if (their_published.value > published.value) != (change.value > 0):
            reversed_pairs.append(f"{one.name} and {other.name}")
    if not told:
        yield row | cannot_tell("no two points of the figure are told apart in both")
        return
    correlation = _rank_correlation([one.value for _, one, _ in known], [one.value for *_, one in known])
    row |= {"published": 1.0, "ours": correlation}
    if not reversed_pairs:
        yield row | verdict((Verdict.AGREES, ""))
        return
    reason = f"{len(reversed_pairs)} of {told} pairs that both tell apart are reversed, such as {reversed_pairs[0]}"
    yield row | verdict((Verdict.DIFFERS, reason))


def _rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank."""
    ranks = [
        [sum(low < value for low in values) + sum(equal == value for equal in values) / 2 for value in values]
        for values in (one, other)
    ]
    return statistics.correlation(*ranks)


def _fits(pairs: Sequence[_Pair]) -> Iterator[ClaimRow]:
    """Yield a row for every point: whether it ran, 1 for yes and 0 for no."""
    for one in pairs:
        published = Number.within(float(one.published is not None), 0.0)
        row = {"point": one.name} | of_group(one.group)
        if not one.group.rows:
            yield row | numbers(published, None) | cannot_tell(one.group.why)
            continue
        status = one.group.rows[0]["status"]
        if undecided := one.group.rows[0]["memory_undecided"]:
            yield row | numbers(published, None) | cannot_tell(undecided)
            continue
        ours = Number.within(float(status == Status.OK), 0.0)
        if published.value == ours.value:
            yield row | numbers(published, ours) | verdict((Verdict.AGREES, ""))
            continue
        words = "ran, and is out of memory here" if published.value else "did not fit, and does here"
        if status == Status.INVALID:
            words = "ran, and cannot run here"
        yield row | numbers(published, ours) | verdict((Verdict.DIFFERS, f"published it {words}"))


def judge_slots(claim: Slots, context: Context) -> Iterator[ClaimRow]:
    """Yield the rows of a claim about single GPUs."""
    figure = context.published.figure(claim.figure)
    row = begin(claim, "sign" if claim.judged == "gap_sign" else "value", figure.source, claim.quantity)
    row["fitted"] = figure.fitted
    if claim.judged == "largest_ratio":
        row["unit"] = "1"
    maps: dict[str, list[Cells]] = {}
    for cells in context.published.rows(claim.figure):
        maps.setdefault(", ".join(cells[column] for column in figure.keys), []).append(cells)
    for name, rows in maps.items():
        group = context.runs.find(figure.settings_of(rows[0]))
        published: dict[Slot, Number] = {}
        for cells in rows:
            if number := claim.published.number(cells):
                node, slot = (figure.whole_number(cells, column) for column in (claim.node, claim.slot))
                published[node - 1, slot] = number
        ours = _by_slot(context, group, claim.quantity) if group.has_run else {}
        ours = {slot: value for slot, value in ours.items() if slot in published}
        of_map = row | of_group(group) | {"point": name}
        if not ours:
            yield of_map | cannot_tell(why_not(group) or NO_NUMBER)
        elif claim.judged == "slot":
            yield from (of_map | found | {"point": f"{name}, {found['point']}"} for found in _each(published, ours))
        else:
            yield of_map | _whole(claim, published, ours, context)


def _by_slot(context: Context, group: Group, quantity: str) -> dict[Slot, float]:
    """Return a quantity of each GPU, the mean over repeats."""
    found: dict[Slot, list[float]] = {}
    for row in group.rows:
        for slot, value in by_slot(context.runs.gpus_of(row["run"]), quantity).items():
            found.setdefault(slot, []).append(value)
    return {slot: statistics.fmean(values) for slot, values in found.items()}


def _each(published: Mapping[Slot, Number], ours: Mapping[Slot, float]) -> Iterator[ClaimRow]:
    """Yield a row for each slot: its mean over nodes, known from the lowest to the highest of them."""
    for slot in sorted({slot for _, slot in ours}):
        theirs = mean_of([number for (_, other), number in published.items() if other == slot])
        values = [value for (_, other), value in ours.items() if other == slot]
        number = mean_of([Number.within(value, 0.0) for value in values])
        yield {"point": f"GPU {slot}"} | numbers(theirs, number) | verdict(judge_values(theirs, number))


def _whole(claim: Slots, published: Mapping[Slot, Number], ours: Mapping[Slot, float], context: Context) -> ClaimRow:
    """Return what all slots together say: one number of theirs and one of ours, by the same formula."""
    formula = largest_ratio if claim.judged == "largest_ratio" else rear_excess
    theirs = {slot: number.value for slot, number in published.items()}
    accuracy = max(number.half_width for number in published.values()) / math.sqrt(len(published) / 2)
    both = [formula(values, context.slots) for values in (theirs, ours)]
    if both[0] is None or both[1] is None:
        return cannot_tell(NO_NUMBER)
    if claim.judged == "largest_ratio":
        # One GPU over one other, not a mean of many.
        accuracy = max(number.half_width / number.value for number in published.values()) * math.sqrt(2)
    one, other = Number.within(both[0], accuracy), Number.within(both[1], 0.0)
    if claim.judged != "gap_sign":
        return numbers(one, other) | verdict(judge_values(one, other))
    return numbers(one, other) | {"difference": None} | verdict(judge_sign(one.sign, other, accuracy))
