"""The critical path of a simulated step, traced back from its end along dependencies."""

from typing import NamedTuple

import numpy as np

from triplepoint.simulate.artefacts.simulated import Simulated
from triplepoint.simulate.timeline.schedule import FORWARD
from triplepoint.simulate.timeline.tasks import Timeline
from triplepoint.simulate.truth.spans import Label
from triplepoint.units import NS_PER_S


class Stretch(NamedTuple):
    """One interval of the critical path.

    Attributes:
        stage: Pipeline stage.
        which: Class of replica; None for all classes, in a collective.
        label: Activity in the interval.
        start_s: Start. Unit: s.
        end_s: End. Unit: s.
    """

    stage: int
    which: int | None
    label: Label
    start_s: float
    end_s: float


_SEND = Label("other", "comm", "send_recv")
_SYNC = Label("other", "comm", "gradient_sync")


def critical_path(timeline: Timeline) -> list[Stretch]:
    """Return the critical path of a step as adjacent stretches, sorted by time.

    Among candidates that end at the same time, the path takes the first stage. If the input of a pass and the previous
    pass end at the same time, it takes the previous pass.
    """
    update = timeline.durations.optimizer.total
    stage, which = divmod(int(np.argmax(update)), update.shape[1])
    ready_s, updated_s = timeline.optimizer_start, timeline.step_time_s - timeline.durations.pause_s
    path = [Stretch(stage, None, Label("other", "idle", "pause"), updated_s, timeline.step_time_s)]
    path.append(Stretch(stage, which, Label("optimizer", "compute"), ready_s, updated_s))
    # The update waits for the norm of the gradient, and this for the stage whose reduction ends last.
    stage = int(np.argmax(timeline.final_sync[:, 1]))
    path.append(Stretch(stage, None, _SYNC, float(timeline.final_sync[stage, 0]), ready_s))
    if timeline.order.num_tasks:
        _trace_sync(timeline, stage, path)
    return [stretch for stretch in reversed(path) if stretch.end_s > stretch.start_s]


def _trace_sync(timeline: Timeline, stage: int, path: list[Stretch]) -> None:
    """Trace back from the final reduction: to the last pass of the slowest replica, or to overlapped reductions."""
    until_s, durations = path[-1].start_s, timeline.durations
    done_s = (timeline.arrival + timeline.contention_s if durations.is_send_blocking else timeline.end)[stage, -1]
    last = timeline.order.num_tasks - 1
    if done_s.max() >= until_s - _SAME_S:
        which = int(done_s.argmax())
        sent_s = float(timeline.end[stage, last, which])
        path.append(Stretch(stage, which, _SEND, sent_s, until_s))
        return _trace_passes(timeline, (stage, last, which), sent_s, path)
    for chunk in range(timeline.order.num_chunks):
        begin_s = float(timeline.sync[stage, chunk, 0])
        path.append(Stretch(stage, None, _SYNC, begin_s, until_s))
        place, until_s = int(timeline.order.completes(chunk)[stage]), begin_s
        which = int(timeline.start[stage, place].argmax())
        if float(timeline.start[stage, place, which]) >= begin_s - _SAME_S:
            # The reduction begins with the pass that completes the gradients of the chunk.
            return _trace_passes(timeline, (stage, place, which), begin_s, path)
    raise AssertionError("a reduction begins with a pass or after another reduction")


_SAME_S = 0.5 / NS_PER_S
"""Times that differ by less count as equal. Unit: s."""


def _trace_passes(timeline: Timeline, at: tuple[int, int, int], until_s: float, path: list[Stretch]) -> None:
    """Trace back over passes and sends from time `until_s` in a pass; `at` has stage, place in its order, and class."""
    order, num_tasks = timeline.order, timeline.order.num_tasks
    stage, place, which = at
    end, arrival = timeline.end[:, :, which], timeline.arrival[:, :, which]
    while True:
        begin_s = float(timeline.start[stage, place, which])
        phase = "forward" if order.kind[stage, place] == FORWARD else "backward"
        path.append(Stretch(stage, which, Label(phase, "compute"), begin_s, until_s))
        needs = int(order.needs[stage, place])
        input_s = float(arrival.reshape(-1)[needs]) if needs >= 0 else 0.0
        is_blocking = timeline.durations.is_send_blocking
        free_s = float((arrival if is_blocking else end)[stage, place - 1]) if place else 0.0
        if begin_s > max(input_s, free_s) + _SAME_S or begin_s <= _SAME_S:
            # The pass waited for gathered parameters, or it is the first.
            path.append(Stretch(stage, None, _SYNC, 0.0, begin_s))
            return
        if input_s > free_s:
            stage, place = divmod(needs, num_tasks)
        else:
            place -= 1
        until_s = min(begin_s, float(end[stage, place]))
        if input_s > free_s or is_blocking:
            place, until_s = _trace_sends(timeline, (stage, place, which), begin_s, path)


def _trace_sends(
    timeline: Timeline, at: tuple[int, int, int], until_s: float, path: list[Stretch]
) -> tuple[int, float]:
    """Trace back over sends of a stage that waited for one another on a link.

    Args:
        timeline: Timeline of the step.
        at: Stage, place in its order, and class of the pass of the last send.
        until_s: End of the last send. Unit: s.
        path: Critical path from its end; extended.

    Returns:
        Place of the pass of the first of these sends, and the time when this send begins. Unit: s.
    """
    stage, place, which = at
    order = timeline.order
    sent_s, pass_end_s = _send_and_pass_end_s(timeline, at)
    path.append(Stretch(stage, which, _SEND, sent_s, until_s))
    same_direction = np.flatnonzero((order.kind[stage] == order.kind[stage, place]) & order.is_sent[stage])
    while sent_s > pass_end_s + _SAME_S:
        place, next_s = int(same_direction[same_direction < place][-1]), sent_s
        sent_s, pass_end_s = _send_and_pass_end_s(timeline, (stage, place, which))
        path.append(Stretch(stage, which, _SEND, sent_s, next_s))
    return place, sent_s


def _send_and_pass_end_s(timeline: Timeline, at: tuple[int, int, int]) -> tuple[float, float]:
    """Return the start of the send of a pass, and the end of the pass without contention. Unit: s."""
    return float(timeline.sent[at]), float(timeline.start[at]) + float(timeline.lasts[at])


def ranks_on(simulated: Simulated, stage: int, which: int | None) -> list[int]:
    """Return the slowest ranks of a stage and class, for which the others wait; all ranks if the class is None."""
    ranks = simulated.job.mesh.stage(stage)
    if which is None:
        return list(ranks)
    return [rank for rank in ranks if simulated.place(rank)[1] == which and simulated.pace(rank) == 1.0]
