"""Watch the processes of one node, the sampler and the ranks: find those that ended, hang or are suspended."""

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
from triplepoint.processes import adopt_orphans
from triplepoint.recording import again_path
from triplepoint.status import Status
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
SAMPLER_STOP_S = 5.0
POLL_S = 0.1
GRACE_S = 1.0
"""Time for other ranks to report their failures after the first: the first one seen is not always the cause."""
STARTUP_S = 600.0
"""Time limit of the first step: imports, rendezvous and allocation are slow on a large or loaded machine."""
STOOD_S = 10.0
"""A poll that comes later by this was suspended with its node. Above the delay of a slow file system."""
STOP_S = 3.0
"""Time for ranks to end between SIGTERM and SIGKILL."""


class Sampler:
    """The sampler process. It is restarted once if it ends by itself; `ends` records each end."""

    def __init__(self, out: Path, log: Path, device: str, period_s: float, fast_period_s: float) -> None:
        """Start the sampler.

        Args:
            out: Recording to write.
            log: File for its output.
            device: Device of the ranks: cpu, cuda or rocm.
            period_s: Time between samples. Unit: s.
            fast_period_s: Time between samples of the GPUs' fast sensors. Unit: s.
        """
        self.ends: list[dict[str, Any]] = []
        """Unexpected ends, with the fields of `manifest.SamplerEnd`."""
        self._log, self._out = log, out
        self._options = ["--device", device, "--period", str(period_s), "--fast-period", str(fast_period_s)]
        self._process: subprocess.Popen[bytes] | None = self._start(self._out)

    def watch(self) -> None:
        """Record an unexpected end, and restart the sampler after the first one.

        Call it from the agent's main thread: the kernel ends a child if the thread that started it ends, see
        `die_with_parent`.
        """
        if self._process is None or self._process.poll() is None:
            return
        is_first = not self.ends
        self._record_end(self._process, was_restarted=is_first)
        self._process = self._start(again_path(self._out)) if is_first else None

    def stop(self) -> None:
        """End the sampler."""
        if self._process is None:
            return
        if self._process.poll() is not None or not stop(self._process):
            self._record_end(self._process, was_restarted=False)
        self._process = None

    def _start(self, out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "triplepoint", "sample", str(out), *self._options]
        # Slurm sends SIGUSR2 to every process of a job near its time limit. A child inherits that it is ignored.
        before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        try:
            with self._log.open("ab") as log:
                return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        finally:
            signal.signal(signal.SIGUSR2, before)

    def _record_end(self, process: subprocess.Popen[bytes], was_restarted: bool) -> None:
        status = process.returncode
        parts = [describe_exit(status) if status < 0 else f"exited with status {status}", *log_tail(self._log, 1)]
        self.ends.append({"t_ns": time.monotonic_ns(), "message": ": ".join(parts), "was_restarted": was_restarted})


def stop(process: subprocess.Popen[bytes]) -> bool:
    """Terminate a process, and kill it if it does not end in time; return whether it ended without being killed."""
    process.terminate()
    try:
        process.wait(SAMPLER_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


@dataclass(frozen=True)
class Ending:
    """Reason to end ranks that have not failed themselves."""

    status: Status
    message: str


@dataclass
class Rank:
    """The process of a rank: a child of this process by adoption, which `subprocess.Popen` cannot be."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the process runs."""
        return self.wait(is_blocking=False)

    def wait(self, is_blocking: bool = True) -> int | None:
        """Return the exit status of the process, at once or after its end; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, 0 if is_blocking else os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


@dataclass
class Ranks:
    """The ranks of one node, and the process that starts them."""

    raw: Path
    ranks: range
    starter: subprocess.Popen[bytes]
    """`triplepoint.launch.rank`. This process adopts the ranks that it leaves."""
    pipe: int
    """File descriptor of the pipe that its numbers come through."""
    time_limit_s: float
    hang_timeout_s: float
    _started: float = field(default_factory=time.monotonic)
    _is_started: bool = field(init=False, default=False)
    _numbers: bytes = field(init=False, default=b"")
    """Lines from the pipe: rank and process number of each rank that has been started."""
    _processes: dict[int, Rank] = field(init=False, default_factory=dict)
    """By rank; empty until all have been started."""

    def wait(self, give_up: Callable[[], Ending | None]) -> list[Failure]:
        """Wait until every rank has finished. If one fails, end the others.

        Args:
            give_up: Called at every poll; if it returns a reason, the ranks are ended.

        Returns:
            Failures, empty if all ranks finished.
        """
        progress, progress_at = self.steps_written(), time.monotonic()
        last = time.monotonic()
        while self._is_starting() or self._is_running():
            now = time.monotonic()
            if (stood_s := now - last - POLL_S) > STOOD_S:  # the node was suspended: that time does not count
                self._started, progress_at = self._started + stood_s, progress_at + stood_s
            last = now
            if self._failed_ranks():
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
        failures = [self._failure(rank) for rank in self._failed_ranks()]
        self.stop()
        return failures

    def steps_written(self) -> int:
        """Return the size of the step files and traces: it grows while the ranks make progress. Unit: byte."""
        files = [*self.raw.glob("steps/rank*.jsonl"), *self.raw.glob("traces/*")]
        return sum(map(_size, files))

    def pids(self) -> dict[int, int]:
        """Return the process number of each rank; none before all have been started."""
        return {rank: process.pid for rank, process in self._processes.items()}

    def stop(self) -> None:
        """End the ranks that are still running."""
        deadline = time.monotonic() + STOP_S
        if self._is_starting():
            self.starter.kill()
            while self._is_starting() and time.monotonic() < deadline:  # started ranks still report their numbers
                time.sleep(POLL_S / 10)
        self._send(signal.SIGTERM)
        while self._is_running() and time.monotonic() < deadline:
            time.sleep(POLL_S / 2)
        self._send(signal.SIGKILL)
        for process in self._processes.values():
            process.wait()

    def _is_starting(self) -> bool:
        """Return whether ranks are still being started. Once all are, note their processes."""
        if self._is_started:
            return False
        os.set_blocking(self.pipe, False)
        try:
            while part := os.read(self.pipe, 4096):
                self._numbers += part
        except BlockingIOError:
            return True
        os.close(self.pipe)
        self.starter.wait()
        adopt_orphans(False)
        pids = {int(rank): int(pid) for rank, pid in map(bytes.split, self._numbers.splitlines())}
        self._processes = {rank: Rank(pids[rank]) for rank in self.ranks if rank in pids}
        self._is_started = True
        return False

    def _is_running(self) -> bool:
        return any(process.poll() is None for process in self._processes.values())

    def _send(self, number: int) -> None:
        for process in self._processes.values():
            process.send(number)

    def _exit_status(self, rank: int) -> int | None:
        """Return the exit status of a rank, None while it runs. A rank that was not started has its starter's."""
        if rank in self._processes:
            return self._processes[rank].poll()
        return None if self._is_starting() else self.starter.returncode

    def _patience(self, progress: int) -> float:
        """Return the time after which a lack of progress counts as a hang. Unit: s."""
        return self.hang_timeout_s if progress else max(self.hang_timeout_s, STARTUP_S)

    def _failed_ranks(self) -> list[int]:
        return [rank for rank in self.ranks if self._exit_status(rank) not in (None, 0)]

    def _failure(self, rank: int) -> Failure:
        account = read_status(self.raw, rank)
        if account is None:
            message = describe_exit(self._exit_status(rank) or 0)
            return Failure(rank, Status.CRASHED, message, time.time_ns())
        return Failure(rank, account["status"], account["message"], account["t_wall_ns"], account["is_user_error"])

    def _give_up(self, ending: Ending) -> list[Failure]:
        rank, message = self.ranks[0], ending.message
        if ending.status == Status.HUNG:
            self._dump_stacks()
            if self._is_starting():
                message += f": the engine was still being imported, see logs/rank{rank}.stack"
            else:
                rank, because = find_hung(self.raw, self.ranks)
                message += f": rank {rank} {because}"
        self.stop()
        return [Failure(rank, ending.status, message, time.time_ns())]

    def _dump_stacks(self) -> None:
        if self._is_starting():
            self.starter.send_signal(signal.SIGUSR1)
        self._send(signal.SIGUSR1)
        time.sleep(GRACE_S)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # a scratch file that was removed, or the file system is unreachable for a moment
        return 0


def read_status(raw: Path, rank: int) -> dict[str, Any] | None:
    """Return the content of a rank's `status/rank<N>.json`, None if there is none or it cannot be read."""
    try:
        account: dict[str, Any] = json.loads((raw / "status" / f"rank{rank}.json").read_text())
    except (OSError, json.JSONDecodeError):
        return None
    return account


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
