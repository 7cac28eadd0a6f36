"""What-if replay: start and end of every operation if some operations had other durations.

The order in time of a recorded step is taken as the order of dependencies. So an operation starts when all operations
that its worker had ended before it have ended, and pipeline schedules need no rule of their own. Only pipeline
transfers that overlap others in the record do not wait for those, and what they bring delays the next pass of its
direction alone: which of two sides sends first depends on how fast they are. Communication that starts during a
computation of its worker starts at the same fraction of that computation, and the next pass of the same direction needs
it. A transfer ends its own duration after its last member has started; a buffered send does not wait.

Source:
    Lin et al. 2025, Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI'25, section 3.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.why.operations import Bool, Float, Int64, Operations

_LATE_S, _LATE_SHARE = 2e-4, 0.1
"""An operation that starts less than this time before another ends is taken to start after it. The limit is the smaller
of a time in s and a share of the other's duration. A host records ends some 10 us late, and times may have single
precision. Our choice."""


class Order(NamedTuple):
    """Order of events of a step.

    Attributes:
        events: Starts and ends in order: a start is the index of its operation, an end is -1 - index; shape
            (2 * num_operations,).
        inside: For each operation the computation during which it starts; -1 if there is none; shape
            (num_operations,).
        share: Fraction of that computation that is over at the start; same shape.
        members: Operations of each transfer.
        awaited: For each operation the operation of another worker that it waits for without a recorded transfer; -1
            if there is none; same shape.
        users: For each operation overlapped with computation, the first pass that needs it; for received transfers too
            if transfers overlap each other.
        after: Lanes of each operation, which starts when all that delay these lanes have ended. A worker has a lane for
            all operations, one for computation and, if pipeline transfers overlap, one for each partner and direction.
        delays: Lanes that each operation delays.
    """

    events: Int64
    inside: Int64
    share: Float
    members: list[Int64]
    awaited: Int64
    users: dict[int, int]
    after: list[tuple[int, ...]]
    delays: list[tuple[int, ...]]


def find_order(operations: Operations) -> Order:
    """Return the order of events in the step of median length."""
    step_s = operations.step_time_s
    step = int(np.argsort(step_s)[(len(step_s) - 1) // 2])
    start, end = operations.start_s[:, step], operations.end_s[:, step]
    latest = np.where(operations.is_waiting, operations.latest_start_s[:, step], start)
    event_end = np.maximum(end - _tolerance_s(end - start), latest)
    time = np.concatenate((start, event_end))
    events = np.concatenate((np.arange(len(start)), -1 - np.arange(len(end))))
    by_transfer = np.argsort(operations.transfer, kind="stable")
    members = np.split(by_transfer, np.cumsum(np.bincount(operations.transfer))[:-1])
    inside, share = _surrounding_computation(operations, start, end)
    # Of events at the same time, a transfer's starts come before its ends, and what follows it comes after them.
    is_early = (np.bincount(operations.transfer)[operations.transfer] > 1) | (end == start)
    turn = np.concatenate((np.where(is_early, 0, 2), np.ones(len(end))))
    awaited = np.full(len(start), -1, dtype=np.int64)
    lanes = _transfer_lanes(operations, members)
    has_user = inside >= 0
    direction, is_received = _directions(operations, members, start, event_end)
    if are_parallel := _are_parallel(operations, lanes, start, event_end):
        has_user |= is_received
    users = _users(operations, direction, has_user, start, event_end)
    after, delays = _waits(operations, lanes if are_parallel else [None] * len(lanes), users)
    # A receive that begins with its send was posted before, at a time that is not recorded.
    inside[is_received & (np.abs(start - latest) <= _tolerance_s(end - start))] = -1
    return Order(events[np.lexsort((turn, time))], inside, share, members, awaited, users, after, delays)


def _is_of_pipeline(operations: Operations) -> Bool:
    return np.array(["pp-comm" in name for name in operations.kinds])[operations.kind]


def _transfer_lanes(operations: Operations, members: list[Int64]) -> list[tuple[Any, ...] | None]:
    """Return worker, kind and partners of each pipeline transfer; None for other operations."""
    worker, of_pipeline = operations.worker.tolist(), _is_of_pipeline(operations).tolist()
    partners = [tuple(sorted(worker[index] for index in of_transfer)) for of_transfer in members]
    kinds, transfers = operations.kind.tolist(), operations.transfer.tolist()
    return [
        (worker[index], kinds[index], partners[transfers[index]]) if of_pipeline[index] else None
        for index in range(len(worker))
    ]


def _are_parallel(operations: Operations, lanes: Sequence[tuple[Any, ...] | None], start: Float, end: Float) -> bool:
    """Return whether pipeline transfers with other partners, or in another direction, overlap on any worker."""
    ends: dict[int, dict[tuple[Any, ...], float]] = {}
    for index in np.argsort(start, kind="stable").tolist():
        if (lane := lanes[index]) is None:
            continue
        of_worker = ends.setdefault(int(operations.worker[index]), {})
        if any(start[index] < latest for other, latest in of_worker.items() if other != lane):
            return True
        of_worker[lane] = max(float(end[index]), of_worker.get(lane, -math.inf))
    return False


def _waits(
    operations: Operations, lanes: Sequence[tuple[Any, ...] | None], users: dict[int, int]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return `after` and `delays` of `Order`.

    An operation waits for all that its worker did before. But a transfer with a lane waits for its lane, and for
    operations without one: the computation.

    Args:
        operations: The operations.
        lanes: Lane of each transfer that may overlap others; None for other operations.
        users: As in `Order`.
    """
    num_workers = len(operations.workers)
    numbers: dict[tuple[Any, ...], int] = {}
    after: list[tuple[int, ...]] = []
    delays: list[tuple[int, ...]] = []
    for index, (worker, lane) in enumerate(zip(operations.worker.tolist(), lanes, strict=True)):
        computation = num_workers + worker
        number = 2 * num_workers + numbers.setdefault(lane, len(numbers)) if lane else computation
        after.append((computation, number) if lane else (worker,))
        delays.append((number,) if index in users and lane else () if index in users else (worker, number))
    return after, delays


def _directions(
    operations: Operations, members: list[Int64], start: Float, end: Float
) -> tuple[npt.NDArray[np.str_], Bool]:
    """Return the direction of passes and transfers, and which operations receive; both of shape (num_operations,).

    The direction is that of the pass whose result is sent: the last one that its worker ended before. So a transfer
    from the last stage to the first one of an interleaved schedule is forward.

    Args:
        operations: The operations.
        members: Operations of each transfer.
        start: Start of each operation; shape (num_operations,). Unit: s.
        end: End of each operation; same shape. Unit: s.
    """
    of_pipeline, is_received = _is_of_pipeline(operations), np.zeros(len(start), dtype=np.bool_)
    by_kind = [name.split("-")[0] if "pp-comm" in name or "compute" in name else "" for name in operations.kinds]
    direction = np.array(by_kind)[operations.kind]
    passes = [
        np.flatnonzero((operations.worker == worker) & ~operations.is_comm & (direction != ""))
        for worker in range(len(operations.workers))
    ]
    passes = [of_worker[np.argsort(end[of_worker])] for of_worker in passes]
    for of_transfer in members:
        if len(of_transfer) != 2 or not of_pipeline[of_transfer].all():
            continue
        # Kinds are named by rank: forward transfers go to the higher one.
        ranks = operations.worker[of_transfer]
        sender = of_transfer[ranks.argmin() if direction[of_transfer[0]] == "forward" else ranks.argmax()]
        is_received[of_transfer] = of_transfer != sender
        of_sender = passes[operations.worker[sender]]
        number = np.searchsorted(end[of_sender], start[sender], side="right") - 1
        if number >= 0:
            direction[of_transfer] = direction[of_sender[number]]
    return direction, is_received


def _surrounding_computation(operations: Operations, start: Float, end: Float) -> tuple[Int64, Float]:
    """Return `inside` and `share` of `Order`: the computation during which each transfer starts, and how much is over.

    Args:
        operations: The operations.
        start: Start of each operation; shape (num_operations,). Unit: s.
        end: End of each operation; same shape. Unit: s.
    """
    inside, share = np.full(len(start), -1, dtype=np.int64), np.zeros(len(start))
    tolerance_s = _tolerance_s(end - start)
    for worker in range(len(operations.workers)):
        of_worker = np.flatnonzero(operations.worker == worker)
        work = of_worker[~operations.is_comm[of_worker]]
        work = work[np.argsort(start[work])]
        if not len(work):
            continue
        comm = of_worker[operations.is_comm[of_worker]]
        previous = work[np.maximum(np.searchsorted(start[work], start[comm]) - 1, 0)]
        is_in = (start[previous] < start[comm]) & (end[previous] - tolerance_s[previous] > start[comm])
        inside[comm[is_in]] = previous[is_in]
        share[comm[is_in]] = (start[comm] - start[previous])[is_in] / (end - start)[previous][is_in]
    return inside, share


def _users(
    operations: Operations, direction: npt.NDArray[np.str_], chosen: Bool, start: Float, end: Float
) -> dict[int, int]:
    """Return for each chosen transfer the next pass of its direction, which needs it.

    Args:
        operations: The operations.
        direction: Direction of passes and transfers; shape (num_operations,).
        chosen: Transfers that do not delay the next pass of the other direction; same shape.
        start: Start of each operation; same shape. Unit: s.
        end: End of each operation; same shape. Unit: s.
    """
    users: dict[int, int] = {}
    for worker in range(len(operations.workers)):
        for name in ("forward", "backward"):
            indices = np.flatnonzero((operations.worker == worker) & (direction == name))
            passes = indices[~operations.is_comm[indices]]
            passes = passes[np.argsort(start[passes])]
            transfers = indices[operations.is_comm[indices] & chosen[indices]]
            following = np.searchsorted(start[passes], end[transfers])
            has_user = following < len(passes)
            users |= dict(zip(transfers[has_user].tolist(), passes[following[has_user]].tolist(), strict=True))
    return users


def _tolerance_s(duration_s: Float) -> Float:
    return np.minimum(_LATE_S, _LATE_SHARE * duration_s)


class Replayed(NamedTuple):
    """Times of a replay; shape (num_operations, num_columns). Unit: s."""

    start_s: Float
    """Start of each operation; for a transfer the time from which its worker is free for it."""
    end_s: Float
    """End of each operation."""

    @property
    def step_time_s(self) -> Float:
        """Time of the step in each column; shape (num_columns,). Unit: s."""
        return np.asarray(self.end_s.max(axis=0))


def replay(operations: Operations, order: Order, work_s: Float, gap_s: Float | None = None) -> Replayed:
    """Return starts and ends of operations with given durations.

    Args:
        operations: The operations.
        order: Order of their events.
        work_s: Duration without the wait for others, one column for each step or case; shape
            (num_operations, num_columns). Unit: s.
        gap_s: Time by which each operation starts later than it could; same shape; zero if not given. Unit: s.
    """
    work, gap = _rows(work_s), None if gap_s is None else _rows(gap_s)
    later: Callable[[Any, Any], Any] = np.maximum if work_s.shape[1] > 1 else max
    free = _rows(np.zeros((_num_lanes(order), work_s.shape[1])))
    start, end = _rows(np.zeros(work_s.shape)), _rows(np.zeros(work_s.shape))
    transfer = operations.transfer.tolist()
    members = [indices.tolist() for indices in order.members]
    inside, share, waits = order.inside.tolist(), order.share.tolist(), operations.is_waiting.tolist()
    awaited, needs = order.awaited.tolist(), _needs(order)
    is_shared = [len(members[number]) > 1 and waits[index] for index, number in enumerate(transfer)]
    for event in order.events.tolist():
        if event >= 0:
            ready = reduce(later, [free[lane] for lane in order.after[event]])
            if inside[event] >= 0:
                computation = inside[event]
                ready = later(ready, start[computation] + share[event] * work[computation])
            for needed in needs.get(event, ()):
                ready = later(ready, end[needed])
            if awaited[event] >= 0:
                ready = later(ready, end[awaited[event]])
            start[event] = ready if gap is None or is_shared[event] else ready + gap[event]
            continue
        index = -1 - event
        last_start = start[index]
        if is_shared[index]:
            last_start = reduce(later, [start[member] for member in members[transfer[index]]])
            if gap is not None:
                last_start = last_start + reduce(later, [gap[member] for member in members[transfer[index]]])
        end[index] = last_start + work[index]
        for lane in order.delays[index]:
            free[lane] = later(free[lane], end[index])
    return Replayed(np.array(start).reshape(work_s.shape), np.array(end).reshape(work_s.shape))


def _rows(matrix: Float) -> list[Any]:
    """Return the rows of a matrix, as floats if it has one column: arrays of one number are ten times as slow."""
    return matrix[:, 0].tolist() if matrix.shape[1] == 1 else list(matrix)


def _num_lanes(order: Order) -> int:
    return 1 + max(chain.from_iterable((*order.after, *order.delays)))


def _needs(order: Order) -> dict[int, list[int]]:
    """Return for each pass the overlapped transfers that it needs: `Order.users` the other way round."""
    needs: dict[int, list[int]] = {}
    for transfer, user in order.users.items():
        needs.setdefault(user, []).append(transfer)
    return needs


def find_gaps(operations: Operations, order: Order) -> tuple[Float, Bool]:
    """Return the gap before each operation, and whether it is the first of its worker.

    A gap is the time by which an operation starts later than it could. A transfer can start when its last member is
    free; the wait of the others until then is no gap.

    Returns:
        Gaps of shape (num_operations, num_steps), none below 0, in s; and booleans of shape (num_operations,).
    """
    free = _rows(np.zeros((_num_lanes(order), len(operations.steps))))
    later: Callable[[Any, Any], Any] = np.maximum if len(operations.steps) > 1 else max
    ready, is_first = _rows(operations.start_s), np.zeros(len(operations.worker), dtype=np.bool_)
    end, worker_of, needs = _rows(operations.end_s), operations.worker.tolist(), _needs(order)
    inside, awaited, is_waiting = order.inside.tolist(), order.awaited.tolist(), operations.is_waiting.tolist()
    begun: set[int] = set()
    for event in order.events.tolist():
        worker = worker_of[event if event >= 0 else -1 - event]
        if event >= 0:
            if inside[event] < 0:
                needed = [*needs.get(event, ()), *([awaited[event]] if awaited[event] >= 0 else [])]
                lanes = [free[lane] for lane in order.after[event]]
                ready[event] = reduce(later, [*lanes, *(end[index] for index in needed)])
            is_first[event] = worker not in begun
            begun.add(worker)
        else:
            for lane in order.delays[-1 - event]:
                free[lane] = later(free[lane], end[-1 - event])
    for members in (indices.tolist() for indices in order.members):
        if len(members) > 1:
            last_ready = reduce(later, [ready[index] for index in members])
            for index in members:
                ready[index] = last_ready if is_waiting[index] else ready[index]
    return np.maximum(operations.start_s - np.array(ready).reshape(operations.start_s.shape), 0.0), is_first


_LONG_GAP, _NEAR_GAP, _LEAST_STEPS = 0.005, 0.1, 8
"""Smallest gap that is examined, as a share of the step; share of the gap that may remain unexplained; number of steps
from which one other worker that starts at the same time is enough evidence (with fewer steps, half of all workers must
do so). Our choice."""


def with_unrecorded_waits(operations: Operations, order: Order, gap_s: Float) -> Order:
    """Return the order with unrecorded waits: barriers and synchronisations of a framework.

    If these waits counted as a late host, they would hide the worker that is waited for. A long gap is such a wait if
    other workers start the same kind of operation at the same time. The operation of another worker that ended just
    before is then the one waited for.
    """
    num_workers = len(operations.workers)
    min_others = 1 if len(operations.steps) >= _LEAST_STEPS else max(2, num_workers // 2)
    awaited, end_s, start_s = order.awaited.copy(), operations.end_s, operations.start_s
    step_s, gap_mean_s = operations.step_time_s.mean(), gap_s.mean(axis=1)
    for late in np.flatnonzero(gap_mean_s >= _LONG_GAP * step_s).tolist():
        near_s = _NEAR_GAP * gap_mean_s[late]
        is_other = operations.worker != operations.worker[late]
        apart_s = np.abs(np.median(start_s - start_s[late], axis=1))
        is_same = is_other & (operations.kind == operations.kind[late]) & (apart_s <= near_s)
        if len(np.unique(operations.worker[is_same])) < min_others:
            continue
        since_s = np.median(start_s[late] - end_s, axis=1)
        since_s = np.where(is_other & (since_s >= 0), since_s, np.inf)
        if since_s.min() <= near_s:
            awaited[late] = int(since_s.argmin())
    return order._replace(awaited=awaited)
