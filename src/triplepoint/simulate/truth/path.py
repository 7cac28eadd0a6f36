"""The critical path of a simulated step: walked back from its end, over what each thing had to wait for."""

from typing import NamedTuple

import numpy as np

from triplepoint.simulate.artefacts.simulated import Simulated
from triplepoint.simulate.timeline.schedule import FORWARD
from triplepoint.simulate.timeline.tasks import Timeline
from triplepoint.simulate.truth.spans import Label
from triplepoint.units import NS_PER_S


class Stretch(NamedTuple):
    """A stretch of the path.

    Attributes:
        stage: Pipeline stage.
        which: Class of replica; None for all of them, in a collective.
        label: What is done.
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
    """Return the stretches of a step's path, by time; they touch.

    Of several that end at one time the first stage is taken, of inputs and the pass before the latter.
    """
    update = timeline.durations.optimizer.total
    stage, which = divmod(int(np.argmax(update)), update.shape[1])
    ready, updated = timeline.optimizer_start, timeline.step_time_s - timeline.durations.pause_s
    path = [Stretch(stage, None, Label("other", "idle", "pause"), updated, timeline.step_time_s)]
    path.append(Stretch(stage, which, Label("optimizer", "compute"), ready, updated))
    # The norm of the gradient is known when the last stage's is.
    stage = int(np.argmax(timeline.final_sync[:, 1]))
    path.append(Stretch(stage, None, _SYNC, float(timeline.final_sync[stage, 0]), ready))
    if timeline.order.num_tasks:
        _before_sync(timeline, stage, path)
    return [one for one in reversed(path) if one.end_s > one.start_s]


def _before_sync(timeline: Timeline, stage: int, path: list[Stretch]) -> None:
    """Walk back from the reduction after the passes: to the slowest replica's last, or to reductions before it."""
    until, durations = path[-1].start_s, timeline.durations
    done = (timeline.arrival + timeline.contention_s if durations.is_send_blocking else timeline.end)[stage, -1]
    last = timeline.order.num_tasks - 1
    if done.max() >= until - _SAME_S:
        which = int(done.argmax())
        sent = float(timeline.end[stage, last, which])
        path.append(Stretch(stage, which, _SEND, sent, until))
        return _passes(timeline, (stage, last, which), sent, path)
    for chunk in range(timeline.order.num_chunks):
        begin = float(timeline.sync[stage, chunk, 0])
        path.append(Stretch(stage, None, _SYNC, begin, until))
        place, until = int(timeline.order.completes(chunk)[stage]), begin
        which = int(timeline.start[stage, place].argmax())
        if float(timeline.start[stage, place, which]) >= begin - _SAME_S:
            # It begins with the pass that completes the chunk's gradients, when what that waited for is done.
            return _passes(timeline, (stage, place, which), begin, path)
    raise AssertionError("a reduction begins with a pass or after another reduction")


_SAME_S = 0.5 / NS_PER_S
"""Times that differ by less are one."""


def _passes(timeline: Timeline, at: tuple[int, int, int], until: float, path: list[Stretch]) -> None:
    """Walk back over passes and sends from a time in a pass, given as stage, place in its order, and class."""
    order, num_tasks = timeline.order, timeline.order.num_tasks
    stage, place, which = at
    end, sent, arrival = (times[:, :, which] for times in (timeline.end, timeline.sent, timeline.arrival))
    while True:
        begin = float(timeline.start[stage, place, which])
        phase = "forward" if order.kind[stage, place] == FORWARD else "backward"
        path.append(Stretch(stage, which, Label(phase, "compute"), begin, until))
        needs = int(order.needs[stage, place])
        came = float(arrival.reshape(-1)[needs]) if needs >= 0 else 0.0
        is_blocking = timeline.durations.is_send_blocking
        free = float((arrival if is_blocking else end)[stage, place - 1]) if place else 0.0
        if begin > max(came, free) + _SAME_S or begin <= _SAME_S:
            # Parameters were gathered until then, or it is the first.
            path.append(Stretch(stage, None, _SYNC, 0.0, begin))
            return
        if came > free:
            stage, place = divmod(needs, num_tasks)
        else:
            place -= 1
        until = min(begin, float(end[stage, place]))
        if came > free or is_blocking:
            stage, place, until = _sends(timeline, (stage, place, which), begin, path)


def _sends(timeline: Timeline, at: tuple[int, int, int], until: float, path: list[Stretch]) -> tuple[int, int, float]:
    """Walk back over sends that waited for one another on a link; return the pass that the first is of, and its end."""
    stage, place, which = at
    order = timeline.order
    sent = float(timeline.sent[stage, place, which])
    ended = float(timeline.start[stage, place, which]) + float(timeline.lasts[stage, place, which])
    path.append(Stretch(stage, which, _SEND, sent, until))
    alike = np.flatnonzero((order.kind[stage] == order.kind[stage, place]) & order.is_sent[stage])
    while sent > ended + _SAME_S:
        place = int(alike[alike < place][-1])
        path.append(Stretch(stage, which, _SEND, float(timeline.sent[stage, place, which]), sent))
        sent = float(timeline.sent[stage, place, which])
        ended = float(timeline.start[stage, place, which]) + float(timeline.lasts[stage, place, which])
    return stage, place, sent


def ranks_on(simulated: Simulated, stage: int, which: int | None) -> list[int]:
    """Return the ranks of a stage and class that the others wait for; of all classes in a collective."""
    ranks = simulated.job.mesh.stage(stage)
    if which is None:
        return list(ranks)
    return [rank for rank in ranks if simulated.place(rank)[1] == which and simulated.pace(rank) == 1.0]
