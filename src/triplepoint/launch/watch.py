"""Watch the processes of one node, the sampler and the ranks: find those that ended or hang."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triplepoint.launch.outcome import Failure, describe_exit, find_hung, log_tail
from triplepoint.processes import adopt_orphans
from triplepoint.recording import again_path
from triplepoint.status import Status

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
