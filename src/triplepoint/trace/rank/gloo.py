"""Ties gloo's annotations on worker threads to the operators that asked for them."""

from collections import Counter
from typing import NamedTuple

from triplepoint.trace.kineto.rows import Int64
from triplepoint.trace.rank.events import Events
from triplepoint.trace.rank.messages import tensor_sizes

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


def match_in_order(events: Events, started: list[tuple[int, str]], asked: list[Asked]) -> list[tuple[str, str | None]]:
    """Return kind and role of every annotation.

    Args:
        events: Annotations and operators.
        started: Annotations by start: event, kind it shows.
        asked: Operators by start.

    Returns:
        For each annotation: the kind that was asked for (else the one it shows), and the role of its group or None.
    """
    start, thread = events.start, events.thread
    sizes = {event: _sizes(events, event) for event in [*(e for e, _ in started), *(a.event for a in asked)]}
    role_of_thread = _thread_roles(events, started, asked, sizes)
    waiting: dict[str | None, list[Asked]] = {}
    for call in asked:
        waiting.setdefault(call.role, []).append(call)
    matched = []
    for event, kind in started:
        role = role_of_thread.get(int(thread[event]))
        queue = waiting.get(role, [])
        found = next((call for call in queue if _fits(start, event, kind, call, sizes)), None)
        if found is not None:
            queue.remove(found)
        matched.append((found.kind if found else kind, role))
    return matched


def _thread_roles(
    events: Events, started: list[tuple[int, str]], asked: list[Asked], sizes: dict[int, frozenset[int]]
) -> dict[int, str | None]:
    """Return the role each worker thread serves: most of its work starts right after an operator of that role."""
    start, thread = events.start, events.thread
    votes: dict[int, Counter[str | None]] = {}
    begin = 0
    recent: list[Asked] = []
    for event, kind in started:
        while begin < len(asked) and start[asked[begin].event] <= start[event]:
            recent = [*recent[-15:], asked[begin]]
            begin += 1
        latest = next((call for call in reversed(recent) if _fits(start, event, kind, call, sizes)), None)
        if latest is not None:
            votes.setdefault(int(thread[event]), Counter())[latest.role] += 1
    return {thread: counter.most_common(1)[0][0] for thread, counter in votes.items()}


def _fits(start: Int64, event: int, kind: str, call: Asked, sizes: dict[int, frozenset[int]]) -> bool:
    if call.runs_as != kind or start[call.event] > start[event]:
        return False
    shown, wanted = sizes[event], sizes[call.event]
    return not shown or not wanted or not shown.isdisjoint(wanted)


def _sizes(events: Events, event: int) -> frozenset[int]:
    """Return the numbers of elements of an event's tensors, empty where shapes were not recorded."""
    return frozenset(tensor_sizes(events.message(event).input_dims))
