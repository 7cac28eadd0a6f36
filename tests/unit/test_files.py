"""Folders that go with their process, and CSV that no spreadsheet runs, from one writer."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from triplepoint.files import csv_text, load_json, temporary_folder

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


def test_sigterm_removes_temporary_folders_of_the_process_and_not_those_of_its_parent(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from triplepoint.files import atomic_folder, temporary_folder
with temporary_folder("outer-", Path({str(tmp_path)!r})) as outer, atomic_folder(outer.parent / "run") as scratch:
    if not (child := os.fork()):
        with temporary_folder("inner-", outer.parent) as inner:
            os.kill(os.getpid(), signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert status == signal.SIGTERM and outer.is_dir() and scratch.is_dir()
    assert not list(outer.parent.glob("inner-*"))
    os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")
    assert not list(tmp_path.iterdir())


def test_sigterm_of_a_folder_in_use_is_that_of_before_afterwards(tmp_path: Path) -> None:
    with temporary_folder("a-", tmp_path), temporary_folder("b-", tmp_path):
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and not list(tmp_path.iterdir())
