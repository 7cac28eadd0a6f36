"""What-if replay: when every operation would start and end if some lasted otherwise.

An operation starts once all that its worker had ended before it have ended: the order in time of a recorded step is the
order of dependencies, so pipeline schedules and overlapped communication need no rule of their own. Communication that
begins while its worker computes begins at the same share of that computation, and the pass of its direction that
follows needs it. A transfer ends when the last that takes part has started and it has lasted as long as it did from
there; a buffered send does not wait.

Source:
    Lin et al. 2025, Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI'25, section 3.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from triplepoint.why.operations import Bool, Float, Int64, Operations

_LATE_S, _LATE_SHARE = 2e-4, 0.1
"""What begins so soon before another ends, in s and as a share of that one, is taken to begin after it: ends that a
host notes are late by some 10 us, and times may be single precision. Our choice."""


class Order(NamedTuple):
    """Order of events of a step.

    Attributes:
        events: Operations that start, and those that end as -1 - index; shape (2 * num_operations,).
        inside: Of each operation the one it begins in the course of; -1 if there is none; shape (num_operations,).
        share: Share of that one that is over by then; same shape.
        members: Operations of every transfer.
        awaited: Of each operation one of another worker that it waits for though nothing recorded says so; -1 if none.
        users: Of operations that run beside computation, the pass that first needs each; others hold up what follows.
    """

    events: Int64
    inside: Int64
    share: Float
    members: list[Int64]
    awaited: Int64
    users: dict[int, int]


def find_order(operations: Operations) -> Order:
    """Return the order of events in the step of median length."""
    length = operations.step_time_s
    step = int(np.argsort(length)[(len(length) - 1) // 2])
    start, end = operations.start_s[:, step], operations.end_s[:, step]
    latest = np.where(operations.is_waiting, operations.latest_start_s[:, step], start)
    ends_at = np.maximum(end - _tolerance_s(end - start), latest)
    at = np.concatenate((start, ends_at))
    codes = np.concatenate((np.arange(len(start)), -1 - np.arange(len(end))))
    by_group = np.argsort(operations.group, kind="stable")
    members = np.split(by_group, np.cumsum(np.bincount(operations.group))[:-1])
    inside, share = _inside(operations, start, end)
    # At one time a transfer has all its starts before it ends, and what follows it starts after.
    is_early = (np.bincount(operations.group)[operations.group] > 1) | (end == start)
    turn = np.concatenate((np.where(is_early, 0, 2), np.ones(len(end))))
    awaited = np.full(len(start), -1, dtype=np.int64)
    users = _users(operations, inside, start, end)
    return Order(codes[np.lexsort((turn, at))], inside, share, members, awaited, users)


def _inside(operations: Operations, start: Float, end: Float) -> tuple[Int64, Float]:
    """Return the computation that communication begins in, and the share of it that is over."""
    inside, share = np.full(len(start), -1, dtype=np.int64), np.zeros(len(start))
    tolerance_s = _tolerance_s(end - start)
    for worker in range(len(operations.workers)):
        own = np.flatnonzero(operations.worker == worker)
        work = own[~operations.is_comm[own]]
        work = work[np.argsort(start[work])]
        if not len(work):
            continue
        comm = own[operations.is_comm[own]]
        at = work[np.maximum(np.searchsorted(start[work], start[comm]) - 1, 0)]
        is_in = (start[at] < start[comm]) & (end[at] - tolerance_s[at] > start[comm])
        inside[comm[is_in]] = at[is_in]
        share[comm[is_in]] = (start[comm] - start[at])[is_in] / (end - start)[at][is_in]
    return inside, share


def _users(operations: Operations, inside: Int64, start: Float, end: Float) -> dict[int, int]:
    """Return the pass of the same direction that follows each transfer that runs beside computation."""
    of_kind = [name.split("-")[0] if "pp-comm" in name or "compute" in name else "" for name in operations.kinds]
    direction = np.array(of_kind)[operations.kind]
    found: dict[int, int] = {}
    for worker in range(len(operations.workers)):
        for way in ("forward", "backward"):
            own = np.flatnonzero((operations.worker == worker) & (direction == way))
            passes = own[~operations.is_comm[own]]
            passes = passes[np.argsort(start[passes])]
            beside = own[operations.is_comm[own] & (inside[own] >= 0)]
            at = np.searchsorted(start[passes], end[beside])
            has_user = at < len(passes)
            found |= dict(zip(beside[has_user].tolist(), passes[at[has_user]].tolist(), strict=True))
    return found


def _tolerance_s(duration_s: Float) -> Float:
    return np.minimum(_LATE_S, _LATE_SHARE * duration_s)


class Replayed(NamedTuple):
    """Times of a replay; shape (num_operations, num_columns). Unit: s."""

    start_s: Float
    """Of transfers when each could have started for its worker."""
    end_s: Float

    @property
    def step_time_s(self) -> Float:
        """Time of the step in every column; shape (num_columns,). Unit: s."""
        return np.asarray(self.end_s.max(axis=0))


def replay(operations: Operations, order: Order, work_s: Float, gap_s: Float | None = None) -> Replayed:
    """Return the times of operations that last so long.

    Args:
        operations: The operations.
        order: Their order.
        work_s: Duration without waiting for others; a column for each step or case; shape
            (num_operations, num_columns). Unit: s.
        gap_s: What passes before each starts although it could; same shape; none if not given. Unit: s.
    """
    work, gap = _rows(work_s), None if gap_s is None else _rows(gap_s)
    larger: Callable[[Any, Any], Any] = np.maximum if work_s.shape[1] > 1 else max
    free = _rows(np.zeros((len(operations.workers), work_s.shape[1])))
    start, end = _rows(np.zeros(work_s.shape)), _rows(np.zeros(work_s.shape))
    worker, group = operations.worker.tolist(), operations.group.tolist()
    members = [of.tolist() for of in order.members]
    inside, share, waits = order.inside.tolist(), order.share.tolist(), operations.is_waiting.tolist()
    awaited, used = order.awaited.tolist(), _used(order)
    is_shared = [len(members[number]) > 1 and waits[one] for one, number in enumerate(group)]
    for event in order.events.tolist():
        if event >= 0:
            now = free[worker[event]]
            if inside[event] >= 0:
                within = inside[event]
                now = larger(now, start[within] + share[event] * work[within])
            for one in used.get(event, ()):
                now = larger(now, end[one])
            if awaited[event] >= 0:
                now = larger(now, end[awaited[event]])
            start[event] = now if gap is None or is_shared[event] else now + gap[event]
            continue
        one = -1 - event
        last = start[one]
        if is_shared[one]:
            of = members[group[one]]
            last = reduce(larger, [start[other] for other in of])
            if gap is not None:
                last = last + reduce(larger, [gap[other] for other in of])
        end[one] = last + work[one]
        if one not in order.users:
            free[worker[one]] = larger(free[worker[one]], end[one])
    return Replayed(np.array(start).reshape(work_s.shape), np.array(end).reshape(work_s.shape))


def _rows(matrix: Float) -> list[Any]:
    """Return the rows of a matrix, as floats if it has one column: arrays of one number are ten times as slow."""
    return matrix[:, 0].tolist() if matrix.shape[1] == 1 else list(matrix)


def _used(order: Order) -> dict[int, list[int]]:
    """Return what each pass needs of what ran beside computation."""
    used: dict[int, list[int]] = {}
    for one, user in order.users.items():
        used.setdefault(user, []).append(one)
    return used


def find_gaps(operations: Operations, order: Order) -> tuple[Float, Bool]:
    """Return what passed before each operation started although it could, and which operations were a worker's first.

    A transfer can start when the last that takes part is free; what each waits for others until then is no gap.

    Returns:
        Shape (num_operations, num_steps), none below 0 (unit: s), and shape (num_operations,).
    """
    free = _rows(np.zeros((len(operations.workers), len(operations.steps))))
    larger: Callable[[Any, Any], Any] = np.maximum if len(operations.steps) > 1 else max
    ready, is_first = _rows(operations.start_s), np.zeros(len(operations.worker), dtype=np.bool_)
    end, worker, used = _rows(operations.end_s), operations.worker.tolist(), _used(order)
    inside, awaited, is_waiting = order.inside.tolist(), order.awaited.tolist(), operations.is_waiting.tolist()
    begun: set[int] = set()
    for event in order.events.tolist():
        own = worker[event if event >= 0 else -1 - event]
        if event >= 0:
            if inside[event] < 0:
                needed = [*used.get(event, ()), *([awaited[event]] if awaited[event] >= 0 else [])]
                ready[event] = reduce(larger, [free[own], *(end[one] for one in needed)])
            is_first[event] = own not in begun
            begun.add(own)
        elif -1 - event not in order.users:
            free[own] = larger(free[own], end[-1 - event])
    for members in (of.tolist() for of in order.members):
        if len(members) > 1:
            latest = reduce(larger, [ready[one] for one in members])
            for one in members:
                ready[one] = latest if is_waiting[one] else ready[one]
    return np.maximum(operations.start_s - np.array(ready).reshape(operations.start_s.shape), 0.0), is_first


_LONG_GAP, _NEAR_GAP, _LEAST_STEPS = 0.005, 0.1, 8
"""Share of the step from which a gap is looked into; share of it that may remain once it is explained; steps from which
two workers that begin at the same time are no accident, of fewer half of all are. Our choice."""


def with_unrecorded_waits(operations: Operations, order: Order, gap_s: Float) -> Order:
    """Return the order with waits that nothing recorded: barriers of a framework, and synchronisations.

    Taken for lateness of the host they would hide who is waited for. A long gap is such a wait if other workers begin
    the same kind of operation at the same time: what ended just before, on any other, was waited for.
    """
    num_workers = len(operations.workers)
    least = 1 if len(operations.steps) >= _LEAST_STEPS else max(2, num_workers // 2)
    awaited, end_s, start_s = order.awaited.copy(), operations.end_s, operations.start_s
    step_s, gap_mean_s = operations.step_time_s.mean(), gap_s.mean(axis=1)
    for late in np.flatnonzero(gap_mean_s >= _LONG_GAP * step_s).tolist():
        near_s = _NEAR_GAP * gap_mean_s[late]
        is_other = operations.worker != operations.worker[late]
        apart_s = np.abs(np.median(start_s - start_s[late], axis=1))
        is_same = is_other & (operations.kind == operations.kind[late]) & (apart_s <= near_s)
        if len(np.unique(operations.worker[is_same])) < least:
            continue
        since_s = np.median(start_s[late] - end_s, axis=1)
        since_s = np.where(is_other & (since_s >= 0), since_s, np.inf)
        if since_s.min() <= near_s:
            awaited[late] = int(since_s.argmin())
    return order._replace(awaited=awaited)
