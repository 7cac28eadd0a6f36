"""Read the work of a recorded job: its traces by rank, and its steps from the profiler, a CSV or a training log."""

import csv
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.errors import UserError, nearest, shown
from triplepoint.importers.text import read_content
from triplepoint.importers.times import DATE, read_times, show_span, show_time
from triplepoint.recorded.patterns import LogMarks, step_pattern
from triplepoint.tables.traces import LONGEST_STEP_S, SHORTEST_STEP_S
from triplepoint.trace.kineto import LAUNCH, Category, Rows
from triplepoint.trace.parsing import TraceFile, check_ranks, find_traces, rank_of
from triplepoint.trace.reader import read_trace
from triplepoint.units import NS_PER_S

Row = dict[str, Any]
_STEP = re.compile(r"(?:ProfilerStep#|(?:step|iteration)[ _#:]*)(\d+)$", re.IGNORECASE)
"""Annotations that mark steps, as for `triplepoint trace`."""
WALL_NS = 10**8 * NS_PER_S
"""Smallest time that counts from 1970; smaller ones count from the start of the machine."""
_APART_S = 3600.0
"""Largest difference between the starts of traces of one job; its ranks profile the same steps. Our choice. Unit: s."""
_MOST_STEPS = 10**9
"""Highest number of a step or rank: 30 years of a step per second. Our choice."""
_MOST_OVERLAP = 0.5
"""Share of the shorter step above which two steps overlap. Times rounded to seconds overlap by less. Our choice."""
WARMUP = 2
"""Number of warm-up steps at the start of a log, as for `triplepoint record`."""
_KINDS = ("warmup", "measured", "profiled")
_STEP_COLUMNS = ("step", "start", "end", "duration_s", "rank", "kind", "loss", "num_tokens")
"""Columns that a CSV of steps may have."""
_KEPT = ("rank", "step", "kind", "t_start_ns", "t_end_ns")
"""Columns of table `steps` that a log gives."""


@dataclass(frozen=True)
class Trace:
    """A trace: its header, steps, and first and last time."""

    path: Path
    rank: int
    world_size: int | None
    host: str
    """Host in the header; empty if there is none."""
    product: str
    """First GPU in the header; empty if there is none."""
    is_of_gpu: bool
    """Whether the trace holds GPU work."""
    steps: tuple[tuple[int, int, int], ...]
    """Number, start and end of each step. Unit: ns since 1970 UTC."""
    start_ns: int
    """Start of the first event; 0 if times do not count from 1970. Unit: ns since 1970 UTC."""
    end_ns: int
    """End of the last event; 0 if times do not count from 1970. Unit: ns since 1970 UTC."""


@dataclass(frozen=True)
class Work:
    """Traces and steps of a job."""

    traces: dict[int, Trace] = field(default_factory=dict)
    """Traces by rank."""
    rows: list[Row] = field(default_factory=list)
    """Rows of table `steps`; times in ns since 1970 UTC."""
    is_naive: bool = False
    """Whether the times of steps are local times without a time zone."""

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last time of traces and steps; None without any. Unit: ns."""
        times = [time for trace in self.traces.values() if trace.start_ns for time in (trace.start_ns, trace.end_ns)]
        times += [time for row in self.rows for time in (row["t_start_ns"], row["t_end_ns"])]
        return (min(times), max(times)) if times else None

    @property
    def world_size(self) -> int | None:
        """World size in the traces; if they do not have it, the highest rank plus one; None without traces."""
        sizes = [trace.world_size for trace in self.traces.values() if trace.world_size]
        return sizes[0] if sizes else max(self.traces, default=-1) + 1 or None


def read_traces(paths: Sequence[Path], progress: Callable[[str], None], is_alone: bool = False) -> Work:
    """Return traces by rank, and the steps that the profiler marked.

    Args:
        paths: Traces.
        progress: Called with lines of progress.
        is_alone: Whether there are no other recordings. Then times may count from the start of the machine, as those of
            some profilers do.

    Raises:
        UserError: If two traces have one rank, or traces are of several jobs.
    """
    if not paths:
        return Work()
    files = find_traces(paths)
    by_file: list[Trace] = []
    for file in files:
        progress(f"reading trace {file.path.name} ({len(by_file) + 1} of {len(files)})")
        by_file.append(_read_one(file, len(files) == 1, is_alone, progress))
    check_ranks((trace.path, trace.rank) for trace in by_file)
    traces = {trace.rank: trace for trace in sorted(by_file, key=lambda trace: trace.rank)}
    _check_one_job(list(traces.values()))
    rows = [
        {"rank": rank, "step": number, "kind": "profiled", "t_start_ns": start, "t_end_ns": end}
        for rank, trace in traces.items()
        if trace.start_ns
        for number, start, end in trace.steps
    ]
    return Work(traces, rows)


def _read_one(file: TraceFile, is_only: bool, is_alone: bool, progress: Callable[[str], None]) -> Trace:
    """Return one trace; `is_only` says that there is no other, so it needs no rank."""
    marks: list[Rows] = []
    bounds = [np.iinfo(np.int64).max, np.iinfo(np.int64).min]
    categories: set[int] = set()

    def take(rows: Rows, names: Any) -> None:
        if rows.dtype == LAUNCH or not len(rows):
            return
        categories.update(np.unique(rows["category"]).tolist())
        bounds[0] = min(bounds[0], int(rows["start"].min()))
        bounds[1] = max(bounds[1], int((rows["start"] + rows["duration"]).max()))
        is_mark = np.isin(rows["category"], (Category.ANNOTATION, Category.CPU_OP))
        marks.append(rows[is_mark][["start", "duration", "name"]])

    header = read_trace(file.path, take, file.part, progress=progress)
    if header.is_truncated:
        raise UserError(
            f"{file.path}: truncated; copy it again, or move it out of the folder ('triplepoint trace' shows the rest)"
        )
    step_of_name = {index: int(match[1]) for index, name in enumerate(header.names) if (match := _STEP.match(name))}
    steps = {
        step_of_name[name]: (step_of_name[name], start + header.base_ns, start + duration + header.base_ns)
        for rows in marks
        for start, duration, name in rows[np.isin(rows["name"], list(step_of_name))].tolist()
    }
    has_rows = bounds[0] < bounds[1]
    has_times = has_rows and (is_alone or bounds[0] + header.base_ns > WALL_NS)
    if not steps and has_times:  # as for `triplepoint trace`: the whole trace is one step
        steps = {0: (0, bounds[0] + header.base_ns, bounds[1] + header.base_ns)}
    distributed = header.metadata.get("distributedInfo") or {}
    gpus = header.metadata.get("deviceProperties") or [{}]
    return Trace(
        path=file.path,
        rank=rank_of(file, header.rank, is_only),
        world_size=distributed.get("world_size") if isinstance(distributed, dict) else None,
        host=str(header.metadata.get("host_name") or ""),
        product=_product(gpus, file),
        is_of_gpu=bool(categories & {Category.KERNEL, Category.MEMCPY, Category.MEMSET}),
        steps=tuple(steps[number] for number in sorted(steps)),
        start_ns=bounds[0] + header.base_ns if has_times else 0,
        end_ns=bounds[1] + header.base_ns if has_times else 0,
    )


def _product(gpus: Any, file: TraceFile) -> str:
    """Return the name of the first GPU in a trace; empty if there is none."""
    if file.part is not None and file.part.gpu_name:
        return file.part.gpu_name
    return str(gpus[0].get("name", "")) if isinstance(gpus, list) and isinstance(gpus[0], dict) else ""


def _check_one_job(traces: Sequence[Trace]) -> None:
    """Check that traces agree in world size and time. Raises `UserError` if not."""
    first = traces[0]
    for other in traces[1:]:
        if first.world_size and other.world_size and first.world_size != other.world_size:
            raise UserError(
                f"{other.path}: belongs to a job of {other.world_size} ranks, {first.path.name} to one of "
                f"{first.world_size}; import the traces of one job"
            )
        if other.world_size and other.rank >= other.world_size:
            raise UserError(
                f"{other.path}: is of rank {other.rank}, and its job has ranks 0 to {other.world_size - 1}; correct "
                "the file's name"
            )
        apart_s = abs(other.start_ns - first.start_ns) / NS_PER_S
        if first.start_ns and other.start_ns and apart_s > _APART_S:
            raise UserError(
                f"{other.path}: begins {show_time(other.start_ns)}, {show_span(apart_s)} from {first.path.name}; "
                "import the traces of one job"
            )


def read_log(path: Path, pattern: str) -> Work:
    """Return the steps of a training log; each lasts from the line of the previous step to its own.

    Args:
        path: The log; its lines of steps hold date and time.
        pattern: Framework or regular expression, as for `triplepoint record --step-pattern`.

    Raises:
        UserError: If no line matches, or a line that matches has no time.
    """
    compiled = step_pattern(pattern)
    marks = LogMarks(compiled, 0)
    stamps, lines, numbers = [], [], []
    for number, line in enumerate(read_content(path).text.splitlines(), 1):
        if not compiled.search(line):
            continue
        stamp = DATE.search(line)
        if stamp is None:
            raise UserError(
                f"{path}:{number}: the line of a step has no date and time: {shown(line)}; log them, or give the "
                "steps with --steps"
            )
        stamps.append(stamp[0].strip())
        lines.append(line)
        numbers.append(number)
    if not lines:
        raise UserError(
            f"{path}: no line matches --step-pattern {pattern}; name the framework, or a regular expression"
        )
    t_ns, clock = read_times(stamps, path, lines=numbers)
    steps = [step for line, time in zip(lines, t_ns.tolist(), strict=True) for step in marks.read(line, time)]
    rows = [{name: step[name] for name in _KEPT} for step in steps]
    for row in rows[:WARMUP]:
        row["kind"] = "warmup"
    return Work({}, rows, clock.is_naive)


def read_steps(path: Path) -> Work:
    """Return the steps of a CSV with columns `step`, `start`, `end` or `duration_s`, and optional `rank`, `kind`, ...

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
    numbers = range(2, len(lines) + 2)
    starts, clock = read_times([line["start"] or "" for line in lines], path, "start", numbers)
    if clock.lacks:
        raise UserError(f"{path}: column start: holds times of day without a date; add dates")
    if "end" in names:
        ends, _ = read_times([line["end"] or "" for line in lines], path, "end", numbers)
    else:
        durations_s = [_duration_s(line["duration_s"], path, number) for number, line in enumerate(lines, 2)]
        ends = starts + np.rint(np.array(durations_s) * NS_PER_S).astype(np.int64)
    rows = [
        _row(line, int(start), int(end), path, number)
        for number, (line, start, end) in enumerate(zip(lines, starts, ends, strict=True), 2)
    ]
    _check_apart(rows, path)
    return Work({}, rows, clock.is_naive)


def _check_apart(rows: Sequence[Row], path: Path) -> None:
    """Check that the steps of each rank follow each other.

    Args:
        rows: A row for each line of the CSV, from line 2 on.
        path: The CSV, for the error.

    Raises:
        UserError: If a rank has two steps of one number, or one step overlaps more than half of another.
    """
    numbered = list(enumerate(rows, 2))
    line_of: dict[tuple[int, int], int] = {}
    for number, row in numbered:
        first = line_of.setdefault((row["rank"], row["step"]), number)
        if first != number:
            raise UserError(
                f"{path}:{number}: step {row['step']} of rank {row['rank']} is in line {first} too; leave one out"
            )
    in_order = sorted(numbered, key=lambda line: (line[1]["rank"], line[1]["t_start_ns"]))
    for (before, row), (number, other) in itertools.pairwise(in_order):
        if row["rank"] == other["rank"] and _overlap(row, other) > _MOST_OVERLAP:
            raise UserError(
                f"{path}:{number}: step {other['step']} begins before step {row['step']} of line {before} ends; "
                "correct the times"
            )


def _row(line: dict[str, str], start: int, end: int, path: Path, number: int) -> Row:
    """Return the row of table `steps` of a line of a CSV, with its start and end in ns.

    Raises:
        UserError: If a cell cannot be read; the message names the file and the number of the line.
    """
    kind = (line.get("kind") or "measured").strip()
    if kind not in _KINDS:
        raise UserError(f"{path}:{number}: kind {shown(kind)}, expected {', '.join(_KINDS)}{nearest(kind, _KINDS)}")
    if end <= start:
        raise UserError(f"{path}:{number}: the step ends before it starts; correct the line")
    row: Row = {
        "rank": _count(line.get("rank") or "0", path, number, "rank"),
        "step": _count(line["step"], path, number, "step"),
        "kind": kind,
        "t_start_ns": start,
        "t_end_ns": end,
    }
    if line.get("loss"):
        row["loss"] = _number(line["loss"], path, number, "loss")
    if line.get("num_tokens"):
        row["num_tokens"] = _count(line["num_tokens"], path, number, "num_tokens", 10**15)
    return row


def _count(text: str, path: Path, line: int, column: str, most: int = _MOST_STEPS) -> int:
    """Return the whole number in a cell. Raises `UserError` if it is none, or out of range."""
    number = _number(text, path, line, column)
    if not 0 <= number <= most or number != int(number):
        raise UserError(
            f"{path}:{line}: column {column}: {shown(str(text))}, expected a whole number from 0 to {most:,}; correct "
            "the cell"
        )
    return int(number)


def _duration_s(text: str, path: Path, line: int) -> float:
    """Return the duration of a step in a cell. Unit: s. Raises `UserError` if it is none, or out of range."""
    duration_s = _number(text, path, line, "duration_s")
    if not SHORTEST_STEP_S <= duration_s <= LONGEST_STEP_S:
        raise UserError(
            f"{path}:{line}: column duration_s: {shown(text)}, expected {SHORTEST_STEP_S:g} to {LONGEST_STEP_S:,.0f} "
            "s; correct the cell"
        )
    return duration_s


def _number(text: str, path: Path, line: int, column: str) -> float:
    """Return the number in a cell. Raises `UserError` if it is none."""
    try:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError
        return number
    except (ValueError, TypeError):
        raise UserError(
            f"{path}:{line}: column {column}: {shown(str(text))} is not a number; correct the cell"
        ) from None


def join_steps(traced: Work, listed: Work, ahead_ns: Mapping[int, int] | None = None) -> tuple[list[Row], list[str]]:
    """Return the steps of traces and of a CSV or log with common numbers, and notes on changed numbers.

    A listed step that overlaps a profiled one is the same step. If their numbers differ, all listed steps are
    renumbered as the profiler's.

    Args:
        traced: Steps that the profiler marked.
        listed: Steps of a CSV or log.
        ahead_ns: Time by which the wall clock of each rank's host is ahead of its samples. Unit: ns.

    Raises:
        UserError: If steps of one number have different times, and no overlap shows how to renumber them.
    """
    if not traced.rows or not listed.rows:
        return traced.rows + listed.rows, []
    ranks = {row["rank"] for row in traced.rows}
    if len({row["rank"] for row in listed.rows}) == 1:  # steps of the whole job
        listed = Work(rows=[_for_rank(row, rank, ahead_ns or {}) for rank in sorted(ranks) for row in listed.rows])
    shifts = {
        profiled["step"] - row["step"]
        for profiled in traced.rows
        for row in listed.rows
        if row["rank"] == profiled["rank"] and _overlap(row, profiled) > _MOST_OVERLAP
    }
    if len(shifts) > 1:
        raise UserError(
            f"--steps: numbers differ from the profiler's by {sorted(shifts)}; number them as ProfilerStep does"
        )
    shift = shifts.pop() if shifts else 0
    profiled_steps = {(row["rank"], row["step"]) for row in traced.rows}
    rows = [row | {"step": row["step"] + shift} for row in listed.rows]
    kept = [row for row in rows if (row["rank"], row["step"]) not in profiled_steps]
    clash = next((row for row in rows if (row["rank"], row["step"]) in profiled_steps), None)
    if clash is not None and not any(_overlap(clash, profiled) > 0 for profiled in traced.rows):
        raise UserError(
            f"--steps: step {clash['step']} is at {show_time(clash['t_start_ns'])}, ProfilerStep#{clash['step']} of "
            "the trace at another time; number the steps as the profiler does, or give --timezone"
        )
    notes = [f"steps of --steps moved by {shift} to the profiler's numbers"] if shift else []
    return traced.rows + kept, notes


def _for_rank(row: Row, rank: int, ahead_ns: Mapping[int, int]) -> Row:
    """Return a step of one rank as that of another rank, on the clock of its host."""
    shift_ns = ahead_ns.get(row["rank"], 0) - ahead_ns.get(rank, 0)
    return row | {"rank": rank} | {name: row[name] + shift_ns for name in ("t_start_ns", "t_end_ns")}


def _overlap(first: Row, other: Row) -> float:
    """Return the common time of two steps, as a share of the shorter one."""
    common = min(first["t_end_ns"], other["t_end_ns"]) - max(first["t_start_ns"], other["t_start_ns"])
    shorter = min(first["t_end_ns"] - first["t_start_ns"], other["t_end_ns"] - other["t_start_ns"])
    return max(0.0, common / shorter) if shorter > 0 else 0.0
