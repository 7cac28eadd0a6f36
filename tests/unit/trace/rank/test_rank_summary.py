"""The summary of a rank as a file."""

from pathlib import Path

import pytest

from tests.unit.trace.rank.parsed import parse
from tests.unit.trace.traces import ALL_REDUCE, GEMM, kernel, note
from triplepoint.errors import UserError
from triplepoint.trace.rank_results import SUMMARY, read_summary, write_summary


def test_summary_comes_back_as_it_was(tmp_path: Path) -> None:
    args = {"Process Group Description": "mesh_tp"}
    summary = parse([note("ProfilerStep#9", 1, 50), kernel(GEMM, 6, 1), kernel(ALL_REDUCE, 8, 2, **args)]).summary
    write_summary(tmp_path, summary)
    assert read_summary(tmp_path) == summary
    assert (summary.busy("compute"), summary.exposed("comm"), summary.busy("idle")) == (1_000, 2_000, 1_000)


def test_read_summary_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"^{tmp_path}/{SUMMARY}: no such file; delete {tmp_path.parent} and run '"):
        read_summary(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", '{"path": 3}', "[1, 2]"])
def test_read_summary_damaged_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / SUMMARY).write_text(text)
    with pytest.raises(UserError, match=rf"^{tmp_path}/{SUMMARY}: not the summary of a rank \(.*\); delete .*$"):
        read_summary(tmp_path)
