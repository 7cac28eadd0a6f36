"""The handler of Snakemake's log records: keeps the progress, and says it by one of three styles."""

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, TextIO

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

from snakemake_logger_plugin_triplepoint.jobs import jobs_handler
from snakemake_logger_plugin_triplepoint.progress import Job, Progress, Stage, read_usual, write_usual
from snakemake_logger_plugin_triplepoint.screen import Screen
from snakemake_logger_plugin_triplepoint.words import (
    duration,
    failure,
    in_all,
    last_lines,
    running_launch,
    stage_line,
    steps_in,
)

STYLES = ("auto", "bars", "lines", "jobs")
REDRAW_S = 1.0
"""Between two pictures of the bars: ranks are timed on the same machine, and a picture takes under a millisecond."""
LINE_S = 30.0
"""Between two lines on the progress where nothing can be redrawn: an hour of CI is 120 lines."""
SUMMARY = "summary.txt"
"""File of the report's folder with what was found, in a line or two."""
_CLOCK_S = 2.0
"""By which a file system's clock may be behind that of this machine. Our choice."""
_MOST_FILES = 3

_NOISE = (
    "Building DAG of jobs", "Assuming unrestricted shared", "Using shell", "Provided ", "Rules claiming more",
    "Conda environments: ignored", "Singularity containers: ignored", "Group jobs: inactive", "Select jobs to execute",
    "Execute ", "Elapsed time", "SLURM run ID", "Successfully deleted", "Cleaning up SLURM", "Job stats:",
    "Finished jobid", "Job ", "No wall time information",
)  # fmt: skip
"""Begins of messages that say nothing to a user; all of them are in Snakemake's log file."""
_AFTER_FAILURE = (
    "WorkflowError:\nAt least one job did not complete", "At least one job did not complete", "Exiting because a job",
    "Removing output files of failed", "Cannot restore ",
)  # fmt: skip
"""Begins of messages that follow a failure that was said already."""
_COMPLETE = "Complete log(s): "
_NOTHING = "Nothing to be done"
_OF_A_JOB = ("CalledProcessError", "RuleException")
"""Exceptions that only say once more that a job failed."""


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """Settings on the command line and in profiles, as `logger-triplepoint-<name>`."""

    style: Optional[str] = field(  # noqa: UP045  Snakemake reads the annotation
        default="auto",
        metadata={
            "help": "bars: a line for each stage, redrawn in place; lines: the same for pipes and CI, one below the "
            "other; jobs: a paragraph for each job, as Snakemake writes it. auto: bars on a terminal, lines elsewhere, "
            "jobs in dry runs and with --verbose, --debug-dag or --printshellcmds.",
            "choices": STYLES,
            "env_var": True,
            "required": False,
        },
    )


class LogHandler(LogHandlerBase):
    """Shows the progress of a workflow."""

    def __post_init__(self) -> None:
        """Choose the style and begin."""
        stream = sys.stdout if self.common_settings.stdout else sys.stderr
        style = _style_of(self.common_settings, self.settings, stream)
        self._jobs = jobs_handler(self.common_settings, stream) if style == "jobs" else None
        has_colour = not self.common_settings.nocolor and "NO_COLOR" not in os.environ
        self._screen = Screen(stream, style == "bars", has_colour)
        self._period_s = REDRAW_S if style == "bars" else LINE_S
        self._progress: Progress | None = None
        self._begun_s = time.monotonic()
        self._cores: int | None = None
        self._has_failed = False
        self._report: tuple[str, ...] = ()
        self._drawn: list[str] = []
        self._log = ""
        self._is_idle = False
        self._is_closed = threading.Event()

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def emit(self, record: logging.LogRecord) -> None:
        """Take one record of Snakemake; what goes wrong in saying it ends no workflow."""
        if self._jobs is not None:
            self._jobs.handle(record)
            return
        try:
            self._take(record)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Say how it ended, and keep the mean times of the stages for the next run."""
        if not self._is_closed.is_set() and self._jobs is None:
            self._is_closed.set()
            with self.lock or threading.RLock():
                self._conclude()
        super().close()

    def _take(self, record: logging.LogRecord) -> None:
        event, now_s = getattr(record, "event", None), time.monotonic()
        match event:
            case LogEvent.RESOURCES_INFO:
                self._cores = getattr(record, "cores", None) or self._cores
            case LogEvent.RUN_INFO:
                self._begin(getattr(record, "stats", {}))
            case LogEvent.JOB_INFO:
                self._start(record, now_s)
            case LogEvent.JOB_FINISHED:
                self._finish(getattr(record, "job_id", -1), now_s)
            case LogEvent.JOB_ERROR:
                self._fail(record.jobid, record.rule_name, record.log)  # type: ignore[attr-defined]
            case LogEvent.GROUP_ERROR:
                for one in record.job_error_info:  # type: ignore[attr-defined]
                    self._fail(one["jobid"], one["rule_name"], one["log"])
            case LogEvent.ERROR:
                self._error(record)
            case None:
                self._tell(record)

    def _begin(self, counts: Mapping[str, int]) -> None:
        """Begin with the jobs there are to do."""
        if self._progress is not None:
            return
        self._progress = Progress(counts, read_usual(), self._cores)
        stages = ", ".join(f"{name} {stage.total}" for name, stage in self._progress.stages.items())
        self._screen.say(f"{self._progress.total} jobs: {stages}")
        threading.Thread(target=self._tick, name="progress", daemon=True).start()

    def _start(self, record: Any, now_s: float) -> None:
        if self._progress is None:
            return
        name = " ".join(str(value) for value in dict(record.wildcards or {}).values())
        logs, outputs = tuple(map(str, record.log)), tuple(map(str, record.output))
        job = Job(record.rule_name, name, logs, outputs, now_s, int(record.threads or 1), record.created - _CLOCK_S)
        self._progress.start(record.jobid, job)
        if job.stage == "launch" and self._period_s == LINE_S:
            self._screen.say(f"launch: {name}: started")

    def _finish(self, job_id: int, now_s: float) -> None:
        found = self._progress.finish(job_id, now_s) if self._progress is not None else None
        if found is None:
            return
        stage, job = found
        if stage.name == "launch" and self._period_s == LINE_S:
            self._screen.say(f"launch {stage.done}/{stage.total}: {''.join(last_lines(job.logs)) or job.name}")
        elif not stage.remaining and self._period_s == LINE_S:
            self._screen.say(stage_line(stage, 0.0, is_plain=True))
        if stage.name == "report":
            self._report = job.outputs
        if stage.name == "figure":
            self._drawn.append(job.outputs[0])

    def _fail(self, job_id: int, stage: str, logs: Sequence[str]) -> None:
        job = self._progress.fail(job_id) if self._progress is not None else None
        self._screen.say(failure(stage, job.name if job else "", logs), is_failure=True)
        self._redraw()

    def _error(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        is_of_job = getattr(record, "exception", "") in _OF_A_JOB or text.startswith(_AFTER_FAILURE)
        if self._progress is None or not is_of_job:
            self._has_failed = True
            self._screen.say(text, is_failure=True)

    def _tell(self, record: logging.LogRecord) -> None:
        """Say a message of Snakemake or its executor that is not of a kind, unless it is noise."""
        text = record.getMessage().strip()
        self._is_idle = self._is_idle or text.startswith(_NOTHING)
        if text.startswith(_COMPLETE):
            self._log = text.removeprefix(_COMPLETE)
        elif text.startswith(_AFTER_FAILURE) and self._progress is not None:
            return
        elif text and text != "None" and (record.levelno >= logging.WARNING or not text.startswith(_NOISE)):
            self._screen.say(text, is_failure=record.levelno >= logging.ERROR)

    def _tick(self) -> None:
        """Draw the progress from time to time, until the end."""
        while not self._is_closed.wait(self._period_s):
            with self.lock or threading.RLock():
                self._redraw()

    def _redraw(self) -> None:
        if self._progress is None or self._is_closed.is_set():
            return
        now_s = time.monotonic()
        foot = in_all(self._progress, now_s, self._begun_s, steps_in)
        if self._period_s == LINE_S:
            launch = self._progress.stages.get("launch", Stage("launch", 0))
            at = running_launch(launch)
            self._screen.say(f"{foot}; launch {launch.done}/{launch.total}, {at}" if at else foot)
            return
        left = self._progress.left_by_stage(now_s, steps_in)
        plain = self._screen.is_plain
        self._screen.redraw([*(stage_line(one, left[n], plain) for n, one in self._progress.stages.items()), foot])

    def _conclude(self) -> None:
        """Say what was done, what failed, and what was found and where."""
        progress = self._progress
        if progress is not None and progress.has_begun:
            write_usual(progress.mean_seconds())
            self._screen.say(_ending(progress, time.monotonic() - self._begun_s, self._log))
        if self._has_failed or (progress is not None and progress.failed):
            return
        if self._report or self._is_idle:
            pages = self._report or ("report.html", "report")
            summary = Path(pages[-1], SUMMARY)
            if summary.is_file() and Path(pages[0]).is_file():
                self._screen.say(summary.read_text(encoding="utf-8").rstrip())
        elif self._drawn:
            more = len(self._drawn) - _MOST_FILES
            also = f" and {more} more in figs/" if more > 0 else ""
            self._screen.say(f"drawn: {', '.join(self._drawn[:_MOST_FILES])}{also}")


def _ending(progress: Progress, took_s: float, log: str) -> str:
    """Return how the jobs ended, and where all is that Snakemake said."""
    done = f"{progress.done} of {progress.total} jobs done in {duration(took_s)}"
    waiting = progress.total - progress.done - sum(progress.failed.values())
    if progress.failed:
        stages = ", ".join(f"{name} {number}" for name, number in progress.failed.items())
        done += f"; failed: {stages}; {waiting} wait for them; the same command tries only these again"
    return f"{done}; log of Snakemake: {log}" if log else done


def _style_of(common: Any, settings: Any, stream: TextIO) -> str:
    """Return the style to use."""
    asked = getattr(settings, "style", None) or "auto"
    if asked != "auto":
        return str(asked)
    if common.dryrun or common.verbose or common.debug_dag or common.printshellcmds or common.quiet:
        return "jobs"
    is_terminal = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return "bars" if is_terminal and "CI" not in os.environ else "lines"
