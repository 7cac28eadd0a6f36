"""Tables of studies: where each stands, and the rows of several studies joined, every run once."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from triplepoint.config.plan import PlanEntry, read_plan
from triplepoint.errors import UserError
from triplepoint.tables.results import RESULT_TABLES
from triplepoint.tables.variants import find_variants

PLAN = "plan.json"
"""File beside the tables of a study: the plan they are of."""

OVER_ALL = ("claims",)
"""Tables of all studies together, which no study has of its own."""

PARQUET_ONLY = ("breakdown", "job_power", "step_samples", "timeline")
"""Tables without a CSV: that of the timeline of the published grid takes 356 MB."""

_KEYS = ("run", "subject")
"""Columns that say what a row is of, the first there is."""


def tables_folder(results: Path, study: str) -> Path:
    """Return the folder of a study's tables."""
    return results / "tables" / study


def planned_studies(results: Path) -> tuple[str, ...]:
    """Return the studies of `results/plan.json`, in its order. Raises `UserError` if it is missing or damaged."""
    return read_plan(results / "plan.json").studies


def read_joined(results: Path, studies: Sequence[str], table: str, runs: Collection[str] | None = None) -> pa.Table:
    """Return the rows of a table over some studies, a run that several have once, where it stands first.

    Of table `points`, `studies` names those of them that have the run, and `variant` sets the runs of all apart.

    Args:
        results: Folder of runs and tables.
        studies: Names of studies, in the order of rows. A table of all studies together is read as it is.
        table: A key of `RESULT_TABLES`.
        runs: Run ids whose rows are read, of a table of runs; None for all rows.

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
    """Return the ids of the runs in a table of some studies. Raises `UserError` as `read_joined` does."""
    schema = RESULT_TABLES[table]
    return set().union(
        *(schema.read_values(tables_folder(results, study) / f"{table}.parquet", "run") for study in studies)
    )


def _once_each(parts: Sequence[pa.Table], key: str) -> pa.Table:
    """Return tables below each other, without rows of what a table before has already."""
    import pyarrow.compute as pc

    kept, seen = [parts[0]], parts[0][key].unique()
    for part in parts[1:]:
        new = part.filter(pc.invert(pc.is_in(part[key], value_set=seen)))
        kept.append(new)
        seen = pa.concat_arrays([seen, new[key].unique()])
    return pa.concat_tables(kept)


def _with_studies(points: pa.Table, parts: Iterable[pa.Table]) -> pa.Table:
    """Return table `points` with all studies that each run is in."""
    names: dict[str, list[str]] = {}
    for part in parts:
        for run, studies in zip(part["run"].to_pylist(), part["studies"].to_pylist(), strict=True):
            known = names.setdefault(run, [])
            known.extend(study for study in studies if study not in known)
    return _replaced(points, "studies", [names[run] for run in points["run"].to_pylist()])


def _with_variants(points: pa.Table, results: Path, studies: Iterable[str]) -> pa.Table:
    """Return table `points` with what sets runs of different studies apart that have the same columns."""
    entries: dict[str, PlanEntry] = {}
    for study in studies:
        try:
            plan = read_plan(tables_folder(results, study) / PLAN)
        except UserError as error:
            again = f"'snakemake all --config studies=[{study}]'"
            raise UserError(
                f"{error}; if another version of Triplepoint wrote it, make it again with {again}"
            ) from None
        for entry in plan.entries:
            entries.setdefault(entry.run, entry)
    variants = find_variants(entries.values())
    return _replaced(points, "variant", [variants.get(run) for run in points["run"].to_pylist()])


def _replaced(table: pa.Table, name: str, values: Sequence[object]) -> pa.Table:
    index = table.schema.get_field_index(name)
    field = table.schema.field(index)
    return table.set_column(index, field, pa.array(values, field.type))


def require_tables(results: Path, studies: Iterable[str], wanted_by: str, command: str) -> None:
    """Refuse where a study has no tables yet.

    Args:
        results: Folder of runs and tables.
        studies: Names of studies.
        wanted_by: What needs them, named in the error.
        command: What makes them, named in the error.

    Raises:
        UserError: One line with the study that has no finished run and with the command.
    """
    for study in studies:
        if not (tables_folder(results, study) / "points.parquet").is_file():
            raise UserError(
                f"{wanted_by}: study {study} has no finished run in {results}; make what is missing with '{command}'"
            )
