"""Traces to folders of rank tables, several at once where there are cores for it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from triplepoint.jobs import in_processes
from triplepoint.trace.inputs import TraceFile, rank_of
from triplepoint.trace.rank.found import Reading
from triplepoint.trace.rank.groups import read_groups
from triplepoint.trace.rank.parse import parse_rank
from triplepoint.trace.rank.summary import RankSummary
from triplepoint.trace.taxonomy import Scheme

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """One trace to parse into a folder."""

    file: TraceFile
    folder: Path
    scheme: Scheme
    is_only: bool


def parse_traces(
    files: list[TraceFile],
    folders: list[Path],
    scheme: Scheme,
    progress: Progress,
    num_jobs: int | None = None,
    *,
    is_whole_job: bool = True,
) -> list[RankSummary]:
    """Write the tables of every rank.

    Args:
        files: Traces, one a rank.
        folders: Where the tables of each go.
        scheme: Rules of the taxonomy.
        progress: Called every few seconds of a long trace; with several processes, after each trace instead.
        num_jobs: Processes to use; None for as many as cores may be used.
        is_whole_job: Whether the job has no other traces, so that one alone is not prepared for joining.

    Returns:
        The summary of every trace, in the order of the files.

    Raises:
        UserError: If one of them cannot be read.
    """
    is_only = is_whole_job and len(files) == 1
    tasks = [Task(file, folder, scheme, is_only) for file, folder in zip(files, folders, strict=True)]
    num_jobs = min(num_jobs or len(os.sched_getaffinity(0)), len(tasks))
    if num_jobs <= 1:
        return [_parse(task, _numbered(progress, index, len(tasks))) for index, task in enumerate(tasks)]
    summaries = []
    for summary in in_processes(_parse_elsewhere, tasks, num_jobs, f"parsing one of {len(tasks)} traces"):
        summaries.append(summary)
        progress(f"{Path(summary.path).name} ({len(summaries)} of {len(tasks)})")
    return summaries


def _numbered(progress: Progress, index: int, count: int) -> Progress:
    return lambda line: progress(f"{line} ({index + 1} of {count})")


def _parse_elsewhere(task: Task) -> RankSummary:
    return _parse(task, lambda line: None)


def _parse(task: Task, progress: Progress) -> RankSummary:
    how = Reading(task.scheme, task.folder, task.is_only, progress)
    return parse_rank(
        task.file.path,
        lambda written: rank_of(task.file, written, task.is_only),
        task.folder,
        read_groups(task.file.record),
        how,
    )
