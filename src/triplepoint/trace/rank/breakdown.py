"""What the time of a step went into: rows of the tables `kernels` and `intervals`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triplepoint.trace.lanes import Step
from triplepoint.trace.rank import intervals
from triplepoint.trace.rank.intervals import Intervals
from triplepoint.trace.rank.phases import PHASES, Phases
from triplepoint.trace.rank.work import Work

Int64 = npt.NDArray[np.int64]
Row = dict[str, Any]


@dataclass(frozen=True)
class Breakdown:
    """Disjoint parts of a rank's time, and the categories they come from."""

    busy: dict[str, Intervals]
    """Time each of compute, comm, memory was running."""
    exposed: dict[str, Intervals]
    """Part of it while none before it in that order was."""

    @classmethod
    def of(cls, work: Work) -> "Breakdown":
        """Return the breakdown of a rank's work."""
        taken = intervals.empty()
        exposed = {}
        for category, busy in work.busy.items():
            exposed[category] = intervals.difference(busy, taken)
            taken = intervals.merge(taken, busy)
        return cls(work.busy, exposed)

    def rows(self, within: Intervals) -> list[Row]:
        """Return busy, exposed and overlapped time of every category, idle last, within a set of time."""
        rows = []
        left = within.length
        for category, busy in self.busy.items():
            running = intervals.overlap_length(busy, within)
            alone = intervals.overlap_length(self.exposed[category], within)
            left -= alone
            rows.append(_row(category, running, alone))
        return [*rows, _row("idle", left, left)]


def _row(category: str, busy_ns: int, exposed_ns: int) -> Row:
    return {
        "category": category,
        "busy_ns": busy_ns,
        "exposed_ns": exposed_ns,
        "overlapped_ns": busy_ns - exposed_ns,
    }


def interval_rows(rank: int, steps: list[Step], phases: Phases, work: Work) -> list[Row]:
    """Return the rows of `intervals`: four categories for each of the four phases of every step."""
    breakdown = Breakdown.of(work)
    phase_of = np.array([PHASES.index(tag.phase) for tag in phases.tags], dtype=np.int64)
    rows = []
    for step in steps:
        window = intervals.single(step.start, step.end)
        annotated = intervals.empty()
        for index, phase in enumerate(PHASES):
            within = intervals.difference(window, annotated)
            if phase != "other":
                marked = intervals.union(phases.start[phase_of == index], phases.end[phase_of == index])
                within = intervals.intersection(marked, window)
                annotated = intervals.merge(annotated, within)
            rows += [{"rank": rank, "step": step.number, "phase": phase, **row} for row in breakdown.rows(within)]
    return rows


def kernel_rows(rank: int, steps: list[Step], work: Work) -> list[Row]:
    """Return the rows of `kernels`: an occurrence counts whole for the step it starts in."""
    rows = []
    for step in steps:
        inside = np.flatnonzero((work.start >= step.start) & (work.start < step.end))
        order = inside[np.argsort(work.label[inside], kind="stable")]
        for occurrences in np.split(order, np.flatnonzero(np.diff(work.label[order])) + 1):
            if len(occurrences):
                rows.append({"rank": rank, "step": step.number, **_kernel_row(work, occurrences)})
    return rows


def _kernel_row(work: Work, occurrences: Int64) -> Row:
    label = work.labels[int(work.label[occurrences[0]])]
    duration = work.duration[occurrences]
    return {
        "class": label.cls,
        "kind": label.kind,
        "group": label.group,
        "name": label.name,
        "count": len(occurrences),
        "sum_ns": int(duration.sum()),
        "min_ns": int(duration.min()),
        "max_ns": int(duration.max()),
    }
