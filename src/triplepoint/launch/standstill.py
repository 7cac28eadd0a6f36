"""Processes that stood still: suspended by the scheduler, an operator or Ctrl-Z, or with the whole host.

The agent watches its ranks and its own clock in a thread that touches no file but /proc: a shared file system that is
slow does not look like a suspension. A stop that is over between two looks is missed; if it is long against a step,
the step is named as slow.
"""

import contextlib
import math
import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triplepoint.manifest import SLOW, Interruption, SlowStep, SlowSteps
from triplepoint.units import NS_PER_S

TICK_S = 0.2
"""Between two looks. Each reads one line of /proc for each rank: 20 us."""
LATE_S = 1.0
"""How much later than it should come a look means that the agent, and so its node, stood still. Our choice: far above
what a loaded machine makes a thread wait, which is tens of milliseconds."""
MOST_NAMED = 4
"""Of slow steps: on a machine that others use too there may be many."""

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
    seen = [(report, Standstill(**fields)) for report in reports for fields in report.get("standstills", ())]
    if not seen:
        return ()
    by_rank: dict[int, list[Mapping[str, Any]]] = {}
    for row in steps:
        by_rank.setdefault(row["rank"], []).append(row)
    longest = _longest(steps)
    late_s = SLOW * statistics.median(step.time_s for step in longest.values()) if longest else math.inf
    found = []
    for report, standstill in seen:
        hit: dict[int, str] = {}
        for rank in report["ranks"] if standstill.rank is None else [standstill.rank]:
            hit |= _steps_within(by_rank.get(rank, []), standstill)
        # Others may have finished that step before, and wait for the rank in the next one.
        if hit and (following := longest.get(max(hit) + 1)) and following.time_s > late_s:
            hit[following.step] = "measured"
        found.append(
            Interruption(
                host=report["host"],
                rank=standstill.rank,
                duration_s=standstill.duration_s,
                steps=tuple(sorted(hit)),
                measured_steps=tuple(sorted(step for step, kind in hit.items() if kind == "measured")),
            )
        )
    return tuple(found)


def _steps_within(rows: Sequence[Mapping[str, Any]], standstill: Standstill) -> dict[int, str]:
    """Return the steps of one rank that a standstill fell into, with their kinds.

    A rank that stands still between two steps holds up the second one on all others.
    """
    begins = [row["t_start_ns"] for row in rows[:1]] + [row["t_end_ns"] for row in rows[:-1]]
    return {
        row["step"]: row["kind"]
        for begin, row in zip(begins, rows, strict=True)
        if begin <= standstill.to_ns and row["t_end_ns"] >= standstill.from_ns
    }


def slow_steps(steps: Iterable[Mapping[str, Any]], interrupted: frozenset[int]) -> SlowSteps | None:
    """Return measured steps that took far longer than the others though nothing was seen to stand still.

    Args:
        steps: Rows of `steps.parquet`.
        interrupted: Steps whose reason is known.
    """
    longest = {step: found for step, found in _longest(steps).items() if step not in interrupted}
    if not longest:
        return None
    median_s = statistics.median(found.time_s for found in longest.values())
    slow = [found for found in longest.values() if found.time_s > SLOW * median_s]
    if not slow:
        return None
    slow.sort(key=lambda found: -found.time_s)
    return SlowSteps(num=len(slow), num_measured=len(longest), median_s=median_s, longest=tuple(slow[:MOST_NAMED]))


def _longest(steps: Iterable[Mapping[str, Any]]) -> dict[int, SlowStep]:
    """Return each measured step with the rank that took longest."""
    longest: dict[int, SlowStep] = {}
    for row in steps:
        step, time_s = row["step"], (row["t_end_ns"] - row["t_start_ns"]) / NS_PER_S
        if row["kind"] == "measured" and (step not in longest or time_s > longest[step].time_s):
            longest[step] = SlowStep(step=step, rank=row["rank"], time_s=time_s)
    return longest
