"""Attempts of a launch: their folders and records, the nodes they exclude, and whether another attempt follows.

An attempt's folder is `attempts/<time>-<pid>`. The launcher may be killed at any moment, even between the submission to
Slurm and the answer with the job's number. Therefore it records a submission before it submits.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from triplepoint.config.contents import Digests, check_contents
from triplepoint.config.plan import PlannedRun, read_planned_run
from triplepoint.config.site import Gang
from triplepoint.errors import UserError
from triplepoint.files import write_json, write_text
from triplepoint.manifest import Manifest
from triplepoint.slow_nodes import note_slow_node
from triplepoint.status import Retry, Status

CONTENTS = "contents.json"
"""File with the launcher's digests of the files that the point names: agents read only files that look different."""
_SUBMISSION = "submission.json"
_STOP = "stop"
REPLACED = ".replaced"
"""Suffix of the folder of an earlier result while a new one takes its place."""


@dataclass(frozen=True)
class Submission:
    """Record by which an attempt's job is found again in Slurm."""

    name: str
    """Name of the job, the same for all attempts of a run: Slurm runs one job of a name at a time."""
    comment: str
    """Comment of the job, different for each attempt."""
    started_at: str
    """Start of the attempt, UTC, ISO 8601."""
    job_id: str | None = None
    """Number of the job; None until Slurm has answered."""
    mem: str = "0"
    """Requested memory per node, as for `--mem`; 0 is all memory."""

    @property
    def started(self) -> datetime:
        """Start of the attempt."""
        return datetime.fromisoformat(self.started_at)


def new_attempt(folder: Path, planned: PlannedRun, pid: int) -> Path:
    """Create the folder of a new attempt, with `point.json` in it."""
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"[:-3]
    raw = (folder / "attempts" / f"{stem}-{pid}").resolve()
    raw.mkdir(parents=True)
    write_text(raw / "point.json", planned.model_dump_json(indent=2) + "\n")
    return raw


def note_contents(raw: Path, planned: PlannedRun) -> None:
    """Check that the files that the point names have not changed since planning, and write their digests for agents.

    Raises:
        UserError: If one has changed.
    """
    if planned.point.contents is not None:
        digests = Digests()
        check_contents(planned.point, digests)
        write_json(raw / CONTENTS, digests.used)


def note_intention(raw: Path, mem: str) -> Submission:
    """Record that a job is about to be submitted for the attempt in `raw`, and return its name and comment."""
    run = raw.parents[1]
    name = f"{run.name[:100]}.{hashlib.sha256(str(run).encode()).hexdigest()[:8]}"
    submission = Submission(name, f"triplepoint:{raw.name}", datetime.now(UTC).isoformat(), mem=mem)
    write_json(raw / _SUBMISSION, asdict(submission))
    return submission


def note_job(raw: Path, submission: Submission, job_id: str) -> Submission:
    """Record the job's number, and return the completed record."""
    completed = replace(submission, job_id=job_id)
    write_json(raw / _SUBMISSION, asdict(completed))
    return completed


def read_submission(raw: Path) -> Submission | None:
    """Return the submission of an attempt; None if it was not submitted to Slurm."""
    try:
        return Submission(**json.loads((raw / _SUBMISSION).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def tell_to_stop(raw: Path) -> None:
    """Write a file that tells the agents to end. They check for it once a second, with or without Slurm."""
    with contextlib.suppress(OSError):  # the folder was removed, which agents notice too, or the disk is full
        (raw / _STOP).touch()


def is_told_to_stop(raw: Path) -> bool:
    """Return whether the launcher has told the agents to end."""
    return (raw / _STOP).exists()


def read_reports(raw: Path) -> list[dict[str, Any]]:
    """Return the agents' reports so far; one that was truncated by a crash of its host is left out."""
    return [report for path in sorted(raw.glob("nodes/node*.json")) if (report := _read(path)) is not None]


def read_beginnings(raw: Path) -> list[dict[str, Any]]:
    """Return the records that agents wrote when they began."""
    return [beginning for path in sorted(raw.glob("nodes/begun*.json")) if (beginning := _read(path)) is not None]


def is_complete(raw: Path, planned: PlannedRun) -> bool:
    """Return whether the agents of all nodes reported that the ranks of this point have finished.

    Such an attempt is never removed: if it cannot be collected now, a later launch collects it.
    """
    reports = read_reports(raw)
    successful = {report["node"] for report in reports if not report["failure"]}
    return len(reports) == len(successful) == planned.point.num_nodes and _digest(raw) == planned.digest


def failed_nodes(raw: Path) -> list[int]:
    """Return the nodes whose agents reported a failure."""
    return [report["node"] for report in read_reports(raw) if report["failure"]]


def open_attempts(folder: Path, planned: PlannedRun) -> tuple[list[Path], list[Path]]:
    """Return the attempts of killed launchers, newest first: those that can be taken over, and the others.

    An attempt can be taken over if it was submitted to Slurm, is of the same point, and was not told to stop.
    """
    resumable: list[Path] = []
    hopeless: list[Path] = []
    for raw in sorted(folder.glob("attempts/*"), reverse=True):
        if (raw / "manifest.json").is_file() or is_complete(raw, planned):
            continue
        is_resumable = read_submission(raw) is not None and not is_told_to_stop(raw) and _digest(raw) == planned.digest
        (resumable if is_resumable else hopeless).append(raw.resolve())
    return resumable, hopeless


def discard(raw: Path) -> None:
    """Remove an attempt that is neither a result nor evidence."""
    shutil.rmtree(raw, ignore_errors=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content


def _digest(raw: Path) -> str | None:
    try:
        return read_planned_run(raw / "point.json").digest
    except UserError:
        return None


MORE_TIME = 2.0
"""Factor on the time limit of the single retry after a time limit was reached."""
_LOST_TWICE = 2


@dataclass(frozen=True)
class Again:
    """Options of another attempt."""

    exclude: frozenset[str]
    """Nodes not to use."""
    time_factor: float
    """Factor on the planned time limit."""


def again(tried: Sequence[Manifest], options: Gang) -> Again | None:
    """Return the options of another attempt after those so far, or None if there is to be none.

    Out of memory is a result and needs no other attempt; a job that someone cancelled is not submitted again.

    Args:
        tried: Manifests of the attempts of this launch, all without a result; the last one just ended.
        options: The site's options, with the number of retries of each kind.
    """
    retries = [manifest.status.retry for manifest in tried]
    allowed = {Retry.REQUEUE: options.requeues, Retry.RETRY: options.retries, Retry.MORE_TIME: 1}
    last = retries[-1]
    if last not in allowed or retries.count(last) > allowed[last]:
        return None
    return Again(_nodes_to_exclude(tried), MORE_TIME ** retries.count(Retry.MORE_TIME))


def may_requeue(tried: Sequence[Manifest], options: Gang) -> bool:
    """Return whether the launch would be submitted again after a failure that is not its own fault."""
    return sum(manifest.status.retry is Retry.REQUEUE for manifest in tried) < options.requeues


def with_more_time(planned: PlannedRun, factor: float) -> PlannedRun:
    """Return the run with its time limit multiplied by `factor`. Limits are not part of the point's digest."""
    limits = planned.limits.model_copy(update={"time_limit_s": planned.limits.time_limit_s * factor})
    return planned.model_copy(update={"limits": limits})


def with_less_time(planned: PlannedRun, wall_s: float | None) -> PlannedRun:
    """Return the run with its time limit lowered to `wall_s`, if that is known and shorter. Unit: s."""
    if wall_s is None or wall_s >= planned.limits.time_limit_s:
        return planned
    return with_more_time(planned, wall_s / planned.limits.time_limit_s)


def note_bad_node(results: Path, manifest: Manifest) -> Path | None:
    """Record the node of a broken device, so that no later launch uses it.

    The node of a device that is only slow is recorded as slow: later launches avoid it if there are enough others.

    Returns:
        The file, or None if the outcome names no node.
    """
    evidence = manifest.evidence
    if manifest.status != Status.BAD_NODE or evidence is None or not evidence.host:
        return None
    note = {"run": manifest.run, "seen_at": manifest.ended_at, "message": evidence.message}
    suspects = [suspect for suspect in manifest.suspects if suspect.host == evidence.host]
    if suspects and not any(suspect.is_broken for suspect in suspects):
        return note_slow_node(results, evidence.host, note)
    path = results / "bad_nodes" / f"{evidence.host}.json"
    write_json(path, note)
    return path


def bad_nodes(results: Path) -> frozenset[str]:
    """Return the nodes that earlier launches found broken. Remove a node's file once it is repaired."""
    return frozenset(path.stem for path in (results / "bad_nodes").glob("*.json"))


def _nodes_to_exclude(tried: Sequence[Manifest]) -> frozenset[str]:
    """Return broken nodes, and nodes that were lost twice. A node that was lost once may only have been restarted."""
    lost = [m.evidence.host for m in tried if m.status == Status.LOST and m.evidence is not None]
    broken = [m.evidence.host for m in tried if m.status == Status.BAD_NODE and m.evidence is not None]
    return frozenset({*broken, *(host for host in lost if lost.count(host) >= _LOST_TWICE)} - {""})
