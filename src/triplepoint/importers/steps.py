"""Steps that a CSV or a training log tells, and how they join with those of traces."""

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from triplepoint.errors import UserError, nearest, shown
from triplepoint.importers.text import read_content
from triplepoint.importers.times import DATE, read_times, show_time
from triplepoint.importers.work import Row, Work
from triplepoint.recorded.patterns import LogMarks, step_pattern
from triplepoint.units import NS_PER_S

WARMUP = 2
"""First steps of a log that are no measured ones, as `triplepoint record` has it."""
_KINDS = ("warmup", "measured", "profiled")
_STEP_COLUMNS = ("step", "start", "end", "duration_s", "rank", "kind", "loss", "num_tokens")
_KEPT = ("rank", "step", "kind", "t_start_ns", "t_end_ns")


def read_log(path: Path, pattern: str) -> Work:
    """Return the steps that a training log marks, each from the line of the one before to its own.

    Args:
        path: The log; lines of steps hold a date and a time.
        pattern: Framework or regular expression, as of `triplepoint record --step-pattern`.

    Raises:
        UserError: If no line matches, or one that does has no time.
    """
    wanted = step_pattern(pattern)
    marks = LogMarks(wanted, 0)
    stamps, lines = [], []
    for number, line in enumerate(read_content(path).text.splitlines(), 1):
        if not wanted.search(line):
            continue
        stamp = DATE.search(line)
        if stamp is None:
            raise UserError(
                f"{path}:{number}: the line of a step has no date and time: {shown(line)}; log them, or give the "
                "steps with --steps"
            )
        stamps.append(stamp[0].strip())
        lines.append(line)
    if not lines:
        raise UserError(
            f"{path}: no line matches --step-pattern {pattern}; name the framework, or a regular expression"
        )
    t_ns, clock = read_times(stamps, str(path))
    found = [row for line, time in zip(lines, t_ns.tolist(), strict=True) for row in marks.read(line, time)]
    rows = [{name: row[name] for name in _KEPT} for row in found]
    for row in rows[:WARMUP]:
        row["kind"] = "warmup"
    return Work({}, rows, clock.is_naive)


def read_steps(path: Path) -> Work:
    """Return steps that a CSV tells: columns `step`, `start` and `end` or `duration_s`, and `rank`, `kind` where known.

    Raises:
        UserError: If a column is missing or unknown, or a cell cannot be read.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.DictReader(file, skipinitialspace=True))
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"--steps {path}: no such file; expected a CSV with columns step, start and end") from None
    names = list(lines[0]) if lines else []
    for name in names:
        if name not in _STEP_COLUMNS:
            raise UserError(f"{path}: unknown column {shown(str(name))}{nearest(str(name), _STEP_COLUMNS)}")
    if not {"step", "start"} <= set(names) or not {"end", "duration_s"} & set(names):
        raise UserError(
            f"{path}: expected columns step, start and end or duration_s, and lines below them; found {names}"
        )
    starts, clock = read_times([line["start"] for line in lines], f"{path}: column start")
    if clock.lacks:
        raise UserError(f"{path}: column start: holds times of day without a date; add dates")
    if "end" in names:
        ends, _ = read_times([line["end"] for line in lines], f"{path}: column end")
    else:
        lasts = [_number(line["duration_s"], path, number, "duration_s") for number, line in enumerate(lines, 2)]
        ends = starts + np.rint(np.array(lasts) * NS_PER_S).astype(np.int64)
    rows = [
        _row(line, int(start), int(end), path, number)
        for number, (line, start, end) in enumerate(zip(lines, starts, ends, strict=True), 2)
    ]
    return Work({}, rows, clock.is_naive)


def _row(line: dict[str, str], start: int, end: int, path: Path, number: int) -> Row:
    kind = (line.get("kind") or "measured").strip()
    if kind not in _KINDS:
        raise UserError(f"{path}:{number}: kind {shown(kind)}, expected {', '.join(_KINDS)}{nearest(kind, _KINDS)}")
    if end <= start:
        raise UserError(f"{path}:{number}: the step ends before it starts; correct the line")
    row: Row = {
        "rank": int(_number(line.get("rank") or "0", path, number, "rank")),
        "step": int(_number(line["step"], path, number, "step")),
        "kind": kind,
        "t_start_ns": start,
        "t_end_ns": end,
    }
    if line.get("loss"):
        row["loss"] = _number(line["loss"], path, number, "loss")
    if line.get("num_tokens"):
        row["num_tokens"] = int(_number(line["num_tokens"], path, number, "num_tokens"))
    return row


def _number(text: str, path: Path, line: int, column: str) -> float:
    try:
        return float(text)
    except (ValueError, TypeError):
        raise UserError(
            f"{path}:{line}: column {column}: {shown(str(text))} is not a number; correct the cell"
        ) from None


def join_steps(traced: Work, told: Work, ahead_ns: Mapping[int, int] | None = None) -> tuple[list[Row], list[str]]:
    """Return the steps of traces and of a CSV as rows of one numbering, and what is to be said of it.

    A step of the CSV in whose time the profiler worked is the profiled one; where numbers differ there, all of the CSV
    are moved to the profiler's.

    Raises:
        UserError: If a number means steps of different times, with nothing that tells how they belong together.
    """
    if not traced.rows or not told.rows:
        return traced.rows + told.rows, []
    ranks = {row["rank"] for row in traced.rows}
    if len({row["rank"] for row in told.rows}) == 1:  # of the job as a whole
        told = Work(rows=[_on(row, rank, ahead_ns or {}) for rank in sorted(ranks) for row in told.rows])
    shifts = {
        profiled["step"] - row["step"]
        for profiled in traced.rows
        for row in told.rows
        if row["rank"] == profiled["rank"] and _overlap(row, profiled) > 0.5
    }
    if len(shifts) > 1:
        raise UserError(
            f"--steps: numbers differ from the profiler's by {sorted(shifts)}; number them as ProfilerStep does"
        )
    shift = shifts.pop() if shifts else 0
    profiled_steps = {(row["rank"], row["step"]) for row in traced.rows}
    rows = [row | {"step": row["step"] + shift} for row in told.rows]
    kept = [row for row in rows if (row["rank"], row["step"]) not in profiled_steps]
    clash = next((row for row in rows if (row["rank"], row["step"]) in profiled_steps), None)
    if clash is not None and not any(_overlap(clash, each) > 0 for each in traced.rows):
        raise UserError(
            f"--steps: step {clash['step']} is at {show_time(clash['t_start_ns'])}, ProfilerStep#{clash['step']} of "
            "the trace at another time; number the steps as the profiler does, or give --timezone"
        )
    said = [f"steps of --steps moved by {shift} to the profiler's numbers"] if shift else []
    return traced.rows + kept, said


def _on(row: Row, rank: int, ahead_ns: Mapping[int, int]) -> Row:
    """Return a step of one rank as another's, on the clock of its host."""
    moved = ahead_ns.get(row["rank"], 0) - ahead_ns.get(rank, 0)
    return row | {"rank": rank} | {name: row[name] + moved for name in ("t_start_ns", "t_end_ns")}


def _overlap(one: Row, other: Row) -> float:
    """Return the time two steps share, as a share of the shorter one."""
    shared = min(one["t_end_ns"], other["t_end_ns"]) - max(one["t_start_ns"], other["t_start_ns"])
    shorter = min(one["t_end_ns"] - one["t_start_ns"], other["t_end_ns"] - other["t_start_ns"])
    return max(0.0, shared / shorter) if shorter > 0 else 0.0
