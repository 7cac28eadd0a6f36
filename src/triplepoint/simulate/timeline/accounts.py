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
    parts = [_idle(timeline, slice(one, min(one + _CLASSES_AT_ONCE, num_classes))) for one in starts]
    idle, straggler = np.concatenate(parts, axis=1), _straggler(timeline)
    compute = _compute(timeline)
    # Differences that are nothing may come out as less than nothing.
    comm = np.maximum(timeline.step_time_s - idle - compute, 0.0)
    return Accounts(compute, comm, np.maximum(idle - straggler, 0.0), straggler)


def _idle(timeline: "Timeline", classes: slice) -> Float:
    """Return how long nothing occupies each stage; shape (num_stages, num_classes).

    Where as many have ended as have begun there is a gap: starts and ends can be sorted apart.
    """
    begin, end = _occupied(timeline, classes)
    begin.sort(axis=2)
    end.sort(axis=2)
    gaps = np.subtract(begin[:, :, 1:], end[:, :, :-1], out=begin[:, :, 1:])
    return np.asarray(np.maximum(gaps, 0.0, out=gaps).sum(axis=2))


def _occupied(timeline: "Timeline", classes: slice) -> tuple[Float, Float]:
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
    own = (timeline.start, timeline.end), (timeline.sent, timeline.arrival) if has_sends else None
    found = []
    for side in (0, 1):
        times = np.empty(shape)
        times[:, :, :num_tasks] = own[0][side][:, :, classes].transpose(0, 2, 1)
        if own[1] is not None:
            message = own[1][side][:, :, classes]
            times[:, :, num_tasks : 2 * num_tasks] = message.transpose(0, 2, 1)
            received = message.reshape(-1, num_classes)[order.needs] * (order.needs >= 0)[:, :, None]
            times[:, :, 2 * num_tasks : 3 * num_tasks] = received.transpose(0, 2, 1)
        times[:, :, -common[side].shape[1] :] = common[side][:, None, :]
        found.append(times)
    # The update is there once more, its length that of the class.
    found[1][:, :, -1] += durations.optimizer.total[:, classes]
    return found[0], found[1]


def _straggler(timeline: "Timeline") -> Float:
    """Return how long each stage, done with its own tasks, does nothing but wait for other replicas.

    Then it may reduce gradients, or messages may be on their way, one right after the other since all wait already.
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


def _compute(timeline: "Timeline") -> Float:
    durations = timeline.durations
    passes = durations.forward.compute + durations.backward_input.compute + durations.backward_weight.compute
    computed = timeline.order.num_microbatches * passes.sum(axis=1) + durations.optimizer.compute
    return np.asarray(computed + timeline.contention_s)
