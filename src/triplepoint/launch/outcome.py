"""What ended a gang, judged from evidence: what ranks said, how they exited, what their logs end with."""

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from triplepoint.manifest import Status

LOG_TAIL_LINES = 15

_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|HIP out of memory|torch\.(cuda\.)?OutOfMemoryError|CUDA error: out of memory"
    r"|DefaultCPUAllocator: (can't|not enough) (allocate )?memory|hipErrorOutOfMemory|\bMemoryError\b",
)
"""Texts of torch and the CUDA and HIP runtimes. Source: torch 2.13, CPUAllocator and CUDACachingAllocator of c10."""

_AFTERSHOCK = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|socket|Timed out waiting|timeout.*waiting"
    r"|NCCL (remote|communicator)|application has timed out|peer",
    re.IGNORECASE,
)
"""What a healthy rank says when another one has gone."""


@dataclass(frozen=True)
class Failure:
    """One rank's end, as seen by the process that watched it."""

    rank: int
    status: Status
    message: str
    t_wall_ns: int
    is_user_error: bool = False

    @property
    def is_aftershock(self) -> bool:
        """Whether the message only tells that some other rank has gone."""
        return self.status == "crashed" and _AFTERSHOCK.search(self.message) is not None


def classify(message: str) -> Status:
    """Return the status an exception's text stands for: `oom` or `crashed`."""
    return "oom" if _OUT_OF_MEMORY.search(message) else "crashed"


def describe_exit(returncode: int) -> str:
    """Return what a rank's exit status says when the rank itself left no message."""
    if returncode >= 0:
        return f"exited with status {returncode} without a word"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = "unknown"
    hint = "; the kernel's out-of-memory killer, or a person, ended it" if name == "SIGKILL" else ""
    return f"killed by signal {-returncode} ({name}){hint}"


def root_cause(failures: Iterable[Failure]) -> Failure:
    """Return the failure the others follow from: not an aftershock, out of memory before crashes, then the earliest."""
    return min(failures, key=lambda f: (f.is_aftershock, f.status != "oom", f.t_wall_ns))


def log_tail(path: Path, num_lines: int = LOG_TAIL_LINES) -> tuple[str, ...]:
    """Return the last lines of a log, or nothing if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(line[:500] for line in lines if line.strip())[-num_lines:]


def find_hung(stacks: dict[int, str], last_step: dict[int, int]) -> tuple[int, str]:
    """Return the rank that most likely holds up a hung gang, and why.

    A rank waiting inside a collective is waiting for others. The suspect is one that did not answer the request for its
    stack, or answered from elsewhere; failing that, the one that finished the fewest steps.

    Args:
        stacks: What each rank's stack dump says, empty if the rank did not answer.
        last_step: Steps each rank finished.
    """
    silent = [rank for rank, stack in stacks.items() if not stack.strip()]
    if silent:
        return silent[0], "does not react to signals (stopped, or stuck in the kernel)"
    elsewhere = [rank for rank, stack in stacks.items() if "torch/distributed" not in _main_thread(stack)]
    if elsewhere and len(elsewhere) < len(stacks):
        return elsewhere[0], "is not in a collective while others wait in one"
    slowest = min(last_step, key=lambda rank: (last_step[rank], rank))
    return slowest, f"finished {last_step[slowest]} steps, the fewest"


def _main_thread(stack: str) -> str:
    """Return the part of a faulthandler dump after `Current thread`: the thread that took the signal, the main one."""
    return stack.rpartition("Current thread")[2]
