"""Find trace files and the rank of each, and parse them into tables of ranks."""

import filecmp
import itertools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from triplepoint.errors import UserError
from triplepoint.processes import in_processes
from triplepoint.trace.chakra.files import SUFFIXES as CHAKRA_SUFFIXES
from triplepoint.trace.chakra.files import is_chakra, unpacked_name
from triplepoint.trace.profilers import SUFFIXES, Part
from triplepoint.trace.rank.parse import parse_rank
from triplepoint.trace.rank.process_groups import read_groups
from triplepoint.trace.rank.work import ReadOptions
from triplepoint.trace.rank_results import RankSummary
from triplepoint.trace.reader import read_parts
from triplepoint.trace.taxonomy import Scheme
from triplepoint.units import NS_PER_S, S_PER_HOUR

Progress = Callable[[str], None]

_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)
_RANK_OF_CHAKRA = re.compile(r"\.(\d{1,9})\.\w+$")
"""Rank in the name of a Chakra trace, as ASTRA-sim expects it: `workload.3.et`."""
_RUN_TRACE = re.compile(
    r"rank(\d{1,9})\.json(\.gz|\.zst)?$|ranks?(?P<first>\d{1,9})(?P<last>-\d{1,9})?"
    r"(\.(sqlite|db|rpd|csv)|_kernel_trace\.csv|(?(last)\.json(\.gz|\.zst)?|(?!)))$"
)
"""Name of a trace in a run's folder: of Kineto with its rank, or of another profiler with the first of its ranks."""
_TRACE_SUFFIXES = (".json", ".json.gz", ".json.zst", ".json.zstd")
_RECORD_SUFFIX = ".groups.json"
_SHOWN_SUFFIXES = (*_TRACE_SUFFIXES[:3], *SUFFIXES, *CHAKRA_SUFFIXES[:1])
"""Suffixes that an error message names."""


class TraceFile(NamedTuple):
    """The trace of one rank: a file, or a part of a file with several ranks.

    Attributes:
        path: The file.
        rank: Rank by the file's name, or of the part; None if neither has one.
        part: Part of the file that belongs to the rank; None for a trace of Kineto or Chakra.
    """

    path: Path
    rank: int | None
    part: Part | None = None

    @property
    def record(self) -> Path:
        """Path of the launcher's record of process groups, if there is one."""
        return self.path.with_name(self.path.name.split(".json")[0] + _RECORD_SUFFIX)


def find_traces(arguments: Iterable[Path]) -> list[TraceFile]:
    """Return the traces among files and folders, one per rank.

    Raises:
        UserError: If there are none, one is no regular file, or two have the same rank or the same content.
    """
    paths: list[Path] = []
    for path in arguments:
        candidates = sorted(path.iterdir()) if path.is_dir() else [path]
        paths += [p for p in candidates if not path.is_dir() or (_may_be_trace(p.name) and p.is_file())]
    paths = [path for path in paths if not path.name.endswith(_RECORD_SUFFIX)]
    if not paths:
        suffixes = ", ".join(f"*{suffix}" for suffix in _SHOWN_SUFFIXES)
        raise UserError(f"{', '.join(map(str, arguments)) or 'no argument'}: no trace files, expected {suffixes}")
    files: list[TraceFile] = []
    for path in sorted(paths, key=lambda path: _natural_key(path.name)) if len(paths) > 1 else paths:
        ranks = _RANK_IN_NAME.findall(path.name)
        if not ranks and is_chakra(path):
            ranks = _RANK_OF_CHAKRA.findall(unpacked_name(path))
        files += _split(path, int(ranks[-1]) if ranks else None)
    files = _with_ranks(files)
    check_ranks((file.path, file.rank) for file in files if file.rank is not None)
    _check_no_copies(paths)
    return files


def _check_no_copies(paths: Sequence[Path]) -> None:
    """Refuse two files with the same content: measured times of two ranks are never identical.

    Chakra traces may have the same content, since they may have no times.
    """
    by_size: dict[int, list[Path]] = {}
    for path in itertools.filterfalse(is_chakra, paths):
        by_size.setdefault(path.stat().st_size if path.is_file() else 0, []).append(path)
    for size, same_size in by_size.items():
        for path, other in itertools.combinations(same_size if size else (), 2):
            if filecmp.cmp(path, other, shallow=False):
                raise UserError(f"{other}: has the same content as {path}; pass one file a rank, of one job")


def _may_be_trace(name: str) -> bool:
    return is_chakra(Path(name)) or (name.endswith((*_TRACE_SUFFIXES, *SUFFIXES)) and not name.endswith("stats.csv"))


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which `node10` comes after `node9`."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d{1,18})", name)]


def _split(path: Path, named_rank: int | None) -> list[TraceFile]:
    """Return the traces in a file: one, or one per GPU.

    Args:
        path: The file.
        named_rank: Rank in its name, the first one if there are several GPUs; None if it has none.
    """
    parts = read_parts(path)
    if len(parts) <= 1:
        part = parts[0] if parts else None
        rank = part.rank if part and named_rank is None else named_rank
        return [TraceFile(path, rank, part)]
    if all(part.rank is not None for part in parts):
        return [TraceFile(path, part.rank, part) for part in parts]
    if named_rank is None:
        return [TraceFile(path, None, part) for part in parts]
    return [TraceFile(path, named_rank + index, part) for index, part in enumerate(parts)]


def _with_ranks(files: list[TraceFile]) -> list[TraceFile]:
    """Number parts without a rank, if no file has one: by GPU if each has its own file, else in the order given."""
    unknown = [file for file in files if file.part is not None and file.rank is None]
    if not unknown or len(unknown) < len(files):
        return files
    devices = [file.part.device for file in unknown if file.part is not None]
    has_own_files = len({file.path for file in unknown}) == len(unknown)
    if has_own_files and len(set(devices)) < len(devices):
        return files  # GPUs of several nodes with the same number
    by_rank = [files[index] for index in sorted(range(len(files)), key=devices.__getitem__)] if has_own_files else files
    return [file._replace(rank=rank) for rank, file in enumerate(by_rank)]


def find_run_traces(folder: Path) -> list[TraceFile]:
    """Return the traces in a run's folder, by rank.

    Raises:
        UserError: If a rank has two.
    """
    files: list[TraceFile] = []
    for path in sorted(folder.glob("rank*")):
        match = _RUN_TRACE.fullmatch(path.name)
        if match:
            files += _split(path, int(match[1] or match["first"]))
    check_ranks((file.path, file.rank) for file in files)
    return sorted(files, key=lambda file: file.rank or 0)


def check_ranks(files: Iterable[tuple[Path | str, int | None]]) -> None:
    """Refuse two files of one rank.

    Raises:
        UserError: If there are two; names both.
    """
    seen: dict[int | None, Path | str] = {}
    for path, rank in files:
        if rank in seen:
            raise UserError(f"{path}: rank {rank} is also in {seen[rank]}; pass one file a rank, of one job")
        seen[rank] = path


_LONGEST_GAP_NS = NS_PER_S * S_PER_HOUR
"""Longest gap between the work of two ranks of one job: clocks of hosts, and profiled steps, may be minutes apart."""
_FIRST_WALL_NS = 10**18
"""Times before, in September 2001, are from a clock that starts with the machine."""


def check_one_job(summaries: Sequence[RankSummary]) -> None:
    """Refuse traces of different jobs.

    Raises:
        UserError: If two traces have different world sizes, a rank is beyond its world size, or the work of two traces
            is hours apart.
    """
    with_size = [summary for summary in summaries if summary.world_size is not None]
    for summary in with_size:
        first = with_size[0]
        if summary.world_size != first.world_size:
            raise UserError(
                f"{summary.path}: belongs to a job of {summary.world_size} ranks, {first.path} to one of "
                f"{first.world_size}; pass the traces of one job"
            )
        if summary.world_size is not None and summary.rank >= summary.world_size:
            raise UserError(
                f"{summary.path}: is of rank {summary.rank}, and its job has ranks 0 to {summary.world_size - 1}; "
                "correct the file's name"
            )
    on_wall_clock = [summary for summary in summaries if summary.span[0] > _FIRST_WALL_NS]
    for before, after in itertools.pairwise(sorted(on_wall_clock, key=lambda summary: summary.span)):
        gap_ns = after.span[0] - before.span[1]
        if gap_ns > _LONGEST_GAP_NS:
            gap_h = gap_ns / _LONGEST_GAP_NS
            raise UserError(f"{after.path}: recorded {gap_h:.1f} h after {before.path}; pass the traces of one job")


def rank_of(file: TraceFile, rank_inside: int | None, is_only: bool) -> int:
    """Return the rank of a trace: by its name, else by its content, else 0 if it is the only one.

    Args:
        file: The trace.
        rank_inside: Rank in the content of the trace; None if it has none.
        is_only: Whether the job has no other trace.

    Raises:
        UserError: If the rank is unknown.
    """
    if file.rank is not None:
        return file.rank
    if rank_inside is not None:
        return rank_inside
    if is_only:
        return 0
    inside = "its distributedInfo" if file.part is None else "what is in it"
    raise UserError(f"{file.path}: neither its name (rank<N>) nor {inside} says which rank it is of; rename it")


@dataclass(frozen=True)
class Task:
    """Arguments of parsing one trace, as passed to another process."""

    file: TraceFile
    folder: Path
    scheme: Scheme
    is_only: bool
    steps: re.Pattern[str] | None = None


def parse_traces(
    files: list[TraceFile],
    folders: list[Path],
    scheme: Scheme,
    progress: Progress,
    num_jobs: int | None = None,
    *,
    is_whole_job: bool = True,
    steps: re.Pattern[str] | None = None,
) -> list[RankSummary]:
    """Write the tables of every rank.

    Args:
        files: Traces, one per rank.
        folders: Folder for the tables of each.
        scheme: Rules of the taxonomy.
        progress: Called every few seconds of a long trace; with several processes, after each trace instead.
        num_jobs: Processes to use; None for one per core that may be used.
        is_whole_job: Whether the job has no other traces. Then a single trace is not prepared for joining.
        steps: Names of the annotations that mark steps; None for the names that profilers and frameworks use.

    Returns:
        The summary of every trace, in the order of the files.

    Raises:
        UserError: If one of them cannot be read.
    """
    is_only = is_whole_job and len(files) == 1
    tasks = [Task(file, folder, scheme, is_only, steps) for file, folder in zip(files, folders, strict=True)]
    num_jobs = min(num_jobs or len(os.sched_getaffinity(0)), len(tasks))
    if num_jobs <= 1:
        return [_parse(task, _with_count(progress, index, len(tasks))) for index, task in enumerate(tasks)]
    summaries = []
    for summary in in_processes(_parse_silently, tasks, num_jobs, f"parsing one of {len(tasks)} traces"):
        summaries.append(summary)
        progress(f"read {Path(summary.path).name} ({len(summaries)} of {len(tasks)})")
    return summaries


def _with_count(progress: Progress, index: int, count: int) -> Progress:
    return lambda line: progress(f"reading {line} ({index + 1} of {count})")


def _parse_silently(task: Task) -> RankSummary:
    return _parse(task, lambda line: None)


def _parse(task: Task, progress: Progress) -> RankSummary:
    options = ReadOptions(task.scheme, task.folder, task.is_only, progress, task.file.part, task.steps)
    return parse_rank(
        task.file.path,
        lambda rank_inside: rank_of(task.file, rank_inside, task.is_only),
        task.folder,
        read_groups(task.file.record),
        options,
    )


def check_whole(summaries: Sequence[RankSummary], is_finished: bool, progress: Progress) -> None:
    """Refuse truncated traces of a finished run, in which steps would look too short, and report damaged events.

    Raises:
        UserError: If a trace of a finished run is truncated.
    """
    for summary in summaries:
        if summary.is_truncated and is_finished:
            raise UserError(
                f"{summary.path}: truncated, after {summary.num_events} events; copy it again, launch the run again "
                f"with --force, or see what is left with 'triplepoint trace {summary.path} --out DIR'"
            )
        if summary.num_damaged_events:
            progress(f"{summary.path}: {summary.num_damaged_events} of {summary.num_events} events are damaged")
