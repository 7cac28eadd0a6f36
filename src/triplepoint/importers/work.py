"""What a recorded job did: its traces by rank, and its steps, by the profiler's own marks or by a CSV."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.errors import UserError
from triplepoint.importers.times import show_span, show_time
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
