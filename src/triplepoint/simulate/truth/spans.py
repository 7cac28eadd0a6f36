"""Spans of a step on a pipeline stage, each with one activity, for the true times of its ranks.

Computation takes precedence over communication, and communication over waiting. Within a pass, collectives and waits
for the host lie between kernels; their position is not kept, and a span has its share of each.
"""

from typing import NamedTuple

import numpy as np

from triplepoint.simulate.artefacts.simulated import Simulated, ns, one_ns
from triplepoint.simulate.timeline.schedule import BACKWARD, BACKWARD_WEIGHT, FORWARD, Int64
from triplepoint.simulate.timeline.tasks import Timeline


class Label(NamedTuple):
    """Activity of a GPU, with the columns of table `true_times`."""

    phase: str
    category: str
    kind: str | None = None


_PASS_PARTS = (("compute", None), ("comm", "collective"), ("idle", "host"), ("idle", "straggler"))
"""Category and kind of the parts of a pass or an update."""
_PHASES = ("forward", "backward", "optimizer")
"""Phases of passes and of the update."""
_OUTSIDE = ("gradient_sync", "send_recv", "bubble", "straggler", "step_end", "pause")
"""Kinds of activity outside passes; the first two are communication, the others are waiting."""
LABELS = (
    *(Label(phase, *part) for phase in _PHASES for part in _PASS_PARTS),
    *(Label("other", "comm" if kind in _OUTSIDE[:2] else "idle", kind) for kind in _OUTSIDE),
)


class Spans(NamedTuple):
    """Adjacent spans of a step, sorted by time.

    Attributes:
        border: Start of every span, and the end of the last; shape (num_spans + 1,). Unit: ns.
        part: Time of every span by label; shape (num_spans, len(LABELS)). Unit: ns.
        task: Place of the span's pass in the order of the stage, `num_tasks` for the update, -1 outside passes; shape
            (num_spans,).
    """

    border: Int64
    part: Int64
    task: Int64


def spans_of(simulated: Simulated, stage: int, which: int, pace: float) -> Spans:
    """Return the spans of ranks of equal pace.

    Args:
        simulated: The step.
        stage: Pipeline stage of the ranks.
        which: Class of replica of the ranks.
        pace: Time of their kernels over that of the slowest rank in their collectives, for which they wait.
    """
    timeline = simulated.timeline
    begin, end, parts = _passes(timeline, stage, which, pace)
    length, pause = one_ns(timeline.step_time_s), one_ns(timeline.durations.pause_s)
    # By rising precedence: the last interval that covers a span decides.
    intervals = {
        "straggler": _straggler_waits(timeline, stage, which),
        "step_end": np.array([[end[-1], length]]),
        "send_recv": _transfers(timeline, stage, which),
        "gradient_sync": _syncs(timeline, stage),
    }
    times = np.concatenate(
        [begin, end, *(covering.reshape(-1) for covering in intervals.values()), [0, length - pause, length]]
    )
    border = np.unique(np.clip(times, 0, length))
    first = border[:-1]
    task = np.searchsorted(begin, first, side="right") - 1
    in_task = (task >= 0) & (first < end[np.maximum(task, 0)])
    part = np.zeros((len(first), len(LABELS)), dtype=np.int64)
    kind = np.full(len(first), _OUTSIDE.index("bubble"))
    for name, covering in intervals.items():
        kind[_is_covered(first, covering)] = _OUTSIDE.index(name)
    kind[first >= length - pause] = _OUTSIDE.index("pause")
    outside = np.flatnonzero(~in_task)
    part[outside, len(LABELS) - len(_OUTSIDE) + kind[outside]] = np.diff(border)[outside]
    part[in_task] = _divided(border, first, task, in_task, begin, parts)
    return Spans(border, part, np.where(in_task, task, -1))


def _passes(timeline: Timeline, stage: int, which: int, pace: float) -> tuple[Int64, Int64, Int64]:
    """Return start and end of every pass and of the update, and their time by label. Unit: ns."""
    order, durations = timeline.order, timeline.durations
    update = timeline.optimizer_start + durations.optimizer.total[stage, which]
    begin = ns(np.append(timeline.start[stage, :, which], timeline.optimizer_start))
    end = ns(np.append(timeline.end[stage, :, which], update))
    parts = np.zeros((len(begin), len(LABELS)), dtype=np.int64)
    by_kind = {
        FORWARD: (durations.forward,),
        BACKWARD: (durations.backward_input, *((durations.backward_weight,) if not order.is_split else ())),
        BACKWARD_WEIGHT: (durations.backward_weight,),
    }
    waits_by_kind: dict[tuple[int, int], tuple[int, int, int]] = {}
    tasks = [*zip(order.kind[stage].tolist(), order.chunk[stage].tolist(), strict=True), (-1, 0)]
    for place, (kind, chunk) in enumerate(tasks):
        if (kind, chunk) not in waits_by_kind:
            passes = by_kind.get(kind, (durations.optimizer,))
            at = (stage, chunk, which) if kind >= 0 else (stage, which)
            host, launch = (sum(one_ns(time.host_at(at, each)) for time in passes) for each in (1.0, pace))
            waits_by_kind[kind, chunk] = sum(one_ns(time.comm[at]) for time in passes), host, launch
        comm, host, launch = waits_by_kind[kind, chunk]
        phase = _PHASES.index("optimizer" if kind < 0 else "forward" if kind == FORWARD else "backward")
        # The rest is computation, including its delay by contention.
        slowest = int(end[place] - begin[place]) - comm
        compute = round((slowest - host) * pace)
        times = compute, comm, launch, slowest - compute - launch
        parts[place, phase * len(_PASS_PARTS) :][: len(_PASS_PARTS)] = times
    return begin, end, parts


def _divided(border: Int64, first: Int64, task: Int64, in_task: np.ndarray, begin: Int64, parts: Int64) -> Int64:
    """Return the time of spans within passes by label, so that the spans of a pass add up to the pass. Unit: ns."""
    place, length = task[in_task], parts.sum(axis=1)
    until = (border[1:][in_task] - begin[place])[:, None]
    since = (first[in_task] - begin[place])[:, None]
    pass_length = np.maximum(length[place], 1)[:, None]
    # Sums over labels are rounded, not single labels, so that the labels of a span add up to its length.
    summed = np.cumsum(parts, axis=1)[place]
    upper, lower = (np.rint(summed * (time / pass_length)).astype(np.int64) for time in (until, since))
    return np.asarray(np.diff(upper - lower, axis=1, prepend=0))


def _is_covered(first: Int64, intervals: Int64) -> np.ndarray:
    """Return whether the spans that begin at these times lie in any of the intervals; shape (num_intervals, 2)."""
    intervals = intervals[intervals[:, 1] > intervals[:, 0]]
    num_begun = np.searchsorted(np.sort(intervals[:, 0]), first, side="right")
    return np.asarray(num_begun > np.searchsorted(np.sort(intervals[:, 1]), first, side="right"))


def _syncs(timeline: Timeline, stage: int) -> Int64:
    """Return the intervals of gradient reduction and parameter gathering; shape (num_intervals, 2). Unit: ns."""
    gathered_s = float(timeline.durations.gather_overlapped[stage].sum())
    return ns(np.concatenate([[[0.0, gathered_s]], timeline.sync[stage], timeline.final_sync[stage : stage + 1]]))


def _transfers(timeline: Timeline, stage: int, which: int) -> Int64:
    """Return the intervals of sends to and from the stage; shape (num_transfers, 2). Unit: ns."""
    order = timeline.order
    if order.num_stages == 1:
        return np.empty((0, 2), dtype=np.int64)
    times = np.stack([timeline.sent[:, :, which], timeline.arrival[:, :, which]], axis=-1).reshape(-1, 2)
    sends = np.flatnonzero(order.is_sent[stage]) + stage * order.num_tasks
    receives = order.needs[stage][order.needs[stage] >= 0]
    return ns(times[np.concatenate([sends, receives])])


def _straggler_waits(timeline: Timeline, stage: int, which: int) -> Int64:
    """Return the intervals of waits for the slowest replica after the tasks; shape (num_intervals, 2). Unit: ns."""
    if not timeline.order.num_tasks:
        return np.empty((0, 2), dtype=np.int64)
    chunks = range(timeline.order.num_chunks)
    done_s = max(timeline.joins_final_sync(stage, which), float(timeline.arrival[stage, :, which].max()))
    joins_s = [*(timeline.joins_sync(stage, chunk, which) for chunk in chunks), done_s]
    begins_s = [*(timeline.sync[stage, chunk, 0] for chunk in chunks), timeline.final_sync[stage, 0]]
    return ns(np.array([[max(join_s, done_s), begin_s] for join_s, begin_s in zip(joins_s, begins_s, strict=True)]))
