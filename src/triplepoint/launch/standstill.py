"""Ranks and nodes that were suspended, and steps that are far longer than the others."""

import contextlib
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triplepoint.manifest import SLOW, Interruption, SlowStep, SlowSteps
from triplepoint.units import NS_PER_S

TICK_S = 0.2
"""Time between two checks for suspended processes. A check reads one line of /proc for each rank: 20 us."""
LATE_S = 1.0
"""A check that comes later by this means that the agent, and so its node, was suspended. Our choice: far above the tens
of milliseconds that a thread waits on a loaded machine."""
MOST_NAMED = 4
"""Slow steps that are named: on a machine with other users there may be many."""

_STOPPED = frozenset("Tt")
"""States of a process that is stopped by a signal or by a tracer. Source: proc_pid_stat(5)."""


@dataclass
class Standstill:
    """A time in which one rank, or the whole node, was suspended."""

    rank: int | None
    """The suspended rank; None if the whole node was suspended, with the agent."""
    from_ns: int
    """Begin on the monotonic clock. Unit: ns."""
    to_ns: int
    """End on the monotonic clock. Unit: ns."""
    duration_s: float
    """Minimum duration. If the machine slept it is longer than `to_ns - from_ns`: the clock stops in sleep. Unit: s."""


class Watch:
    """Detects suspended ranks, and a suspended node.

    A thread checks the ranks and its own clock. It reads nothing but /proc, so that a slow shared file system does not
    look like a suspension. A stop that begins and ends between two checks is missed. If it is long compared with a
    step, that step is reported as slow.
    """

    def __init__(self) -> None:
        self.found: list[Standstill] = []
        """In the order of their begin."""
        self._stopped: dict[int, Standstill] = {}
        """Standstills that have not ended, by rank."""
        self._last: tuple[int, int] | None = None
        """Both clocks at the last check."""
        self._is_over = threading.Event()

    @contextlib.contextmanager
    def over(self, processes: Callable[[], Mapping[int, int]]) -> Iterator[None]:
        """Watch processes while the code inside runs.

        Args:
            processes: Returns the process number of each rank that has been started.
        """
        thread = threading.Thread(target=self._run, args=(processes,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()

    def _run(self, processes: Callable[[], Mapping[int, int]]) -> None:
        while not self._is_over.wait(TICK_S):
            now_ns, host_ns = time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            self.look(now_ns, host_ns, {rank for rank, pid in processes().items() if is_stopped(pid)})

    def look(self, now_ns: int, host_ns: int, stopped: Iterable[int]) -> None:
        """Record the observations of one check.

        Args:
            now_ns: Monotonic clock. Unit: ns.
            host_ns: Monotonic clock that includes the time the machine slept. Unit: ns.
            stopped: Ranks that are stopped.
        """
        if self._last is not None:
            due_ns, since_last_ns = self._last[0] + round(TICK_S * NS_PER_S), host_ns - self._last[1]
            if (late_s := since_last_ns / NS_PER_S - TICK_S) > LATE_S:
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
    """Return whether a process is stopped; False if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in _STOPPED


def interruptions(reports: Iterable[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]) -> tuple[Interruption, ...]:
    """Return the suspensions that agents reported, with the steps they fell into.

    Args:
        reports: Reports of the agents.
        steps: Rows of `tables.STEPS`.
    """
    standstills = [(report, Standstill(**fields)) for report in reports for fields in report.get("standstills", ())]
    if not standstills:
        return ()
    by_rank: dict[int, list[Mapping[str, Any]]] = {}
    for row in steps:
        by_rank.setdefault(row["rank"], []).append(row)
    longest = _longest_by_step(steps)
    slow_s = SLOW * statistics.median(step.time_s for step in longest.values()) if longest else math.inf
    interrupted = []
    for report, standstill in standstills:
        kinds: dict[int, str] = {}
        for rank in report["ranks"] if standstill.rank is None else [standstill.rank]:
            kinds |= _steps_within(by_rank.get(rank, []), standstill)
        # Other ranks may have finished the last of these steps before, and waited for this rank in the next one.
        if kinds and (following := longest.get(max(kinds) + 1)) and following.time_s > slow_s:
            kinds[following.step] = "measured"
        interrupted.append(
            Interruption(
                host=report["host"],
                rank=standstill.rank,
                duration_s=standstill.duration_s,
                steps=tuple(sorted(kinds)),
                measured_steps=tuple(sorted(step for step, kind in kinds.items() if kind == "measured")),
            )
        )
    return tuple(interrupted)


def _steps_within(rows: Sequence[Mapping[str, Any]], standstill: Standstill) -> dict[int, str]:
    """Return the kind of each step of one rank that a standstill fell into, by step number.

    A standstill between two steps delays the second one on all other ranks.
    """
    begins = [row["t_start_ns"] for row in rows[:1]] + [row["t_end_ns"] for row in rows[:-1]]
    return {
        row["step"]: row["kind"]
        for begin, row in zip(begins, rows, strict=True)
        if begin <= standstill.to_ns and row["t_end_ns"] >= standstill.from_ns
    }


def slow_steps(steps: Iterable[Mapping[str, Any]], interrupted: frozenset[int]) -> SlowSteps | None:
    """Return measured steps that took far longer than the others although no suspension was seen.

    Args:
        steps: Rows of `tables.STEPS`.
        interrupted: Steps with a known suspension, which are left out.
    """
    longest = {number: step for number, step in _longest_by_step(steps).items() if number not in interrupted}
    if not longest:
        return None
    median_s = statistics.median(step.time_s for step in longest.values())
    slow = [step for step in longest.values() if step.time_s > SLOW * median_s]
    if not slow:
        return None
    slow.sort(key=lambda step: -step.time_s)
    return SlowSteps(num=len(slow), num_measured=len(longest), median_s=median_s, longest=tuple(slow[:MOST_NAMED]))


def _longest_by_step(steps: Iterable[Mapping[str, Any]]) -> dict[int, SlowStep]:
    """Return the longest time of each measured step, with its rank, by step number."""
    longest: dict[int, SlowStep] = {}
    for row in steps:
        step, time_s = row["step"], (row["t_end_ns"] - row["t_start_ns"]) / NS_PER_S
        if row["kind"] == "measured" and (step not in longest or time_s > longest[step].time_s):
            longest[step] = SlowStep(step=step, rank=row["rank"], time_s=time_s)
    return longest
