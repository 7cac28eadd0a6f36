"""Texts of the progress display: durations, bars, steps of a launch, reasons of failures."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from snakemake_logger_plugin_triplepoint.progress import Job, Progress, Stage, StepsOf, sum_left

_STEP = re.compile(rb": (step (\d+)/(\d+) \(\w+\))")
_TAIL_BYTES = 4096
"""Bytes read from the end of a log: enough for several lines."""
_MAX_LINE = 400
"""Longest line of a log that is shown whole. Unit: character."""
_BAR_WIDTH = 20


def duration(seconds: float) -> str:
    """Return a duration as text, such as `8 s`, `3 min` or `2 h 05 min`."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def bar(done: int, total: int, width: int = _BAR_WIDTH, is_plain: bool = False) -> str:
    """Return a progress bar of `width` characters; with `is_plain` in ASCII."""
    filled = width if total <= 0 else int(width * done / total)
    return ("#" if is_plain else "█") * filled + ("." if is_plain else "░") * (width - filled)


def tail(path: str | Path, written_from: float = 0.0) -> bytes:
    """Return the end of a log; empty if it cannot be read, or was last written before the wall-clock time given."""
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_mtime < written_from:
                return b""
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read()
    except OSError:
        return b""


def _last_step(job: Job) -> re.Match[bytes] | None:
    matches = [match for log in job.logs for match in _STEP.finditer(tail(log, job.written_from))]
    return matches[-1] if matches else None


def steps_in(job: Job) -> tuple[int, int] | None:
    """Return the finished steps and all steps of a launch, by the last such line of its log; None if there is none."""
    match = _last_step(job)
    return (int(match[2]), int(match[3])) if match else None


def now_at(job: Job) -> str:
    """Return the step of a launch, such as `step 5/12 (measured)`; empty if its log has none yet."""
    match = _last_step(job)
    return match[1].decode() if match else ""


def last_lines(logs: Sequence[str], most: int = 1) -> list[str]:
    """Return the last `most` lines of a job's logs that are not empty, or only the program's own error message."""
    for log in logs:
        lines = [line.strip() for line in tail(log).decode(errors="backslashreplace").splitlines() if line.strip()]
        if lines:
            own_errors = [line for line in lines if line.startswith("triplepoint: ")]
            shown = own_errors[-1:] or lines[-most:]
            return [line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]} ..." for line in shown]
    return []


def failure(stage: str, name: str, logs: Sequence[str]) -> str:
    """Return the message for a failed job: its name, the reason, and its logs."""
    reason = last_lines(logs, 5) or ["it said nothing; the log of Snakemake has its command"]
    log_lines = [f"    log: {log}" for log in logs]
    return "\n".join([f"failed: {stage} {name}".rstrip(), *(f"    {line}" for line in reason), *log_lines])


def stage_line(stage: Stage, left_s: float | None, is_plain: bool = False) -> str:
    """Return the line of one stage: bar, counts, time left, and step of its launch."""
    failed = f", {len(stage.failed)} failed" if stage.failed else ""
    if not stage.remaining:
        took = f"in {duration(stage.ended_s - stage.begun_s)}" if stage.ended_s and stage.begun_s is not None else ""
        time = f"done {took}".rstrip()
    elif left_s is not None and (stage.done or stage.running):
        time = f"{duration(left_s)} left"
    else:
        time = f"about {duration(left_s)}" if left_s else ""
    counts = f"{stage.done}/{stage.total}"
    line = f"{stage.name:<9} {bar(stage.done, stage.total, is_plain=is_plain)} {counts:>11}{failed}  {time:<16}"
    return f"{line} {running_launch(stage)}".rstrip()


def running_launch(stage: Stage) -> str:
    """Return the step of the running launch, or the number of running launches."""
    if stage.name != "launch" or not stage.running:
        return ""
    if len(stage.running) > 1:
        return f"{len(stage.running)} run"
    (job,) = stage.running.values()
    return f"{now_at(job) or 'starting'}: {job.name}"


def in_all(progress: Progress, now_s: float, begun_s: float, steps_of: StepsOf) -> str:
    """Return the line of the whole workflow: jobs done, time left and time so far."""
    left_s, is_known = sum_left(progress.left_by_stage(now_s, steps_of).values())
    left = f"{duration(left_s)} left" if left_s else "time left unknown"
    if left_s and not is_known:
        left = f"at least {left}"
    return f"{progress.done} of {progress.total} jobs done, {left}, {duration(now_s - begun_s)} so far"
