"""The time of a rank cut into the phases of its steps: disjoint windows that together are the steps."""

from typing import NamedTuple

import numpy as np

from triplepoint.trace.kineto.rows import Int64
from triplepoint.trace.lanes import Step
from triplepoint.trace.rank import intervals
from triplepoint.trace.rank.intervals import Intervals
from triplepoint.trace.rank.phases import PHASES, Phases


class Windows(NamedTuple):
    """Stretches of steps: by time, disjoint.

    Attributes:
        times: Their time. Unit: ns as the file counts.
        account: For each, `step index * len(PHASES) + phase index`.
        num_accounts: Number of steps times phases.
    """

    times: Intervals
    account: Int64
    num_accounts: int


def cut_windows(steps: list[Step], phases: Phases) -> Windows:
    """Return the phases of every step; what is in none of them is phase `other`.

    Steps that overlap, as damaged clocks may make them, share their time out: the earlier begun keeps it.
    """
    starts = np.array([step.start for step in steps], dtype=np.int64)
    ends = np.array([step.end for step in steps], dtype=np.int64)
    by_start = np.argsort(starts, kind="stable")
    whole, owner = intervals.first_come(starts[by_start], ends[by_start])
    step_of = by_start[owner]
    phase_of = np.array([PHASES.index(tag.phase) for tag in phases.tags], dtype=np.int64)
    marked = Intervals(phases.start, phases.end)
    in_step, in_phase, start, end = intervals.overlay(whole, marked)
    account = step_of[in_step] * len(PHASES) + phase_of[in_phase]
    free = intervals.difference(_joined(whole), intervals.union(phases.start, phases.end))
    in_step, _, free_start, free_end = intervals.overlay(whole, free)
    other = step_of[in_step] * len(PHASES) + PHASES.index("other")
    start, end = np.concatenate((start, free_start)), np.concatenate((end, free_end))
    account = np.concatenate((account, other))
    order = np.argsort(start, kind="stable")
    return Windows(Intervals(start[order], end[order]), account[order], len(steps) * len(PHASES))


def _joined(whole: Intervals) -> Intervals:
    return intervals.union(whole.start, whole.end)
