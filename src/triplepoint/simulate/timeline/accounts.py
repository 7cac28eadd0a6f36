"""Where the time of every stage went: computation, communication beside nothing, waiting. All of it, exactly once."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from triplepoint.simulate.timeline.model import Timeline

Float = npt.NDArray[np.float64]

_CLASSES_AT_ONCE = 16
"""Classes looked at together: as many as leave their times in the processor's cache."""


class Accounts(NamedTuple):
    """Time of a step, all of it: together the four are its length. Shape of each (num_stages, num_classes).

    Attributes:
        compute_s: Computation.
        exposed_comm_s: Messages with no computation beside them.
        bubble_s: Nothing, waiting for other stages.
        straggler_s: Nothing, waiting for other replicas in the reduction of gradients.
    """

    compute_s: Float
    exposed_comm_s: Float
    bubble_s: Float
    straggler_s: Float

    @property
    def busy_s(self) -> Float:
        """Computation or exposed communication."""
        return self.compute_s + self.exposed_comm_s

    @property
    def idle_s(self) -> Float:
        """Nothing at all."""
        return self.bubble_s + self.straggler_s


def account(timeline: "Timeline") -> Accounts:
    """Return where the time of a timeline went."""
    num_classes = len(timeline.durations.replicas)
    starts = range(0, num_classes, _CLASSES_AT_ONCE)
    parts = [_account(timeline, slice(one, min(one + _CLASSES_AT_ONCE, num_classes))) for one in starts]
    busy, idle, straggler = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    compute = _compute(timeline)
    # Differences that are nothing may come out as less than nothing.
    return Accounts(compute, np.maximum(busy - compute, 0.0), np.maximum(idle - straggler, 0.0), straggler)


def _account(timeline: "Timeline", classes: slice) -> tuple[Float, Float, Float]:
    """Return busy time, idle time, and how much of that was spent waiting for other replicas."""
    begin, end = _occupied(timeline, classes)
    order = np.argsort(begin, axis=2, kind="stable")
    begin, end = np.take_along_axis(begin, order, axis=2), np.take_along_axis(end, order, axis=2)
    reach = np.maximum.accumulate(end, axis=2)
    before = np.concatenate((np.zeros_like(reach[:, :, :1]), reach[:, :, :-1]), axis=2)
    gap_end = np.maximum(begin, before)
    busy = np.maximum(end - gap_end, 0.0).sum(axis=2)
    idle = (gap_end - before).sum(axis=2)
    done, synced = _own_end(timeline, classes)[:, :, None], timeline.final_sync[:, None, :1]
    straggler = np.maximum(np.minimum(gap_end, synced) - np.maximum(before, done), 0.0).sum(axis=2)
    return busy, idle, straggler


def _occupied(timeline: "Timeline", classes: slice) -> tuple[Float, Float]:
    """Return start and end of all that occupies each stage; shape (num_stages, num_classes, number)."""
    order, durations = timeline.order, timeline.durations
    num_stages, num_classes = order.num_stages, classes.stop - classes.start
    begins, ends = [timeline.start[:, :, classes]], [timeline.end[:, :, classes]]

    def add(begin: Float, end: Float) -> None:
        """Add what all classes have in common; shape (num_stages, number)."""
        shape = (num_stages, begin.shape[1], num_classes)
        begins.append(np.broadcast_to(begin[:, :, None], shape))
        ends.append(np.broadcast_to(end[:, :, None], shape))

    if order.num_tasks and durations.send.any():
        sent, arrival = timeline.sent[:, :, classes], timeline.arrival[:, :, classes]
        is_received = (order.needs >= 0)[:, :, None]
        begins += [sent, np.where(is_received, sent.reshape(-1, num_classes)[order.needs], 0.0)]
        ends += [arrival, np.where(is_received, arrival.reshape(-1, num_classes)[order.needs], 0.0)]
    gathered = np.cumsum(durations.gather_overlapped, axis=1)
    add(gathered - durations.gather_overlapped, gathered)
    add(timeline.sync[:, :, 0], timeline.sync[:, :, 1])
    add(timeline.final_sync[:, :1], timeline.final_sync[:, 1:])
    ready = np.full((num_stages, 1, num_classes), timeline.optimizer_start)
    begins.append(ready)
    ends.append(ready + durations.optimizer.total[:, None, classes])
    # The end of the step comes last, so that every gap is followed by something.
    step = np.full((num_stages, 1), timeline.step_time_s)
    add(step, step)
    return _joined(begins), _joined(ends)


def _joined(parts: list[Float]) -> Float:
    return np.ascontiguousarray(np.concatenate(parts, axis=1).transpose(0, 2, 1))


def _own_end(timeline: "Timeline", classes: slice) -> Float:
    """Return when each stage is done with its own tasks; shape (num_stages, num_classes)."""
    if timeline.order.num_tasks == 0:
        return np.zeros((timeline.order.num_stages, classes.stop - classes.start))
    after = timeline.arrival if timeline.durations.is_send_blocking else timeline.end - timeline.contention_s
    return np.asarray(after[:, -1, classes]) + timeline.contention_s


def _compute(timeline: "Timeline") -> Float:
    durations = timeline.durations
    passes = durations.forward.compute + durations.backward_input.compute + durations.backward_weight.compute
    computed = timeline.order.num_microbatches * passes.sum(axis=1) + durations.optimizer.compute
    return np.asarray(computed + timeline.contention_s)
