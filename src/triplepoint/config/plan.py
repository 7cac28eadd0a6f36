"""What a study came to: `plan.json` for the selection, `point.json` for each run."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from triplepoint.config.base import Strict, parse
from triplepoint.config.point import Point
from triplepoint.errors import UserError

RUN_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,199}$"
"""Run ids name folders and appear in shell commands."""

RunId = Annotated[str, Field(pattern=RUN_PATTERN)]


class Limits(Strict):
    """How a run is launched and when it is given up; not part of what it measures, so changing it re-launches nothing."""

    executor: Literal["local", "slurm"]
    """How the gang is launched."""
    time_limit_s: float
    """Wall time after which it is ended. Unit: s."""
    hang_timeout_s: float
    """Time without progress after which it is ended. Unit: s."""


class PlannedRun(Strict):
    """One run ready to launch: the content of `results/runs/<run>/point.json`."""

    run: RunId
    """Readable label; facts are in `point`."""
    digest: str
    """`Point.digest()` of `point`."""
    point: Point
    """What is measured."""
    limits: Limits
    """How it is launched."""


class PlanEntry(Strict):
    """One point of the selection, launched or not."""

    run: RunId
    """Readable label."""
    studies: tuple[str, ...]
    """Studies that contain the point."""
    invalid_because: str | None
    """Why it cannot run; None if it can."""
    planned: PlannedRun
    """The point and its limits."""


class Plan(Strict):
    """All points of the selected studies, without duplicates: the content of `results/plan.json`."""

    entries: tuple[PlanEntry, ...]
    """In the order of the studies."""

    @property
    def valid(self) -> list[PlanEntry]:
        """Entries that can be launched."""
        return [entry for entry in self.entries if entry.invalid_because is None]


def read_plan(path: Path) -> Plan:
    """Return the plan in `plan.json`. Raises `UserError` if it is missing or damaged."""
    return parse(Plan, _read_json(path, "write it with 'triplepoint plan --write'"), path)


def read_planned_run(path: Path) -> PlannedRun:
    """Return the run in `point.json`.

    Raises:
        UserError: If it is missing or damaged, or its digest is not that of its point.
    """
    planned = parse(PlannedRun, _read_json(path, "write it with 'triplepoint plan --write'"), path)
    if planned.digest != planned.point.digest():
        raise UserError(f"{path}: digest does not belong to the point; do not edit it, change the study and plan again")
    return planned


def _read_json(path: Path, advice: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {advice}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: not whole JSON ({error}); {advice}") from None
