"""The launch stage: one run from `point.json` to `raw/`, never twice at once, never half.

Everything is made in a folder of its own under `attempts/` and moved to `raw/` when it is a result. An attempt that
failed stays where it is, with its logs and a manifest that says why.
"""

import contextlib
import fcntl
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from triplepoint.config.plan import PlannedRun, read_planned_run
from triplepoint.errors import UserError
from triplepoint.launch.collect import collect
from triplepoint.launch.engines import get_engine
from triplepoint.launch.gang import Gang
from triplepoint.manifest import Manifest, read_manifest, write_manifest

Say = Callable[[str], None]


class LaunchFailed(Exception):  # noqa: N818  (an outcome, as the manifest words it)
    """The gang crashed, hung or was lost: no result, worth another try. The message is one line with the evidence."""


def launch(folder: Path, say: Say, force: bool = False) -> Manifest:
    """Launch the run in `folder` unless its result is already there, and return its manifest.

    Args:
        folder: `results/runs/<run>`, holding `point.json`.
        say: Told of progress, a line at a time.
        force: Launch even if the result is there.

    Raises:
        UserError: If the point, the disk or the set-up does not allow it.
        LaunchFailed: If the gang crashed, hung, or was lost.
    """
    planned = read_planned_run(folder / "point.json")
    get_engine(planned.point.engine)
    with _only_one(folder, say):
        _sweep(folder / "attempts")
        kept = None if force else _finished(folder, planned)
        if kept is not None:
            say(f"{planned.run}: already measured ({kept.status}, {kept.ended_at}); kept")
            return kept
        return _attempt(folder, planned, say)


def _finished(folder: Path, planned: PlannedRun) -> Manifest | None:
    """Return the manifest of an earlier launch of the very same point, if it ended in a result."""
    path = folder / "raw" / "manifest.json"
    if not path.is_file():
        return None
    try:
        manifest = read_manifest(path)
    except UserError:
        return None
    return manifest if manifest.digest == planned.digest and manifest.is_result else None


def _sweep(attempts: Path) -> None:
    """Remove attempts nobody ended: their launcher was killed, and what they hold is neither result nor evidence."""
    for attempt in attempts.glob("*"):
        if not (attempt / "manifest.json").is_file():
            shutil.rmtree(attempt, ignore_errors=True)


def _attempt(folder: Path, planned: PlannedRun, say: Say) -> Manifest:
    started = datetime.now(UTC)
    raw = folder / "attempts" / f"{started:%Y%m%dT%H%M%S}-{os.getpid()}"
    raw.mkdir(parents=True)
    shutil.copyfile(folder / "point.json", raw / "point.json")
    try:
        _run_gang(raw, planned, say)
        manifest = collect(raw, planned, started)
        write_manifest(raw / "manifest.json", manifest)
    except (OSError, UserError, KeyboardInterrupt):
        shutil.rmtree(raw, ignore_errors=True)  # the line that is shown tells it all; a full disk is left no fuller
        raise
    if not manifest.is_result:
        assert manifest.evidence is not None, "every status but ok comes with evidence"
        evidence = manifest.evidence
        where = f"rank {evidence.rank} on {evidence.host}" if evidence.rank is not None else "the gang"
        raise LaunchFailed(f"{planned.run}: {manifest.status}: {where}: {evidence.message}; logs in {raw / 'logs'}")
    _install(raw, folder / "raw")
    say(f"{planned.run}: {manifest.status} after {manifest.duration_s:.1f} s")
    return manifest


def _run_gang(raw: Path, planned: PlannedRun, say: Say) -> None:
    gang = Gang(raw, planned)
    with _ending(gang):
        say(f"{planned.run}: started {planned.point.num_gpus} ranks")
        gang.wait(_Progress(raw, planned, say))


class _Progress:
    """Says how many steps are done, when that changes."""

    def __init__(self, raw: Path, planned: PlannedRun, say: Say) -> None:
        self._file = raw / "steps" / "rank0.jsonl"
        self._kinds = planned.point.steps.kinds
        self._run, self._say, self._done = planned.run, say, 0

    def __call__(self) -> None:
        done = self._file.read_bytes().count(b"\n") if self._file.exists() else 0
        if self._done < done <= len(self._kinds):
            self._say(f"{self._run}: step {done}/{len(self._kinds)} ({self._kinds[done - 1]})")
            self._done = done


@contextlib.contextmanager
def _ending(gang: Gang) -> Iterator[None]:
    """End the gang when the block is left early, also by SIGTERM."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BaseException:
        gang.cancel()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _install(attempt: Path, raw: Path) -> None:
    """Move a finished attempt to `raw`; what stood there before goes first to the side, then away."""
    old = attempt.with_name(attempt.name + ".replaced")
    if raw.exists():
        raw.rename(old)
    attempt.rename(raw)
    shutil.rmtree(old, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty: earlier attempts that failed stay
        attempt.parent.rmdir()


@contextlib.contextmanager
def _only_one(folder: Path, say: Say) -> Iterator[None]:
    """Hold the run's lock; the kernel gives it back however this process ends, so a stale one cannot exist."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{folder.name}: another launch of this run is going on; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
