"""Judges what a study says in words: numbers, signs, and what contradicts itself."""

from collections.abc import Iterator, Mapping
from typing import Any

from triplepoint.verdicts.file import Change, Excess, Finding, Stated, Unknown
from triplepoint.verdicts.number import Number, Verdict, judge_sign, judge_values
from triplepoint.verdicts.rows import (
    NO_NUMBER,
    ClaimRow,
    Context,
    begin,
    cannot_tell,
    label,
    no_run,
    numbers,
    of_group,
    said,
    verdict,
    why_not,
)
from triplepoint.verdicts.runs import Group, group_repeats, own_spread, pair


def judge_stated(claim: Stated, context: Context) -> Iterator[ClaimRow]:
    """Yield the row of a number in the text, beside the largest of ours."""
    row = begin(claim, "value", None, claim.quantity)
    stated = Number(sum(claim.stated) / 2, *claim.stated)
    found = [
        (number, group)
        for group in group_repeats(context.runs.matching(claim.points))
        if group.has_run and (number := context.runs.number(group, claim.quantity))
    ]
    if not found:
        yield row | numbers(stated, None) | cannot_tell(no_run(claim.points))
        return
    number, group = max(found, key=lambda one: one[0].value)
    row |= {"point": f"largest of {len(found)} points: {label(group.rows[0], ())}"} | of_group(group)
    yield row | numbers(stated, number) | verdict(judge_values(stated, number))


def judge_change(claim: Change, context: Context) -> Iterator[ClaimRow]:
    """Yield a row for every pair of points that differ by the change alone."""
    row = begin(claim, "sign", None, claim.quantity) | said(claim.direction)
    pairs = _best(claim, context) if claim.best else pair(
        context.runs, claim.points, claim.before, claim.after, claim.alike
    )  # fmt: skip
    if not pairs:
        yield row | cannot_tell(f"no two runs to compare: {_no_pair(claim, context)}")
    for before, after in pairs:
        yield row | _change(claim, context, before, after)


def _no_pair(claim: Change, context: Context) -> str:
    for change in (claim.before, claim.after):
        settings = {**claim.points, **change}
        if not any(group.has_run for group in group_repeats(context.runs.matching(settings))):
            return no_run(settings)
    return "none is like another in all but the change"


def _change(claim: Change, context: Context, before: Group, after: Group) -> ClaimRow:
    changes = f"{_named(claim.before)}{_values(claim.before, before)} to {_values(claim.after, after)}"
    whole = " to ".join(label(group.rows[0], ()) for group in (before, after))
    row: ClaimRow = {
        "point": whole if claim.best else f"{label(before.rows[0], (*claim.before, *claim.after))}: {changes}",
        "runs": [*before.runs, *after.runs],
        "origin": after.origin,
    }
    one, other = (context.runs.number(group, claim.quantity) if group.has_run else None for group in (before, after))
    if one is None or other is None:
        return row | cannot_tell(why_not(before) or why_not(after) or NO_NUMBER)
    change = own_spread(other, after) - own_spread(one, before)
    least = claim.least + claim.least_share * abs(one.value)
    return row | numbers(None, change) | verdict(judge_sign(claim.direction, change, least))


def _named(change: Mapping[str, Any]) -> str:
    """Return what the setting is called that changes, where its values alone do not say so."""
    words = {"micro_batch_size": "micro-batch ", "overlap": "overlap ", "recompute": "recomputation "}
    return words.get(next(iter(change)), "") if len(change) == 1 else ""


def _values(change: Mapping[str, Any], group: Group) -> str:
    """Return what a point has of the settings that change, such as `TP8 PP4`."""
    short = {"tp": "TP{}", "pp": "PP{}"}
    words = [short.get(name, "{}").format(_word(group.rows[0][name])) for name in change]
    return " ".join(words)


def _word(value: Any) -> str:
    return " ".join(value) or "none" if isinstance(value, list) else str(value)


def _best(claim: Change, context: Context) -> list[tuple[Group, Group]]:
    """Return the best point of either side; nothing where one has none."""
    sides = []
    for change in (claim.before, claim.after):
        known = [
            (number.value, group)
            for group in group_repeats(context.runs.matching({**claim.points, **change}))
            if group.has_run and (number := context.runs.number(group, claim.quantity))
        ]
        if not known:
            return []
        sides.append((max if claim.best == "highest" else min)(known, key=lambda one: one[0])[1])
    return [(sides[0], sides[1])]


def judge_excess(claim: Excess, context: Context) -> Iterator[ClaimRow]:
    """Yield a row for every run that a quantity is said to be above zero in, or below it."""
    row = begin(claim, "sign", None, claim.quantity) | said(claim.direction)
    groups = [group for group in group_repeats(context.runs.matching(claim.points)) if group.has_run]
    if not groups:
        yield row | cannot_tell(no_run(claim.points))
    for group in groups:
        told = row | of_group(group) | {"point": label(group.rows[0], ())}
        number = context.runs.number(group, claim.quantity)
        if number is None:
            yield told | cannot_tell(NO_NUMBER)
        else:
            yield told | numbers(None, number) | verdict(judge_sign(claim.direction, number, claim.least))


def judge_unknown(claim: Unknown, context: Context) -> Iterator[ClaimRow]:
    """Yield the row of a claim that nothing here can judge."""
    yield begin(claim, "unknown", None, None) | cannot_tell(claim.unknown)


def judge_finding(claim: Finding, context: Context) -> Iterator[ClaimRow]:
    """Yield a row for each pair of numbers in which a study contradicts itself."""
    row = begin(claim, "finding", None, None) | {"unit": claim.unit}
    for one, other in claim.numbers:
        words = []
        for cell in (one, other):
            value, name = context.published.cell(cell)
            words.append(f"{value:g} {claim.unit} ({name}, {context.published.figure(cell.figure).source})")
        yield row | verdict((Verdict.FINDING, " against ".join(words)))
