"""Submitting a gang through submitit: the same code on one machine and through Slurm."""

import contextlib
import math
import os
import pwd
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from triplepoint.config.plan import PlannedRun
from triplepoint.launch.agent import Launcher, run_node

SECONDS_PER_MINUTE = 60
MARGIN_MIN = 2
"""The agents end a gang at its time limit; the scheduler's own limit only stands behind them. Unit: minute."""
POLL_S = 0.2
CANCEL_S = 10.0
MACHINE = "TRIPLEPOINT_MACHINE"
"""Environment variable with the name under which local gangs exclude one another, in place of `triplepoint-gang`."""
_MOST_WAITING = 128


class Gang(Protocol):
    """One submitted gang: an agent on each node."""

    def is_over(self) -> bool:
        """Return whether nothing more is to be expected of it.

        How it ended is told by the agents' reports, not by this.
        """

    def cancel(self) -> None:
        """End it now."""


def wait(gang: Gang, poll: Callable[[], Any]) -> None:
    """Wait until a gang is over, calling `poll` meanwhile."""
    while not gang.is_over():
        poll()
        time.sleep(POLL_S)


class LocalGang:
    """A gang of processes on this machine, which goes with its launcher."""

    def __init__(self, raw: Path, planned: PlannedRun) -> None:
        """Start the gang.

        Args:
            raw: Folder of the attempt, holding `point.json`.
            planned: What to launch.
        """
        import submitit

        # Named, not "auto": with srun on the PATH submitit would take Slurm for a run on this machine.
        executor = submitit.AutoExecutor(raw / "submitit", cluster="local")
        executor.update_parameters(name=planned.run, timeout_min=time_limit_min(planned))
        with stderr_to(raw / "submitit.log"):
            self._job: submitit.Job[None] = executor.submit(run_node, raw, Launcher.this())

    def is_over(self) -> bool:
        """Return whether the agent has gone; submitit calls a job finished however it failed."""
        return bool(self._job.done())

    def cancel(self) -> None:
        """End the gang now."""
        with contextlib.suppress(Exception):  # already gone, or never started: either way nothing is left to end
            self._job.cancel()
        deadline = time.monotonic() + CANCEL_S
        while not self._job.done() and time.monotonic() < deadline:
            time.sleep(POLL_S)


@contextlib.contextmanager
def alone_on_machine(run: str, say: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other gang trains on this machine, whoever started it: two at once would slow each other.

    What is held is a name in the kernel, an abstract Unix socket, which is free again however its process ends.
    Source: Linux, unix(7).

    Args:
        run: Run id, for what is said.
        say: Told who is waited for.
    """
    name = "\0" + os.environ.get(MACHINE, "triplepoint-gang")
    with socket.socket(socket.AF_UNIX) as held:
        told = None
        while not _bind(held, name):
            if (owner := _owner_of(name)) is not None and owner != told:
                say(f"{run}: {owner} measures on this machine; waiting")
                told = owner
            time.sleep(POLL_S)
        held.listen(_MOST_WAITING)
        yield


def _bind(held: socket.socket, name: str) -> bool:
    try:
        held.bind(name)
    except OSError:
        return False
    return True


def _owner_of(name: str) -> str | None:
    """Return who listens under a name; None if nobody does, or too many have asked."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
        except OSError:
            return None
        pid, uid, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    with contextlib.suppress(KeyError):
        return f"process {pid} of {pwd.getpwuid(uid).pw_name}"
    return f"process {pid} of user {uid}"


def time_limit_min(planned: PlannedRun) -> int:
    """Return the limit the scheduler is given. Unit: minute."""
    return math.ceil(planned.limits.time_limit_s / SECONDS_PER_MINUTE) + MARGIN_MIN


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Send what processes started in the block write to stderr to a file.

    submitit's local controller inherits our stderr, and would show its own traceback there when we are interrupted.
    """
    kept = os.dup(sys.stderr.fileno())
    with path.open("ab") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    try:
        yield
    finally:
        os.dup2(kept, sys.stderr.fileno())
        os.close(kept)
