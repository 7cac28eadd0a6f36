"""Tables of studies: their folders, and joined rows of several studies with each run once."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from triplepoint.config.plan import PlanEntry, read_plan
from triplepoint.errors import UserError
from triplepoint.tables.results import RESULT_TABLES
from triplepoint.tables.variants import find_variants

PLAN = "plan.json"
"""File next to the tables of a study: the plan they belong to."""

OVER_ALL = ("claims",)
"""Tables that exist once for all studies together."""

PARQUET_ONLY = ("breakdown", "job_power", "step_samples", "timeline")
"""Tables without a CSV: the CSV of table `timeline` of the published grid would have 356 MB."""

_KEYS = ("run", "subject")
"""Columns that identify the subject of a row; a table has one of them."""


def tables_folder(results: Path, study: str) -> Path:
    """Return the folder of a study's tables."""
    return results / "tables" / study


def planned_studies(results: Path) -> tuple[str, ...]:
    """Return the studies of `results/plan.json`, in its order. Raises `UserError` if it is missing or damaged."""
    return read_plan(results / "plan.json").studies


def read_joined(results: Path, studies: Sequence[str], table: str, runs: Collection[str] | None = None) -> pa.Table:
    """Return the rows of a table over several studies; a run of more than one study appears once, at its first study.

    In table `points`, `studies` then names all given studies that have the run, and `variant` distinguishes runs of
    different studies.

    Args:
        results: Folder of runs and tables.
        studies: Names of studies, in the order of rows; ignored for the tables in `OVER_ALL`.
        table: A key of `RESULT_TABLES`.
        runs: Run ids whose rows to read, for a table with column `run`; None for all rows.

    Raises:
        UserError: If a table is missing or damaged.
    """
    schema = RESULT_TABLES[table]
    if table in OVER_ALL:
        return schema.read(results / "tables" / f"{table}.parquet")
    paths = [tables_folder(results, study) / f"{table}.parquet" for study in studies]
    parts = [schema.read(path) if runs is None else schema.read_rows(path, "run", runs) for path in paths]
    if len(parts) < 2:
        return parts[0] if parts else schema.schema().empty_table()
    joined = _once_each(parts, next(key for key in _KEYS if key in schema.schema().names))
    if table == "points":
        joined = _with_studies(joined, parts)
        joined = _with_variants(joined, results, studies)
    return joined


def runs_of(results: Path, studies: Iterable[str], table: str) -> set[str]:
    """Return the ids of the runs in a table of several studies. Raises `UserError` as `read_joined`."""
    schema = RESULT_TABLES[table]
    return set().union(
        *(schema.read_values(tables_folder(results, study) / f"{table}.parquet", "run") for study in studies)
    )


def _once_each(parts: Sequence[pa.Table], key: str) -> pa.Table:
    """Concatenate tables without the rows whose key an earlier table has already."""
    import pyarrow.compute as pc

    new_parts, seen = [parts[0]], parts[0][key].unique()
    for part in parts[1:]:
        new = part.filter(pc.invert(pc.is_in(part[key], value_set=seen)))
        new_parts.append(new)
        seen = pa.concat_arrays([seen, new[key].unique()])
    return pa.concat_tables(new_parts)


def _with_studies(points: pa.Table, parts: Iterable[pa.Table]) -> pa.Table:
    """Return table `points` with all studies of each run in column `studies`."""
    studies_of: dict[str, list[str]] = {}
    for part in parts:
        for run, studies in zip(part["run"].to_pylist(), part["studies"].to_pylist(), strict=True):
            known = studies_of.setdefault(run, [])
            known.extend(study for study in studies if study not in known)
    return _replaced(points, "studies", [studies_of[run] for run in points["run"].to_pylist()])


def _with_variants(points: pa.Table, results: Path, studies: Iterable[str]) -> pa.Table:
    """Return table `points` with column `variant` computed over the plans of all studies."""
    entries: dict[str, PlanEntry] = {}
    for study in studies:
        try:
            plan = read_plan(tables_folder(results, study) / PLAN)
        except UserError as error:
            command = f"'snakemake all --config studies=[{study}]'"
            raise UserError(
                f"{error}; if another version of Triplepoint wrote it, make it again with {command}"
            ) from None
        for entry in plan.entries:
            entries.setdefault(entry.run, entry)
    variants = find_variants(entries.values())
    return _replaced(points, "variant", [variants.get(run) for run in points["run"].to_pylist()])


def _replaced(table: pa.Table, name: str, values: Sequence[object]) -> pa.Table:
    """Return a table with other values in a column."""
    index = table.schema.get_field_index(name)
    field = table.schema.field(index)
    return table.set_column(index, field, pa.array(values, field.type))


def require_tables(results: Path, studies: Iterable[str], wanted_by: str, command: str) -> None:
    """Check that all studies have tables.

    Args:
        results: Folder of runs and tables.
        studies: Names of studies.
        wanted_by: Subject of the error: what needs the tables.
        command: Command that makes the tables, for the error.

    Raises:
        UserError: If a study has none.
    """
    for study in studies:
        if not (tables_folder(results, study) / "points.parquet").is_file():
            raise UserError(
                f"{wanted_by}: study {study} has no finished run in {results}; make what is missing with '{command}'"
            )
