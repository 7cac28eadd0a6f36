"""What a study came to: `plan.json` for the selection, `point.json` for each run."""

from typing import Annotated, Literal

from pydantic import Field

from triplepoint.config.base import Strict
from triplepoint.config.point import Point

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
