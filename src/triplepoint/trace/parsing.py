"""Trace files: which to read, the rank of each, and parsing them into folders of rank tables: `triplepoint parse`."""

import filecmp
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from triplepoint.config.plan import read_planned_run
from triplepoint.errors import UserError
from triplepoint.manifest import read_manifest
from triplepoint.processes import in_processes
from triplepoint.status import Status
from triplepoint.trace.chakra.files import SUFFIXES as CHAKRA_SUFFIXES
from triplepoint.trace.chakra.files import is_chakra, unpacked_name
from triplepoint.trace.lanes import RankSummary
from triplepoint.trace.profilers import SUFFIXES, Part
from triplepoint.trace.rank.parse import parse_rank
from triplepoint.trace.rank.process_groups import read_groups
from triplepoint.trace.rank.work import Reading
from triplepoint.trace.reader import read_parts
from triplepoint.trace.taxonomy import Scheme
from triplepoint.units import NS_PER_S, S_PER_HOUR

Progress = Callable[[str], None]

PARTS = "ranks"
"""Folder of a run that holds its parts, each of which holds a folder for each rank."""
_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)
_RANK_OF_CHAKRA = re.compile(r"\.(\d{1,9})\.\w+$")
"""In the name of a Chakra trace, as ASTRA-sim wants it: `workload.3.et`."""
_RUN_TRACE = re.compile(
    r"rank(\d{1,9})\.json(\.gz|\.zst)?$|ranks?(?P<first>\d{1,9})(?P<last>-\d{1,9})?"
    r"(\.(sqlite|db|rpd|csv)|_kernel_trace\.csv|(?(last)\.json(\.gz|\.zst)?|(?!)))$"
)
"""A trace of Kineto, or one of another profiler with the first of its ranks."""
_TRACE_SUFFIXES = (".json", ".json.gz", ".json.zst", ".json.zstd")
_RECORD_SUFFIX = ".groups.json"
_SHOWN_SUFFIXES = (*_TRACE_SUFFIXES[:3], *SUFFIXES, *CHAKRA_SUFFIXES[:1])


class TraceFile(NamedTuple):
    """A trace, or the part of one rank of a trace of many.

    Attributes:
        path: The file.
        rank: Rank its name says it is of; of a part, the rank of the part; None where nothing tells.
        part: What of the file is this rank's; None for a trace of Kineto.
    """

    path: Path
    rank: int | None
    part: Part | None = None

    @property
    def record(self) -> Path:
        """Return where the launcher's record of process groups would be."""
        return self.path.with_name(self.path.name.split(".json")[0] + _RECORD_SUFFIX)


def find_traces(arguments: Iterable[Path]) -> list[TraceFile]:
    """Return the traces among files and folders, one a rank.

    Raises:
        UserError: If there are none, one is no regular file, or two are of the same rank or hold the same.
    """
    paths: list[Path] = []
    for path in arguments:
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        paths += [p for p in inside if not path.is_dir() or (_may_be_trace(p.name) and p.is_file())]
    paths = [path for path in paths if not path.name.endswith(_RECORD_SUFFIX)]
    if not paths:
        ends = ", ".join(f"*{one}" for one in _SHOWN_SUFFIXES)
        raise UserError(f"{', '.join(map(str, arguments)) or 'no argument'}: no trace files, expected {ends}")
    found: list[TraceFile] = []
    for path in sorted(paths, key=lambda one: _natural(one.name)) if len(paths) > 1 else paths:
        named = _RANK_IN_NAME.findall(path.name)
        if not named and is_chakra(path):
            named = _RANK_OF_CHAKRA.findall(unpacked_name(path))
        found += _split(path, int(named[-1]) if named else None)
    found = _with_ranks(found)
    check_ranks((file.path, file.rank) for file in found if file.rank is not None)
    _check_no_copies(paths)
    return found


def _check_no_copies(paths: Sequence[Path]) -> None:
    """Refuse two files that hold the same: measured times of two ranks never agree to the byte.

    Chakra traces may, which hold work without times.
    """
    by_size: dict[int, list[Path]] = {}
    for path in itertools.filterfalse(is_chakra, paths):
        by_size.setdefault(path.stat().st_size if path.is_file() else 0, []).append(path)
    for size, alike in by_size.items():
        for path, other in itertools.combinations(alike if size else (), 2):
            if filecmp.cmp(path, other, shallow=False):
                raise UserError(f"{other}: has the same content as {path}; pass one file a rank, of one job")


def _may_be_trace(name: str) -> bool:
    return is_chakra(Path(name)) or (name.endswith((*_TRACE_SUFFIXES, *SUFFIXES)) and not name.endswith("stats.csv"))


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key by which `node10` stands behind `node9`."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d{1,18})", name)]


def _split(path: Path, named: int | None) -> list[TraceFile]:
    """Return the traces in a file: one, or one a GPU; of several the name gives the first rank."""
    parts = read_parts(path)
    if len(parts) <= 1:
        part = parts[0] if parts else None
        told = part.rank if part and named is None else named
        return [TraceFile(path, told, part)]
    if all(part.rank is not None for part in parts):
        return [TraceFile(path, part.rank, part) for part in parts]
    return [TraceFile(path, named + index if named is not None else None, part) for index, part in enumerate(parts)]


def _with_ranks(files: list[TraceFile]) -> list[TraceFile]:
    """Give parts without a rank one: in the order of their files and GPUs, or of GPUs where each has a file alone."""
    unknown = [file for file in files if file.part is not None and file.rank is None]
    if not unknown or len(unknown) < len(files):
        return files
    devices = [file.part.device for file in unknown if file.part is not None]
    has_own_files = len({file.path for file in unknown}) == len(unknown)
    if has_own_files and len(set(devices)) < len(devices):
        return files  # several nodes' GPUs of one number: nothing tells them apart
    by_rank = [files[index] for index in sorted(range(len(files)), key=devices.__getitem__)] if has_own_files else files
    return [file._replace(rank=rank) for rank, file in enumerate(by_rank)]


def find_run_traces(folder: Path) -> list[TraceFile]:
    """Return the traces of a run, by rank; those called `rank<N>.json` unopened, as if of Kineto.

    Raises:
        UserError: If a rank has two.
    """
    found: list[TraceFile] = []
    for path in sorted(folder.glob("rank*")):
        match = _RUN_TRACE.fullmatch(path.name)
        if match:
            found += _split(path, int(match[1] or match["first"]))
    check_ranks((file.path, file.rank) for file in found)
    return sorted(found, key=lambda file: file.rank or 0)


def check_ranks(files: Iterable[tuple[Path | str, int | None]]) -> None:
    """Refuse two files of one rank.

    Raises:
        UserError: Naming both.
    """
    seen: dict[int | None, Path | str] = {}
    for path, rank in files:
        if rank in seen:
            raise UserError(f"{path}: rank {rank} is also in {seen[rank]}; pass one file a rank, of one job")
        seen[rank] = path


_LONGEST_GAP_NS = NS_PER_S * S_PER_HOUR
"""Between the work of two ranks of one job: their hosts' clocks may be minutes apart, and their profiled steps, too."""
_FIRST_WALL_NS = 10**18
"""Earlier times, before September 2001, are of a clock that began with the machine."""


def check_one_job(summaries: Sequence[RankSummary]) -> None:
    """Refuse traces of different jobs.

    Raises:
        UserError: If two say different numbers of ranks, a rank is none of its job's, or their work is hours apart.
    """
    sized = [one for one in summaries if one.world_size is not None]
    for one in sized:
        if one.world_size != sized[0].world_size:
            raise UserError(
                f"{one.path}: belongs to a job of {one.world_size} ranks, {sized[0].path} to one of "
                f"{sized[0].world_size}; pass the traces of one job"
            )
        if one.world_size is not None and one.rank >= one.world_size:
            raise UserError(
                f"{one.path}: is of rank {one.rank}, and its job has ranks 0 to {one.world_size - 1}; correct the "
                "file's name"
            )
    timed = sorted((one for one in summaries if one.span[0] > _FIRST_WALL_NS), key=lambda one: one.span)
    for before, after in itertools.pairwise(timed):
        gap = after.span[0] - before.span[1]
        if gap > _LONGEST_GAP_NS:
            raise UserError(
                f"{after.path}: recorded {gap / _LONGEST_GAP_NS:.1f} h after {before.path}; pass the traces of one job"
            )


def rank_of(file: TraceFile, written: int | None, is_only: bool) -> int:
    """Return the rank of a trace: by its name, else by what is written in it, else 0 if it is the only one.

    Raises:
        UserError: If nothing tells.
    """
    if file.rank is not None:
        return file.rank
    if written is not None:
        return written
    if is_only:
        return 0
    inside = "its distributedInfo" if file.part is None else "what is in it"
    raise UserError(f"{file.path}: neither its name (rank<N>) nor {inside} says which rank it is of; rename it")


@dataclass(frozen=True)
class Task:
    """One trace to parse into a folder."""

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
        files: Traces, one a rank.
        folders: Where the tables of each go.
        scheme: Rules of the taxonomy.
        progress: Called every few seconds of a long trace; with several processes, after each trace instead.
        num_jobs: Processes to use; None for as many as cores may be used.
        is_whole_job: Whether the job has no other traces, so that one alone is not prepared for joining.
        steps: Names of the annotations that are the steps; None for those that profilers and frameworks give them.

    Returns:
        The summary of every trace, in the order of the files.

    Raises:
        UserError: If one of them cannot be read.
    """
    is_only = is_whole_job and len(files) == 1
    tasks = [Task(file, folder, scheme, is_only, steps) for file, folder in zip(files, folders, strict=True)]
    num_jobs = min(num_jobs or len(os.sched_getaffinity(0)), len(tasks))
    if num_jobs <= 1:
        return [_parse(task, _numbered(progress, index, len(tasks))) for index, task in enumerate(tasks)]
    summaries = []
    for summary in in_processes(_parse_elsewhere, tasks, num_jobs, f"parsing one of {len(tasks)} traces"):
        summaries.append(summary)
        progress(f"read {Path(summary.path).name} ({len(summaries)} of {len(tasks)})")
    return summaries


def _numbered(progress: Progress, index: int, count: int) -> Progress:
    return lambda line: progress(f"reading {line} ({index + 1} of {count})")


def _parse_elsewhere(task: Task) -> RankSummary:
    return _parse(task, lambda line: None)


def _parse(task: Task, progress: Progress) -> RankSummary:
    how = Reading(task.scheme, task.folder, task.is_only, progress, task.file.part, task.steps)
    return parse_rank(
        task.file.path,
        lambda written: rank_of(task.file, written, task.is_only),
        task.folder,
        read_groups(task.file.record),
        how,
    )


def parse_part(
    run: Path,
    ranks: range,
    scheme: Scheme,
    progress: Progress,
    num_jobs: int | None = None,
    *,
    note: Progress | None = None,
) -> None:
    """Write the tables of some ranks of a run into `ranks/<first>-<last>/rank<N>/`, which is made anew.

    Args:
        run: Folder of the run.
        ranks: The ranks.
        scheme: Rules of the taxonomy.
        progress: Called now and then.
        num_jobs: Processes to use; None for as many as cores may be used.
        note: Called with what is to be known of damage; None for `progress`.

    Raises:
        UserError: If the run finished and a trace is missing or cut off, or one cannot be read. Nothing is left then.
    """
    out = run / PARTS / f"{ranks[0]}-{ranks[-1]}"
    shutil.rmtree(out, ignore_errors=True)
    listed = [file for file in find_run_traces(run / "raw" / "traces") if file.rank in ranks]
    files = [one for file in listed for one in ([file] if file.part else _split(file.path, file.rank))]
    is_finished = read_manifest(run / "raw" / "manifest.json").status == Status.OK
    if is_finished:
        _check_complete(run, ranks, [file.rank for file in files])
    out.mkdir(parents=True)
    try:
        folders = [out / f"rank{file.rank}" for file in files]
        found = parse_traces(files, folders, scheme, progress, num_jobs, is_whole_job=False)
        check_whole(found, is_finished, note or progress)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise


def _check_complete(run: Path, ranks: range, found: Sequence[int | None]) -> None:
    wanted = read_planned_run(run / "point.json").point.traced_ranks
    lost = [rank for rank in wanted if rank in ranks and rank not in found]
    if lost:
        raise UserError(
            f"{run / 'raw' / 'traces'}: no trace of ranks {', '.join(map(str, lost))} (rank{lost[0]}.json.gz, ...); "
            "launch the run again with --force"
        )


def check_whole(found: Sequence[RankSummary], is_finished: bool, progress: Progress) -> None:
    """Refuse what is cut off, since steps would look shorter than they were; tell of single damaged events."""
    for one in found:
        if one.is_truncated and is_finished:
            raise UserError(
                f"{one.path}: truncated, after {one.num_events} events; copy it again, launch the run again with "
                f"--force, or see what is left with 'triplepoint trace {one.path} --out DIR'"
            )
        if one.num_damaged_events:
            progress(f"{one.path}: {one.num_damaged_events} of {one.num_events} events are damaged")
