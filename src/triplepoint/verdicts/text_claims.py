"""Judgement of claims in the text of a study: numbers, directions and contradictions."""

from collections.abc import Iterator, Mapping
from typing import Any

from triplepoint.verdicts.file import ChangeClaim, ExcessClaim, FindingClaim, StatedClaim, UnknownClaim
from triplepoint.verdicts.number import Number, Verdict, judge_sign, judge_values
from triplepoint.verdicts.rows import (
    NO_NUMBER,
    ClaimRow,
    Context,
    cannot_tell,
    claim_columns,
    direction_columns,
    label,
    missing_reason,
    no_run_reason,
    number_columns,
    run_columns,
    verdict_columns,
)
from triplepoint.verdicts.runs import Group, group_repeats, own_spread, pair


def judge_stated(claim: StatedClaim, context: Context) -> Iterator[ClaimRow]:
    """Yield the row of a number in the text, compared with the largest of ours."""
    row = claim_columns(claim, "value", None, claim.quantity)
    stated = Number(sum(claim.stated) / 2, *claim.stated)
    known = [
        (number, group)
        for group in group_repeats(context.runs.matching(claim.points))
        if group.has_run and (number := context.runs.number(group, claim.quantity))
    ]
    if not known:
        yield row | number_columns(stated, None) | cannot_tell(no_run_reason(claim.points))
        return
    largest, group = max(known, key=lambda item: item[0].value)
    row |= {"point": f"largest of {len(known)} points: {label(group.rows[0], ())}"} | run_columns(group)
    yield row | number_columns(stated, largest) | verdict_columns(judge_values(stated, largest))


def judge_change(claim: ChangeClaim, context: Context) -> Iterator[ClaimRow]:
    """Yield a row for every pair of points that differ only in the change."""
    row = claim_columns(claim, "sign", None, claim.quantity) | direction_columns(claim.direction)
    pairs = _best(claim, context) if claim.best else pair(
        context.runs, claim.points, claim.before, claim.after, claim.alike
    )  # fmt: skip
    if not pairs:
        yield row | cannot_tell(f"no two runs to compare: {_no_pair_reason(claim, context)}")
    for before, after in pairs:
        yield row | _change(claim, context, before, after)


def _no_pair_reason(claim: ChangeClaim, context: Context) -> str:
    for change in (claim.before, claim.after):
        settings = {**claim.points, **change}
        if not any(group.has_run for group in group_repeats(context.runs.matching(settings))):
            return no_run_reason(settings)
    return "none is like another in all but the change"


def _change(claim: ChangeClaim, context: Context, before: Group, after: Group) -> ClaimRow:
    """Return the columns of a row on one pair of points."""
    changes = f"{_setting_word(claim.before)}{_values(claim.before, before)} to {_values(claim.after, after)}"
    both_labels = " to ".join(label(group.rows[0], ()) for group in (before, after))
    row: ClaimRow = {
        "point": both_labels if claim.best else f"{label(before.rows[0], (*claim.before, *claim.after))}: {changes}",
        "runs": [*before.runs, *after.runs],
        "origin": after.origin,
    }
    first, second = (context.runs.number(group, claim.quantity) if group.has_run else None for group in (before, after))
    if first is None or second is None:
        return row | cannot_tell(missing_reason(before) or missing_reason(after) or NO_NUMBER)
    change = own_spread(second, after) - own_spread(first, before)
    least = claim.least + claim.least_share * abs(first.value)
    return row | number_columns(None, change) | verdict_columns(judge_sign(claim.direction, change, least))


def _setting_word(change: Mapping[str, Any]) -> str:
    """Return a word for the changed setting; empty where its values are clear without one."""
    words = {"micro_batch_size": "micro-batch ", "overlap": "overlap ", "recompute": "recomputation "}
    return words.get(next(iter(change)), "") if len(change) == 1 else ""


def _values(change: Mapping[str, Any], group: Group) -> str:
    """Return the values that a point has of the changed settings, such as `TP8 PP4`."""
    short = {"tp": "TP{}", "pp": "PP{}"}
    words = [short.get(name, "{}").format(_word(group.rows[0][name])) for name in change]
    return " ".join(words)


def _word(value: Any) -> str:
    return " ".join(value) or "none" if isinstance(value, list) else str(value)


def _best(claim: ChangeClaim, context: Context) -> list[tuple[Group, Group]]:
    """Return the best points before and after the change as one pair; empty where either side has no number."""
    sides = []
    for change in (claim.before, claim.after):
        known = [
            (number.value, group)
            for group in group_repeats(context.runs.matching({**claim.points, **change}))
            if group.has_run and (number := context.runs.number(group, claim.quantity))
        ]
        if not known:
            return []
        sides.append((max if claim.best == "highest" else min)(known, key=lambda item: item[0])[1])
    return [(sides[0], sides[1])]


def judge_excess(claim: ExcessClaim, context: Context) -> Iterator[ClaimRow]:
    """Yield a row for every point of a claim on the sign of a quantity."""
    row = claim_columns(claim, "sign", None, claim.quantity) | direction_columns(claim.direction)
    groups = [group for group in group_repeats(context.runs.matching(claim.points)) if group.has_run]
    if not groups:
        yield row | cannot_tell(no_run_reason(claim.points))
    for group in groups:
        point_row = row | run_columns(group) | {"point": label(group.rows[0], ())}
        number = context.runs.number(group, claim.quantity)
        if number is None:
            yield point_row | cannot_tell(NO_NUMBER)
        else:
            verdict = judge_sign(claim.direction, number, claim.least)
            yield point_row | number_columns(None, number) | verdict_columns(verdict)


def judge_unknown(claim: UnknownClaim, context: Context) -> Iterator[ClaimRow]:
    """Yield the row of a claim that no results here can judge."""
    yield claim_columns(claim, "unknown", None, None) | cannot_tell(claim.unknown)


def judge_finding(claim: FindingClaim, context: Context) -> Iterator[ClaimRow]:
    """Yield a row for each pair of numbers in which a study contradicts itself."""
    row = claim_columns(claim, "finding", None, None) | {"unit": claim.unit}
    for cells in claim.numbers:
        words = []
        for cell in cells:
            value, name = context.published.cell(cell)
            words.append(f"{value:g} {claim.unit} ({name}, {context.published.figure(cell.figure).source})")
        yield row | verdict_columns((Verdict.FINDING, " against ".join(words)))
