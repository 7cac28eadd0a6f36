"""What the documentation says of tests holds."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted(set(re.findall(r"tests/[\w/]+\.py(?:::\w+)?", (ROOT / "docs/faults.md").read_text())))


@pytest.mark.parametrize("name", NAMED)
def test_faults_name_tests_that_there_are(name: str) -> None:
    path, _, function = name.partition("::")
    names = {node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)}
    assert function in names | {""}


def test_faults_have_a_test_in_every_row() -> None:
    rows = [line for line in (ROOT / "docs/faults.md").read_text().splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| fault")]
    assert len(rows) > 30
    assert all("tests/" in row.split("|")[3] for row in rows)
