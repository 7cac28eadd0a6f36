"""Ties gloo's annotations on worker threads to the operators that asked for them."""

from collections import Counter
from typing import Any, NamedTuple

from triplepoint.trace.kineto.reader import Trace

_RUNS_AS = {"reduce_scatter": "all_reduce"}
"""Collectives gloo does by another: the operator's kind, and the kind the annotation shows."""


class Asked(NamedTuple):
    """One `c10d::` operator: its event, the kind it asks for, the role of its process group where known."""

    event: int
    kind: str
    role: str | None

    @property
    def runs_as(self) -> str:
        """Return the kind gloo's annotation shows."""
        return _RUNS_AS.get(self.kind, self.kind)


def match_in_order(trace: Trace, started: list[tuple[int, str]], asked: list[Asked]) -> list[tuple[str, str | None]]:
    """Return kind and role of every annotation.

    Args:
        trace: The trace.
        started: Annotations by start: event, kind it shows.
        asked: Operators by start.

    Returns:
        For each annotation: the kind that was asked for (else the one it shows), and the role of its group or None.
    """
    sizes = {event: _sizes(trace, event) for event in [*(e for e, _ in started), *(a.event for a in asked)]}
    role_of_thread = _thread_roles(trace, started, asked, sizes)
    waiting: dict[str | None, list[Asked]] = {}
    for call in asked:
        waiting.setdefault(call.role, []).append(call)
    matched = []
    for event, kind in started:
        role = role_of_thread.get(int(trace.thread[event]))
        queue = waiting.get(role, [])
        found = next((call for call in queue if _fits(trace, event, kind, call, sizes)), None)
        if found is not None:
            queue.remove(found)
        matched.append((found.kind if found else kind, role))
    return matched


def _thread_roles(
    trace: Trace, started: list[tuple[int, str]], asked: list[Asked], sizes: dict[int, frozenset[int]]
) -> dict[int, str | None]:
    """Return the role each worker thread serves: most of its work starts right after an operator of that role."""
    votes: dict[int, Counter[str | None]] = {}
    begin = 0
    recent: list[Asked] = []
    for event, kind in started:
        while begin < len(asked) and trace.start[asked[begin].event] <= trace.start[event]:
            recent = [*recent[-15:], asked[begin]]
            begin += 1
        latest = next((call for call in reversed(recent) if _fits(trace, event, kind, call, sizes)), None)
        if latest is not None:
            votes.setdefault(int(trace.thread[event]), Counter())[latest.role] += 1
    return {thread: counter.most_common(1)[0][0] for thread, counter in votes.items()}


def _fits(trace: Trace, event: int, kind: str, call: Asked, sizes: dict[int, frozenset[int]]) -> bool:
    if call.runs_as != kind or trace.start[call.event] > trace.start[event]:
        return False
    shown, wanted = sizes[event], sizes[call.event]
    return not shown or not wanted or not shown.isdisjoint(wanted)


def _sizes(trace: Trace, event: int) -> frozenset[int]:
    """Return the numbers of elements of an event's tensors, empty where shapes were not recorded."""
    args = trace.comm_args.get(event)
    found: set[int] = set()
    _collect_sizes(args.input_dims if args else None, found)
    return frozenset(found)


def _collect_sizes(dims: Any, found: set[int]) -> None:
    if not isinstance(dims, list) or not dims:
        return
    if all(isinstance(size, int) for size in dims):
        product = 1
        for size in dims:
            product *= size
        found.add(product)
        return
    for part in dims:
        _collect_sizes(part, found)
