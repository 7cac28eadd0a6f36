"""Attempts of a launch: their folders and notes, which nodes they leave out, and whether another one follows.

An attempt's folder is `attempts/<time>-<pid>`. The launcher may be killed at any moment, even between asking Slurm for
nodes and learning the job's number, so what it means to do is written before it does it.
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
"""Digests of the files the point names, as the launcher knew them: agents read only those that look different."""
_SUBMISSION = "submission.json"
_STOP = "stop"
REPLACED = ".replaced"
"""Ends the name of a result that another one takes the place of, until it is removed."""


@dataclass(frozen=True)
class Submission:
    """What is needed to find an attempt's job in Slurm again."""

    name: str
    """Name of the job, the same for all attempts of a run: Slurm runs only one of that name at once."""
    comment: str
    """Comment of the job, different for each attempt."""
    started_at: str
    """UTC, ISO 8601."""
    job_id: str | None = None
    """Number of the job; None until Slurm has given one."""
    mem: str = "0"
    """Memory of each node the job was asked for with, as `--mem` takes it; 0 is all of it."""

    @property
    def started(self) -> datetime:
        """When the attempt was begun."""
        return datetime.fromisoformat(self.started_at)


def new_attempt(folder: Path, planned: PlannedRun, pid: int) -> Path:
    """Make the folder of a new attempt, with `point.json` in it."""
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"[:-3]
    raw = (folder / "attempts" / f"{stem}-{pid}").resolve()
    raw.mkdir(parents=True)
    write_text(raw / "point.json", planned.model_dump_json(indent=2) + "\n")
    return raw


def note_contents(raw: Path, planned: PlannedRun) -> None:
    """Check that the files the point names have not changed since it was planned, and tell the agents what they are.

    Raises:
        UserError: If one has changed.
    """
    if planned.point.contents is not None:
        digests = Digests()
        check_contents(planned.point, digests)
        write_json(raw / CONTENTS, digests.used)


def note_intention(raw: Path, mem: str) -> Submission:
    """Write down that a job is about to be submitted for the attempt in `raw`, and return how it will be called."""
    run = raw.parents[1]
    name = f"{run.name[:100]}.{hashlib.sha256(str(run).encode()).hexdigest()[:8]}"
    submission = Submission(name, f"triplepoint:{raw.name}", datetime.now(UTC).isoformat(), mem=mem)
    write_json(raw / _SUBMISSION, asdict(submission))
    return submission


def note_job(raw: Path, submission: Submission, job_id: str) -> Submission:
    """Write down the number Slurm gave, and return the completed note."""
    noted = replace(submission, job_id=job_id)
    write_json(raw / _SUBMISSION, asdict(noted))
    return noted


def read_submission(raw: Path) -> Submission | None:
    """Return the note of an attempt; None if none was submitted through Slurm."""
    try:
        return Submission(**json.loads((raw / _SUBMISSION).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def tell_to_stop(raw: Path) -> None:
    """Leave word for the agents that the attempt is given up; they look once a second, Slurm or no Slurm."""
    with contextlib.suppress(OSError):  # removed already, or a full disk: agents notice that it was removed
        (raw / _STOP).touch()


def is_told_to_stop(raw: Path) -> bool:
    """Return whether the launcher left word that the attempt is given up."""
    return (raw / _STOP).exists()


def read_reports(raw: Path) -> list[dict[str, Any]]:
    """Return what the agents reported so far, by node; one that a crash of its host cut off is left out."""
    return [report for path in sorted(raw.glob("nodes/node*.json")) if (report := _read(path)) is not None]


def read_beginnings(raw: Path) -> list[dict[str, Any]]:
    """Return what the agents wrote down before they started anything."""
    return [begun for path in sorted(raw.glob("nodes/begun*.json")) if (begun := _read(path)) is not None]


def is_complete(raw: Path, planned: PlannedRun) -> bool:
    """Return whether the ranks of this very point all finished, as the agents of all nodes reported.

    Such an attempt is never thrown away: whatever keeps it from being collected now, a later launch collects it.
    """
    reports = read_reports(raw)
    done = {report["node"] for report in reports if not report["failure"]}
    return len(reports) == len(done) == planned.point.num_nodes and _digest(raw) == planned.digest


def failed_nodes(raw: Path) -> list[int]:
    """Return the nodes whose agents reported a failure."""
    return [report["node"] for report in read_reports(raw) if report["failure"]]


def open_attempts(folder: Path, planned: PlannedRun) -> tuple[list[Path], list[Path]]:
    """Return attempts nobody ended, because their launcher was killed: those to go on with, and those to give up.

    Only an attempt that has gone to Slurm, is of the same point and was not given up can be gone on with; the newest
    comes first.
    """
    resumable: list[Path] = []
    hopeless: list[Path] = []
    for raw in sorted(folder.glob("attempts/*"), reverse=True):
        if (raw / "manifest.json").is_file() or is_complete(raw, planned):
            continue
        keep = read_submission(raw) is not None and not is_told_to_stop(raw) and _digest(raw) == planned.digest
        (resumable if keep else hopeless).append(raw.resolve())
    return resumable, hopeless


def discard(raw: Path) -> None:
    """Remove an attempt that holds neither result nor evidence."""
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
"""Factor on the time limit of the one further try after a time limit."""
_LOST_TWICE = 2


@dataclass(frozen=True)
class Again:
    """How a launch is submitted again."""

    exclude: frozenset[str]
    """Nodes not to use."""
    time_factor: float
    """Factor on the planned time limit."""


def again(tried: Sequence[Manifest], options: Gang) -> Again | None:
    """Return how to submit a launch again after the attempts so far, or None if it is not to be.

    Out of memory is a result and does not come here; a job that someone cancelled stays cancelled.

    Args:
        tried: Manifests of the attempts of this launch, all without a result; the last one just ended.
        options: How often which failure is worth another try.
    """
    retries = [manifest.status.retry for manifest in tried]
    allowed = {Retry.REQUEUE: options.requeues, Retry.RETRY: options.retries, Retry.MORE_TIME: 1}
    last = retries[-1]
    if last not in allowed or retries.count(last) > allowed[last]:
        return None
    return Again(_suspects(tried), MORE_TIME ** retries.count(Retry.MORE_TIME))


def may_requeue(tried: Sequence[Manifest], options: Gang) -> bool:
    """Return whether a launch would be submitted again if it now ended by no fault of its own."""
    return sum(manifest.status.retry is Retry.REQUEUE for manifest in tried) < options.requeues


def with_more_time(planned: PlannedRun, factor: float) -> PlannedRun:
    """Return the run with its time limit times `factor`; limits are no part of what is measured."""
    limits = planned.limits.model_copy(update={"time_limit_s": planned.limits.time_limit_s * factor})
    return planned.model_copy(update={"limits": limits})


def with_less_time(planned: PlannedRun, wall_s: float | None) -> PlannedRun:
    """Return the run with its time limit lowered to what it is expected to need, where that is known and less."""
    if wall_s is None or wall_s >= planned.limits.time_limit_s:
        return planned
    return with_more_time(planned, wall_s / planned.limits.time_limit_s)


def note_bad_node(results: Path, manifest: Manifest) -> Path | None:
    """Write down a node whose device is broken, for all launches to come; return the file, or None if none is named.

    One whose device is only slow is written down too, for launches that can do without it.
    """
    evidence = manifest.evidence
    if manifest.status != Status.BAD_NODE or evidence is None or not evidence.host:
        return None
    note = {"run": manifest.run, "seen_at": manifest.ended_at, "message": evidence.message}
    found = [suspect for suspect in manifest.suspects if suspect.host == evidence.host]
    if found and not any(suspect.is_broken for suspect in found):
        return note_slow_node(results, evidence.host, note)
    path = results / "bad_nodes" / f"{evidence.host}.json"
    write_json(path, note)
    return path


def bad_nodes(results: Path) -> frozenset[str]:
    """Return the nodes earlier launches found broken; whoever mended one removes its file."""
    return frozenset(path.stem for path in (results / "bad_nodes").glob("*.json"))


def _suspects(tried: Sequence[Manifest]) -> frozenset[str]:
    """Return nodes to do without: broken ones, and those lost twice. One lost once may only have been restarted."""
    lost = [m.evidence.host for m in tried if m.status == Status.LOST and m.evidence is not None]
    broken = [m.evidence.host for m in tried if m.status == Status.BAD_NODE and m.evidence is not None]
    return frozenset({*broken, *(host for host in lost if lost.count(host) >= _LOST_TWICE)} - {""})
