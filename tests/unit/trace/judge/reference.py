"""What `breakdown.csv` and `kernels.csv` must hold, computed slowly: whole file in memory, exact decimals, plain loops.

Nothing here shares code with the command but the taxonomy's answer to "which class is this name".
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any, NamedTuple

from triplepoint.trace.taxonomy import load_scheme

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")

Document = dict[str, Any]


class Row(NamedTuple):
    """One piece of GPU work. Unit: ns since whatever the trace counts from."""

    category: str
    cls: str
    name: str
    start: int
    end: int


class Breakdown(NamedTuple):
    """Lengths over a file. Unit: ns; `non_compute` is busy time without computation."""

    span: int
    compute: int
    comm: int
    comm_exposed: int
    comm_overlapped: int
    memory: int
    memory_exposed: int
    idle: int
    non_compute: int
    num_gpu_events: int


def load(path: Path) -> Document:
    """Return the document of a well-formed trace, its fractions as exact decimals."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    document = json.loads(text.decode("utf-8-sig"), parse_float=Decimal)
    return document if isinstance(document, dict) else {"traceEvents": document}


def to_ns(microseconds: Any) -> int:
    """Return a time of a trace in whole nanoseconds."""
    return int((Decimal(str(microseconds)) * 1000).to_integral_value(ROUND_HALF_EVEN))


def gpu_rows(document: Document) -> list[Row]:
    """Return the GPU work of a trace, each exact duplicate once."""
    distinct = {}
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in GPU_CATEGORIES:
            distinct[json.dumps(event, sort_keys=True, default=str)] = event
    return [_row(event) for event in distinct.values()]


def _row(event: dict[str, Any]) -> Row:
    cls = load_scheme().device(event["name"]).cls
    category = cls if cls in ("comm", "memory") else "compute"
    start = to_ns(event["ts"])
    return Row(category, cls, event["name"], start, start + to_ns(event["dur"]))


def measure(rows: Iterable[Row]) -> Breakdown:
    """Return how long each category ran, by walking from one start or end to the next."""
    rows = list(rows)
    held = time_by_running(rows)

    def during(wanted: Callable[[frozenset[str]], bool]) -> int:
        return sum(length for running, length in held.items() if wanted(running))

    return Breakdown(
        span=max(row.end for row in rows) - min(row.start for row in rows) if rows else 0,
        compute=during(lambda running: "compute" in running),
        comm=during(lambda running: "comm" in running),
        comm_exposed=during(lambda running: "comm" in running and "compute" not in running),
        comm_overlapped=during(lambda running: "comm" in running and "compute" in running),
        memory=during(lambda running: "memory" in running),
        memory_exposed=during(lambda running: "memory" in running and not running & {"compute", "comm"}),
        idle=during(lambda running: not running),
        non_compute=during(lambda running: bool(running) and "compute" not in running),
        num_gpu_events=len(rows),
    )


def time_by_running(rows: Iterable[Row]) -> dict[frozenset[str], int]:
    """Return for how long each set of categories ran at once, the empty set between first and last included."""
    changes = [(row.start, 1, row.category) for row in rows] + [(row.end, -1, row.category) for row in rows]
    running: dict[str, int] = defaultdict(int)
    held: dict[frozenset[str], int] = defaultdict(int)
    last = None
    for time, change, category in sorted(changes):
        if last is not None:
            held[frozenset(name for name, count in running.items() if count > 0)] += time - last
        running[category] += change
        last = time
    return held


def kernel_durations(rows: Iterable[Row]) -> dict[tuple[str, str], list[int]]:
    """Return the durations of every (class, name). Unit: ns."""
    durations: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        durations[row.cls, row.name].append(row.end - row.start)
    return durations
