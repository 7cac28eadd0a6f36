"""Watching the processes of one node: the sampler and the ranks, who ended, hangs or stands still."""

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triplepoint.launch.outcome import Failure, describe_exit, find_hung, log_tail
from triplepoint.manifest import SLOW, Interruption, SlowStep, SlowSteps
from triplepoint.recording import again_path
from triplepoint.status import Status
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
SAMPLER_STOP_S = 5.0
POLL_S = 0.1
GRACE_S = 1.0
"""After the first failure, how long other ranks get to tell theirs: the first to be seen is not always the cause."""
STARTUP_S = 600.0
"""How long the first step may take: imports, rendezvous and allocation are slow on a large or loaded machine."""
STOOD_S = 10.0
"""A poll that comes so much later than it should was suspended with its node. Above what a slow file system costs."""
STOP_S = 3.0
"""How long ranks get between SIGTERM and SIGKILL."""


class Sampler:
    """The sampler, started again once where it ends by itself; `ends` tells each time it did."""

    def __init__(self, out: Path, log: Path, device: str, period_s: float, fast_period_s: float) -> None:
        """Start it.

        Args:
            out: Recording to write.
            log: File for what it says.
            device: What the ranks compute on: cpu, cuda or rocm.
            period_s: Time between samples. Unit: s.
            fast_period_s: The same of the GPUs' fast sensors. Unit: s.
        """
        self.ends: list[dict[str, Any]] = []
        """As `manifest.SamplerEnd`."""
        self._log, self._out = log, out
        self._options = ["--device", device, "--period", str(period_s), "--fast-period", str(fast_period_s)]
        self._process: subprocess.Popen[bytes] | None = self._start(self._out)

    def watch(self) -> None:
        """Note where it has ended, and start it again after the first time; to be called by the agent's main thread.

        The kernel ends a child whose starting thread has gone, see `die_with_parent`.
        """
        if self._process is None or self._process.poll() is None:
            return
        is_first = not self.ends
        self._note(self._process, was_restarted=is_first)
        self._process = self._start(again_path(self._out)) if is_first else None

    def stop(self) -> None:
        """End it."""
        if self._process is None:
            return
        if self._process.poll() is not None or not stop(self._process):
            self._note(self._process, was_restarted=False)
        self._process = None

    def _start(self, out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "triplepoint", "sample", str(out), *self._options]
        # Slurm sends this one to every process of a job near its time limit; who is started deaf to it stays so.
        before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        try:
            with self._log.open("ab") as log:
                return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        finally:
            signal.signal(signal.SIGUSR2, before)

    def _note(self, process: subprocess.Popen[bytes], was_restarted: bool) -> None:
        status = process.returncode
        words = [describe_exit(status) if status < 0 else f"exited with status {status}", *log_tail(self._log, 1)]
        self.ends.append({"t_ns": time.monotonic_ns(), "message": ": ".join(words), "was_restarted": was_restarted})


def stop(watcher: subprocess.Popen[bytes]) -> bool:
    """Ask a process to end, then end it; return whether asking was enough."""
    watcher.terminate()
    try:
        watcher.wait(SAMPLER_STOP_S)
    except subprocess.TimeoutExpired:
        watcher.kill()
        watcher.wait()
        return False
    return True


@dataclass(frozen=True)
class Ending:
    """Why ranks that do nothing wrong are to be ended."""

    status: Status
    message: str


@dataclass
class Ranks:
    """The rank processes of one node, by global rank."""

    raw: Path
    processes: dict[int, subprocess.Popen[bytes]]
    time_limit_s: float
    hang_timeout_s: float
    _started: float = field(default_factory=time.monotonic)

    def wait(self, give_up: Callable[[], Ending | None]) -> list[Failure]:
        """Wait until every rank ended well, or one did not; in that case the others are ended too.

        Args:
            give_up: Asked at every poll; once it says why, the ranks are ended.

        Returns:
            Failures seen, empty if all ranks finished.
        """
        progress, progress_at = self.steps_written(), time.monotonic()
        last = time.monotonic()
        while any(process.poll() is None for process in self.processes.values()):
            now = time.monotonic()
            if (stood_s := now - last - POLL_S) > STOOD_S:  # suspended, and the ranks with us: that time does not count
                self._started, progress_at = self._started + stood_s, progress_at + stood_s
            last = now
            if self._ended_badly():
                time.sleep(GRACE_S)
                break
            if ending := give_up():
                return self._give_up(ending)
            if now - self._started > self.time_limit_s:
                return self._give_up(Ending(Status.TIMEOUT, f"time limit of {self.time_limit_s:g} s reached"))
            if (written := self.steps_written()) != progress:
                progress, progress_at = written, now
            elif now - progress_at > (limit := self._patience(progress)):
                return self._give_up(Ending(Status.HUNG, f"no rank finished a step for {limit:g} s"))
            time.sleep(POLL_S)
        failures = [self._failure(rank) for rank in self._ended_badly()]
        self.stop()
        return failures

    def steps_written(self) -> int:
        """Return the size of the step files and traces: it grows while the ranks make progress. Unit: byte."""
        files = [*self.raw.glob("steps/rank*.jsonl"), *self.raw.glob("traces/*")]
        return sum(map(_size, files))

    def stop(self) -> None:
        """End the ranks that still run."""
        running = [process for process in self.processes.values() if process.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + STOP_S
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            time.sleep(POLL_S / 2)
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _patience(self, progress: int) -> float:
        """Return how long to wait for the next sign of progress. Unit: s."""
        return self.hang_timeout_s if progress else max(self.hang_timeout_s, STARTUP_S)

    def _ended_badly(self) -> list[int]:
        return [rank for rank, process in self.processes.items() if process.poll() not in (None, 0)]

    def _failure(self, rank: int) -> Failure:
        account = read_status(self.raw, rank)
        if account is None:
            message = describe_exit(self.processes[rank].poll() or 0)
            return Failure(rank, Status.CRASHED, message, time.time_ns())
        return Failure(rank, account["status"], account["message"], account["t_wall_ns"], account["is_user_error"])

    def _give_up(self, ending: Ending) -> list[Failure]:
        rank, message = min(self.processes), ending.message
        if ending.status == Status.HUNG:
            self._ask_for_stacks()
            rank, because = find_hung(self.raw, list(self.processes))
            message = f"{message}: rank {rank} {because}"
        self.stop()
        return [Failure(rank, ending.status, message, time.time_ns())]

    def _ask_for_stacks(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(GRACE_S)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # a scratch file that has gone, or a file system that is out of reach for a moment
        return 0


def read_status(raw: Path, rank: int) -> dict[str, Any] | None:
    """Return what a rank said of its own end, or None if it left nothing readable."""
    try:
        account: dict[str, Any] = json.loads((raw / "status" / f"rank{rank}.json").read_text())
    except (OSError, json.JSONDecodeError):
        return None
    return account


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
    """Looks for processes that stand still, while the block runs: suspended by someone, or with the whole host.

    A thread looks at the ranks and at its own clock and touches no file but /proc: a shared file system that is slow
    does not look like a suspension. A stop that is over between two looks is missed; if it is long against a step, the
    step is named as slow.
    """

    def __init__(self) -> None:
        self.found: list[Standstill] = []
        """In the order they began."""
        self._stopped: dict[int, Standstill] = {}
        self._last: tuple[int, int] | None = None
        self._is_over = threading.Event()

    @contextlib.contextmanager
    def over(self, processes: Mapping[int, int]) -> Iterator[None]:
        """Watch processes."""
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
    """Return what agents saw stand still, and the steps it fell into."""
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
    """Return measured steps that took far longer than the others though nothing was seen to stand still."""
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
