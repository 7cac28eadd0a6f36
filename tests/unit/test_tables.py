"""Tables that have grown, and what their columns declare."""

import ast
import importlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import triplepoint
from triplepoint.errors import UserError
from triplepoint.status import RESULTS
from triplepoint.tables import SAMPLES, STEPS, TELEMETRY, reference
from triplepoint.tables.projection import PROJECTION
from triplepoint.tables.results import POINTS, RESULT_TABLES
from triplepoint.tables.schema import Column, Kind, Table
from triplepoint.tables.whatif import WHATIF
from triplepoint.tables.why import WHY

PACKAGE = Path(triplepoint.__file__).parent
ROOT = Path(__file__).parents[2]
TABLES = [*RESULT_TABLES.values(), WHATIF, PROJECTION, WHY, *reference.FILES_OF_RUN.values()]
SHOWN = {
    "tables/schema.py",
    "tables/reference.py",
    "report/__init__.py",
    "report/runs.py",
    "tables/shown.py",
    "tables/results.py",
    "config/reference.py",
    "library.py",
    "exports/prometheus.py",
}
"""Modules that pass descriptions on to readers: as metadata of a file, a tooltip of the page, help of a metric."""

ROW = {"rank": 0, "step": 0, "kind": "measured", "t_start_ns": 1, "t_end_ns": 2, "num_tokens": 8}


def test_read_file_from_before_a_column_came_has_nulls_there(tmp_path: Path) -> None:
    table = STEPS.from_rows([ROW]).drop_columns(["reserved_memory_bytes", "t_first_token_ns"])
    pq.write_table(table, tmp_path / "steps.parquet")
    (row,) = STEPS.read(tmp_path / "steps.parquet").to_pylist()
    assert row == {name: ROW.get(name) for name in (column.name for column in STEPS.columns)}


def test_read_file_without_a_column_of_old_is_refused(tmp_path: Path) -> None:
    pq.write_table(STEPS.from_rows([ROW]).drop_columns(["loss"]), tmp_path / "steps.parquet")
    with pytest.raises(UserError, match="table steps of another version .*: without loss;"):
        STEPS.read(tmp_path / "steps.parquet")


@pytest.mark.parametrize("column", [*SAMPLES.columns, *TELEMETRY.columns], ids=lambda column: column.name)
def test_telemetry_columns_declare_their_kind(column: Column) -> None:
    assert column.type in ("str", "bool") or isinstance(column.kind, Kind)


def test_kind_of_counters_is_what_their_description_says() -> None:
    says = {column.name for column in SAMPLES.columns if "since the first sample" in column.about}
    assert says == {column.name for column in SAMPLES.columns if column.kind is Kind.COUNTER}


def test_descriptions_are_shown_and_never_looked_into() -> None:
    for path in PACKAGE.rglob("*.py"):
        if ".about" not in (text := path.read_text()):
            continue
        tree = ast.parse(text)
        found = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "about"]
        tests = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
        compared = {id(each) for node in tests for each in ast.walk(node)}
        name = str(path.relative_to(PACKAGE))
        assert not found or name in SHOWN | {"status.py"}, f"{name}:{found[0].lineno}"
        assert not compared & {id(node) for node in found}, name


def test_status_of_points_names_the_results() -> None:
    (column,) = (column for column in POINTS.columns if column.name == "status")
    assert column.about == "ok, oom or invalid." and len(RESULTS) == 3


def test_data_dictionary_is_what_the_schemas_say() -> None:
    assert (ROOT / reference.PATH).read_text() == reference.reference(), f"run {reference.COMMAND}"


def test_data_dictionary_has_every_table_there_is() -> None:
    """Every `Table` that a module of schemas has stands in it."""
    names = [path.stem for path in (PACKAGE / "tables").glob("*.py") if path.stem not in ("__init__", "reference")]
    modules = [importlib.import_module(f"triplepoint.tables.{name}") for name in names]
    declared = {id(value): value.name for module in modules for value in vars(module).values() if type(value) is Table}
    assert {declared[found] for found in declared.keys() - {id(table) for table in TABLES}} == {"segments"}


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_tables_say_what_a_row_is_and_what_null_means(table: Table) -> None:
    assert table.row.startswith("one row per")
    assert bool(table.null) == any(column.nullable for column in table.columns)
    has_unit_column = any(column.name == "unit" for column in table.columns)
    for column in table.columns:
        assert column.about.endswith("."), column.name
        assert column.unit or column.type not in ("int", "float") or has_unit_column, column.name
        assert not column.unit or column.type not in ("str", "names"), column.name
