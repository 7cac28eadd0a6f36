"""Snakemake's logger plugin: counts, time left, what a terminal and a pipe are shown, and what is said of failures."""

import contextlib
import io
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.registry import LoggerPluginRegistry

from snakemake_logger_plugin_triplepoint import LogHandler, LogHandlerSettings
from snakemake_logger_plugin_triplepoint.progress import Job, Progress, read_usual, sum_left, write_usual
from snakemake_logger_plugin_triplepoint.screen import Screen
from snakemake_logger_plugin_triplepoint.words import bar, duration, failure, now_at, steps_in


def no_steps(job: Job) -> None:
    return None


def job(stage: str, started_s: float = 0.0, threads: int = 1, log: str = "") -> Job:
    return Job(stage, "a-run", (log,) if log else (), ("out",), started_s, threads)


def test_snakemake_finds_the_plugin() -> None:
    assert LoggerPluginRegistry().is_installed("triplepoint")


def test_time_left_of_a_stage_is_by_its_own_jobs() -> None:
    progress = Progress({"launch": 3, "telemetry": 4, "all": 1, "total": 8}, {}, cores=2)
    assert progress.total == 7
    progress.start(1, job("launch", 0.0, threads=2))
    progress.finish(1, 100.0)
    progress.start(2, job("telemetry", 100.0))
    progress.finish(2, 101.0)
    left = progress.left_by_stage(101.0, no_steps)
    assert left["launch"] == pytest.approx(2 * 100.0), "it takes all cores"
    assert left["telemetry"] == pytest.approx(3 * 1.0 / 2), "two at once"
    assert sum_left(left.values()) == (pytest.approx(201.5), True)


def test_time_left_counts_what_running_jobs_have_spent() -> None:
    progress = Progress({"launch": 2}, {"launch": 60.0}, cores=2)
    progress.start(1, job("launch", 0.0, threads=2))
    assert progress.left_by_stage(20.0, no_steps)["launch"] == pytest.approx(100.0)
    assert progress.left_by_stage(500.0, no_steps)["launch"] == pytest.approx(60.0), "late, but the other is to come"


def test_time_left_of_a_first_launch_is_by_its_steps() -> None:
    progress = Progress({"launch": 2}, {}, cores=2)
    assert progress.left_by_stage(0.0, no_steps)["launch"] is None
    progress.start(1, job("launch", 0.0, threads=2))
    # 30 s for 3 of 12 steps: 120 s a launch, of which 90 s are left, and another 120 s.
    assert progress.left_by_stage(30.0, lambda job: (3, 12))["launch"] == pytest.approx(210.0)


def test_failed_job_that_is_tried_again_counts_once() -> None:
    progress = Progress({"launch": 1}, {}, cores=2)
    progress.start(1, job("launch"))
    progress.fail(1)
    assert progress.failed == {"launch": 1}
    progress.start(1, job("launch"))
    assert progress.failed == {}
    progress.finish(1, 5.0)
    assert (progress.done, progress.total) == (1, 1)


def test_usual_times_are_kept_and_damage_is_borne(tmp_path: Path) -> None:
    path = tmp_path / "seconds.json"
    assert read_usual(path) == {}
    write_usual({"launch": 60.0, "trace": 2.0}, path)
    write_usual({"trace": 3.0}, path)
    assert read_usual(path) == {"launch": 60.0, "trace": 3.0}
    path.write_text("[1, 2")
    assert read_usual(path) == {}
    write_usual({"trace": 3.0}, tmp_path / "none" / "seconds.json")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.0, "59 s"), (60.0, "1 min"), (3599.0, "1 h 00 min"), (7500.0, "2 h 05 min")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_bar_is_full_only_at_the_end() -> None:
    assert bar(0, 3, 6, is_plain=True) == "......"
    assert bar(299, 300, 20, is_plain=True).count("#") == 19
    assert bar(3, 3, 6, is_plain=True) == "######"


def test_step_of_a_launch_is_that_of_its_own_log(tmp_path: Path) -> None:
    log = tmp_path / "launch.log"
    log.write_text("r: started 2 ranks\nr: step 4/12 (warmup)\nr: step 5/12 (measured)\n")
    running = job("launch", log=str(log))
    assert now_at(running) == "step 5/12 (measured)"
    assert steps_in(running) == (5, 12)
    running.written_from = log.stat().st_mtime + 10
    assert steps_in(running) is None, "an earlier launch wrote it"


def test_failure_names_reason_and_log(tmp_path: Path) -> None:
    log = tmp_path / "aggregate.log"
    log.write_text("warming up\ntriplepoint: kernels.parquet: damaged; run it again\n")
    said = failure("aggregate", "mini", [str(log)])
    assert said.splitlines() == [
        "failed: aggregate mini", "    triplepoint: kernels.parquet: damaged; run it again", f"    log: {log}",
    ]  # fmt: skip
    log.write_text("x" * 100_000)
    assert len(failure("aggregate", "mini", [str(log)])) < 800


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_screen_draws_in_place_and_keeps_lines_above() -> None:
    stream = Terminal()
    screen = Screen(stream, is_terminal=True, has_colour=False)
    screen.redraw(["one", "two"])
    screen.redraw(["one", "three"])
    assert stream.getvalue().endswith("\x1b[2F\x1b[J\x1b[2Kone\n\x1b[2Kthree\n")
    screen.say("failed")
    assert stream.getvalue().endswith("\x1b[2F\x1b[Jfailed\n")
    screen.say("again")
    assert stream.getvalue().endswith("failed\nagain\n"), "nothing of what stays is taken away"


def test_screen_on_a_pipe_draws_nothing_and_a_closed_one_is_borne() -> None:
    stream = io.StringIO()
    screen = Screen(stream, is_terminal=False, has_colour=False)
    screen.redraw(["one"])
    assert stream.getvalue() == ""
    stream.close()
    screen.say("nobody listens")


def common(**changed: Any) -> SimpleNamespace:
    usual = {
        "printshellcmds": False, "nocolor": True, "quiet": None, "debug_dag": False, "verbose": False,
        "show_failed_logs": True, "stdout": False, "dryrun": False,
    }  # fmt: skip
    return SimpleNamespace(**(usual | changed))


def record(event: LogEvent | None, text: str = "", level: int = logging.INFO, **fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("snakemake", level, __file__, 1, text, None, None)
    made.event = event
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def started(job_id: int, stage: str, name: str, *outputs: str, log: str = "none.log") -> logging.LogRecord:
    return record(
        LogEvent.JOB_INFO, jobid=job_id, rule_name=stage, wildcards={"run": name}, log=[log], output=list(outputs),
        threads=1,
    )  # fmt: skip


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> io.StringIO:
    monkeypatch.chdir(tmp_path)
    return io.StringIO()


def begin(stream: io.StringIO, **changed: Any) -> LogHandler:
    with contextlib.redirect_stderr(stream):
        return LogHandler(common(**changed), LogHandlerSettings())  # type: ignore[arg-type]


def test_handler_on_a_pipe_says_stages_and_what_was_found(stream: io.StringIO, tmp_path: Path) -> None:
    shown = begin(stream)
    shown.emit(record(None, "Building DAG of jobs..."))
    shown.emit(record(LogEvent.RUN_INFO, stats={"simulate": 2, "report": 1, "all": 1, "total": 4}))
    for job_id in (1, 2):
        shown.emit(started(job_id, "simulate", f"run{job_id}", "m.json"))
        shown.emit(record(LogEvent.JOB_FINISHED, job_id=job_id))
    (tmp_path / "report").mkdir()
    (tmp_path / "report.html").write_text("page")
    (tmp_path / "report/summary.txt").write_text("report.html: 2 runs: 2 ok.\n")
    shown.emit(started(3, "report", "", "report.html", "report"))
    shown.emit(record(LogEvent.JOB_FINISHED, job_id=3))
    shown.emit(record(None, "Complete log(s): /x/y.log"))
    shown.close()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "3 jobs: simulate 2, report 1"
    assert lines[1].startswith("simulate  ####################") and "2/2" in lines[1]
    assert lines[-2] == "3 of 3 jobs done in 0 s; log of Snakemake: /x/y.log"
    assert lines[-1] == "report.html: 2 runs: 2 ok."
    assert "\x1b" not in stream.getvalue()


def test_handler_says_a_failure_once_with_its_reason(stream: io.StringIO, tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text("triplepoint: no room on the disk\n")
    shown = begin(stream)
    shown.emit(record(LogEvent.RUN_INFO, stats={"simulate": 2, "all": 1, "total": 3}))
    shown.emit(started(1, "simulate", "run1", "m.json", log="one.log"))
    shown.emit(
        record(LogEvent.ERROR, "RuleException:\nCalledProcessError ...", logging.ERROR, exception="RuleException")
    )
    error = {"jobid": 1, "rule_name": "simulate", "log": ["one.log"]}
    shown.emit(record(LogEvent.JOB_ERROR, "Error in rule", logging.ERROR, **error))
    shown.emit(record(None, "Exiting because a job execution failed. Look above", logging.ERROR))
    text = "WorkflowError:\nAt least one job did not complete successfully."
    shown.emit(record(LogEvent.ERROR, text, logging.ERROR, exception="WorkflowError"))
    shown.close()
    said = stream.getvalue()
    assert "failed: simulate run1\n    triplepoint: no room on the disk\n    log: one.log\n" in said
    assert said.count("no room on the disk") == 1
    assert "0 of 2 jobs done" in said and "failed: simulate 1; 1 wait for them" in said
    assert "WorkflowError" not in said and "RuleException" not in said and "Exiting" not in said


def test_handler_says_errors_before_the_first_job(stream: io.StringIO) -> None:
    shown = begin(stream)
    shown.emit(record(LogEvent.ERROR, "MissingRuleException: no rule to produce x", logging.ERROR, exception="Missing"))
    shown.close()
    assert stream.getvalue() == "MissingRuleException: no rule to produce x\n"


def test_handler_on_a_terminal_draws_a_line_for_each_stage(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("LINES", "40")
    shown = begin(terminal)
    shown.emit(record(LogEvent.RUN_INFO, stats={"launch": 1, "trace": 2, "all": 1, "total": 4}))
    shown.emit(started(1, "launch", "run1", "m.json", log="one.log"))
    (tmp_path / "one.log").write_text("run1: step 2/9 (warmup)\n")
    shown._redraw()
    drawn = terminal.getvalue().split("\x1b[J")[-1]
    assert "step 2/9 (warmup): run1" in drawn and "trace " in drawn and "0 of 3 jobs done" in drawn
    shown.close()
    assert terminal.getvalue().rstrip().endswith("0 of 3 jobs done in 0 s")


@pytest.mark.parametrize("changed", [{"dryrun": True}, {"verbose": True}, {"printshellcmds": True}])
def test_handler_leaves_snakemake_its_own_text(stream: io.StringIO, changed: dict[str, bool]) -> None:
    shown = begin(stream, **changed)
    shown.emit(record(None, "Building DAG of jobs..."))
    shown.close()
    assert stream.getvalue() == "Building DAG of jobs...\n"


def test_jobs_have_long_lists_cut(stream: io.StringIO) -> None:
    info = started(1, "all", "a")
    info.__dict__ |= {
        "input": [f"file{n}" for n in range(3000)], "is_checkpoint": False, "local": True, "rule_msg": None,
        "benchmark": None, "reason": "r" * 5000, "priority": 0, "resources": {}, "indent": False,
    }  # fmt: skip
    shown = begin(stream, dryrun=True)
    shown.emit(info)
    said = stream.getvalue()
    assert "input: file0, file1, file2, file3, and 2996 more" in said
    assert max(map(len, said.splitlines())) < 500
