"""Find steps and phases from the annotations of a trace, and divide the steps into phases.

On the CPU a phase is the time of its annotation, whatever thread works in it: the backward pass runs on its own thread.

On a GPU a phase is the time of the computation launched within its annotation, from any thread. The annotation itself
is ahead of the device, and `gpu_user_annotation` follows only the annotating thread, so it misses the backward pass. If
launches are not recorded, `gpu_user_annotation` is used, else the annotation itself.
"""

import re
from typing import NamedTuple

import numpy as np

from triplepoint.errors import UserError
from triplepoint.trace import Int64
from triplepoint.trace.kineto import Category, Rows
from triplepoint.trace.rank import intervals
from triplepoint.trace.rank.events import NEVER, Events
from triplepoint.trace.rank.intervals import Intervals
from triplepoint.trace.rank_results import Step
from triplepoint.trace.thin import latest_wins

PHASES = ("forward", "backward", "optimizer", "other")
MARKS = re.compile(
    r"ProfilerStep#\d|(gloo|mpi|ucc|nccl):|c10d::|forward|backward|optimizer|grad_sync|## "
    r"|DistributedDataParallel\.forward|Optimizer\.step#"
)
"""Names of annotations and operators that the analysis uses."""
_PHASE_OF = {
    "forward": "forward",
    "backward": "backward",
    "backward_weight": "backward",
    "optimizer": "optimizer",
    "grad_sync": "other",
}
_OWN_PHASE = (
    r"(?P<label>forward|backward_weight|backward|optimizer|grad_sync)"
    r"(?: stage=(?P<stage>\d+))?(?: microbatch=(?P<mb>\d+))?$"
)
_FOREIGN_PHASE = (
    r"(?:## )?(?P<label>forward|backward|optimizer)(?: ##)?$"
    r"|(?P<model>DistributedDataParallel\.forward)$|(?P<step>Optimizer\.step#)"
)
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_NUMBERED_STEP = re.compile(r"(?:train(?:ing)?[ _-]?)?(?:step|iteration|iter)[ _#:=-]*(\d{1,15})$", re.IGNORECASE)
"""Names of steps in the NVTX and ROCTX ranges of training loops: `iteration 12`, `train_step_12`."""


def is_mark(name: str, steps: re.Pattern[str] | None) -> bool:
    """Return whether the analysis uses annotations or operators of a name.

    Args:
        name: The name.
        steps: The user's pattern of step names; None for the default names.
    """
    patterns = (MARKS, _NUMBERED_STEP) if steps is None else (MARKS, steps)
    return any(pattern.match(name) for pattern in patterns)


class Tag(NamedTuple):
    """Content of a phase annotation: its label, pipeline stage and micro-batch."""

    label: str
    stage: int | None
    microbatch: int | None

    @property
    def phase(self) -> str:
        """Phase of its time, one of `PHASES`."""
        return _PHASE_OF[self.label]


class Phases(NamedTuple):
    """Annotated time: disjoint intervals, sorted by time, with one tag each. Unit: ns as the file counts."""

    start: Int64
    end: Int64
    tags: list[Tag]


def find_steps(
    marks: Events, first: int, last: int, *, is_device: bool, pattern: re.Pattern[str] | None = None
) -> list[Step]:
    """Return the steps of a trace by number. A trace without steps is one step 0, from its first to its last work.

    Steps are the annotations `ProfilerStep#<N>`, or else those named `step <N>` or `iteration <N>`. On a GPU the last
    step is extended to the end of the last work, since the device is behind the annotation.

    Args:
        marks: Annotations of the trace.
        first: Start of the first work. Unit: ns as the file counts, as in the result.
        last: End of the last work. Unit: ns as the file counts.
        is_device: Whether the work is that of a GPU.
        pattern: The user's pattern of step names. Its first group is the number; without a group steps are numbered
            from 0 in the order of their start. None for the default names.

    Raises:
        UserError: If no annotation matches `pattern`.
    """
    for names in (_STEP, _NUMBERED_STEP) if pattern is None else (pattern,):
        if by_number := _named_steps(marks, names):
            break
    if not by_number and pattern is not None:
        raise UserError(
            f"{marks.header.path.name}: no range is called like {pattern.pattern!r} (--steps, matched from the "
            "start of a name); look names up in the profiler, or leave --steps out"
        )
    if not by_number:
        return [Step(0, first, last)] if last > first else []
    steps = [by_number[number] for number in sorted(by_number)]
    if is_device and last > steps[-1].end:
        steps[-1] = steps[-1]._replace(end=last)
    return steps


def _named_steps(marks: Events, pattern: re.Pattern[str]) -> dict[int, Step]:
    """Return the annotations that match as steps, by number. One within another, on any thread, is not a step."""
    by_number: dict[int, Step] = {}
    latest_end = np.iinfo(np.int64).min
    for category in (Category.CPU_OP, Category.ANNOTATION):
        for event in marks.named(category, pattern).tolist():
            match = pattern.match(marks.name(event))
            assert match is not None
            start, end = int(marks.start[event]), int(marks.end[event])
            if pattern is not _STEP and start < latest_end:
                continue
            latest_end = end
            number = int(match[1]) if match.groups() and (match[1] or "").isdigit() else len(by_number)
            by_number[number] = Step(number, start, end)
    return by_number


def host_phases(marks: Events) -> Phases:
    """Return the phases of the host."""
    return _annotated_phases(marks, Category.ANNOTATION)[0]


class DevicePhases:
    """Finds the phases of the device: each from the first to the last computation launched within an annotation."""

    def __init__(self, marks: Events) -> None:
        self._marks = marks
        self._host, self._owner = _annotated_phases(marks, Category.ANNOTATION)
        num_annotations = int(self._owner.max()) + 1 if len(self._owner) else 0
        self._first = np.full(num_annotations, np.iinfo(np.int64).max)
        self._last = np.full(num_annotations, np.iinfo(np.int64).min)
        self._tags = dict(zip(self._owner.tolist(), self._host.tags, strict=True))

    def add(self, computation: Rows) -> None:
        """Add computation: rows of `LAUNCHED` in any order."""
        host, launch = self._host, computation["launch"]
        if len(host.start) == 0:
            return
        segment = np.searchsorted(host.start, launch, side="right") - 1
        is_inside = (launch != NEVER) & (segment >= 0) & (launch < host.end[np.maximum(segment, 0)])
        annotation = self._owner[segment[is_inside]]
        start = computation["start"][is_inside]
        np.minimum.at(self._first, annotation, start)
        np.maximum.at(self._last, annotation, start + computation["duration"][is_inside])

    def finish(self) -> Phases:
        """Return the phases of the device."""
        has_work = np.flatnonzero(self._last > self._first)
        if len(has_work):
            start, end, index = latest_wins(self._first[has_work], self._last[has_work])
            return Phases(start, end, [self._tags[annotation] for annotation in has_work[index].tolist()])
        on_device = _annotated_phases(self._marks, Category.GPU_ANNOTATION)[0]
        return on_device if len(on_device.start) else self._host


def _annotated_phases(marks: Events, category: Category) -> tuple[Phases, Int64]:
    """Return the phases in the annotations of a category, and the index of the annotation of each."""
    for pattern in (_OWN_PHASE, _FOREIGN_PHASE):
        events = marks.named(category, pattern)
        if len(events):
            start, end, owner = latest_wins(marks.start[events], marks.end[events])
            return Phases(start, end, [_tag(pattern, marks.name(events[index])) for index in owner.tolist()]), owner
    empty = np.empty(0, dtype=np.int64)
    return Phases(empty, empty, []), empty


def _tag(pattern: str, name: str) -> Tag:
    match = re.match(pattern, name)
    assert match is not None
    parts = match.groupdict()
    if not parts.get("label"):
        return Tag("forward" if parts["model"] else "optimizer", None, None)
    stage, microbatch = parts.get("stage"), parts.get("mb")
    return Tag(parts["label"], int(stage) if stage else None, int(microbatch) if microbatch else None)


class Windows(NamedTuple):
    """The phases of all steps as disjoint intervals, sorted by time.

    Attributes:
        times: The intervals. Unit: ns as the file counts.
        account: `step index * len(PHASES) + phase index` of each interval.
        num_accounts: Number of steps times number of phases.
    """

    times: Intervals
    account: Int64
    num_accounts: int


def cut_windows(steps: list[Step], phases: Phases) -> Windows:
    """Divide every step into its phases. Time outside all annotations is phase `other`.

    Steps that overlap, because of damaged clocks, are cut: the time belongs to the step that began first.
    """
    starts = np.array([step.start for step in steps], dtype=np.int64)
    ends = np.array([step.end for step in steps], dtype=np.int64)
    by_start = np.argsort(starts, kind="stable")
    step_times, owner = intervals.first_come(starts[by_start], ends[by_start])
    step_of = by_start[owner]
    phase_of = np.array([PHASES.index(tag.phase) for tag in phases.tags], dtype=np.int64)
    in_step, in_phase, start, end = intervals.overlay(step_times, Intervals(phases.start, phases.end))
    account = step_of[in_step] * len(PHASES) + phase_of[in_phase]
    in_any_step = intervals.union(step_times.start, step_times.end)
    in_no_phase = intervals.difference(in_any_step, intervals.union(phases.start, phases.end))
    in_step, _, other_start, other_end = intervals.overlay(step_times, in_no_phase)
    other_account = step_of[in_step] * len(PHASES) + PHASES.index("other")
    start, end = np.concatenate((start, other_start)), np.concatenate((end, other_end))
    account = np.concatenate((account, other_account))
    order = np.argsort(start, kind="stable")
    return Windows(Intervals(start[order], end[order]), account[order], len(steps) * len(PHASES))
