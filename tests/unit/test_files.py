"""CSV that no spreadsheet runs, from one writer."""

import re
from pathlib import Path

import pytest

from triplepoint.files import csv_text, load_json

SOURCES = Path(__file__).parents[2] / "src"
WRITERS = {"triplepoint/files.py", "triplepoint/tables/schema.py", "triplepoint/figures/write.py"}
"""Writers of CSV: of rows, of Arrow's tables and of pandas' tables, each with a test that it guards formulas."""


def test_csv_text_keeps_formulas_text_and_numbers_numbers() -> None:
    rows = [{"=id": "=cmd|' /C calc'!A0", "change": "-1.5", "count": 3}, {"=id": "@a", "change": None}]
    assert csv_text(["=id", "change", "count"], rows) == "'=id,change,count\n'=cmd|' /C calc'!A0,-1.5,3\n'@a,,\n"


def test_json_that_is_nested_without_end_is_no_json() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        load_json("[" * 100_000)


def test_no_other_module_writes_csv() -> None:
    writer = re.compile(r"\bcsv\.(?:writer|DictWriter)\(|\bCSVWriter\(|\.to_csv\(")
    found = {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.py") if writer.search(path.read_text())}
    assert found == WRITERS
