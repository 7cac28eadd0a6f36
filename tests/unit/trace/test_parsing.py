"""Traces to folders of rank tables, by one process or several."""

import os
import signal
from pathlib import Path

import pytest

from tests.unit.trace.traces import GEMM, kernel, write_trace
from triplepoint.errors import UserError
from triplepoint.tables import SEGMENTS
from triplepoint.trace import parsing
from triplepoint.trace.kineto import reader
from triplepoint.trace.parsing import Task, TraceFile, find_traces, parse_traces
from triplepoint.trace.rank_results import RankSummary, read_rank_table
from triplepoint.trace.taxonomy import load_scheme


def traces(folder: Path, count: int = 3) -> list[TraceFile]:
    for rank in range(count):
        write_trace(folder / f"rank{rank}.json.gz", [kernel(GEMM, 0, 1 + rank), kernel(GEMM, 10, 1)])
    return find_traces([folder])


def parse(
    files: list[TraceFile], out: Path, num_jobs: int | None, lines: list[str] | None = None, **options: bool
) -> list[RankSummary]:
    folders = [out / str(index) for index in range(len(files))]
    said = [] if lines is None else lines
    return parse_traces(files, folders, load_scheme(), said.append, num_jobs, **options)


@pytest.mark.parametrize("num_jobs", [1, 2, 50, None])
def test_parse_traces_any_number_of_jobs_gives_the_same(tmp_path: Path, num_jobs: int | None) -> None:
    found = parse(traces(tmp_path / "in"), tmp_path / "out", num_jobs)
    assert [(one.rank, one.busy("compute")) for one in found] == [(0, 2_000), (1, 3_000), (2, 4_000)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0", "1", "2"]


def test_parse_traces_by_several_processes_tells_of_each(tmp_path: Path) -> None:
    lines: list[str] = []
    parse(traces(tmp_path / "in"), tmp_path / "out", 2, lines)
    assert lines == ["read rank0.json.gz (1 of 3)", "read rank1.json.gz (2 of 3)", "read rank2.json.gz (3 of 3)"]


def test_parse_traces_by_one_process_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PROGRESS_PERIOD_S", -1.0)
    lines: list[str] = []
    parse(traces(tmp_path / "in", 2), tmp_path / "out", 1, lines)
    assert [line.split(" of ")[0] for line in lines] == ["reading rank0.json.gz: 100 %", "reading rank1.json.gz: 100 %"]
    assert [line[-8:] for line in lines] == ["(1 of 2)", "(2 of 2)"]


@pytest.mark.parametrize("num_jobs", [1, 2])
def test_parse_traces_one_that_cannot_be_read_is_refused(tmp_path: Path, num_jobs: int) -> None:
    files = traces(tmp_path / "in")
    files[1].path.write_bytes(b"<html>")
    with pytest.raises(UserError, match=r"^rank1\.json\.gz: this is an HTML or XML page"):
        parse(files, tmp_path / "out", num_jobs)


def die(task: Task) -> RankSummary:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError(task)


def test_parse_traces_killed_process_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "_parse_silently", die)
    expected = r"^a process parsing one of 3 traces was killed, perhaps for lack of memory; run again with --jobs 1$"
    with pytest.raises(UserError, match=expected):
        parse(traces(tmp_path / "in"), tmp_path / "out", 2)


def test_parse_traces_segments_are_kept_unless_there_is_nothing_to_join(tmp_path: Path) -> None:
    def num_segments(files: list[TraceFile], **options: bool) -> int:
        parse(files, tmp_path / "out", 1, **options)
        return read_rank_table(tmp_path / "out" / "0", SEGMENTS).num_rows

    files = traces(tmp_path / "in", 2)
    assert num_segments(files) == 3
    assert num_segments(files[:1]) == 0
    assert num_segments(files[:1], is_whole_job=False) == 3


def test_parse_traces_of_nothing_is_nothing(tmp_path: Path) -> None:
    assert parse([], tmp_path / "out", None) == []
