"""Judgement of every published claim by the results: rows of table `claims`."""

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
    ChangeClaim,
    Claim,
    Columns,
    ExcessClaim,
    Figure,
    FigureClaim,
    FindingClaim,
    SlotClaim,
    StatedClaim,
    UnknownClaim,
)
from triplepoint.verdicts.quantities import DERIVED, UNITS, Ordering, Row
from triplepoint.verdicts.read import Published, read_claims
from triplepoint.verdicts.rows import ClaimRow, Context
from triplepoint.verdicts.runs import Runs

_JUDGES: Mapping[type[Claim], Callable[[Any, Context], Iterator[ClaimRow]]] = {
    FigureClaim: figure_rows.judge_rows,
    SlotClaim: figure_rows.judge_slots,
    StatedClaim: text_claims.judge_stated,
    ChangeClaim: text_claims.judge_change,
    ExcessClaim: text_claims.judge_excess,
    UnknownClaim: text_claims.judge_unknown,
    FindingClaim: text_claims.judge_finding,
}


_SETTINGS = {column.name for column in POINTS.columns}
"""Names that settings of claims may have."""
_GPU_QUANTITIES = {column.name for column in GPUS.columns if column.type == "float"} | {"throttle_fraction"}
"""Quantities of claims about single GPUs."""


def write_claims(results: Path, studies: Sequence[str], config: Path) -> int:
    """Write `tables/claims.parquet` and `.csv` from the tables of studies.

    Args:
        results: Folder of results.
        studies: Names of the studies.
        config: Folder of the configuration.

    Returns:
        Number of rows.

    Raises:
        UserError: If a table, the claims or their figures are missing or invalid.
    """
    claims, folder = judge(results, studies, config), results / "tables"
    CLAIMS.write(folder / "claims.parquet", claims)
    CLAIMS.write_csv(folder / "claims.csv", [claims])
    return len(claims)


def judge(results: Path, studies: Sequence[str], config: Path) -> pa.Table:
    """Return table `claims`, judged by the tables of studies. Arguments and errors are those of `write_claims`."""
    tables = {name: read_joined(results, studies, name).to_pylist() for name in ("points", "gpus", "kernels")}
    return CLAIMS.from_rows(judge_claims(config, tables))


def judge_claims(config: Path, tables: Mapping[str, Iterable[Row]]) -> list[ClaimRow]:
    """Return the rows of table `claims`; empty where the configuration has no claims.

    Args:
        config: Folder of the configuration.
        tables: Rows of `points`, `gpus` and `kernels`.

    Raises:
        UserError: If the claims or their figures are invalid.
    """
    published = read_claims(config)
    if published is None:
        return []
    check_claims(published)
    slots = Ordering(published.content.rear_slots, published.content.front_slots)
    context = Context(published, Runs(tables, slots), slots)
    return [row for claim in published.content.claims for row in _JUDGES[type(claim)](claim, context)]


def check_claims(published: Published) -> None:
    """Check the names of settings, quantities and columns in a file of claims.

    Raises:
        UserError: If a name is unknown. The message names the claim and the nearest known name.
    """
    for name, figure in published.content.figures.items():
        _refuse_unknown(f"figure {name}: setting", _settings_of(figure), _SETTINGS)
    for claim in published.content.claims:
        where = f"claim {claim.id}"
        if isinstance(claim, FigureClaim | SlotClaim | StatedClaim | ChangeClaim | ExcessClaim):
            known = _GPU_QUANTITIES if isinstance(claim, SlotClaim) else {*UNITS, *DERIVED}
            _refuse_unknown(f"{where}: quantity", [claim.quantity], known)
        if isinstance(claim, StatedClaim | ChangeClaim | ExcessClaim):
            _refuse_unknown(f"{where}: setting", _settings_of_claim(claim), _SETTINGS)
        for figure_name, columns in _columns(claim):
            figure, rows = published.figure(figure_name), published.rows(figure_name)
            known = set(rows[0]) if rows else set()
            column = f"column of {FIGURES / figure.file}.csv"
            _refuse_unknown(f"{where}: {column}", columns, known)
            in_name = [name for _, name, *_ in Formatter().parse(figure.name) if name is not None]
            _refuse_unknown(f"figure {figure_name}: {column}", [*figure.keys, *in_name], known)
            if isinstance(claim, FigureClaim):
                _check_axis(claim, figure, rows)


def _check_axis(claim: FigureClaim, figure: Figure, rows: Iterable[Cells]) -> None:
    """Raise `UserError` on a trend without an axis, or along a column without whole numbers."""
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


def _settings_of_claim(claim: StatedClaim | ChangeClaim | ExcessClaim) -> Iterator[str]:
    yield from claim.points
    if isinstance(claim, ChangeClaim):
        yield from (*claim.before, *claim.after, *(claim.alike or ()))


def _columns(claim: Claim) -> Iterator[tuple[str, list[str]]]:
    """Yield each figure that a claim reads, with the columns."""
    if isinstance(claim, FigureClaim):
        numbers = claim.published
        columns = numbers.columns if isinstance(numbers, Columns) else [*numbers.efficiency, numbers.power]
        yield claim.figure, [*columns, *([claim.along] if claim.along else [])]
    elif isinstance(claim, SlotClaim):
        yield claim.figure, [*claim.published.columns, claim.node, claim.slot]
    elif isinstance(claim, FindingClaim):
        for pair in claim.numbers:
            yield from ((cell.figure, [*cell.row, cell.column]) for cell in pair)


def _refuse_unknown(where: str, names: Iterable[str], known: Iterable[str]) -> None:
    known = set(known)
    for name in names:
        if name not in known:
            raise UserError(f"{FILE}: {where} {name!r} is not known{nearest(name, known)}")
