"""The launch stage: one run from `point.json` to `raw/`, never twice at once, never half.

Everything is made in a folder of its own under `attempts/` and moved to `raw/` when it is a result. An attempt that
failed stays where it is, with its logs and a manifest that says why. One whose launcher was killed is gone on with
where it is a job of Slurm, which did not notice.
"""

import contextlib
import os
import signal
from collections.abc import Callable
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
from triplepoint.slow_nodes import slow_nodes
from triplepoint.status import Status

Say = Callable[[str], None]
CanSpare = Callable[[frozenset[str]], bool]
FIRST = Again(exclude=frozenset(), time_factor=1.0)


def install(attempt: Path, raw: Path) -> None:
    """Move a finished attempt to `raw`; what stood there before goes first to the side, then away.

    Raises:
        OSError: If that fails, with what stood there before in its place.
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
    discard(old)
    with contextlib.suppress(OSError):  # not empty: earlier attempts that failed stay
        attempt.parent.rmdir()


def find_result(folder: Path, planned: PlannedRun, say: Say) -> Manifest | None:
    """Return the result of the very same point in `raw`, put there now if an earlier launcher did not get to it.

    Collected is what a launch left complete: its manifest may be missing, or cut off by a crash of the machine.

    Raises:
        UserError, OSError: If it cannot be collected; it stays as it is.
    """
    raw = folder / "raw"
    kept = _result_in(raw, planned, say)
    attempts = sorted(path.resolve() for path in folder.glob("attempts/*") if path.is_dir())
    for attempt in reversed([path for path in attempts if path.suffix != REPLACED]):
        found = _result_in(attempt, planned, say)
        if found is not None and (kept is None or found.started_at > kept.started_at):
            say(f"{planned.run}: took the finished launch of {found.started_at} from {attempt}")
            install(attempt, raw)
            kept = found
    for path in attempts:
        if path.suffix == REPLACED and kept is not None:
            discard(path)
    return kept


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
    """SIGTERM: the login node shuts down, or the session ends. A job of Slurm goes on; a local gang does not."""


class LaunchFailed(Exception):  # noqa: N818  (an outcome, as the manifest words it)
    """The gang crashed, hung or was lost: no result, worth another try. The message is one line with the evidence."""


def launch(folder: Path, say: Say, force: bool = False, wall_s: float | None = None) -> Manifest:
    """Launch the run in `folder` unless its result is already there, and return its manifest.

    Args:
        folder: `results/runs/<run>`, holding `point.json`.
        say: Told of progress, a line at a time.
        force: Launch even if the result is there.
        wall_s: Wall time it is expected to need at most, where that is less than its time limit. Unit: s.

    Raises:
        UserError: If the point, the site, the disk or the set-up does not allow it.
        LaunchFailed: If the gang crashed, hung, or was lost.
    """
    planned = read_planned_run(folder / "point.json")
    if planned.point.recorded is not None:
        raise UserError(f"{planned.run}: recorded by {planned.point.recorded.source}, not launched; record it again")
    if reason := refusal(planned.point, limits=get_engine(planned.point.engine).LIMITS):
        raise UserError(f"{planned.run}: {reason}")
    options = gang_of(planned.point.cluster.name, read_site())
    _listen()
    with Claim(folder / ".claim", planned.run).acquire(say) as claim:
        found = find_result(folder, planned, say)
        kept = None if force else found
        resumed = _clear(folder, planned, options, say, resume=kept is None)
        if kept is not None:
            say(f"{planned.run}: already measured ({kept.status}, {kept.ended_at}); kept")
            return kept
        is_local = planned.limits.executor == "local"
        with alone_on_machine(planned.run, say) if is_local else contextlib.nullcontext():
            return _until_result(folder, with_less_time(planned, wall_s), options, say, resumed, claim)


def _clear(folder: Path, planned: PlannedRun, options: GangOptions, say: Say, resume: bool) -> "_Attempt | None":
    """Return the attempt of a killed launcher that can be gone on with, if any; end and remove all others."""
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
    """One gang from its start to its manifest."""

    def __init__(self, raw: Path, planned: PlannedRun, gang: Gang) -> None:
        self.raw, self._planned, self._gang = raw, planned, gang

    def finish(self, can_spare: CanSpare, say: Say) -> Manifest:
        """Wait for the gang, collect what it left, and write the manifest.

        Whatever goes wrong once all ranks have finished, the attempt stays, for the next launch to collect.
        """
        try:
            wait(self._gang, _Progress(self.raw, self._planned, say))
            account = self._gang.account() if isinstance(self._gang, SlurmGang) else None
            return conclude(self.raw, self._planned, account, can_spare)
        except (OSError, UserError, KeyboardInterrupt) as error:
            _ignore_signals()  # an impatient second Ctrl-C must not leave the gang running
            if isinstance(error, Terminated) and isinstance(self._gang, SlurmGang):
                say(_goes_on(self._planned, self._gang))
                raise
            if is_complete(self.raw, self._planned):
                say(f"{self._planned.run}: all ranks had finished; kept in {self.raw}, the next launch collects it")
                raise
            self._gang.cancel()
            discard(self.raw)  # the line that is shown tells it all; a full disk is left no fuller
            raise


def _until_result(
    folder: Path, planned: PlannedRun, options: GangOptions, say: Say, resumed: _Attempt | None, claim: Claim
) -> Manifest:
    """Launch, and again where the outcome deserves it, until there is a result."""
    results = folder.parents[1]
    tried: list[Manifest] = []
    how: Again | None = FIRST
    while how is not None:
        attempt = resumed or _start(folder, with_more_time(planned, how.time_factor), options, how.exclude, say)
        resumed = None
        manifest = attempt.finish(partial(_can_spare, results, planned, options, tried), say)
        if manifest.is_result:
            claim.check()
            install(attempt.raw, folder / "raw")
            say(f"{planned.run}: {manifest.status} after {manifest.duration_s:.1f} s{_why(manifest)}")
            for gap in (gap for node in manifest.nodes for gap in node.gaps):
                say(f"{planned.run}: {gap}")
            for suspect in manifest.suspects:
                say(f"{planned.run}: kept, though {suspect}")
            for note in manifest.step_notes:
                say(f"{planned.run}: {note}")
            return manifest
        if noted := note_bad_node(results, manifest):
            say(f"{planned.run}: {noted.stem} is left out from now on; remove {noted} once it is repaired")
        tried.append(manifest)
        how = again(tried, options) if planned.limits.executor == "slurm" else None
        if how is not None:
            say(f"{_account_of(manifest)}; submitted again")
    raise LaunchFailed(f"{_account_of(manifest)}; logs in {attempt.raw / 'logs'}")


def _why(manifest: Manifest) -> str:
    """Return why there is no step to speak of in a result, and what to do; nothing where there are steps."""
    if manifest.evidence is None:
        return ""
    ways = "; micro_batch_size 1, recompute: full, data_parallel_sharding or more tp or pp need less memory"
    return f": {manifest.evidence.message}{ways if manifest.status == Status.OOM else ''}"


def _can_spare(
    results: Path, planned: PlannedRun, options: GangOptions, tried: list[Manifest], hosts: frozenset[str]
) -> bool:
    """Return whether the launch may be submitted once more, and there are nodes enough without some hosts."""
    if planned.limits.executor != "slurm" or not may_requeue(tried, options):
        return False
    return _has_room(planned, options, bad_nodes(results) | hosts)


def _has_room(planned: PlannedRun, options: GangOptions, left_out: frozenset[str]) -> bool:
    """Return whether there are nodes enough without some of them."""
    return len(usable_nodes(options.partition) - left_out - set(options.exclude)) >= planned.point.num_nodes


def _to_avoid(
    results: Path, planned: PlannedRun, options: GangOptions, exclude: frozenset[str], say: Say
) -> frozenset[str]:
    """Return the nodes to leave out: those named, those known to be broken, and slow ones where there are others."""
    broken, slow, named = exclude | bad_nodes(results), slow_nodes(results), frozenset(planned.point.hosts)
    if left_out := sorted(named & broken):
        raise UserError(
            f"{planned.run}: hosts names {', '.join(left_out)}, left out as broken; repair it and remove its file in "
            f"{results / 'bad_nodes'}, or name another host"
        )
    if named:
        return broken
    if slow and not _has_room(planned, options, broken | slow):
        say(f"{planned.run}: {', '.join(sorted(slow))} would be left out as slow, but there are too few other nodes")
        return broken
    return broken | slow


def _account_of(manifest: Manifest) -> str:
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
            gang = submit(raw, planned, options, _to_avoid(folder.parents[1], planned, options, exclude, say), say)
        else:
            gang = LocalGang(raw, planned)
    except (OSError, UserError, KeyboardInterrupt) as error:
        _ignore_signals()
        if isinstance(error, Terminated) and planned.limits.executor == "slurm":
            say(_goes_on(planned, adopt(raw, planned, options, say)))
            raise  # the note of the submission stays: the next launch finds the job by it
        if orphan := adopt(raw, planned, options, say):
            orphan.cancel()
        discard(raw)
        raise
    say(f"{planned.run}: started {planned.point.num_gpus} ranks")
    return _Attempt(raw, planned, gang)


class _Progress:
    """Says how many steps are done, when that changes."""

    def __init__(self, raw: Path, planned: PlannedRun, say: Say) -> None:
        self._file = raw / "steps" / "rank0.jsonl"
        self._kinds = planned.point.steps.kinds
        self._run, self._say, self._done = planned.run, say, 0

    def __call__(self) -> None:
        try:
            done = self._file.read_bytes().count(b"\n")
        except OSError:  # not there yet, or out of reach for a moment
            return
        if self._done < done <= len(self._kinds):
            self._say(f"{self._run}: step {done}/{len(self._kinds)} ({self._kinds[done - 1]})")
            self._done = done


def _listen() -> None:
    """Let SIGINT give the launch up, and SIGTERM leave a job of Slurm to the next launcher."""
    signal.signal(signal.SIGTERM, _end)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as a shell sets it for background jobs
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: FrameType | None) -> None:
    # From a terminal Ctrl-C comes twice, of it and of Snakemake: the second must not interrupt what the first began.
    _ignore_signals()
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _goes_on(planned: PlannedRun, gang: SlurmGang | None) -> str:
    """Return the line on a launcher that ends while its job does not."""
    job = f"job {gang.submission.job_id}" if gang is not None else "a job that Slurm may have accepted"
    return f"{planned.run}: told to end by SIGTERM; {job} goes on, and the next launch of this run goes on with it"


def _ignore_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
