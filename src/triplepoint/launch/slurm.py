"""Slurm: how a job stands, what it ended as, which jobs a launch has, ending one; and what a node of it was given.

Through squeue first, which slurmctld answers from memory and in plain words; through sacct once it has forgotten.
"""

import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triplepoint.units import MIB

WHOLE = 0.9
"""Share of a node's memory that counts as all of it: schedulers keep some for the system. Our choice."""
ANSWER_S = 30.0
"""slurmctld says nothing while it restarts; clients give up by themselves after MessageTimeout, 10 s by default."""
SETTLE_S = 30.0
SETTLE_POLL_S = 0.5

UNFINISHED = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "RESIZING", "REQUEUED"}
)
"""States after which another will come. Source: squeue(1), job state codes."""
GONE = "GONE"
"""Our word for a job that neither slurmctld nor the accounting knows."""
NEVER = frozenset(
    {"PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS", "AccountNotAllowed"}
    | {"DependencyNeverSatisfied"}
)
"""Reasons for which a job waits in vain. Source: squeue(1), job reason codes."""
HELD = frozenset(
    {"JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue", "launch_failed_requeued_held"} | {"job_requeued_in_held_state"}
)
"""Reasons for which a job waits until somebody releases it. Source: squeue(1), job reason codes."""
TOO_MANY_NODES = "PartitionNodeLimit"
"""A reason that is for ever where the partition is too small, and for a while where some of its nodes are down."""


_VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "ROCR_VISIBLE_DEVICES"}
"""The variable in which Slurm names the devices of a job. Source: Slurm, gres.html, "GPU Management"."""
_FILTER_AGAIN = {"cuda": (), "rocm": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")}
"""Variables that count within the devices left by the one above. Slurm sets them with the same numbers, so devices 4
to 7 would be looked for among four. Source: ROCm documentation, "GPU isolation techniques"."""
_ANY = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""All variables that choose devices; the first that is set is the one that ranks are left with."""
_ADAPTERS = Path("/sys/class/infiniband")
_VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True)
class JobState:
    """What Slurm says of a job."""

    state: str
    """State in capitals, as squeue spells it, or `GONE`."""
    reason: str = ""
    """Why it waits or why it ended, in Slurm's words."""
    nodes: str = ""
    """Nodes it has or had, as Slurm abbreviates them."""

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self.state not in UNFINISHED

    @property
    def waits_in_vain(self) -> bool:
        """Whether the job can never start."""
        return self.state == "PENDING" and self._reason_code in NEVER

    @property
    def is_held(self) -> bool:
        """Whether the job waits until its owner or an operator releases it."""
        return self.state == "PENDING" and self._reason_code in HELD

    @property
    def _reason_code(self) -> str:
        return self.reason.strip("()").replace(" ", "_")


def query(job_id: str, comment: str) -> JobState | None:
    """Return how a job stands, or None if Slurm does not answer.

    Args:
        job_id: Its number.
        comment: What it was submitted with. A slurmctld killed right after a submission forgets it and gives the
            number to another job, which must not be taken for ours.
    """
    answer = _ask("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T|%N|%k|%r")
    if answer is None:
        return None
    for line in answer.splitlines():
        state, nodes, found, reason = line.split("|", 3)
        return JobState(state, reason, nodes) if found == comment else JobState(GONE)
    return _from_accounting(job_id, comment)


def settled(job_id: str, comment: str) -> JobState | None:
    """Return what a job that is ending ends as; squeue shows a job as COMPLETING until its last node is clean."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        state = query(job_id, comment)
        if (state is not None and state.is_final) or time.monotonic() > deadline:
            return state
        time.sleep(SETTLE_POLL_S)


def find_jobs(name: str) -> dict[str, str] | None:
    """Return the number of every unfinished job of that name, with its comment; None if Slurm does not answer."""
    answer = _ask("squeue", "--noheader", "--me", f"--name={name}", "--format=%A|%k")
    if answer is None:
        return None
    return dict(line.split("|", 1) for line in answer.splitlines())


def is_too_large(job_id: str, num_nodes: int) -> bool:
    """Return whether the partition of a job has fewer nodes than it needs, in whatever state they are."""
    partition = (_ask("squeue", "--noheader", f"--jobs={job_id}", "--format=%P") or "").strip()
    sizes = (_ask("sinfo", "--noheader", f"--partition={partition}", "--format=%D") or "").split() if partition else []
    return bool(sizes) and sum(map(int, sizes)) < num_nodes


def usable_nodes(partition: str | None) -> frozenset[str]:
    """Return the nodes of a partition that may take jobs, now or once others have ended; none if Slurm does not answer.

    Args:
        partition: Its name; None for the one that jobs go to unless they say otherwise.
    """
    lines = (_ask("sinfo", "--noheader", "--Node", "--format=%N %P %T") or "").splitlines()
    rows = [line.split() for line in lines]
    return frozenset(
        node
        for node, found, state in rows
        if (found.rstrip("*") == partition if partition else found.endswith("*"))
        and state in ("idle", "allocated", "mixed", "completing")
    )


def cancel(job_id: str) -> None:
    """Ask Slurm to end a job; nothing happens where it cannot be reached or knows no such job."""
    _ask("scancel", job_id)


def hosts(nodes: str) -> list[str]:
    """Return the nodes an abbreviation such as `h200-[1-4]` stands for, in its order; none if Slurm does not answer."""
    return (_ask("scontrol", "show", "hostnames", nodes) or "").split() if nodes else []


def node_state(node: str) -> str:
    """Return what Slurm says of a node's state, such as `down*`; empty if it says nothing."""
    lines = (_ask("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T") or "").split()
    return lines[0] if lines else ""


def _from_accounting(job_id: str, comment: str) -> JobState:
    fields = "--format=State,NodeList,Comment"
    answer = _ask("sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job_id}", fields) or ""
    for line in answer.splitlines():
        state, nodes, found = line.split("|", 2)
        if found in ("", comment):  # many sites do not store comments
            state = state.split()[0]  # "CANCELLED by 1000"
            # Accounting goes on calling a job pending or running that a killed slurmctld has forgotten.
            return JobState(state, "", nodes) if state not in UNFINISHED else JobState(GONE)
    return JobState(GONE)


def _ask(*command: str) -> str | None:
    """Return what a command of Slurm prints; None if slurmctld cannot be reached. An unknown job is an empty answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, stdin=subprocess.DEVNULL)
    except (subprocess.TimeoutExpired, OSError):
        return None
    if done.returncode and "Invalid job id" not in done.stderr:
        return None
    return done.stdout


@dataclass(frozen=True)
class MemoryLimit:
    """The lowest limit on the host memory of a process."""

    limit_bytes: int
    set_by: str
    """What set it."""

    def __str__(self) -> str:
        return f"{self.limit_bytes / MIB:.0f} MiB ({self.set_by})"


def memory_limit(
    memory_bytes: int, environment: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> MemoryLimit | None:
    """Return what keeps this process from using the memory of its node, or None where nothing does."""
    limits = [*_of_groups(root), *_of_slurm(environment)]
    lowest = min(limits, key=lambda limit: limit.limit_bytes, default=None)
    return lowest if lowest is not None and lowest.limit_bytes < WHOLE * memory_bytes else None


def _of_groups(root: Path) -> Iterator[MemoryLimit]:
    """Yield the limits of the process's control group and of those around it.

    Source: Linux, cgroups(7); cgroup-v2.rst, memory.max; cgroup-v1/memory.rst, memory.limit_in_bytes.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            base, file = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        inner = Path(group.lstrip("/"))
        for each in (inner, *inner.parents):
            limit_bytes = _number(base / each / file)
            if limit_bytes is not None:
                yield MemoryLimit(limit_bytes, f"control group /{'' if each == Path() else each}")


def _of_slurm(environment: Mapping[str, str]) -> Iterator[MemoryLimit]:
    """Yield what Slurm grants, which it enforces without control groups too. Source: sbatch(1), output variables."""
    names = ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE")
    per_node, per_cpu, cpus = (int(text) if (text := environment.get(name, "")).isdecimal() else 0 for name in names)
    if per_node:
        yield MemoryLimit(per_node * MIB, "SLURM_MEM_PER_NODE")
    if per_cpu and cpus:
        yield MemoryLimit(per_cpu * cpus * MIB, "SLURM_MEM_PER_CPU")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # `max`: no limit
        return None


def visible_devices(device: str, environment: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """Return the devices the scheduler gave to this node, None where it named none.

    Args:
        device: cpu, cuda or rocm. On cpu, devices that were given are named all the same.
        environment: Variables of the process.
    """
    for name in [_VISIBLE[device]] if device in _VISIBLE else _ANY:
        if found := environment.get(name):
            return tuple(found.split(","))
    return None


def missing_devices(device: str, num_needed: int, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return what is wrong where fewer devices were given than the node has ranks, or None."""
    given = visible_devices(device, environment)
    if device == "cpu" or given is None or len(given) >= num_needed:
        return None
    return f"{_VISIBLE[device]} names {len(given)} devices ({','.join(given)}), {num_needed} ranks need one each"


def rank_environment(device: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of the ranks: this process's, without those that would filter devices twice."""
    twice = _FILTER_AGAIN.get(device, ()) if _VISIBLE.get(device, "") in environment else ()
    return {name: value for name, value in environment.items() if name not in twice}


def placement(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return what this node was given, as `manifest.Placement` names it."""
    return {
        "switches": environment.get("SLURM_TOPOLOGY_ADDR"),
        "devices": visible_devices("cpu", environment),
        "cpus": ranges(os.sched_getaffinity(0)),
        "adapters": {path.name: _numa_node(path) for path in sorted(_ADAPTERS.glob("*"))},
    }


def count_host_kills() -> int:
    """Return how many processes of this machine the kernel has ended for want of memory since it started.

    Source: Linux, `oom_kill` of /proc/vmstat, which counts those in memory cgroups too.
    """
    try:
        fields = dict(line.split() for line in _VMSTAT.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(fields.get("oom_kill", 0))


def _numa_node(adapter: Path) -> int | None:
    try:
        return int((adapter / "device/numa_node").read_text())
    except (OSError, ValueError):
        return None


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, such as `0-2,5`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
