"""Steps and phases of a trace, from annotations, and the time of the steps cut into phases.

On the CPU a phase is a stretch of time, whatever thread works in it: the backward pass runs on a thread of its own.

On a GPU a phase's time is that of the computation launched in it, from whatever thread: annotations run ahead of the
device, and `gpu_user_annotation` follows only the annotating thread, so it misses the backward pass. Where launches are
not recorded, `gpu_user_annotation` is used, else the annotation itself.
"""

import re
from typing import NamedTuple

import numpy as np

from triplepoint.errors import UserError
from triplepoint.trace import Int64
from triplepoint.trace.kineto import Category, Rows
from triplepoint.trace.lanes import Step
from triplepoint.trace.rank import intervals
from triplepoint.trace.rank.events import NEVER, Events
from triplepoint.trace.rank.intervals import Intervals
from triplepoint.trace.thin import latest_wins

PHASES = ("forward", "backward", "optimizer", "other")
MARKS = re.compile(
    r"ProfilerStep#\d|(gloo|mpi|ucc|nccl):|c10d::|forward|backward|optimizer|grad_sync|## "
    r"|DistributedDataParallel\.forward|Optimizer\.step#"
)
"""Names of annotations and operators that anything is made of."""
_PHASE_OF = {
    "forward": "forward",
    "backward": "backward",
    "backward_weight": "backward",
    "optimizer": "optimizer",
    "grad_sync": "other",
}
_OURS = (
    r"(?P<label>forward|backward_weight|backward|optimizer|grad_sync)"
    r"(?: stage=(?P<stage>\d+))?(?: microbatch=(?P<mb>\d+))?$"
)
_FOREIGN = (
    r"(?:## )?(?P<label>forward|backward|optimizer)(?: ##)?$"
    r"|(?P<model>DistributedDataParallel\.forward)$|(?P<step>Optimizer\.step#)"
)
_STEP = re.compile(r"ProfilerStep#(\d+)$")
_NUMBERED_STEP = re.compile(r"(?:train(?:ing)?[ _-]?)?(?:step|iteration|iter)[ _#:=-]*(\d{1,15})$", re.IGNORECASE)
"""What training loops call a step in NVTX and ROCTX, where no profiler named it: `iteration 12`, `train_step_12`."""


def is_mark(name: str, steps: re.Pattern[str] | None) -> bool:
    """Return whether anything is made of annotations of a name.

    Args:
        name: Of annotations, or of operators.
        steps: Names of those that are the steps, where the user said.
    """
    patterns = (MARKS, _NUMBERED_STEP) if steps is None else (MARKS, steps)
    return any(pattern.match(name) for pattern in patterns)


class Tag(NamedTuple):
    """What a phase annotation says."""

    label: str
    stage: int | None
    microbatch: int | None

    @property
    def phase(self) -> str:
        """Return which of `PHASES` its time belongs to."""
        return _PHASE_OF[self.label]


class Phases(NamedTuple):
    """Annotated time, cut so that every instant has one tag at most: by time. Unit: ns as the file counts."""

    start: Int64
    end: Int64
    tags: list[Tag]


def find_steps(
    marks: Events, first: int, last: int, *, is_device: bool, pattern: re.Pattern[str] | None = None
) -> list[Step]:
    """Return the steps of a trace by number; a trace without any is one step 0, from first to last work.

    Steps are the annotations `ProfilerStep#<N>`, else those called `step <N>` or `iteration <N>`. The last step of a
    GPU lasts until its last work is done: the device lags behind the annotation.

    Args:
        marks: Annotations of the trace.
        first: Start of the first work. Unit: ns as the file counts, as the steps are.
        last: End of the last work.
        is_device: Whether the work is a GPU's.
        pattern: Of the names of the annotations that are the steps instead; what its first group matches is the number,
            without one they are numbered as they begin, from 0.

    Raises:
        UserError: If nothing is called as `pattern` says.
    """
    for one in (_STEP, _NUMBERED_STEP) if pattern is None else (pattern,):
        if found := _named_steps(marks, one):
            break
    if not found and pattern is not None:
        raise UserError(
            f"{marks.header.path.name}: no range is called like {pattern.pattern!r} (--steps, matched from the "
            "start of a name); look names up in the profiler, or leave --steps out"
        )
    if not found:
        return [Step(0, first, last)] if last > first else []
    steps = [found[number] for number in sorted(found)]
    if is_device and last > steps[-1].end:
        steps[-1] = steps[-1]._replace(end=last)
    return steps


def _named_steps(marks: Events, pattern: re.Pattern[str]) -> dict[int, Step]:
    """Return the annotations that match as steps, by number; one within another, of whichever thread, is none."""
    found: dict[int, Step] = {}
    latest = np.iinfo(np.int64).min
    for category in (Category.CPU_OP, Category.ANNOTATION):
        for event in marks.named(category, pattern).tolist():
            match = pattern.match(marks.name(event))
            assert match is not None
            start, end = int(marks.start[event]), int(marks.end[event])
            if pattern is not _STEP and start < latest:
                continue
            latest = end
            number = int(match[1]) if match.groups() and (match[1] or "").isdigit() else len(found)
            found[number] = Step(number, start, end)
    return found


def host_phases(marks: Events) -> Phases:
    """Return the annotated time of the host."""
    return _annotated(marks, Category.ANNOTATION)[0]


class DevicePhases:
    """Finds the device's time of every annotation: from first to last computation that was launched in it."""

    def __init__(self, marks: Events) -> None:
        self._marks = marks
        self._host, self._owner = _annotated(marks, Category.ANNOTATION)
        num_annotations = int(self._owner.max()) + 1 if len(self._owner) else 0
        self._first = np.full(num_annotations, np.iinfo(np.int64).max)
        self._last = np.full(num_annotations, np.iinfo(np.int64).min)
        self._tags = dict(zip(self._owner.tolist(), self._host.tags, strict=True))

    def add(self, computation: Rows) -> None:
        """Take rows of `LAUNCHED` that compute, in any order."""
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
        """Return the device's phases; by its own annotations, else the host's, where no launch tells."""
        used = np.flatnonzero(self._last > self._first)
        if len(used):
            start, end, span = latest_wins(self._first[used], self._last[used])
            return Phases(start, end, [self._tags[annotation] for annotation in used[span].tolist()])
        on_device = _annotated(self._marks, Category.GPU_ANNOTATION)[0]
        return on_device if len(on_device.start) else self._host


def _annotated(marks: Events, category: Category) -> tuple[Phases, Int64]:
    """Return the annotated time of a category, and which of its annotations every stretch belongs to."""
    for pattern in (_OURS, _FOREIGN):
        events = marks.named(category, pattern)
        if len(events):
            start, end, owner = latest_wins(marks.start[events], marks.end[events])
            return Phases(start, end, [_tag(pattern, marks.name(events[one])) for one in owner.tolist()]), owner
    nothing = np.empty(0, dtype=np.int64)
    return Phases(nothing, nothing, []), nothing


def _tag(pattern: str, name: str) -> Tag:
    match = re.match(pattern, name)
    assert match is not None
    parts = match.groupdict()
    if not parts.get("label"):
        return Tag("forward" if parts["model"] else "optimizer", None, None)
    stage, microbatch = parts.get("stage"), parts.get("mb")
    return Tag(parts["label"], int(stage) if stage else None, int(microbatch) if microbatch else None)


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

    Steps that overlap, as damaged clocks may make them, are cut: the earlier begun keeps the time.
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
    free = intervals.difference(intervals.union(whole.start, whole.end), intervals.union(phases.start, phases.end))
    in_step, _, free_start, free_end = intervals.overlay(whole, free)
    other = step_of[in_step] * len(PHASES) + PHASES.index("other")
    start, end = np.concatenate((start, free_start)), np.concatenate((end, free_end))
    account = np.concatenate((account, other))
    order = np.argsort(start, kind="stable")
    return Windows(Intervals(start[order], end[order]), account[order], len(steps) * len(PHASES))
