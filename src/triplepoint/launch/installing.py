"""Putting a result in its place, `raw/`, also one that an earlier launcher was kept from putting there."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from triplepoint.config.plan import PlannedRun
from triplepoint.errors import UserError
from triplepoint.launch.attempt import REPLACED, discard, is_complete, read_submission
from triplepoint.launch.collect import conclude
from triplepoint.launch.verdict import Account
from triplepoint.manifest import Manifest, read_manifest

Say = Callable[[str], None]


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

    Args:
        folder: `results/runs/<run>`.
        planned: What is to be launched.
        say: Told of what was found.

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
