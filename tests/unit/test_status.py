"""Outcomes: one enum, from which docs, tables and policy are made."""

import ast
import pickle
import re
from pathlib import Path

import pytest

import triplepoint
from triplepoint.status import RESULTS, Retry, Status

ROOT = Path(__file__).parents[2]
PACKAGE = Path(triplepoint.__file__).parent


def test_status_equals_its_text() -> None:
    assert Status("bad_node") is Status.BAD_NODE == "bad_node"
    assert f"{Status.OOM}" == "oom" and pickle.loads(pickle.dumps(Status.OOM)) is Status.OOM


def test_results_are_what_is_not_tried_again() -> None:
    assert RESULTS == ("ok", "oom", "invalid")
    assert {status for status in Status if status.retry is Retry.REQUEUE} == {"preempted", "lost", "bad_node"}
    assert {status for status in Status if status.retry is Retry.RETRY} == {"crashed", "collective", "hung"}
    assert {status for status in Status if status.retry is Retry.MORE_TIME} == {"timeout"}


def test_docs_have_a_row_for_every_status() -> None:
    text = (ROOT / "docs/methodology.md").read_text().partition("## Outcomes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", text, re.M)
    assert rows == [(status.value, status.about, status.retry or "a result") for status in Status]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_lists_statuses_in_text(path: Path) -> None:
    """Two texts of statuses in one set, tuple or key list are a second list of them; doctor's verdicts are others."""
    if path.name == "status.py" or "doctor" in path.parts:
        return
    text = path.read_text()
    if sum(f'"{status}"' in text for status in Status) < 2:
        return
    for node in ast.walk(ast.parse(text)):
        items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        texts = {item.value for item in items if isinstance(item, ast.Constant)} & set(Status)
        assert len(texts) < 2, f"{path.name}:{getattr(node, 'lineno', 0)} lists {sorted(texts)}"
