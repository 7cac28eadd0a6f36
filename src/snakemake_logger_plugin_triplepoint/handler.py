"""The handler of Snakemake's log records: track the progress and display it in one of three styles."""

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, TextIO

from snakemake.logging import ColorizingTextHandler, DefaultFilter, DefaultFormatter
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

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
"""Time between two redraws of the bars, which take under a millisecond: ranks are timed on the same machine."""
LINE_S = 30.0
"""Time between two progress lines if nothing can be redrawn: an hour of CI is 120 lines."""
SUMMARY = "summary.txt"
"""File in the report's folder with its main findings, in a line or two."""
_CLOCK_S = 2.0
"""Time by which a file system's clock may be behind that of this machine. Our choice."""
_MAX_FIGURES = 3
"""Figures that are named at the end."""
_MAX_FILES = 4
"""Files of a job's list that are shown in style `jobs`: the target of a plan of 300 runs has 3000 files, in a line of
170,000 characters."""
_MAX_REASON = 400
"""Longest reason of a job that is shown whole in style `jobs`. Unit: character."""

_NOISE = (
    "Building DAG of jobs", "Assuming unrestricted shared", "Using shell", "Provided ", "Rules claiming more",
    "Conda environments: ignored", "Singularity containers: ignored", "Group jobs: inactive", "Select jobs to execute",
    "Execute ", "Elapsed time", "SLURM run ID", "Successfully deleted", "Cleaning up SLURM", "Job stats:",
    "Finished jobid", "Job ", "No wall time information",
)  # fmt: skip
"""Begins of messages that are not shown, since users do not need them; Snakemake's log file has them all."""
_AFTER_FAILURE = (
    "WorkflowError:\nAt least one job did not complete", "At least one job did not complete", "Exiting because a job",
    "Removing output files of failed", "Cannot restore ",
)  # fmt: skip
"""Begins of messages that follow a failure, which is shown already."""
_COMPLETE = "Complete log(s): "
_NOTHING = "Nothing to be done"
_JOB_EXCEPTIONS = ("CalledProcessError", "RuleException")
"""Exceptions that only repeat that a job failed."""


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
        """Choose the style and prepare the output."""
        stream = sys.stdout if self.common_settings.stdout else sys.stderr
        style = _style_of(self.common_settings, self.settings, stream)
        self._jobs = _jobs_handler(self.common_settings, stream) if style == "jobs" else None
        """Handler of the style `jobs`, None in other styles."""
        has_colour = not self.common_settings.nocolor and "NO_COLOR" not in os.environ
        self._screen = Screen(stream, style == "bars", has_colour)
        self._period_s = REDRAW_S if style == "bars" else LINE_S
        self._progress: Progress | None = None
        self._begun_s = time.monotonic()
        self._cores: int | None = None
        self._has_failed = False
        self._report: tuple[str, ...] = ()
        """Files of the report that was made."""
        self._figures: list[str] = []
        """Files of the figures that were made."""
        self._log = ""
        """Snakemake's log file."""
        self._is_idle = False
        """Whether Snakemake had nothing to do."""
        self._is_closed = threading.Event()

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def emit(self, record: logging.LogRecord) -> None:
        """Process one log record of Snakemake. An error in here does not end the workflow."""
        if self._jobs is not None:
            self._jobs.handle(record)
            return
        try:
            self._process(record)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Show how the workflow ended, and keep the mean times of the stages for the next run."""
        if not self._is_closed.is_set() and self._jobs is None:
            self._is_closed.set()
            with self.lock or threading.RLock():
                self._conclude()
        super().close()

    def _process(self, record: logging.LogRecord) -> None:
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
                for job in record.job_error_info:  # type: ignore[attr-defined]
                    self._fail(job["jobid"], job["rule_name"], job["log"])
            case LogEvent.ERROR:
                self._show_error(record)
            case None:
                self._show_message(record)

    def _begin(self, counts: Mapping[str, int]) -> None:
        """Start the progress with the number of jobs by rule."""
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
        finished = self._progress.finish(job_id, now_s) if self._progress is not None else None
        if finished is None:
            return
        stage, job = finished
        if stage.name == "launch" and self._period_s == LINE_S:
            self._screen.say(f"launch {stage.done}/{stage.total}: {''.join(last_lines(job.logs)) or job.name}")
        elif not stage.remaining and self._period_s == LINE_S:
            self._screen.say(stage_line(stage, 0.0, is_plain=True))
        if stage.name == "report":
            self._report = job.outputs
        if stage.name == "figure":
            self._figures.append(job.outputs[0])

    def _fail(self, job_id: int, stage: str, logs: Sequence[str]) -> None:
        job = self._progress.fail(job_id) if self._progress is not None else None
        self._screen.say(failure(stage, job.name if job else "", logs), is_failure=True)
        self._redraw()

    def _show_error(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        is_of_job = getattr(record, "exception", "") in _JOB_EXCEPTIONS or text.startswith(_AFTER_FAILURE)
        if self._progress is None or not is_of_job:
            self._has_failed = True
            self._screen.say(text, is_failure=True)

    def _show_message(self, record: logging.LogRecord) -> None:
        """Show a message of Snakemake or its executor that belongs to no event, unless users do not need it."""
        text = record.getMessage().strip()
        self._is_idle = self._is_idle or text.startswith(_NOTHING)
        if text.startswith(_COMPLETE):
            self._log = text.removeprefix(_COMPLETE)
        elif text.startswith(_AFTER_FAILURE) and self._progress is not None:
            return
        elif text and text != "None" and (record.levelno >= logging.WARNING or not text.startswith(_NOISE)):
            self._screen.say(text, is_failure=record.levelno >= logging.ERROR)

    def _tick(self) -> None:
        """Show the progress periodically until the handler is closed."""
        while not self._is_closed.wait(self._period_s):
            with self.lock or threading.RLock():
                self._redraw()

    def _redraw(self) -> None:
        if self._progress is None or self._is_closed.is_set():
            return
        now_s = time.monotonic()
        total_line = in_all(self._progress, now_s, self._begun_s, steps_in)
        if self._period_s == LINE_S:
            launch = self._progress.stages.get("launch", Stage("launch", 0))
            step = running_launch(launch)
            self._screen.say(f"{total_line}; launch {launch.done}/{launch.total}, {step}" if step else total_line)
            return
        left_s, is_plain = self._progress.left_by_stage(now_s, steps_in), self._screen.is_plain
        stage_lines = [stage_line(stage, left_s[name], is_plain) for name, stage in self._progress.stages.items()]
        self._screen.redraw([*stage_lines, total_line])

    def _conclude(self) -> None:
        """Show the jobs done and failed, and the findings of the report or the figures made."""
        progress = self._progress
        if progress is not None and progress.has_begun:
            write_usual(progress.mean_seconds())
            self._screen.say(_last_line(progress, time.monotonic() - self._begun_s, self._log))
        if self._has_failed or (progress is not None and progress.failed):
            return
        if self._report or self._is_idle:
            pages = self._report or ("report.html", "report")
            summary = Path(pages[-1], SUMMARY)
            if summary.is_file() and Path(pages[0]).is_file():
                self._screen.say(summary.read_text(encoding="utf-8").rstrip())
        elif self._figures:
            more = len(self._figures) - _MAX_FIGURES
            rest = f" and {more} more in figs/" if more > 0 else ""
            self._screen.say(f"drawn: {', '.join(self._figures[:_MAX_FIGURES])}{rest}")


def _last_line(progress: Progress, duration_s: float, log: str) -> str:
    """Return the line with the jobs done and failed, and Snakemake's log."""
    done = f"{progress.done} of {progress.total} jobs done in {duration(duration_s)}"
    waiting = progress.total - progress.done - sum(progress.failed.values())
    if progress.failed:
        stages = ", ".join(f"{name} {number}" for name, number in progress.failed.items())
        done += f"; failed: {stages}; {waiting} wait for them; the same command tries only these again"
    return f"{done}; log of Snakemake: {log}" if log else done


def _style_of(common: Any, settings: Any, stream: TextIO) -> str:
    """Return the chosen style; with `auto` the one for this stream and these options of Snakemake."""
    chosen = getattr(settings, "style", None) or "auto"
    if chosen != "auto":
        return str(chosen)
    if common.dryrun or common.verbose or common.debug_dag or common.printshellcmds or common.quiet:
        return "jobs"
    is_terminal = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return "bars" if is_terminal and "CI" not in os.environ else "lines"


class _ShortFormatter(DefaultFormatter):  # type: ignore[misc]
    """Snakemake's formatter of a paragraph per job, with long lists of files and long reasons shortened."""

    def format_job_info(self, msg: dict[str, Any]) -> str:
        """Return the paragraph of a job."""
        shortened: dict[str, Any] = {name: _shorten(msg[name]) for name in ("input", "output") if msg.get(name)}
        reason = str(msg.get("reason") or "")
        if len(reason) > _MAX_REASON:
            shortened["reason"] = f"{reason[:_MAX_REASON]} ..."
        return str(super().format_job_info(msg | shortened))


def _shorten(files: list[str]) -> list[str]:
    more = len(files) - _MAX_FILES
    return files if more < 2 else [*files[:_MAX_FILES], f"and {more} more"]


class _WholeLineHandler(ColorizingTextHandler):  # type: ignore[misc]
    """Snakemake's handler, but it writes each line with its end, so that no line of another process comes between."""

    terminator = ""

    def decorate(self, record: logging.LogRecord, message: str) -> str:
        """Return the message with its colour and the end of the line."""
        return f"{super().decorate(record, message)}\n"


def _jobs_handler(common: Any, stream: TextIO) -> logging.Handler:
    """Return a handler that writes like Snakemake, in style `jobs`; with --verbose nothing is shortened."""
    handler: logging.Handler = _WholeLineHandler(nocolor=common.nocolor, stream=stream)
    handler.addFilter(
        DefaultFilter(common.quiet, common.debug_dag, common.verbose, common.dryrun, common.printshellcmds)
    )
    formatter = DefaultFormatter if common.verbose else _ShortFormatter
    handler.setFormatter(formatter(common.quiet, common.show_failed_logs))
    return handler
