"""Judges every published claim by the results: rows of table `claims`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from triplepoint.verdicts import figure_rows, text_claims
from triplepoint.verdicts.check import check_claims
from triplepoint.verdicts.file import Change, Claim, Excess, Finding, Rows, Slots, Stated, Unknown
from triplepoint.verdicts.quantities import Ordering, Row
from triplepoint.verdicts.read import read_claims
from triplepoint.verdicts.rows import ClaimRow, Context
from triplepoint.verdicts.runs import Runs

_JUDGES: Mapping[type[Claim], Callable[[Any, Context], Iterator[ClaimRow]]] = {
    Rows: figure_rows.judge_rows,
    Slots: figure_rows.judge_slots,
    Stated: text_claims.judge_stated,
    Change: text_claims.judge_change,
    Excess: text_claims.judge_excess,
    Unknown: text_claims.judge_unknown,
    Finding: text_claims.judge_finding,
}


def judge_claims(config: Path, tables: Mapping[str, Iterable[Row]]) -> list[ClaimRow]:
    """Return the rows of table `claims`; none where the configuration has no claims.

    Args:
        config: Folder of the configuration.
        tables: Rows of `points`, `gpus` and `kernels`.

    Raises:
        UserError: If the claims or their figures are wrong.
    """
    published = read_claims(config)
    if published is None:
        return []
    check_claims(published)
    slots = Ordering(published.content.rear_slots, published.content.front_slots)
    context = Context(published, Runs(tables, slots), slots)
    return [row for claim in published.content.claims for row in _JUDGES[type(claim)](claim, context)]
