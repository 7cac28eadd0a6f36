"""Processes that stood still: suspended by the scheduler, an operator or Ctrl-Z, or with the whole host.

The agent watches its ranks and its own clock in a thread that touches no file but /proc: a shared file system that is
slow does not look like a suspension. A stop that is over between two looks is missed; if it is long against a step,
the step is named as slow.
"""

import contextlib
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from triplepoint.manifest import Interruption, SlowStep
from triplepoint.units import NS_PER_S

TICK_S = 0.2
"""Between two looks. Each reads one line of /proc for each rank: 20 us."""
LATE_S = 1.0
"""How much later than it should come a look means that the agent, and so its node, stood still. Our choice: far above
what a loaded machine makes a thread wait, which is tens of milliseconds."""
SLOW = 3.0
"""Times the median from which a measured step is named. Our choice: steps of one run differ by a few percent."""

_STOPPED = frozenset("Tt")
"""States of a process that is stopped by a signal or by a tracer. Source: proc_pid_stat(5)."""


@dataclass
class Standstill:
    """A stretch of time in which one rank, or the whole node, certainly stood still; on the monotonic clock."""

    rank: int | None
    """None where the agent itself did not run."""
    from_ns: int
    to_ns: int
    duration_s: float
    """At least. Of a machine that slept, more than the monotonic clock says, which slept too. Unit: s."""


class Watch:
    """Looks at the ranks of a node, and at the time, while the block runs."""

    def __init__(self) -> None:
        self.found: list[Standstill] = []
        """In the order they began."""
        self._stopped: dict[int, Standstill] = {}
        self._last: tuple[int, int] | None = None
        self._is_over = threading.Event()

    @contextlib.contextmanager
    def over(self, processes: Mapping[int, int]) -> Iterator[None]:
        """Watch processes.

        Args:
            processes: Process id by rank.
        """
        thread = threading.Thread(target=self._run, args=(processes,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _run(self, processes: Mapping[int, int]) -> None:
        while not self._is_over.wait(TICK_S):
            now_ns, host_ns = time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            self.look(now_ns, host_ns, {rank for rank, pid in processes.items() if is_stopped(pid)})

    def look(self, now_ns: int, host_ns: int, stopped: Iterable[int]) -> None:
        """Note what one look sees.

        Args:
            now_ns: Monotonic clock. Unit: ns.
            host_ns: The same with the time the machine slept. Unit: ns.
            stopped: Ranks that are stopped.
        """
        if self._last is not None:
            due_ns, slept_ns = self._last[0] + round(TICK_S * NS_PER_S), host_ns - self._last[1]
            if (late_s := slept_ns / NS_PER_S - TICK_S) > LATE_S:
                self.found.append(Standstill(None, min(due_ns, now_ns), now_ns, late_s))
        self._last = now_ns, host_ns
        self._stopped = {rank: self._stopped.get(rank) or self._begin(rank, now_ns) for rank in stopped}
        for standstill in self._stopped.values():
            standstill.to_ns = now_ns
            standstill.duration_s = (now_ns - standstill.from_ns) / NS_PER_S

    def _begin(self, rank: int, now_ns: int) -> Standstill:
        self.found.append(Standstill(rank, now_ns, now_ns, 0.0))
        return self.found[-1]


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped; False where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in _STOPPED


def interruptions(reports: Iterable[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> tuple[Interruption, ...]:
    """Return what agents saw stand still, and the steps it fell into.

    Args:
        reports: Of the agents.
        steps: Rows of `steps.parquet`, by rank and step.
    """
    found = []
    for report in reports:
        for seen in (Standstill(**fields) for fields in report.get("standstills", ())):
            ranks = set(report["ranks"]) if seen.rank is None else {seen.rank}
            hit = {
                row["step"]: row["kind"]
                for before, row in pairwise([{"rank": None}, *steps])
                if row["rank"] in ranks
                # A rank that stands still between two steps holds up the second one on all others.
                and (before["t_end_ns"] if before["rank"] == row["rank"] else row["t_start_ns"]) <= seen.to_ns
                and row["t_end_ns"] >= seen.from_ns
            }
            found.append(
                Interruption(
                    host=report["host"],
                    rank=seen.rank,
                    duration_s=seen.duration_s,
                    steps=tuple(sorted(hit)),
                    measured_steps=tuple(sorted(step for step, kind in hit.items() if kind == "measured")),
                )
            )
    return tuple(found)


def slow_steps(steps: Iterable[Mapping[str, Any]], interrupted: frozenset[int]) -> tuple[SlowStep, ...]:
    """Return measured steps that took far longer than the others though nothing was seen to stand still.

    Args:
        steps: Rows of `steps.parquet`.
        interrupted: Steps whose reason is known.
    """
    times: dict[int, dict[int, float]] = defaultdict(dict)
    for row in steps:
        if row["kind"] == "measured" and row["step"] not in interrupted:
            times[row["step"]][row["rank"]] = (row["t_end_ns"] - row["t_start_ns"]) / NS_PER_S
    if not times:
        return ()
    median_s = statistics.median(max(by_rank.values()) for by_rank in times.values())
    found = []
    for step, by_rank in sorted(times.items()):
        rank = max(by_rank, key=by_rank.__getitem__)
        if by_rank[rank] > SLOW * median_s:
            found.append(SlowStep(step=step, rank=rank, time_s=by_rank[rank], median_s=median_s))
    return tuple(found)
