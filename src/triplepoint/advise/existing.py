"""What a results folder has already of a planned run."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from triplepoint.config.plan import PlannedRun
from triplepoint.status import RESULTS, Status

State = Literal["done", "failed", "missing"]

STATES: tuple[State, ...] = ("done", "failed", "missing")


@dataclass(frozen=True)
class Existing:
    """What is there of one run.

    Attributes:
        state: done (a result), failed (attempts that left no result) or missing. All but done are launched.
        status: Outcome of what is there: ok, oom, invalid, or how the last attempt failed; empty if missing.
        duration_s: Wall time of the launch that is there, None without one. Unit: s.
    """

    state: State
    status: str = ""
    duration_s: float | None = None


def find_existing(planned: PlannedRun, results: Path) -> Existing:
    """Return what `results` has of a run.

    A manifest that is damaged, or of another point, counts as a failed attempt: the run is launched again.

    Args:
        planned: The run.
        results: Folder of results.
    """
    folder = results / "runs" / planned.run
    manifest = _read(folder / "raw" / "manifest.json")
    if manifest is not None and manifest.get("digest") != planned.digest:
        manifest = {}
    if manifest is not None and manifest.get("status") in RESULTS:
        return Existing("done", manifest["status"], manifest.get("duration_s"))
    attempts = sorted((folder / "attempts").glob("*/manifest.json"))
    last = _read(attempts[-1]) if attempts else manifest
    if last is not None:
        return Existing("failed", str(last.get("status", "damaged")))
    return Existing("missing")


def typical_duration_s(found: Iterable[Existing]) -> float | None:
    """Return the median wall time of launches that ended well, None if there is none. Unit: s."""
    durations = [one.duration_s for one in found if one.status == Status.OK and one.duration_s is not None]
    return statistics.median(durations) if durations else None


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of a manifest, empty if it is damaged, None if it is not there.

    Only three keys are needed of it, and a study has thousands: checking all of it takes ten times as long.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
