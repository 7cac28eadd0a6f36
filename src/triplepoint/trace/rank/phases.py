"""Steps and phases of a trace, from annotations.

On the CPU a phase is a stretch of time, whatever thread works in it: the backward pass runs on a thread of its own.

On a GPU a phase's time is that of the computation launched in it, from whatever thread: annotations run ahead of the
device, and `gpu_user_annotation` follows only the annotating thread, so it misses the backward pass. Where launches are
not recorded, `gpu_user_annotation` is used, else the annotation itself.
"""

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.trace.kineto.reader import Category, Trace
from triplepoint.trace.lanes import Step
from triplepoint.trace.rank.launches import launch_of
from triplepoint.trace.rank.nesting import latest_wins
from triplepoint.trace.rank.work import Work

Int64 = npt.NDArray[np.int64]

PHASES = ("forward", "backward", "optimizer", "other")
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
    """Annotated time, cut so that every instant has one tag at most: by time. Unit: ns since 1970."""

    start: Int64
    end: Int64
    tags: list[Tag]


def find_steps(trace: Trace, work: Work) -> list[Step]:
    """Return the steps of a trace by number; a trace without `ProfilerStep#` is one step 0, from first to last work.

    The last step of a GPU lasts until its last work is done: the device lags behind the annotation.
    """
    found = {}
    for event in trace.named(Category.ANNOTATION, _STEP.pattern).tolist():
        match = _STEP.match(trace.names[trace.name[event]])
        assert match is not None
        number = int(match[1])
        found[number] = Step(number, int(trace.start[event]), int(trace.end[event]))
    first, last = work.span
    if not found:
        return [Step(0, first, last)] if last > first else []
    steps = [found[number] for number in sorted(found)]
    if work.is_device and last > steps[-1].end:
        steps[-1] = steps[-1]._replace(end=last)
    return steps


def find_phases(trace: Trace, work: Work) -> Phases:
    """Return the annotated time of a trace, the device's where the work is a GPU's."""
    host, tags = _annotated(trace, Category.ANNOTATION)
    start, end, owner = latest_wins(trace.start[host], trace.end[host])
    if work.is_device:
        launched = _launched_in(trace, work, start, end, owner)
        if launched is None:
            device, device_tags = _annotated(trace, Category.GPU_ANNOTATION)
            host, tags = (device, device_tags) if len(device) else (host, tags)
            start, end, owner = latest_wins(trace.start[host], trace.end[host])
        else:
            span_start, span_end, span_tag = launched
            start, end, span = latest_wins(span_start, span_end)
            owner = span_tag[span]
    return Phases(start, end, [tags[index] for index in owner.tolist()])


def _annotated(trace: Trace, category: Category) -> tuple[Int64, list[Tag]]:
    for pattern in (_OURS, _FOREIGN):
        events = trace.named(category, pattern)
        if len(events):
            return events, [_tag(pattern, trace.names[trace.name[event]]) for event in events.tolist()]
    return np.empty(0, dtype=np.int64), []


def _tag(pattern: str, name: str) -> Tag:
    match = re.match(pattern, name)
    assert match is not None
    parts = match.groupdict()
    if not parts.get("label"):
        return Tag("forward" if parts["model"] else "optimizer", None, None)
    stage, microbatch = parts.get("stage"), parts.get("mb")
    return Tag(parts["label"], int(stage) if stage else None, int(microbatch) if microbatch else None)


def _launched_in(trace: Trace, work: Work, start: Int64, end: Int64, owner: Int64) -> tuple[Int64, Int64, Int64] | None:
    """Return the device's time of each annotation, from first to last computation launched in it; None if not known.

    Args:
        trace: The trace.
        work: Its device work.
        start: Starts of the annotated segments on the host, by time. Unit: ns since 1970.
        end: Ends.
        owner: Annotation of each segment.

    Returns:
        Start, end, annotation.
    """
    rows = work.event[work.rows_of("compute")]
    launch = launch_of(trace, rows)
    if len(start) == 0:
        return None
    time = trace.start[launch]
    segment = np.searchsorted(start, time, side="right") - 1
    is_inside = (launch >= 0) & (segment >= 0) & (time < end[np.maximum(segment, 0)])
    if not is_inside.any():
        return None
    tag = owner[segment[is_inside]]
    first = np.full(int(owner.max()) + 1, np.iinfo(np.int64).max)
    last = np.full(len(first), np.iinfo(np.int64).min)
    np.minimum.at(first, tag, trace.start[rows[is_inside]])
    np.maximum.at(last, tag, trace.end[rows[is_inside]])
    used = np.unique(tag)
    return first[used], last[used], used
