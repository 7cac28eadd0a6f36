"""Launch one run: from `point.json` to a complete `raw/`, with one launcher at a time.

Each attempt has its own folder under `attempts/`, which is moved to `raw/` when it is a result. A failed attempt stays
there, with its logs and a manifest that says why. If a launcher is killed, its Slurm job continues, and the next
launcher takes it over.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType

from triplepoint.claims import Claim
from triplepoint.config.plan import PlannedRun, read_planned_run
from triplepoint.config.rules import refusal
from triplepoint.config.site import Gang as GangOptions
from triplepoint.config.site import gang_of, read_site
from triplepoint.errors import UserError
from triplepoint.launch.attempt import (
    REPLACED,
    Again,
    again,
    bad_nodes,
    discard,
    is_complete,
    may_requeue,
    new_attempt,
    note_bad_node,
    note_contents,
    open_attempts,
    read_submission,
    with_less_time,
    with_more_time,
)
from triplepoint.launch.collect import conclude
from triplepoint.launch.engines import get_engine
from triplepoint.launch.gang import Gang, LocalGang, SlurmGang, adopt, alone_on_machine, submit, wait
from triplepoint.launch.outcome import Account
from triplepoint.launch.slurm import usable_nodes
from triplepoint.manifest import Manifest, read_manifest
from triplepoint.processes import allow_open_files
from triplepoint.slow_nodes import slow_nodes
from triplepoint.status import Status
from triplepoint.tables import STEPS

Say = Callable[[str], None]
CanSpare = Callable[[frozenset[str]], bool]
FIRST = Again(exclude=frozenset(), time_factor=1.0)


def install(attempt: Path, raw: Path, say: Say) -> None:
    """Move a finished attempt to `raw`. An earlier result there is set aside first, and removed at the end if whole.

    Args:
        attempt: Folder of the attempt, with its manifest.
        raw: Folder of the result.
        say: Receives a line if the earlier result is damaged and kept.

    Raises:
        OSError: If that fails; the earlier result is back in its place.
    """
    old = attempt.with_name(attempt.name + REPLACED)
    attempt.joinpath("manifest.json").stat()
    if raw.exists():
        raw.rename(old)
    try:
        attempt.rename(raw)
    except OSError:
        if old.exists():
            old.rename(raw)
        raise
    _discard_or_keep(old, raw, say)
    with contextlib.suppress(OSError):  # not empty: failed attempts stay
        attempt.parent.rmdir()


def _discard_or_keep(old: Path, raw: Path, say: Say) -> None:
    """Remove an earlier result; move it to `raw.damaged-<time>` if it is damaged, since it cannot be made again."""
    if not old.exists():
        return
    if _is_whole(old) or not any(path.is_file() and path.stat().st_size for path in old.rglob("*")):
        discard(old)
        return
    kept = raw.with_name(f"{raw.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}")
    old.rename(kept)
    say(f"{raw.parent.name}: the earlier measurement was damaged and is replaced; kept as {kept}")


def _is_whole(raw: Path) -> bool:
    """Return whether the manifest and the steps of a result can be read."""
    try:
        read_manifest(raw / "manifest.json")
        if (raw / "steps.parquet").exists():
            STEPS.read(raw / "steps.parquet")
    except UserError:
        return False
    return True


def find_result(folder: Path, planned: PlannedRun, say: Say) -> Manifest | None:
    """Return the newest result of this point, moved to `raw` if it is not there yet.

    A launcher may have been killed before it collected a finished attempt. Such an attempt is collected now; its
    manifest may be missing, or truncated by a crash of the machine.

    Raises:
        UserError, OSError: If an attempt cannot be collected; it stays as it is.
    """
    raw = folder / "raw"
    newest = _result_in(raw, planned, say)
    attempts = sorted(path.resolve() for path in folder.glob("attempts/*") if path.is_dir())
    for attempt in reversed([path for path in attempts if path.suffix != REPLACED]):
        manifest = _result_in(attempt, planned, say)
        if manifest is not None and (newest is None or manifest.started_at > newest.started_at):
            say(f"{planned.run}: took the finished launch of {manifest.started_at} from {attempt}")
            install(attempt, raw, say)
            newest = manifest
    for path in attempts:
        if path.suffix == REPLACED and newest is not None:
            _discard_or_keep(path, raw, say)
    return newest


def _result_in(raw: Path, planned: PlannedRun, say: Say) -> Manifest | None:
    try:
        manifest = read_manifest(raw / "manifest.json")
    except UserError:
        if not is_complete(raw, planned):
            return None
        manifest = _collect(raw, planned, say)
    return manifest if manifest.digest == planned.digest and manifest.is_result else None


def _collect(raw: Path, planned: PlannedRun, say: Say) -> Manifest:
    say(f"{planned.run}: collecting what a launch left in {raw}")
    submission = read_submission(raw)
    job_id = submission.job_id if submission is not None else None
    manifest = conclude(raw, planned, Account(job_id, None, by_us=False) if job_id else None)
    if raw.name == "raw" and not manifest.is_result:
        (raw / "manifest.json").unlink()  # a manifest in `raw` is that of a result
    return manifest


class Terminated(KeyboardInterrupt):
    """SIGTERM: the login node shuts down, or the session ends. A Slurm job continues; a local gang ends."""


class LaunchFailed(Exception):  # noqa: N818  (an outcome, as the manifest words it)
    """The gang crashed, hung or was lost: no result, but another launch may succeed. The message is one line."""


def launch(folder: Path, say: Say, force: bool = False, wall_s: float | None = None) -> Manifest:
    """Launch the run in `folder`, unless its result is there already, and return its manifest.

    Args:
        folder: `results/runs/<run>`, with `point.json`.
        say: Receives progress, a line at a time.
        force: Launch even if the result is there.
        wall_s: Expected wall time, if that is less than the run's time limit. Unit: s.

    Raises:
        UserError: If the point, the site, the disk or the set-up does not allow the launch.
        LaunchFailed: If the gang crashed, hung or was lost.
    """
    planned = read_planned_run(folder / "point.json")
    if planned.point.recorded is not None:
        raise UserError(f"{planned.run}: recorded by {planned.point.recorded.source}, not launched; record it again")
    if reason := refusal(planned.point, limits=get_engine(planned.point.engine).LIMITS):
        raise UserError(f"{planned.run}: {reason}")
    options = gang_of(planned.point.cluster.name, read_site())
    _handle_signals()
    with Claim(folder / ".claim", planned.run).acquire(say) as claim:
        finished = find_result(folder, planned, say)
        result = None if force else finished
        resumed = _clear(folder, planned, options, say, resume=result is None)
        if result is not None:
            say(f"{planned.run}: already measured ({result.status}, {result.ended_at}); kept")
            return result
        is_local = planned.limits.executor == "local"
        if is_local:
            allow_open_files(planned.point.num_gpus)
        with alone_on_machine(planned.run, say) if is_local else contextlib.nullcontext():
            return _until_result(folder, with_less_time(planned, wall_s), options, say, resumed, claim)


def _clear(folder: Path, planned: PlannedRun, options: GangOptions, say: Say, resume: bool) -> "_Attempt | None":
    """Return the newest attempt of a killed launcher that can be taken over, if any; end and remove all others."""
    resumable, hopeless = open_attempts(folder, planned)
    resumed = None
    for raw in [*resumable, *hopeless]:
        gang = adopt(raw, planned, options, say)
        if gang is not None and resume and resumed is None and raw in resumable:
            say(f"{planned.run}: continues with job {gang.submission.job_id}, whose launcher has ended")
            resumed = _Attempt(raw, read_planned_run(raw / "point.json"), gang)
            continue
        if gang is not None:
            gang.cancel()
        discard(raw)
    return resumed


class _Attempt:
    """One attempt: its folder and its gang."""

    def __init__(self, raw: Path, planned: PlannedRun, gang: Gang) -> None:
        self.raw, self._planned, self._gang = raw, planned, gang

    def finish(self, can_spare: CanSpare, say: Say) -> Manifest:
        """Wait for the gang, collect its files, and write the manifest.

        Once all ranks have finished, the attempt stays whatever goes wrong, and the next launch collects it.
        """
        try:
            wait(self._gang, _Progress(self.raw, self._planned, say))
            account = self._gang.account() if isinstance(self._gang, SlurmGang) else None
            return conclude(self.raw, self._planned, account, can_spare)
        except (OSError, UserError, KeyboardInterrupt) as error:
            _ignore_signals()  # a second Ctrl-C must not leave the gang running
            if isinstance(error, Terminated) and isinstance(self._gang, SlurmGang):
                say(_job_continues(self._planned, self._gang))
                raise
            if is_complete(self.raw, self._planned):
                say(f"{self._planned.run}: all ranks had finished; kept in {self.raw}, the next launch collects it")
                raise
            self._gang.cancel()
            discard(self.raw)  # the error says all there is to know, and the disk may be full
            raise


def _until_result(
    folder: Path, planned: PlannedRun, options: GangOptions, say: Say, resumed: _Attempt | None, claim: Claim
) -> Manifest:
    """Launch until there is a result, as often as the outcomes of the attempts allow."""
    results = folder.parents[1]
    failed: list[Manifest] = []
    next_try: Again | None = FIRST
    while next_try is not None:
        with_limit = with_more_time(planned, next_try.time_factor)
        attempt = resumed or _start(folder, with_limit, options, next_try.exclude, say)
        resumed = None
        manifest = attempt.finish(partial(_can_spare, results, planned, options, failed), say)
        if manifest.is_result:
            claim.check()
            install(attempt.raw, folder / "raw", say)
            say(f"{planned.run}: {manifest.status} after {manifest.duration_s:.1f} s{_reason_and_advice(manifest)}")
            for gap in (gap for node in manifest.nodes for gap in node.gaps):
                say(f"{planned.run}: {gap}")
            for suspect in manifest.suspects:
                say(f"{planned.run}: kept, though {suspect}")
            for note in manifest.step_notes:
                say(f"{planned.run}: {note}")
            return manifest
        if bad_node := note_bad_node(results, manifest):
            say(f"{planned.run}: {bad_node.stem} is left out from now on; remove {bad_node} once it is repaired")
        failed.append(manifest)
        next_try = again(failed, options) if planned.limits.executor == "slurm" else None
        if next_try is not None:
            say(f"{_describe_failure(manifest)}; submitted again")
    raise LaunchFailed(f"{_describe_failure(manifest)}; logs in {attempt.raw / 'logs'}")


def _reason_and_advice(manifest: Manifest) -> str:
    """Return why a result, such as out of memory, has no steps, and what to do; nothing if it has steps."""
    if manifest.evidence is None:
        return ""
    advice = "; micro_batch_size 1, recompute: full, data_parallel_sharding or more tp or pp need less memory"
    return f": {manifest.evidence.message}{advice if manifest.status == Status.OOM else ''}"


def _can_spare(
    results: Path, planned: PlannedRun, options: GangOptions, failed: list[Manifest], hosts: frozenset[str]
) -> bool:
    """Return whether the launch may be submitted once more, and enough nodes are left without these hosts."""
    if planned.limits.executor != "slurm" or not may_requeue(failed, options):
        return False
    return _has_enough_nodes(planned, options, bad_nodes(results) | hosts)


def _has_enough_nodes(planned: PlannedRun, options: GangOptions, left_out: frozenset[str]) -> bool:
    """Return whether the partition has enough nodes without those left out."""
    return len(usable_nodes(options.partition) - left_out - set(options.exclude)) >= planned.point.num_nodes


def _nodes_to_exclude(
    results: Path, planned: PlannedRun, options: GangOptions, exclude: frozenset[str], say: Say
) -> frozenset[str]:
    """Return the nodes not to use: `exclude`, known broken nodes, and slow ones if enough others are left.

    Raises:
        UserError: If the point names a host that is known to be broken.
    """
    broken, slow, named = exclude | bad_nodes(results), slow_nodes(results), frozenset(planned.point.hosts)
    if broken_hosts := sorted(named & broken):
        raise UserError(
            f"{planned.run}: hosts names {', '.join(broken_hosts)}, left out as broken; repair it and remove its file "
            f"in {results / 'bad_nodes'}, or name another host"
        )
    if named:
        return broken
    if slow and not _has_enough_nodes(planned, options, broken | slow):
        say(f"{planned.run}: {', '.join(sorted(slow))} would be left out as slow, but there are too few other nodes")
        return broken
    return broken | slow


def _describe_failure(manifest: Manifest) -> str:
    evidence = manifest.evidence
    assert evidence is not None, "every status but ok comes with evidence"
    where = f"rank {evidence.rank} on {evidence.host}" if evidence.rank is not None else evidence.host or "the gang"
    return f"{manifest.run}: {manifest.status}: {where}: {evidence.message}"


def _start(folder: Path, planned: PlannedRun, options: GangOptions, exclude: frozenset[str], say: Say) -> _Attempt:
    raw = new_attempt(folder, planned, os.getpid())
    gang: Gang
    try:
        note_contents(raw, planned)
        if planned.limits.executor == "slurm":
            excluded = _nodes_to_exclude(folder.parents[1], planned, options, exclude, say)
            gang = submit(raw, planned, options, excluded, say)
        else:
            gang = LocalGang(raw)
    except (OSError, UserError, KeyboardInterrupt) as error:
        _ignore_signals()
        if isinstance(error, Terminated) and planned.limits.executor == "slurm":
            say(_job_continues(planned, adopt(raw, planned, options, say)))
            raise  # the record of the submission stays, by which the next launch finds the job
        if orphan := adopt(raw, planned, options, say):
            orphan.cancel()
        discard(raw)
        raise
    say(f"{planned.run}: started {planned.point.num_gpus} ranks")
    return _Attempt(raw, planned, gang)


class _Progress:
    """Reports the number of finished steps whenever it has changed."""

    def __init__(self, raw: Path, planned: PlannedRun, say: Say) -> None:
        self._file = raw / "steps" / "rank0.jsonl"
        self._kinds = planned.point.steps.kinds
        self._run, self._say, self._done = planned.run, say, 0

    def __call__(self) -> None:
        try:
            done = self._file.read_bytes().count(b"\n")
        except OSError:  # not there yet, or the file system is unreachable for a moment
            return
        if self._done < done <= len(self._kinds):
            self._say(f"{self._run}: step {done}/{len(self._kinds)} ({self._kinds[done - 1]})")
            self._done = done


def _handle_signals() -> None:
    """Let SIGINT end the launch with its gang, and SIGTERM the launcher alone: a Slurm job is left to the next one."""
    signal.signal(signal.SIGTERM, _on_signal)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # which a shell sets for background jobs
        signal.signal(signal.SIGINT, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    # Ctrl-C in a terminal arrives twice, from the terminal and from Snakemake. The second must not interrupt the
    # clean-up after the first.
    _ignore_signals()
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _job_continues(planned: PlannedRun, gang: SlurmGang | None) -> str:
    """Return the message of a launcher that ends while its Slurm job continues."""
    job = f"job {gang.submission.job_id}" if gang is not None else "a job that Slurm may have accepted"
    return f"{planned.run}: told to end by SIGTERM; {job} goes on, and the next launch of this run goes on with it"


def _ignore_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
