"""What ended a gang, judged from evidence: what ranks said, how they exited, what their logs end with."""

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from triplepoint.status import Status

LOG_TAIL_LINES = 15
HOST_MEMORY = "host memory"
"""Begins what is said where it is the memory of the host that ran out, not that of a device."""

_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|HIP out of memory|torch\.(cuda\.)?OutOfMemoryError|CUDA error: out of memory"
    r"|DefaultCPUAllocator: (can't|not enough) (allocate )?memory|hipErrorOutOfMemory|\bMemoryError\b",
)
"""Texts of torch and the CUDA and HIP runtimes. Source: torch 2.13, CPUAllocator and CUDACachingAllocator of c10."""

_BAD_NODE = re.compile(
    r"uncorrectable (ECC|NVLink)|ECC error|hipErrorECCNotCorrectable|fallen off the bus|GPU is lost|\bXid\b"
    r"|no (CUDA|ROCm)-capable device|hipErrorNoDevice|No (CUDA|HIP) GPUs are available|invalid device ordinal"
    r"|HSA_STATUS_ERROR_EXCEPTION|hardware exception|Hardware stack error",
    re.IGNORECASE,
)
"""What drivers and runtimes say of a device that is broken or not there. Source: cudaGetErrorString, hipGetErrorString,
the NVIDIA driver's kernel messages."""

_COLLECTIVE = re.compile(
    r"\b[NR]CCL (error|WARN)|nccl(System|Internal|UnhandledCuda|Remote|InvalidUsage)Error|ncclUnhandled"
    r"|\bDistBackendError\b|Watchdog caught collective operation timeout"
)
"""What torch says of NCCL, and of RCCL, which keeps the names of NCCL. Source: torch 2.13, ProcessGroupNCCL."""

_HOST_OUT_OF_MEMORY = re.compile(r"exceeded (job |step )?memory limit|oom[-_ ]?kill|Out Of Memory", re.IGNORECASE)
"""What Slurm writes to a job's log when host memory ran out. Source: Slurm 22.05, slurmstepd and task/cgroup."""

_AFTERSHOCK = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|socket|Timed out waiting|timeout.*waiting"
    r"|NCCL (remote|communicator)|ncclRemoteError|application has timed out|peer|told to end|SIGTERM",
    re.IGNORECASE,
)
"""What a healthy rank says, or ends with, when another one has gone or the scheduler ends the job."""


_MAY_FOLLOW = frozenset({Status.CRASHED, Status.COLLECTIVE, Status.CANCELLED})
"""How a rank may end only because another one did."""


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
        """Whether the message only tells that some other rank has gone, or that someone ended the job."""
        return self.status in _MAY_FOLLOW and _AFTERSHOCK.search(self.message) is not None


def classify(message: str) -> Status:
    """Return the status an exception's text stands for: `bad_node`, `oom`, `collective` or `crashed`."""
    if _BAD_NODE.search(message):
        return Status.BAD_NODE
    if _OUT_OF_MEMORY.search(message):
        return Status.OOM
    return Status.COLLECTIVE if _COLLECTIVE.search(message) else Status.CRASHED


def judge_kill(failure: Failure, num_host_kills: int) -> Failure:
    """Return the failure as out of memory if a rank was killed while the kernel ended processes for want of memory."""
    if num_host_kills <= 0 or "SIGKILL" not in failure.message:
        return failure
    return replace(failure, status=Status.OOM, message=f"{HOST_MEMORY}: the kernel ended the rank; {failure.message}")


def says_host_out_of_memory(lines: Iterable[str]) -> str | None:
    """Return the line in which Slurm says that host memory ran out, or None."""
    return next((line for line in lines if _HOST_OUT_OF_MEMORY.search(line)), None)


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
    """Return the failure others follow from: no aftershock, broken devices first, then memory, then the earliest."""
    weight = {Status.BAD_NODE: 0, Status.OOM: 1}
    return min(failures, key=lambda f: (f.is_aftershock, weight.get(f.status, 2), f.t_wall_ns))


def log_tail(path: Path, num_lines: int = LOG_TAIL_LINES) -> tuple[str, ...]:
    """Return the last lines of a log, or nothing if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ()
    return tuple(line[:500] for line in lines if line.strip())[-num_lines:]


def find_hung(raw: Path, ranks: Sequence[int]) -> tuple[int, str]:
    """Return the rank that most likely holds up a hung gang, and why.

    Args:
        raw: Folder of the attempt, with the stacks the ranks were asked for.
        ranks: Ranks to choose from.
    """
    return judge_hung(
        {rank: _read_stack(raw, rank) for rank in ranks}, {rank: _count_steps(raw, rank) for rank in ranks}
    )


def judge_hung(stacks: dict[int, str], last_step: dict[int, int]) -> tuple[int, str]:
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


def _read_stack(raw: Path, rank: int) -> str:
    path = raw / "logs" / f"rank{rank}.stack"
    return path.read_text() if path.exists() else ""


def _count_steps(raw: Path, rank: int) -> int:
    path = raw / "steps" / f"rank{rank}.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _main_thread(stack: str) -> str:
    """Return the part of a faulthandler dump after `Current thread`: the thread that took the signal, the main one."""
    return stack.rpartition("Current thread")[2]
