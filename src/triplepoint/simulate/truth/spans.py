"""Time of a pipeline stage in a step, cut where what it does changes: every instant is one thing.

Computation goes before communication, communication before waiting. Within a pass, collectives and waits for the host
lie between kernels and are not told apart in time: a span has its share of each.
"""

from typing import NamedTuple

import numpy as np

from triplepoint.simulate.artefacts.simulated import Simulated, ns, one_ns
from triplepoint.simulate.timeline.schedule import BACKWARD, BACKWARD_WEIGHT, FORWARD, Int64
from triplepoint.simulate.timeline.tasks import Timeline


class Label(NamedTuple):
    """What time was spent on, as in table `true_times`."""

    phase: str
    category: str
    kind: str | None = None


IN_PASS = (("compute", None), ("comm", "collective"), ("idle", "host"), ("idle", "straggler"))
"""Category and kind of the parts of a pass or an update."""
PHASES = ("forward", "backward", "optimizer")
"""Of passes; an update is one too."""
OUTSIDE = ("gradient_sync", "send_recv", "bubble", "straggler", "step_end", "pause")
"""What is done between passes."""
LABELS = (
    *(Label(phase, *part) for phase in PHASES for part in IN_PASS),
    *(Label("other", "comm" if kind in OUTSIDE[:2] else "idle", kind) for kind in OUTSIDE),
)


class Spans(NamedTuple):
    """Spans of a step, which touch, by time.

    Attributes:
        border: Where they begin, and the end of the last; shape (num_spans + 1,). Unit: ns.
        part: Of every span, its time by label; shape (num_spans, len(LABELS)). Unit: ns.
        task: Of a pass its place in the stage's order, `num_tasks` of the update, -1 of others; shape (num_spans,).
    """

    border: Int64
    part: Int64
    task: Int64


def spans_of(simulated: Simulated, stage: int, which: int, pace: float) -> Spans:
    """Return the spans of some ranks.

    Args:
        simulated: The step.
        stage: Their pipeline stage.
        which: Their class of replica.
        pace: Time they compute over that of the slowest they work with, for which they wait in collectives.
    """
    timeline = simulated.timeline
    begin, end, parts = _passes(timeline, stage, which, pace)
    length = one_ns(timeline.step_time_s)
    covers = [_synced(timeline, stage), _transfers(timeline, stage, which), _behind(timeline, stage, which)]
    own_end, paused = np.array([[end[-1], length]]), one_ns(timeline.durations.pause_s)
    times = np.concatenate(
        [begin, end, *(cover.reshape(-1) for cover in (*covers, own_end)), [0, length - paused, length]]
    )
    border = np.unique(np.clip(times, 0, length))
    first = border[:-1]
    task = np.searchsorted(begin, first, side="right") - 1
    in_task = (task >= 0) & (first < end[np.maximum(task, 0)])
    part = np.zeros((len(first), len(LABELS)), dtype=np.int64)
    kind = np.full(len(first), OUTSIDE.index("bubble"))
    # By rising precedence: what covers a span last has it.
    for name, cover in zip(
        ("straggler", "step_end", "send_recv", "gradient_sync"), (covers[2], own_end, covers[1], covers[0]), strict=True
    ):
        kind[_is_covered(first, cover)] = OUTSIDE.index(name)
    kind[first >= length - paused] = OUTSIDE.index("pause")
    free = np.flatnonzero(~in_task)
    part[free, len(LABELS) - len(OUTSIDE) + kind[free]] = np.diff(border)[free]
    part[in_task] = _divided(border, first, task, in_task, begin, parts)
    return Spans(border, part, np.where(in_task, task, -1))


def _passes(timeline: Timeline, stage: int, which: int, pace: float) -> tuple[Int64, Int64, Int64]:
    """Return start and end of every pass and of the update, and their time by label."""
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
    waits: dict[tuple[int, int], tuple[int, int]] = {}
    tasks = [*zip(order.kind[stage].tolist(), order.chunk[stage].tolist(), strict=True), (-1, 0)]
    for place, (kind, chunk) in enumerate(tasks):
        if (kind, chunk) not in waits:
            made_of = by_kind.get(kind, (durations.optimizer,))
            at = (stage, chunk, which) if kind >= 0 else (stage, which)
            waits[kind, chunk] = (
                sum(one_ns(time.comm[at]) for time in made_of),
                sum(one_ns(time.host_at(at)) for time in made_of),
            )
        comm, host = waits[kind, chunk]
        phase = PHASES.index("optimizer" if kind < 0 else "forward" if kind == FORWARD else "backward")
        # The rest computes, what contention adds with it.
        whole = int(end[place] - begin[place]) - comm
        own, late = round(whole * pace), round(host * pace)
        parts[place, phase * len(IN_PASS) :][: len(IN_PASS)] = own - late, comm, late, whole - own
    return begin, end, parts


def _divided(border: Int64, first: Int64, task: Int64, in_task: np.ndarray, begin: Int64, parts: Int64) -> Int64:
    """Return the time of spans within passes by label, such that spans of one pass add up to it."""
    own, length = task[in_task], parts.sum(axis=1)
    until = (border[1:][in_task] - begin[own])[:, None]
    since = (first[in_task] - begin[own])[:, None]
    whole = np.maximum(length[own], 1)[:, None]
    # Borders between labels are rounded, not the labels: so that those of a span add up to its length.
    summed = np.cumsum(parts, axis=1)[own]
    upper, lower = (np.rint(summed * (time / whole)).astype(np.int64) for time in (until, since))
    return np.asarray(np.diff(upper - lower, axis=1, prepend=0))


def _is_covered(first: Int64, cover: Int64) -> np.ndarray:
    """Return whether spans, which begin at these times, lie in any of some intervals; shape (num_intervals, 2)."""
    lasts = cover[cover[:, 1] > cover[:, 0]]
    begun = np.searchsorted(np.sort(lasts[:, 0]), first, side="right")
    return np.asarray(begun > np.searchsorted(np.sort(lasts[:, 1]), first, side="right"))


def _synced(timeline: Timeline, stage: int) -> Int64:
    """Return when gradients are reduced and parameters gathered; shape (num_intervals, 2). Unit: ns."""
    gathered = float(timeline.durations.gather_overlapped[stage].sum())
    return ns(np.concatenate([[[0.0, gathered]], timeline.sync[stage], timeline.final_sync[stage : stage + 1]]))


def _transfers(timeline: Timeline, stage: int, which: int) -> Int64:
    """Return when activations and gradients are on their way to or from the stage; shape (num_transfers, 2)."""
    order = timeline.order
    if order.num_stages == 1:
        return np.empty((0, 2), dtype=np.int64)
    times = np.stack([timeline.sent[:, :, which], timeline.arrival[:, :, which]], axis=-1).reshape(-1, 2)
    outgoing = np.flatnonzero(order.is_sent[stage]) + stage * order.num_tasks
    received = order.needs[stage][order.needs[stage] >= 0]
    return ns(times[np.concatenate([outgoing, received])])


def _behind(timeline: Timeline, stage: int, which: int) -> Int64:
    """Return when the stage, done with its tasks, waits for the slowest replica; shape (num_intervals, 2). Unit: ns."""
    if not timeline.order.num_tasks:
        return np.empty((0, 2), dtype=np.int64)
    begun = [timeline.sync[stage, chunk, 0] for chunk in range(timeline.order.num_chunks)]
    joined = [timeline.joins_sync(stage, chunk, which) for chunk in range(timeline.order.num_chunks)]
    done = max(timeline.joins_final_sync(stage, which), float(timeline.arrival[stage, :, which].max()))
    begun.append(timeline.final_sync[stage, 0])
    return ns(np.array([[max(one, done), begin] for one, begin in zip([*joined, done], begun, strict=True)]))
