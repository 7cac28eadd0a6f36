"""The sampler process of a node, as its agent starts, watches and ends it."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from triplepoint.config.plan import PlannedRun
from triplepoint.launch.outcome import describe_exit, log_tail
from triplepoint.recording.write import again_path

STOP_S = 5.0


class Sampler:
    """The sampler, started again once where it ends by itself; `ends` tells each time it did."""

    def __init__(self, raw: Path, node: int, planned: PlannedRun) -> None:
        """Start it.

        Args:
            raw: Folder of the attempt.
            node: Index of the node.
            planned: What is launched.
        """
        self.ends: list[dict[str, Any]] = []
        """As `manifest.SamplerEnd`."""
        self._log = raw / "logs" / f"sampler{node}.log"
        self._out = raw / "telemetry" / f"node{node}.arrow"
        self._options = ["--device", planned.point.cluster.device, "--period", str(planned.point.telemetry_period_s)]
        self._options += ["--fast-period", str(planned.limits.fast_telemetry_period_s)]
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
        watcher.wait(STOP_S)
    except subprocess.TimeoutExpired:
        watcher.kill()
        watcher.wait()
        return False
    return True
