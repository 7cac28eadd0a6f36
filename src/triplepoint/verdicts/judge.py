"""Judges every published claim by the results: rows of table `claims`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

import pyarrow as pa

from triplepoint.errors import UserError, nearest
from triplepoint.tables.claims import CLAIMS
from triplepoint.tables.results import GPUS, POINTS
from triplepoint.tables.studies import read_joined
from triplepoint.verdicts import figure_rows, text_claims
from triplepoint.verdicts.file import (
    FIGURES,
    FILE,
    Cells,
    Change,
    Claim,
    Columns,
    Excess,
    Figure,
    Finding,
    Rows,
    Slots,
    Stated,
    Unknown,
)
from triplepoint.verdicts.quantities import DERIVED, UNITS, Ordering, Row
from triplepoint.verdicts.read import Published, read_claims
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


_SETTINGS = {column.name for column in POINTS.columns}
_OF_GPUS = {column.name for column in GPUS.columns if column.type == "float"} | {"throttle_fraction"}


def write_claims(results: Path, studies: Sequence[str], config: Path) -> int:
    """Write `results/tables/claims.parquet` and `.csv` from the tables of some studies, and return how many rows.

    Raises:
        UserError: If a table, the claims or their figures are missing or wrong.
    """
    claims, folder = judge(results, studies, config), results / "tables"
    CLAIMS.write(folder / "claims.parquet", claims)
    CLAIMS.write_csv(folder / "claims.csv", [claims])
    return len(claims)


def judge(results: Path, studies: Sequence[str], config: Path) -> pa.Table:
    """Return table `claims` as judged by the tables of some studies. Raises `UserError` as `write_claims` does."""
    judged_by = {name: read_joined(results, studies, name).to_pylist() for name in ("points", "gpus", "kernels")}
    return CLAIMS.from_rows(judge_claims(config, judged_by))


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


def check_claims(published: Published) -> None:
    """Check all names in a file of claims.

    Raises:
        UserError: One line with the claim, what it names, and the nearest there is.
    """
    for name, figure in published.content.figures.items():
        _refuse_unknown(f"figure {name}: setting", _settings_of(figure), _SETTINGS)
    for claim in published.content.claims:
        place = f"claim {claim.id}"
        if isinstance(claim, Rows | Slots | Stated | Change | Excess):
            known = _OF_GPUS if isinstance(claim, Slots) else {*UNITS, *DERIVED}
            _refuse_unknown(f"{place}: quantity", [claim.quantity], known)
        if isinstance(claim, Stated | Change | Excess):
            _refuse_unknown(f"{place}: setting", _named(claim), _SETTINGS)
        for figure_name, columns in _columns(claim):
            figure, there = published.figure(figure_name), published.rows(figure_name)
            known = set(there[0]) if there else set()
            place_of = f"column of {FIGURES / figure.file}.csv"
            _refuse_unknown(f"{place}: {place_of}", columns, known)
            named = [name for _, name, *_ in Formatter().parse(figure.name) if name is not None]
            _refuse_unknown(f"figure {figure_name}: {place_of}", [*figure.keys, *named], known)
            if isinstance(claim, Rows):
                _check_axis(claim, figure, there)


def _check_axis(claim: Rows, figure: Figure, rows: Iterable[Cells]) -> None:
    """Refuse a trend without an axis, or along one that has no numbers."""
    if "trend" in claim.judged and claim.along is None:
        raise UserError(f"{FILE}: claim {claim.id}: a trend needs 'along', the column it runs along")
    for cells in rows if claim.along else ():
        figure.whole_number(cells, claim.along or "")


def _settings_of(figure: Figure) -> Iterator[str]:
    yield from figure.settings
    for meaning in figure.keys.values():
        if isinstance(meaning, str):
            yield meaning
        else:
            yield from (name for settings in meaning.values() for name in settings)


def _named(claim: Stated | Change | Excess) -> Iterator[str]:
    yield from claim.points
    if isinstance(claim, Change):
        yield from (*claim.before, *claim.after, *(claim.alike or ()))


def _columns(claim: Claim) -> Iterator[tuple[str, list[str]]]:
    """Yield figure and columns that a claim reads."""
    if isinstance(claim, Rows):
        numbers = claim.published
        columns = numbers.columns if isinstance(numbers, Columns) else [*numbers.efficiency, numbers.power]
        yield claim.figure, [*columns, *([claim.along] if claim.along else [])]
    elif isinstance(claim, Slots):
        yield claim.figure, [*claim.published.columns, claim.node, claim.slot]
    elif isinstance(claim, Finding):
        for pair in claim.numbers:
            yield from ((cell.figure, [*cell.row, cell.column]) for cell in pair)


def _refuse_unknown(place: str, names: Iterable[str], known: Iterable[str]) -> None:
    known = set(known)
    for name in names:
        if name not in known:
            raise UserError(f"{FILE}: {place} {name!r} is not known{nearest(name, known)}")
