"""Marks inside a process: sources in order of certainty, windows, what a kill leaves."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from triplepoint.recorded import marks as module
from triplepoint.recorded.finish import steps_of
from triplepoint.recorded.marks import Marks, rank_of


def written(session: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in session.glob("steps/*") for line in path.read_text().splitlines()]


def test_hooks_mark_from_one_call_to_the_next(tmp_path: Path) -> None:
    marks = Marks(tmp_path, 2)
    for _ in range(4):
        marks.mark("optimizer")
    rows = written(tmp_path)
    assert [(row["rank"], row["step"], row["by"]) for row in rows] == [(2, step, "optimizer") for step in range(3)]
    assert all(before["t_end_ns"] <= after["t_start_ns"] for before, after in zip(rows, rows[1:], strict=False))


def test_more_certain_source_takes_over_and_only_its_steps_are_taken(tmp_path: Path) -> None:
    marks = Marks(tmp_path, 0)
    for _ in range(3):  # an optimizer that steps twice in a step of its framework
        marks.mark("optimizer")
        marks.mark("optimizer")
        marks.mark("framework")
    rows, by = steps_of(tmp_path, 0)
    assert by == "framework"
    assert len(rows) == 2


def test_calls_mark_the_first_step_too(tmp_path: Path) -> None:
    marks = Marks(tmp_path, 0, "calls")
    marks.begin()
    marks.mark("optimizer")
    for _ in range(3):
        marks.mark("calls")
    assert [row["by"] for row in written(tmp_path)] == ["calls"] * 3


def test_warmup_and_a_line_cut_off_by_a_kill(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    lines = [
        {"rank": 0, "step": step, "kind": "measured", "by": "calls", "t_start_ns": step, "t_end_ns": step + 1}
        for step in range(5)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"rank": 0, "ste'
    (tmp_path / "steps" / "rank0.jsonl").write_text(text)
    rows, _ = steps_of(tmp_path, 2)
    assert [row["kind"] for row in rows] == ["warmup"] * 2 + ["measured"] * 3


def test_restarted_rank_gives_the_steps_of_its_longest_life(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    with (tmp_path / "steps" / "rank0.jsonl").open("w") as file:
        for pid, num, start in ((11, 3, 0), (12, 6, 1000)):
            for step in range(num):
                row = {"rank": 0, "step": step, "kind": "measured", "by": "optimizer", "pid": pid}
                file.write(json.dumps(row | {"t_start_ns": start + step, "t_end_ns": start + step + 1}) + "\n")
    rows, _ = steps_of(tmp_path, 0)
    assert [row["t_start_ns"] for row in rows] == list(range(1000, 1006))


def test_window_is_profiled_and_the_step_after_it_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(module, "_LOOK_NS", 0)
    (tmp_path / module.REQUEST).write_text(json.dumps({"first": 3, "num": 2, "ranks": None}))
    marks = Marks(tmp_path, 1, "calls")
    marks.begin()
    for _ in range(8):
        torch.ones(4).sum()
        marks.mark("calls")
    assert [row["kind"] for row in written(tmp_path)] == [
        "measured", "measured", "measured", "profiled", "profiled", "warmup", "measured", "measured",
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["rank1.json.gz"]


def test_full_disk_does_not_end_the_loop(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    marks = Marks(tmp_path, 0, "calls")
    marks.mark("calls")
    marks.mark("calls")

    class Full:
        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

    marks._file = Full()
    marks.mark("calls")
    marks.mark("calls")
    assert len(written(tmp_path)) == 1
    expected = "triplepoint: rank 0: no step is marked any more: [Errno 28] No space left on device\n"
    assert capfd.readouterr().err == expected


def test_first_step_and_trace_that_cannot_be_written_do_not_end_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "file").write_text("")
    marks = Marks(tmp_path / "file" / "session", 0, "calls")
    marks.mark("calls")
    marks.mark("calls")
    assert "no step is marked any more" in capfd.readouterr().err
    monkeypatch.setattr(module, "_LOOK_NS", 0)
    (tmp_path / module.REQUEST).write_text(json.dumps({"first": 1, "num": 1, "ranks": None}))
    (tmp_path / "traces").write_text("a file where the folder belongs")
    marks = Marks(tmp_path, 0, "calls")
    marks.begin()
    for _ in range(4):
        torch.ones(4).sum()
        marks.mark("calls")
    assert "triplepoint: rank 0: its trace is lost: " in capfd.readouterr().err
    assert [row["kind"] for row in written(tmp_path)] == ["measured", "profiled", "warmup", "measured"]


@pytest.mark.parametrize(
    ("variables", "rank"),
    [({}, 0), ({"RANK": "5", "SLURM_PROCID": "0"}, 5), ({"SLURM_PROCID": "3"}, 3), ({"OMPI_COMM_WORLD_RANK": "2"}, 2)],
)
def test_rank_is_the_launchers(variables: dict[str, str], rank: int) -> None:
    assert rank_of(variables) == rank


def test_mark_is_cheap(tmp_path: Path) -> None:
    marks = Marks(tmp_path, 0, "calls")
    marks.mark("calls")
    begun = time.perf_counter()
    for _ in range(1000):
        marks.mark("calls")
    # 1 % of a step of 100 ms; some 10 us were measured, see tests/benchmarks/record_overhead.py.
    assert (time.perf_counter() - begun) / 1000 < 1e-3
