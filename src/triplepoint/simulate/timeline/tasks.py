"""Timeline of a step: when every task runs, on every pipeline stage of every kind of replica.

One pass over the order in waves: a task starts when the stage is free and its input has arrived. Replicas of the
pipeline that behave alike are one class, simulated once; those that differ (slow, hot, heavier) are classes of their
own and meet in the reduction of gradients. A send begins as soon as its link is free: the two directions of a
boundary are links of their own, and a link carries one send at a time. Sending waits for no receiver.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from triplepoint.simulate.timeline.durations import Durations, Float
from triplepoint.simulate.timeline.schedule import FORWARD, Order, Queue
from triplepoint.units import NS_PER_S

_NARROW, _MANY_TASKS = 16, 100_000
"""Mean tasks of a wave below which tasks of one class are run one by one: numpy takes as long for a wave as Python for
20 tasks. Number of tasks from which lists of them take too much memory."""
_CLASSES_AT_ONCE = 64
"""Classes run together: as many as leave their times in the processor's cache."""
_CLASSES_ACCOUNTED = 16
"""Classes accounted together: as many as leave their times in the processor's cache."""


class Accounts(NamedTuple):
    """Time of a step, all of it: together the four are its length. Shape of each (num_stages, num_classes).

    Attributes:
        compute_s: Computation.
        exposed_comm_s: Communication that no computation overlaps.
        bubble_s: Nothing, waiting for other stages, or for the host after the update.
        straggler_s: Nothing, waiting for other replicas in the reduction of gradients.
    """

    compute_s: Float
    exposed_comm_s: Float
    bubble_s: Float
    straggler_s: Float


@dataclass(frozen=True, eq=False)
class Timeline:
    """One step from its start at 0 to the last rank's end. Unit: s.

    Attributes:
        order: What ran.
        durations: What it was made of.
        start: Of tasks; shape (num_stages, num_tasks, num_classes).
        end: Same shape; of the last task of every stage with what contention adds to it.
        arrival: When a task's output is at the next stage; its end where nothing is sent.
        sync: Start and end of the overlapped reduction of every chunk; shape (num_stages, num_chunks, 2).
        final_sync: Start and end of the rest; shape (num_stages, 2).
        optimizer_start: When the gradient's norm is known on all stages.
        step_time_s: End of the last rank.
        contention_s: What overlapped reduction of gradients and gathering of parameters cost the computation.
    """

    order: Order
    durations: Durations
    start: Float
    end: Float
    arrival: Float
    sync: Float
    final_sync: Float
    optimizer_start: float
    step_time_s: float
    contention_s: float = 0.0

    @cached_property
    def sent(self) -> Float:
        """When a task's send begins: its arrival where nothing is sent."""
        return np.asarray(self.arrival - _send_times(self.order, self.durations)[:, :, None])

    @cached_property
    def lasts(self) -> Float:
        """Time of every task but for contention; shape (num_stages, num_tasks, num_classes). Unit: s."""
        return _task_times(self.order, self.durations)

    def posted(self, stage: int, which: int) -> Float:
        """Return when ranks of a class post the receive of each task's input; shape (num_tasks,). Unit: s.

        That is once the task before is done (and its result sent, where sends are waited for), or when the send begins
        where that is earlier: then the receive was posted ahead. Receives are posted in the order they are sent in.
        """
        order, sent = self.order, self.sent[:, :, which].reshape(-1)
        done = (self.arrival if self.durations.is_send_blocking else self.end)[stage, :-1, which]
        free = np.concatenate([[0.0], done])[: order.num_tasks]
        needs = order.needs[stage]
        posted = np.where(needs >= 0, np.minimum(free, sent[needs]), free)
        for source in np.unique(needs[needs >= 0] // order.num_tasks):
            own = np.flatnonzero((needs >= 0) & (needs // order.num_tasks == source))
            own = own[np.argsort(sent[needs[own]], kind="stable")]
            posted[own] = np.minimum.accumulate(posted[own][::-1])[::-1]
        return np.asarray(posted)

    def joins_sync(self, stage: int, chunk: int, which: int) -> float:
        """Return when ranks of a class are ready to reduce a chunk's gradients; the slowest replica's sync begins then.

        Unit: s.
        """
        if not self.order.num_tasks:
            return float(self.sync[stage, chunk, 0])
        ready = float(self.start[stage, self.order.completes(chunk)[stage], which])
        after = float(self.sync[stage, chunk + 1, 1]) if chunk + 1 < self.order.num_chunks else 0.0
        return max(ready, after)

    def joins_final_sync(self, stage: int, which: int) -> float:
        """Return when ranks of a class are ready for the rest of the reduction. Unit: s."""
        if not self.order.num_tasks:
            return float(self.final_sync[stage, 0])
        is_blocking = self.durations.is_send_blocking
        done = self.arrival[stage, -1, which] + self.contention_s if is_blocking else self.end[stage, -1, which]
        return max(float(done), float(self.sync[stage, 0, 1]))

    @cached_property
    def accounts(self) -> Accounts:
        """Where the time of every stage and class went."""
        return account(self)

    @property
    def bubble_fraction(self) -> float:
        """Time waiting for the pipeline over the time of the step, mean over ranks; 0 without a step."""
        if not self.step_time_s:
            return 0.0
        bubble = self.accounts.bubble_s.mean(axis=0)
        waits_s = float(np.average(bubble, weights=self.durations.replicas)) - self.durations.pause_s
        return max(waits_s, 0.0) / self.step_time_s

    @cached_property
    def critical_stage(self) -> int:
        """Stage that most of the step's time depends on: the path back from the last task is longest in it."""
        if self.order.num_stages == 1:
            return 0
        return int(np.argmax(_time_on_path(self)))


def run(durations: Durations, order: Order) -> Timeline:
    """Return the timeline of one step.

    Args:
        durations: Times.
        order: Of the same numbers of stages and chunks.
    """
    (timeline,) = run_together((durations,), order)
    return timeline


def run_together(steps: Sequence[Durations], order: Order) -> list[Timeline]:
    """Return the timelines of steps of other jobs in the same order: a wave of all takes hardly longer than of one.

    Args:
        steps: Times of each step; sends block in all of them or in none.
        order: Of the same numbers of stages and chunks.
    """
    times = [_task_times(order, durations) for durations in steps]
    sends = [_send_times(order, durations)[:, :, None] for durations in steps]
    earliest = [_earliest_starts(order, *each) for each in zip(steps, times, strict=True)]
    if len(steps) > 1:
        sends = [np.broadcast_to(send, time.shape) for send, time in zip(sends, times, strict=True)]
    time, send, held = map(_side_by_side, (times, sends, earliest))
    ends, arrivals = _run_tasks(order, time, send, held, steps[0].is_send_blocking)
    found, low = [], 0
    for durations, own_time in zip(steps, times, strict=True):
        own = slice(low, low := low + own_time.shape[2])
        found.append(_finish(order, durations, own_time, ends[:, :, own], arrivals[:, :, own]))
    return found


def _side_by_side(arrays: Sequence[Float]) -> Float:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=2)


def _finish(order: Order, durations: Durations, time: Float, end: Float, arrival: Float) -> Timeline:
    """Return the timeline of a step whose tasks have run."""
    start = end - time
    sync, final_sync = _reduce_gradients(order, durations, start, end, arrival)
    # Clipping needs the norm over all stages, so they meet here.
    ready = float(final_sync[:, 1].max(initial=0.0))
    step = ready + float(durations.optimizer.total.max(initial=0.0)) + durations.pause_s
    return _slow_down(Timeline(order, durations, start, end, arrival, sync, final_sync, ready, step))


def _slow_down(timeline: Timeline) -> Timeline:
    """Let computation take longer for the collectives of the step that overlap it.

    All of it comes with the last task of every stage, as long as on the stage that the step depends on: stages reduce
    their gradients at the same time (Megatron-LM aligns them), and what a task sends has gone before its rest.
    """
    # In whole nanoseconds, as artefacts have it.
    more = round(timeline.durations.slowdown * _hidden_s(timeline) * NS_PER_S) / NS_PER_S
    if not more:
        return timeline
    end, sync, final_sync = timeline.end.copy(), timeline.sync.copy(), timeline.final_sync + more
    outlasts = sync[:, 0, 1] > end[:, -1].max(axis=1)
    end[:, -1] += more
    sync[outlasts, 0, 1] += more
    return replace(
        timeline,
        end=end,
        sync=sync,
        final_sync=final_sync,
        optimizer_start=timeline.optimizer_start + more,
        step_time_s=timeline.step_time_s + more,
        contention_s=more,
    )


def _hidden_s(timeline: Timeline) -> float:
    """Return how long collectives of the step overlap the passes of the critical stage. Unit: s."""
    durations = timeline.durations
    if not (durations.slowdown and timeline.order.num_tasks):
        return 0.0
    stage = timeline.critical_stage
    gathers = float(durations.gather_overlapped[stage].sum())
    begin, end = timeline.sync[stage].T
    hidden = np.maximum(np.minimum(end, timeline.end[stage, -1].max()) - begin, 0.0)
    return float(hidden.sum()) + gathers


def _task_times(order: Order, durations: Durations) -> Float:
    """Return the time of every task; shape (num_stages, num_tasks, num_classes)."""
    if durations.of_task is not None:
        return durations.of_task
    backward, weight = durations.backward_input.total, durations.backward_weight.total
    by_kind = np.stack((durations.forward.total, backward if order.is_split else backward + weight, weight))
    return np.asarray(by_kind[order.kind, np.arange(order.num_stages)[:, None], order.chunk])


def _send_times(order: Order, durations: Durations) -> Float:
    """Return the time of every task's send, 0 where there is none; shape (num_stages, num_tasks)."""
    return np.where(order.is_sent, durations.send[order.boundary], 0.0)


def _earliest_starts(order: Order, durations: Durations, time: Float) -> Float:
    """Return when tasks may start at the earliest: a chunk's first ends no sooner than its parameters are there."""
    if not order.num_tasks or not durations.gather_overlapped.any():
        return np.broadcast_to(np.float64(0.0), time.shape)
    earliest = np.zeros_like(time)
    gathered = np.cumsum(durations.gather_overlapped, axis=1)
    stage, place = np.nonzero((order.kind == FORWARD) & (order.microbatch == 0))
    until = gathered[stage, order.chunk[stage, place]][:, None]
    earliest[stage, place] = np.maximum(until - time[stage, place], 0.0)
    return earliest


def _run_tasks(order: Order, time: Float, send: Float, earliest: Float, is_blocking: bool) -> tuple[Float, Float]:
    """Return when tasks end and when their outputs arrive; shape (num_stages, num_tasks, num_classes).

    `send` has that shape too, or one class where all classes send alike.
    """
    num_stages, _, num_classes = time.shape
    if num_stages == 1:
        # Nobody to wait for: a running sum, lifted where a start had to wait.
        before = np.cumsum(time, axis=1) - time
        end = before + np.maximum.accumulate(earliest - before, axis=1) + time
        return end, end
    end, arrival = np.empty_like(time), np.empty_like(time)
    for low in range(0, num_classes, _CLASSES_AT_ONCE):
        some = slice(low, low + _CLASSES_AT_ONCE)
        lag = send[..., some] if send.shape[2] > 1 else send
        end[..., some], arrival[..., some] = _run_queue(
            order.queue, time[..., some], lag, earliest[..., some], is_blocking
        )
    return end, arrival


def _run_queue(queue: Queue, time: Float, send: Float, earliest: Float, is_blocking: bool) -> tuple[Float, Float]:
    """Return the result of `_run_tasks` for few classes."""
    shape = (-1, time.shape[2])
    work, held = time.reshape(shape)[queue.tasks], earliest.reshape(shape)[queue.tasks]
    lag = send.reshape(-1, send.shape[2])[queue.tasks]
    is_narrow = time.shape[2] == 1 and len(queue.tasks) < min(_NARROW * len(queue.waves), _MANY_TASKS)
    run = _run_one_by_one if is_narrow else _run_waves
    end, arrival = run(queue, work, lag, held, is_blocking)
    return end[queue.rows].reshape(time.shape), arrival[queue.rows].reshape(time.shape)


def _run_one_by_one(queue: Queue, work: Float, lag: Float, held: Float, is_blocking: bool) -> tuple[Float, Float]:
    """Return the result of `_run_waves` for tasks of one class: for narrow waves, in less than half the time."""
    end, arrival = [0.0], [0.0]
    free = arrival if is_blocking else end
    columns = work[:, 0], lag[:, 0], held[:, 0], queue.previous, queue.needs, queue.link
    for work_s, lag_s, held_s, previous, needs, link in zip(*(column.tolist() for column in columns), strict=True):
        # Comparisons, not `max`: a call takes as long as all else.
        done, needed, sent = free[previous], arrival[needs], arrival[link]
        if needed > done:
            done = needed
        if held_s > done:
            done = held_s
        done += work_s
        end.append(done)
        arrival.append((sent if sent > done else done) + lag_s)
    return np.array(end), np.array(arrival)


def _run_waves(queue: Queue, work: Float, lag: Float, held: Float, is_blocking: bool) -> tuple[Float, Float]:
    """Return end and arrival of all tasks in the order of the queue, behind a row 0 for those that wait for nothing.

    Args:
        queue: The tasks.
        work: Time of every task; shape (num_tasks, num_classes), as the result. Unit: s.
        lag: Time of its send; same shape, or one class. Unit: s.
        held: Its earliest start; same shape as `work`. Unit: s.
        is_blocking: Whether a stage waits for its sends.
    """
    end = np.zeros((len(work) + 1, work.shape[1]))
    arrival = np.zeros_like(end)
    free = arrival if is_blocking else end
    for low, high in queue.waves:
        done = end[low + 1 : high + 1]
        np.maximum(free.take(queue.previous[low:high], axis=0), arrival.take(queue.needs[low:high], axis=0), out=done)
        np.maximum(done, held[low:high], out=done)
        done += work[low:high]
        sent = np.maximum(done, arrival.take(queue.link[low:high], axis=0))
        np.add(sent, lag[low:high], out=arrival[low + 1 : high + 1])
    return end, arrival


def _reduce_gradients(
    order: Order, durations: Durations, start: Float, end: Float, arrival: Float
) -> tuple[Float, Float]:
    """Return start and end of the reductions of every chunk, and of what is left for after the last backward pass.

    All replicas take part, so each begins when the last of them is there.
    """
    stages = np.arange(order.num_stages)
    sync = np.zeros((order.num_stages, order.num_chunks, 2))
    free = np.zeros(order.num_stages)
    if not order.num_tasks:
        rest = np.stack((free, free + durations.sync_exposed), axis=1)
        return sync, rest
    # The last chunk's backward passes come first.
    for chunk in reversed(range(order.num_chunks)):
        begun = start[stages, order.completes(chunk)].max(axis=1)
        free = np.maximum(free, begun)
        sync[:, chunk, 0] = free
        free = free + durations.sync_overlapped[:, chunk]
        sync[:, chunk, 1] = free
    done = (arrival if durations.is_send_blocking else end)[:, -1].max(axis=1)
    begin = np.maximum(free, done)
    return sync, np.stack((begin, begin + durations.sync_exposed), axis=1)


def _time_on_path(timeline: Timeline) -> Float:
    """Return the time of tasks and sends on the path that the step's end depends on, by stage."""
    on_path, num_tasks = np.zeros(timeline.order.num_stages), timeline.order.num_tasks
    if not num_tasks:
        return on_path + timeline.durations.sync_exposed
    stage = int(timeline.final_sync[:, 1].argmax())
    on_path[stage] += timeline.final_sync[stage, 1] - timeline.final_sync[stage, 0]
    which, place = int(timeline.end[stage, -1].argmax()), num_tasks - 1
    end, arrival, sources = timeline.end[:, :, which], timeline.arrival[:, :, which], timeline.order.needs
    lasts = end - timeline.start[:, :, which]
    while place >= 0:
        on_path[stage] += lasts[stage, place]
        needs = int(sources[stage, place])
        before = end[stage, place - 1] if place else 0.0
        other = divmod(needs, num_tasks) if needs >= 0 else None
        if other is not None and arrival[other] > before:
            stage, place = other
        else:
            place -= 1
    return on_path


def account(timeline: Timeline) -> Accounts:
    """Return where the time of a timeline went."""
    num_classes = len(timeline.durations.replicas)
    starts = range(0, num_classes, _CLASSES_ACCOUNTED)
    parts = [_idle(timeline, slice(low, min(low + _CLASSES_ACCOUNTED, num_classes))) for low in starts]
    idle, straggler = np.concatenate(parts, axis=1), _straggler(timeline)
    compute = _compute(timeline)
    # Differences that are nothing may come out as less than nothing.
    comm = np.maximum(timeline.step_time_s - idle - compute, 0.0)
    return Accounts(compute, comm, np.maximum(idle - straggler, 0.0), straggler)


def _idle(timeline: Timeline, classes: slice) -> Float:
    """Return how long nothing occupies each stage; shape (num_stages, num_classes).

    Where as many have ended as have begun there is a gap: starts and ends can be sorted apart.
    """
    begin, end = _occupied(timeline, classes)
    begin.sort(axis=2)
    end.sort(axis=2)
    gaps = np.subtract(begin[:, :, 1:], end[:, :, :-1], out=begin[:, :, 1:])
    return np.asarray(np.maximum(gaps, 0.0, out=gaps).sum(axis=2))


def _occupied(timeline: Timeline, classes: slice) -> tuple[Float, Float]:
    """Return start and end of all that occupies each stage; shape (num_stages, num_classes, number).

    The first one is the start of the step, the last one its end, so that every gap lies between two.
    """
    order, durations = timeline.order, timeline.durations
    num_stages, num_classes = order.num_stages, classes.stop - classes.start
    gathered = np.cumsum(durations.gather_overlapped, axis=1)
    ready = np.full((num_stages, 1), timeline.optimizer_start)
    ends = np.array([[0.0, timeline.step_time_s]] * num_stages)
    # What all classes have in common.
    begins = [ends, gathered - durations.gather_overlapped, timeline.sync[:, :, 0], timeline.final_sync[:, :1], ready]
    common = (
        np.concatenate(begins, axis=1),
        np.concatenate([ends, gathered, timeline.sync[:, :, 1], timeline.final_sync[:, 1:], ready], axis=1),
    )
    num_tasks, has_sends = order.num_tasks, bool(order.num_tasks and durations.send.any())
    shape = num_stages, num_classes, num_tasks * (3 if has_sends else 1) + common[0].shape[1]
    by_class = (timeline.start, timeline.end), (timeline.sent, timeline.arrival) if has_sends else None
    sides = []
    for side in (0, 1):
        times = np.empty(shape)
        times[:, :, :num_tasks] = by_class[0][side][:, :, classes].transpose(0, 2, 1)
        if by_class[1] is not None:
            sends = by_class[1][side][:, :, classes]
            times[:, :, num_tasks : 2 * num_tasks] = sends.transpose(0, 2, 1)
            received = sends.reshape(-1, num_classes)[order.needs] * (order.needs >= 0)[:, :, None]
            times[:, :, 2 * num_tasks : 3 * num_tasks] = received.transpose(0, 2, 1)
        times[:, :, -common[side].shape[1] :] = common[side][:, None, :]
        sides.append(times)
    # The update is there once more, its length that of the class.
    sides[1][:, :, -1] += durations.optimizer.total[:, classes]
    return sides[0], sides[1]


def _straggler(timeline: Timeline) -> Float:
    """Return how long each stage, done with its own tasks, does nothing but wait for other replicas.

    Then it may reduce gradients, or sends may be on their way, one right after the other since all wait already.
    """
    order, num_classes = timeline.order, len(timeline.durations.replicas)
    shape = (order.num_stages, num_classes)
    if not order.num_tasks:
        return np.maximum(np.broadcast_to(timeline.final_sync[:, :1], shape), 0.0)
    is_blocking = timeline.durations.is_send_blocking
    until = (timeline.arrival[:, -1] + timeline.contention_s) if is_blocking else timeline.end[:, -1]
    waited, until = np.zeros(shape), np.maximum(until, timeline.arrival.max(axis=1))
    for begin, end in (
        *(timeline.sync[:, chunk].T for chunk in reversed(range(order.num_chunks))),
        timeline.final_sync.T,
    ):
        waited += np.maximum(begin[:, None] - until, 0.0)
        until = np.maximum(until, end[:, None])
    return waited


def _compute(timeline: Timeline) -> Float:
    durations = timeline.durations
    passes = durations.forward.compute + durations.backward_input.compute + durations.backward_weight.compute
    computed = timeline.order.num_microbatches * passes.sum(axis=1) + durations.optimizer.compute
    return np.asarray(computed + timeline.contention_s)
