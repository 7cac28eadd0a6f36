"""Which rows Holistic Trace Analysis (HTA) takes for GPU work, and as what; its rounding of timestamps off.

Written down from reading HTA 0.5.0 (`common/trace_parser.py`, `common/trace.py`, `common/trace_filter.py`,
`analyzers/breakdown_analysis.py`, `utils/utils.py`; MIT), in own words.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.unit.trace.judge.reference import Document, Row, to_ns

_SYNCHRONISATION = ("Event Sync", "Context Sync")


class _Event(NamedTuple):
    """One row of HTA's table; `stream` and `correlation` are -1 where not given."""

    name: str
    start: int
    duration: int
    stream: int
    correlation: int

    @property
    def is_gpu(self) -> bool:
        """Return what the filter by step takes for a GPU row."""
        return (self.stream >= 0 and self.correlation >= 0) or self.name in _SYNCHRONISATION

    @property
    def is_step(self) -> bool:
        """Return whether it is a profiled step, on whichever side."""
        return "ProfilerStep" in self.name


def hta_rows(document: Document) -> list[Row]:
    """Return HTA's GPU rows of a trace that is alone in its folder, with its default last-step rule.

    1. Any event with `dur` and `cat` counts, whatever its phase, but not category `Trace`. Its stream is
       `int(args.stream)`, -1 where that is missing or no decimal integer (`0x0`); its correlation -1 where missing.
    2. With fewer than two distinct names containing `ProfilerStep`, the GPU rows are all with a stream other than -1.
    3. Otherwise a row is of the GPU if stream and correlation are both >= 0 (or it is a synchronisation), of the CPU
       if not. The last step begins at the latest start of a CPU row whose name contains `ProfilerStep`, an annotation
       on the GPU among them. CPU rows from then on (>=) are dropped; a GPU row stays once for every CPU row left with
       its correlation: not at all without a recorded launch.
    4. Of the rows left, those with a stream other than -1 are judged: a CPU row with a stream as well.
    """
    events = list(_events(document))
    steps = {event.name for event in events if event.is_step}
    if len(steps) >= 2:
        events = _before_last_step(events)
    return [
        Row(kind, kind, event.name, event.start, event.start + event.duration)
        for event in events
        if event.stream != -1
        for kind in [hta_class(event.name)]
    ]


def _events(document: Document) -> Iterable[_Event]:
    for event in document["traceEvents"]:
        if event.get("dur") is None or event.get("cat") in (None, "Trace"):
            continue
        args = event["args"] if isinstance(event.get("args"), dict) else {}
        yield _Event(
            event["name"],
            to_ns(event["ts"]),
            to_ns(event["dur"]),
            _integer(args.get("stream", -1)),
            int(args.get("correlation", -1)),
        )


def _integer(value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        return -1


def _before_last_step(events: list[_Event]) -> list[_Event]:
    on_cpu = [event for event in events if not event.is_gpu]
    last = max((event.start for event in on_cpu if event.is_step), default=None)
    kept = [event for event in on_cpu if last is not None and event.start < last]
    launches: dict[int, int] = {}
    for event in kept:
        launches[event.correlation] = launches.get(event.correlation, 0) + 1
    launched = [event for event in events if event.is_gpu for _ in range(launches.get(event.correlation, 0))]
    return launched + kept


def hta_class(name: str) -> str:
    """Return compute, comm, memory or other, by HTA's patterns."""
    if re.match(r"nccl.*Kernel", name):
        return "comm"
    if re.match(r"Memcpy|Memset|dma", name):
        return "memory"
    if re.match(r".*Memcpy|Memset|.*Sync", name):
        return "other"
    return "compute"
