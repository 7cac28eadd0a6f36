"""Lines of the progress: durations, bars, why a job failed, how far a launch is."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from snakemake_logger_plugin_triplepoint.progress import Job, Progress, Stage, StepsOf, sum_left

_STEP = re.compile(rb": (step (\d+)/(\d+) \(\w+\))")
_TAIL_BYTES = 4096
"""How much of a log's end is read: several lines, however long they are."""
_MOST_LINE = 400
"""Longest line that is shown of a log. Unit: character."""
_BAR_WIDTH = 20


def duration(seconds: float) -> str:
    """Return a time as people write it: `8 s`, `3 min`, `2 h 05 min`."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def bar(done: int, total: int, width: int = _BAR_WIDTH, is_plain: bool = False) -> str:
    """Return a bar of `width` characters; `is_plain` where the terminal takes ASCII only."""
    full = width if total <= 0 else int(width * done / total)
    return ("#" if is_plain else "█") * full + ("." if is_plain else "░") * (width - full)


def tail(path: str | Path, written_from: float = 0.0) -> bytes:
    """Return the end of a log, empty where it cannot be read or was last written to before a time of the wall clock."""
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
    found = [match for log in job.logs for match in _STEP.finditer(tail(log, job.written_from))]
    return found[-1] if found else None


def steps_in(job: Job) -> tuple[int, int] | None:
    """Return how many steps a launch has done and of how many, by the last line of its log that says so."""
    found = _last_step(job)
    return (int(found[2]), int(found[3])) if found else None


def now_at(job: Job) -> str:
    """Return where a launch is, such as `step 5/12 (measured)`; empty where it says nothing yet."""
    found = _last_step(job)
    return found[1].decode() if found else ""


def last_lines(logs: Sequence[str], most: int = 1) -> list[str]:
    """Return the last lines of a job's logs that are not empty; the reason alone where the program names one."""
    for log in logs:
        lines = [line.strip() for line in tail(log).decode(errors="backslashreplace").splitlines() if line.strip()]
        if lines:
            named = [line for line in lines if line.startswith("triplepoint: ")]
            chosen = named[-1:] or lines[-most:]
            return [line if len(line) <= _MOST_LINE else f"{line[:_MOST_LINE]} ..." for line in chosen]
    return []


def failure(stage: str, name: str, logs: Sequence[str]) -> str:
    """Return what is said of a job that failed: what it was, why, and where its log is."""
    reason = last_lines(logs, 5) or ["it said nothing; the log of Snakemake has its command"]
    where = [f"    log: {log}" for log in logs]
    return "\n".join([f"failed: {stage} {name}".rstrip(), *(f"    {line}" for line in reason), *where])


def stage_line(stage: Stage, left_s: float | None, is_plain: bool = False) -> str:
    """Return the line of one stage: bar, counts, time left, and where its launch is."""
    ended = f", {len(stage.failed)} failed" if stage.failed else ""
    if not stage.remaining:
        took = f"in {duration(stage.ended_s - stage.begun_s)}" if stage.ended_s and stage.begun_s is not None else ""
        time = f"done {took}".rstrip()
    elif left_s is not None and (stage.done or stage.running):
        time = f"{duration(left_s)} left"
    else:
        time = f"about {duration(left_s)}" if left_s else ""
    counts = f"{stage.done}/{stage.total}"
    line = f"{stage.name:<9} {bar(stage.done, stage.total, is_plain=is_plain)} {counts:>11}{ended}  {time:<16}"
    return f"{line} {running_launch(stage)}".rstrip()


def running_launch(stage: Stage) -> str:
    """Return where the running launches are: the step of one, or how many run."""
    if stage.name != "launch" or not stage.running:
        return ""
    if len(stage.running) > 1:
        return f"{len(stage.running)} run"
    (job,) = stage.running.values()
    return f"{now_at(job) or 'starting'}: {job.name}"


def in_all(progress: Progress, now_s: float, begun_s: float, steps_of: StepsOf) -> str:
    """Return one line on all stages: jobs done, time left and time so far."""
    left_s, is_known = sum_left(progress.left_by_stage(now_s, steps_of).values())
    left = f"{duration(left_s)} left" if left_s else "time left unknown"
    if left_s and not is_known:
        left = f"at least {left}"
    return f"{progress.done} of {progress.total} jobs done, {left}, {duration(now_s - begun_s)} so far"
