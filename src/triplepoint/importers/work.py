"""What a recorded job did: its traces by rank, and its steps, by the profiler's marks, a CSV or a training log."""

import csv
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
from triplepoint.trace.kineto import LAUNCH, Category, Rows
from triplepoint.trace.parsing import TraceFile, check_ranks, find_traces, rank_of
from triplepoint.trace.reader import read_trace
from triplepoint.units import NS_PER_S

Row = dict[str, Any]
_STEP = re.compile(r"(?:ProfilerStep#|(?:step|iteration)[ _#:]*)(\d+)$", re.IGNORECASE)
"""Annotations that are steps, as `trace` takes them."""
WALL_NS = 10**8 * NS_PER_S
"""Times from here on are since 1970, others since the start of the machine."""
_APART_S = 3600.0
"""Traces that begin farther apart are of several jobs: ranks profile the same steps. Our choice. Unit: s."""
WARMUP = 2
"""First steps of a log that are no measured ones, as `triplepoint record` has it."""
_KINDS = ("warmup", "measured", "profiled")
_STEP_COLUMNS = ("step", "start", "end", "duration_s", "rank", "kind", "loss", "num_tokens")
_KEPT = ("rank", "step", "kind", "t_start_ns", "t_end_ns")


@dataclass(frozen=True)
class Trace:
    """What the head of a trace and its marks say."""

    path: Path
    rank: int
    world_size: int | None
    host: str
    """Host it says it was written on; empty where it does not."""
    product: str
    """First GPU it lists; empty without one."""
    is_of_gpu: bool
    """Whether it holds work of a GPU, listed or not."""
    steps: tuple[tuple[int, int, int], ...]
    """Number, start and end of each step. Unit: ns since 1970 UTC."""
    start_ns: int
    end_ns: int
    """First and last row, as far as they have times since 1970; both 0 where they do not."""


@dataclass(frozen=True)
class Work:
    """Traces and steps of the job."""

    traces: dict[int, Trace] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    """Rows of table `steps`: times in ns since 1970 UTC."""
    is_naive: bool = False
    """Whether times of steps are local ones."""

    @property
    def span(self) -> tuple[int, int] | None:
        """First and last time of traces and steps, None where they have none. Unit: ns."""
        times = [time for one in self.traces.values() if one.start_ns for time in (one.start_ns, one.end_ns)]
        times += [time for row in self.rows for time in (row["t_start_ns"], row["t_end_ns"])]
        return (min(times), max(times)) if times else None

    @property
    def world_size(self) -> int | None:
        """Number of ranks that the traces say, else one more than the highest rank; None without traces."""
        said = [one.world_size for one in self.traces.values() if one.world_size]
        return said[0] if said else max(self.traces, default=-1) + 1 or None


def read_traces(paths: Sequence[Path], progress: Callable[[str], None], is_alone: bool = False) -> Work:
    """Return traces by rank, with profiled steps by the profiler's own marks.

    Args:
        paths: Traces.
        progress: Called with what is being read.
        is_alone: Whether there is nothing to put them in time with: then a clock that counts from the start of the
            machine, as that of some profilers, does as well.

    Raises:
        UserError: If two are of one rank, or one is of another job.
    """
    if not paths:
        return Work()
    files = find_traces(paths)
    found: list[Trace] = []
    for file in files:
        progress(f"reading trace {file.path.name} ({len(found) + 1} of {len(files)})")
        found.append(_read_one(file, len(files) == 1, is_alone, progress))
    check_ranks((one.path, one.rank) for one in found)
    traces = {one.rank: one for one in sorted(found, key=lambda one: one.rank)}
    _check_one_job(list(traces.values()))
    rows = [
        {"rank": rank, "step": number, "kind": "profiled", "t_start_ns": start, "t_end_ns": end}
        for rank, one in traces.items()
        if one.start_ns
        for number, start, end in one.steps
    ]
    return Work(traces, rows)


def _read_one(file: TraceFile, is_only: bool, is_alone: bool, progress: Callable[[str], None]) -> Trace:
    kept: list[Rows] = []
    bounds = [np.iinfo(np.int64).max, np.iinfo(np.int64).min]
    categories: set[int] = set()

    def take(rows: Rows, names: Any) -> None:
        if rows.dtype == LAUNCH or not len(rows):
            return
        categories.update(np.unique(rows["category"]).tolist())
        bounds[0] = min(bounds[0], int(rows["start"].min()))
        bounds[1] = max(bounds[1], int((rows["start"] + rows["duration"]).max()))
        is_mark = np.isin(rows["category"], (Category.ANNOTATION, Category.CPU_OP))
        kept.append(rows[is_mark][["start", "duration", "name"]])

    header = read_trace(file.path, take, file.part, progress=progress)
    if header.is_truncated:
        raise UserError(
            f"{file.path}: truncated; copy it again, or move it out of the folder ('triplepoint trace' shows the rest)"
        )
    numbers = {place: int(match[1]) for place, name in enumerate(header.names) if (match := _STEP.match(name))}
    steps = {
        numbers[name]: (numbers[name], start + header.base_ns, start + duration + header.base_ns)
        for rows in kept
        for start, duration, name in rows[np.isin(rows["name"], list(numbers))].tolist()
    }
    has_rows = bounds[0] < bounds[1]
    has_times = has_rows and (is_alone or bounds[0] + header.base_ns > WALL_NS)
    if not steps and has_times:  # as `trace` takes it: one step, from first to last work
        steps = {0: (0, bounds[0] + header.base_ns, bounds[1] + header.base_ns)}
    said = header.metadata.get("distributedInfo") or {}
    gpus = header.metadata.get("deviceProperties") or [{}]
    return Trace(
        path=file.path,
        rank=rank_of(file, header.rank, is_only),
        world_size=said.get("world_size") if isinstance(said, dict) else None,
        host=str(header.metadata.get("host_name") or ""),
        product=_product(gpus, file),
        is_of_gpu=bool(categories & {Category.KERNEL, Category.MEMCPY, Category.MEMSET}),
        steps=tuple(steps[number] for number in sorted(steps)),
        start_ns=bounds[0] + header.base_ns if has_times else 0,
        end_ns=bounds[1] + header.base_ns if has_times else 0,
    )


def _product(gpus: Any, file: TraceFile) -> str:
    """Return the name of the first GPU that a trace lists; empty where it lists none."""
    if file.part is not None and file.part.gpu_name:
        return file.part.gpu_name
    return str(gpus[0].get("name", "")) if isinstance(gpus, list) and isinstance(gpus[0], dict) else ""


def _check_one_job(traces: Sequence[Trace]) -> None:
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
