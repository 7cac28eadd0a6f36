"""Tables that have grown, and what their columns declare."""

import ast
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import triplepoint
from triplepoint.errors import UserError
from triplepoint.status import RESULTS
from triplepoint.tables import SAMPLES, STEPS, TELEMETRY
from triplepoint.tables.results import POINTS
from triplepoint.tables.schema import Column, Kind

PACKAGE = Path(triplepoint.__file__).parent
SHOWN = {"tables/schema.py", "report/__init__.py", "tables/results.py", "config/reference.py"}
"""Modules that pass descriptions on to readers: as metadata of a file, as a tooltip of the page."""

ROW = {"rank": 0, "step": 0, "kind": "measured", "t_start_ns": 1, "t_end_ns": 2, "num_tokens": 8}


def test_read_file_from_before_a_column_came_has_nulls_there(tmp_path: Path) -> None:
    table = STEPS.from_rows([ROW]).drop_columns(["reserved_memory_bytes", "t_first_token_ns"])
    pq.write_table(table, tmp_path / "steps.parquet")
    (row,) = STEPS.read(tmp_path / "steps.parquet").to_pylist()
    assert row == {name: ROW.get(name) for name in (column.name for column in STEPS.columns)}


def test_read_file_without_a_column_of_old_is_refused(tmp_path: Path) -> None:
    pq.write_table(STEPS.from_rows([ROW]).drop_columns(["loss"]), tmp_path / "steps.parquet")
    with pytest.raises(UserError, match="missing columns"):
        STEPS.read(tmp_path / "steps.parquet")


@pytest.mark.parametrize("column", [*SAMPLES.columns, *TELEMETRY.columns], ids=lambda column: column.name)
def test_telemetry_columns_declare_their_kind(column: Column) -> None:
    assert column.type in ("str", "bool") or isinstance(column.kind, Kind)


def test_kind_of_counters_is_what_their_description_says() -> None:
    says = {column.name for column in SAMPLES.columns if "since the first sample" in column.about}
    assert says == {column.name for column in SAMPLES.columns if column.kind is Kind.COUNTER}


def test_descriptions_are_shown_and_never_looked_into() -> None:
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        found = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "about"]
        tests = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
        compared = {id(each) for node in tests for each in ast.walk(node)}
        name = str(path.relative_to(PACKAGE))
        assert not found or name in SHOWN | {"status.py"}, f"{name}:{found[0].lineno}"
        assert not compared & {id(node) for node in found}, name


def test_status_of_points_names_the_results() -> None:
    (column,) = (column for column in POINTS.columns if column.name == "status")
    assert column.about == "ok, oom or invalid." and len(RESULTS) == 3
