"""Judgement of claims about published figures, row by row and GPU by GPU."""

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from triplepoint.status import Status
from triplepoint.verdicts.file import Cells, FigureClaim, SlotClaim
from triplepoint.verdicts.number import Number, Verdict, judge_sign, judge_values, mean_of, overlap
from triplepoint.verdicts.quantities import Slot, by_slot, largest_ratio, rear_excess
from triplepoint.verdicts.rows import (
    NO_NUMBER,
    ClaimRow,
    Context,
    cannot_tell,
    claim_columns,
    missing_reason,
    number_columns,
    run_columns,
    verdict_columns,
)
from triplepoint.verdicts.runs import Group, own_spread


@dataclass(frozen=True)
class _Pair:
    """A row of a figure and our runs of the same point.

    Attributes:
        cells: Row of the figure.
        name: Name of the row.
        group: Our runs.
        published: Published number; None where the row has none.
        ours: Our number; None where the runs have none.
    """

    cells: Cells
    name: str
    group: Group
    published: Number | None
    ours: Number | None

    @property
    def missing_reason(self) -> str:
        """Reason that our number is missing."""
        return missing_reason(self.group) or NO_NUMBER


def judge_rows(claim: FigureClaim, context: Context) -> Iterator[ClaimRow]:
    """Yield the rows of table `claims` for a claim about the rows of a figure."""
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
        row = claim_columns(claim, kind, figure.source, None if kind == "fits" else claim.quantity)
        # Time, power and heat were fitted to figures, memory was not.
        row["fitted"] = None if kind == "fits" else figure.fitted
        if kind in ("order", "fits") or claim.is_relative:
            row["unit"] = "1"
        yield from (row | judged for judged in judges[kind]())


def _over_median(pairs: Sequence[_Pair]) -> list[_Pair]:
    """Return the pairs with both numbers over their medians, which are over the pairs that have both."""
    both = [(pair.published.value, pair.ours.value) for pair in pairs if pair.published and pair.ours]
    published_only = [(pair.published.value, 1.0) for pair in pairs if pair.published]
    values = both or published_only or [(1.0, 1.0)]
    published, ours = (statistics.median(column) for column in zip(*values, strict=True))
    return [
        replace(pair, published=pair.published and pair.published / published, ours=pair.ours and pair.ours / ours)
        for pair in pairs
    ]


def _values(pairs: Sequence[_Pair]) -> Iterator[ClaimRow]:
    """Yield a row for every published number."""
    for pair in pairs:
        if pair.published is None:
            continue
        row = {"point": pair.name} | run_columns(pair.group) | number_columns(pair.published, pair.ours)
        if pair.ours:
            yield row | verdict_columns(judge_values(pair.published, pair.ours))
        else:
            yield row | cannot_tell(pair.missing_reason)


def _trends(pairs: Sequence[_Pair], axis: str, keys: Sequence[str]) -> Iterator[ClaimRow]:
    """Yield a row for the change along an axis in each group of rows, between the outermost rows that ran in both."""
    groups: dict[str, list[_Pair]] = {}
    for pair in pairs:
        if pair.published:
            groups.setdefault(", ".join(pair.cells[column] for column in keys), []).append(pair)
    for name, members in groups.items():
        ends = sorted((pair for pair in members if pair.ours), key=lambda pair: float(pair.cells[axis])) or members
        row: ClaimRow = {"point": f"{name}, {axis} {ends[0].cells[axis]} to {ends[-1].cells[axis]}"}
        yield row | _trend(ends[0], ends[-1])


def _trend(first: _Pair, last: _Pair) -> ClaimRow:
    """Return the columns of a row on the change from one row of a figure to another."""
    assert first.published and last.published
    change = last.published - first.published
    row = number_columns(change, None)
    if not first.ours or not last.ours:
        return row | cannot_tell(first.missing_reason if not first.ours else last.missing_reason)
    if first is last:
        return row | run_columns(first.group) | cannot_tell("only one point of the figure has run in the results")
    row |= {"runs": [*first.group.runs, *last.group.runs], "origin": last.group.origin}
    ours = own_spread(last.ours, last.group) - own_spread(first.ours, first.group)
    row |= number_columns(change, ours)
    if change.low <= 0 <= change.high:
        return row | cannot_tell("the published change is smaller than what could be read off")
    return row | verdict_columns(judge_sign(change.sign, ours, change.half_width))


def _order(pairs: Sequence[_Pair]) -> Iterator[ClaimRow]:
    """Yield one row with the rank correlation and the number of reversed pairs.

    Only pairs whose difference is larger than the uncertainty count, in the publication and in our results.
    """
    known = [(pair, pair.published, pair.ours) for pair in pairs if pair.published and pair.ours]
    row: ClaimRow = {"point": f"{len(known)} points", "runs": [run for pair, *_ in known for run in pair.group.runs]}
    row["origin"] = known[0][0].group.origin if known else None
    num_distinct, reversed_pairs = 0, []
    for (one, published, ours), (other, other_published, other_ours) in itertools.combinations(known, 2):
        least = math.hypot(published.half_width, other_published.half_width)
        change = own_spread(other_ours, other.group) - own_spread(ours, one.group)
        if overlap(published, other_published) or abs(change.value) <= math.hypot(least, change.half_width):
            continue
        num_distinct += 1
        if (other_published.value > published.value) != (change.value > 0):
            reversed_pairs.append(f"{one.name} and {other.name}")
    if not num_distinct:
        yield row | cannot_tell("no two points of the figure are told apart in both")
        return
    correlation = _rank_correlation([published.value for _, published, _ in known], [ours.value for *_, ours in known])
    row |= {"published": 1.0, "ours": correlation}
    if not reversed_pairs:
        yield row | verdict_columns((Verdict.AGREES, ""))
        return
    reason = (
        f"{len(reversed_pairs)} of {num_distinct} pairs that both tell apart are reversed, such as {reversed_pairs[0]}"
    )
    yield row | verdict_columns((Verdict.DIFFERS, reason))


def _rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation, where equal values have their mean rank."""
    ranks = [
        [sum(low < value for low in values) + sum(equal == value for equal in values) / 2 for value in values]
        for values in (one, other)
    ]
    return statistics.correlation(*ranks)


def _fits(pairs: Sequence[_Pair]) -> Iterator[ClaimRow]:
    """Yield a row for every point on whether it ran, 1 for yes and 0 for no."""
    for pair in pairs:
        published = Number.within(float(pair.published is not None), 0.0)
        row = {"point": pair.name} | run_columns(pair.group)
        if not pair.group.rows:
            yield row | number_columns(published, None) | cannot_tell(pair.group.why)
            continue
        status = pair.group.rows[0]["status"]
        if undecided := pair.group.rows[0]["memory_undecided"]:
            yield row | number_columns(published, None) | cannot_tell(undecided)
            continue
        ours = Number.within(float(status == Status.OK), 0.0)
        if published.value == ours.value:
            yield row | number_columns(published, ours) | verdict_columns((Verdict.AGREES, ""))
            continue
        words = "ran, and is out of memory here" if published.value else "did not fit, and does here"
        if status == Status.INVALID:
            words = "ran, and cannot run here"
        yield row | number_columns(published, ours) | verdict_columns((Verdict.DIFFERS, f"published it {words}"))


def judge_slots(claim: SlotClaim, context: Context) -> Iterator[ClaimRow]:
    """Yield the rows of table `claims` for a claim about single GPUs."""
    figure = context.published.figure(claim.figure)
    row = claim_columns(claim, "sign" if claim.judged == "gap_sign" else "value", figure.source, claim.quantity)
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
        ours = _mean_by_slot(context, group, claim.quantity) if group.has_run else {}
        ours = {slot: value for slot, value in ours.items() if slot in published}
        map_row = row | run_columns(group) | {"point": name}
        if not ours:
            yield map_row | cannot_tell(missing_reason(group) or NO_NUMBER)
        elif claim.judged == "slot":
            for judged in _each_slot(published, ours):
                yield map_row | judged | {"point": f"{name}, {judged['point']}"}
        else:
            yield map_row | _all_slots(claim, published, ours, context)


def _mean_by_slot(context: Context, group: Group, quantity: str) -> dict[Slot, float]:
    """Return the mean over repeats of a quantity of each GPU."""
    values_of: dict[Slot, list[float]] = {}
    for row in group.rows:
        for slot, value in by_slot(context.runs.gpus_of(row["run"]), quantity).items():
            values_of.setdefault(slot, []).append(value)
    return {slot: statistics.fmean(values) for slot, values in values_of.items()}


def _each_slot(published: Mapping[Slot, Number], ours: Mapping[Slot, float]) -> Iterator[ClaimRow]:
    """Yield a row for each slot with its mean over nodes, whose interval is from the lowest to the highest node."""
    for slot in sorted({slot for _, slot in ours}):
        published_mean = mean_of([number for (_, other), number in published.items() if other == slot])
        our_mean = mean_of([Number.within(value, 0.0) for (_, other), value in ours.items() if other == slot])
        row = {"point": f"GPU {slot}"} | number_columns(published_mean, our_mean)
        yield row | verdict_columns(judge_values(published_mean, our_mean))


def _all_slots(
    claim: SlotClaim, published: Mapping[Slot, Number], ours: Mapping[Slot, float], context: Context
) -> ClaimRow:
    """Return the columns of a row on all slots together: a published number and ours by the same formula."""
    formula = largest_ratio if claim.judged == "largest_ratio" else rear_excess
    accuracy = max(number.half_width for number in published.values()) / math.sqrt(len(published) / 2)
    published_value = formula({slot: number.value for slot, number in published.items()}, context.slots)
    our_value = formula(ours, context.slots)
    if published_value is None or our_value is None:
        return cannot_tell(NO_NUMBER)
    if claim.judged == "largest_ratio":
        # The ratio is of two single GPUs, not of means over many.
        accuracy = max(number.half_width / number.value for number in published.values()) * math.sqrt(2)
    theirs, own = Number.within(published_value, accuracy), Number.within(our_value, 0.0)
    if claim.judged != "gap_sign":
        return number_columns(theirs, own) | verdict_columns(judge_values(theirs, own))
    return number_columns(theirs, own) | {"difference": None} | verdict_columns(judge_sign(theirs.sign, own, accuracy))
