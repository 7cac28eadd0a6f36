"""From trace files to `kernels.parquet`, `intervals.parquet` and `timeline.parquet`: all of them or none."""

import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triplepoint.errors import UserError
from triplepoint.files import whole
from triplepoint.tables import INTERVALS, KERNELS, TIMELINE
from triplepoint.trace.export.timeline import Span, span_rows, step_spans
from triplepoint.trace.kineto.reader import read_trace
from triplepoint.trace.lanes import Step
from triplepoint.trace.rank.breakdown import interval_rows, kernel_rows
from triplepoint.trace.rank.collectives import read_groups
from triplepoint.trace.rank.phases import find_phases, find_steps
from triplepoint.trace.rank.work import find_work
from triplepoint.trace.summary import summarise_rank

_RUN_TRACE = re.compile(r"rank(\d+)\.json(\.gz)?$")
_RANK_IN_NAME = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_TRACE_SUFFIXES = (".json", ".json.gz")
_RECORD_SUFFIX = ".groups.json"
_TABLES = (KERNELS, INTERVALS, TIMELINE)

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class RankTrace:
    """One analysed trace: rows of its rank, spans of its first step (still on the wall clock), a readable summary."""

    path: Path
    rank: int
    kernels: Rows
    intervals: Rows
    first_step: Step | None
    spans: list[Span]
    summary: str


def trace_run(raw: Path, out: Path, progress: Callable[[str], None], *, allow_empty: bool = False) -> None:
    """Write the trace tables of a run.

    Args:
        raw: The run's `raw/` folder, with `traces/rank<N>.json.gz` and maybe `traces/rank<N>.groups.json`.
        out: Folder the tables are written to.
        progress: Called with one line per trace.
        allow_empty: Write empty tables where there are no traces, as after running out of memory.

    Raises:
        UserError: If there are no traces and they were expected, or one cannot be read. No table is written then.
    """
    folder = raw / "traces"
    found: dict[int, Path] = {}
    for path in sorted(folder.glob("rank*.json*")):
        match = _RUN_TRACE.fullmatch(path.name)
        if match:
            rank = int(match[1])
            if rank in found:
                raise UserError(f"{path}: rank {rank} is also in {found[rank].name}; remove one of them")
            found[rank] = path
    if not found and not allow_empty:
        raise UserError(f"{folder}: no traces (rank0.json.gz, ...); launch the run again with profiled steps")
    ranks: list[RankTrace] = []
    for rank in sorted(found):
        progress(f"trace rank {rank} ({len(ranks) + 1} of {len(found)})")
        ranks.append(_analyse(found[rank], rank))
    _write(out, ranks)


def trace_files(
    files: Iterable[Path], out: Path | None, progress: Callable[[str], None] = lambda line: None
) -> list[RankTrace]:
    """Write the trace tables of loose files of one job.

    Args:
        files: Traces, or folders of traces; the launcher's records of groups among them are read with their trace.
        out: Folder the tables are written to, None for no tables.
        progress: Called with one line per trace.

    Returns:
        What was found, by rank.

    Raises:
        UserError: If there are no traces, one cannot be read, has no rank, or shares its rank with another.
    """
    paths = _expand(files)
    ranks: dict[int, RankTrace] = {}
    for path in paths:
        progress(f"trace {path.name} ({len(ranks) + 1} of {len(paths)})")
        one = _analyse(path, None, is_only=len(paths) == 1)
        if one.rank in ranks:
            raise UserError(
                f"{path}: rank {one.rank} is also in {ranks[one.rank].path}; pass one file a rank, of one job"
            )
        ranks[one.rank] = one
    ordered = [ranks[rank] for rank in sorted(ranks)]
    if out is not None:
        _write(out, ordered)
    return ordered


def summarise(ranks: Iterable[RankTrace]) -> str:
    """Return a few readable lines per rank."""
    return "\n".join(one.summary for one in ranks)


def _expand(files: Iterable[Path]) -> list[Path]:
    paths: list[Path] = []
    for path in files:
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        paths += [p for p in inside if not path.is_dir() or p.name.endswith(_TRACE_SUFFIXES)]
    paths = [path for path in paths if not path.name.endswith(_RECORD_SUFFIX)]
    if not paths:
        raise UserError("no trace files (*.json, *.json.gz) among the arguments")
    return paths


def _analyse(path: Path, rank: int | None, is_only: bool = False) -> RankTrace:
    trace = read_trace(path)
    if rank is None:
        rank = _rank_of(path, trace.rank, is_only)
    groups = read_groups(path.with_name(path.name.split(".json")[0] + _RECORD_SUFFIX))
    work = find_work(trace, groups)
    steps = find_steps(trace, work)
    phases = find_phases(trace, work)
    return RankTrace(
        path=path,
        rank=rank,
        kernels=kernel_rows(rank, steps, work),
        intervals=interval_rows(rank, steps, phases, work),
        first_step=steps[0] if steps else None,
        spans=step_spans(steps[0], phases, work) if steps else [],
        summary=summarise_rank(rank, work),
    )


def _rank_of(path: Path, written: int | None, is_only: bool) -> int:
    in_name = _RANK_IN_NAME.findall(path.name)
    if in_name:
        return int(in_name[-1])
    if written is not None:
        return written
    if is_only:
        return 0
    raise UserError(f"{path}: neither its name (rank<N>) nor its distributedInfo says which rank it is of; rename it")


def _write(out: Path, ranks: list[RankTrace]) -> None:
    steps = [one.first_step for one in ranks if one.first_step is not None]
    first = min((step.number for step in steps), default=0)
    origin = min((step.start for step in steps if step.number == first), default=0)
    drawn = [one for one in ranks if one.first_step is not None and one.first_step.number == first]
    rows = (
        [row for one in ranks for row in one.kernels],
        [row for one in ranks for row in one.intervals],
        [row for one in drawn for row in span_rows(one.rank, one.spans, origin)],
    )
    checked = [table.from_rows(content) for table, content in zip(_TABLES, rows, strict=True)]
    with contextlib.ExitStack() as stack:
        scratch = [stack.enter_context(whole(out / f"{table.name}.parquet")) for table in _TABLES]
        for table, path, content in zip(_TABLES, scratch, checked, strict=True):
            table.write(path, content)
