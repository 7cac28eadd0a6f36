"""Query and cancel Slurm jobs, and read what Slurm gave to a node: devices, cores, memory.

Jobs are looked up with squeue, which slurmctld answers from memory, and with sacct once slurmctld has forgotten them.
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
"""Time limit of a command. slurmctld does not answer while it restarts; Slurm's clients give up after MessageTimeout,
10 s by default."""
SETTLE_S = 30.0
"""Time to wait for a job that is ending to reach its final state."""
SETTLE_POLL_S = 0.5

UNFINISHED = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "RESIZING", "REQUEUED"}
)
"""States of a job that has not ended. Source: squeue(1), job state codes."""
GONE = "GONE"
"""State, not one of Slurm's, of a job that neither slurmctld nor the accounting knows."""
NEVER = frozenset(
    {"PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS", "AccountNotAllowed"}
    | {"DependencyNeverSatisfied"}
)
"""Reasons of a pending job that will never start. Source: squeue(1), job reason codes."""
HELD = frozenset(
    {"JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue", "launch_failed_requeued_held"} | {"job_requeued_in_held_state"}
)
"""Reasons of a pending job that starts only after somebody releases it. Source: squeue(1), job reason codes."""
TOO_MANY_NODES = "PartitionNodeLimit"
"""Reason that is permanent if the partition is too small, and temporary if some of its nodes are down."""


_VISIBLE_VARIABLE = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "ROCR_VISIBLE_DEVICES"}
"""Environment variable in which Slurm names the devices of a job. Source: Slurm, gres.html, "GPU Management"."""
_FILTERED_TWICE = {"cuda": (), "rocm": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")}
"""Variables that number the devices left by the variable above. Slurm sets both alike, and devices 4 to 7 would be
looked for among four. Source: ROCm documentation, "GPU isolation techniques"."""
_ANY_VISIBLE_VARIABLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""All variables that select devices; the first one that is set decides."""
_ADAPTERS = Path("/sys/class/infiniband")
_VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True)
class JobState:
    """State of a job in Slurm."""

    state: str
    """State in capitals, as squeue spells it, or `GONE`."""
    reason: str = ""
    """Slurm's reason why the job waits or why it ended."""
    nodes: str = ""
    """Nodes of the job, in Slurm's abbreviation."""

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
    """Return the state of a job, None if Slurm does not answer.

    Args:
        job_id: Number of the job.
        comment: Comment it was submitted with. A slurmctld that is killed right after a submission forgets the job and
            gives its number to another, which must not be taken for this one.
    """
    answer = _ask("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T|%N|%k|%r")
    if answer is None:
        return None
    for line in answer.splitlines():
        state, nodes, job_comment, reason = line.split("|", 3)
        return JobState(state, reason, nodes) if job_comment == comment else JobState(GONE)
    return _from_accounting(job_id, comment)


def settled(job_id: str, comment: str) -> JobState | None:
    """Wait for the final state of a job that is ending, and return it; the last state seen if that takes too long.

    squeue shows a job as COMPLETING until its last node is clean.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        state = query(job_id, comment)
        if (state is not None and state.is_final) or time.monotonic() > deadline:
            return state
        time.sleep(SETTLE_POLL_S)


def find_jobs(name: str) -> dict[str, str] | None:
    """Return the comments of this user's unfinished jobs of a name, by job number; None if Slurm does not answer."""
    answer = _ask("squeue", "--noheader", "--me", f"--name={name}", "--format=%A|%k")
    if answer is None:
        return None
    return dict(line.split("|", 1) for line in answer.splitlines())


def is_too_large(job_id: str, num_nodes: int) -> bool:
    """Return whether the partition of a job has fewer nodes than it needs, nodes that are down included."""
    partition = (_ask("squeue", "--noheader", f"--jobs={job_id}", "--format=%P") or "").strip()
    sizes = (_ask("sinfo", "--noheader", f"--partition={partition}", "--format=%D") or "").split() if partition else []
    return bool(sizes) and sum(map(int, sizes)) < num_nodes


def usable_nodes(partition: str | None) -> frozenset[str]:
    """Return the nodes of a partition that take jobs, idle or busy; none if Slurm does not answer.

    Args:
        partition: Name of the partition; None for the default one.
    """
    lines = (_ask("sinfo", "--noheader", "--Node", "--format=%N %P %T") or "").splitlines()
    rows = [line.split() for line in lines]
    return frozenset(
        node
        for node, name, state in rows
        if (name.rstrip("*") == partition if partition else name.endswith("*"))  # * marks the default partition
        and state in ("idle", "allocated", "mixed", "completing")
    )


def cancel(job_id: str) -> None:
    """Ask Slurm to end a job. Nothing happens if Slurm does not answer or has no such job."""
    _ask("scancel", job_id)


def hosts(nodes: str) -> list[str]:
    """Expand Slurm's abbreviation of nodes, such as `h200-[1-4]`, in its order; empty if Slurm does not answer."""
    return (_ask("scontrol", "show", "hostnames", nodes) or "").split() if nodes else []


def node_state(node: str) -> str:
    """Return Slurm's state of a node, such as `down*`; empty if Slurm does not answer."""
    lines = (_ask("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T") or "").split()
    return lines[0] if lines else ""


def _from_accounting(job_id: str, comment: str) -> JobState:
    fields = "--format=State,NodeList,Comment"
    answer = _ask("sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={job_id}", fields) or ""
    for line in answer.splitlines():
        state, nodes, job_comment = line.split("|", 2)
        if job_comment in ("", comment):  # many sites do not store comments
            state = state.split()[0]  # "CANCELLED by 1000"
            # In the accounting, a job that a killed slurmctld has forgotten stays pending or running.
            return JobState(state, "", nodes) if state not in UNFINISHED else JobState(GONE)
    return JobState(GONE)


def _ask(*command: str) -> str | None:
    """Return the output of a Slurm command, None if Slurm does not answer. For an unknown job the output is empty."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, stdin=subprocess.DEVNULL)
    except (subprocess.TimeoutExpired, OSError):
        return None
    if result.returncode and "Invalid job id" not in result.stderr:
        return None
    return result.stdout


@dataclass(frozen=True)
class MemoryLimit:
    """A limit on the host memory of a process."""

    limit_bytes: int
    set_by: str
    """Control group or environment variable that sets the limit."""

    def __str__(self) -> str:
        return f"{self.limit_bytes / MIB:.0f} MiB ({self.set_by})"


def memory_limit(
    memory_bytes: int, environment: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> MemoryLimit | None:
    """Return the lowest memory limit of this process, None if it may use all memory of its node.

    Args:
        memory_bytes: Memory of the node. Unit: byte.
        environment: Variables of the process.
        root: Where `/proc` and `/sys` are.
    """
    limits = [*_cgroup_limits(root), *_slurm_limits(environment)]
    lowest = min(limits, key=lambda limit: limit.limit_bytes, default=None)
    return lowest if lowest is not None and lowest.limit_bytes < WHOLE * memory_bytes else None


def _cgroup_limits(root: Path) -> Iterator[MemoryLimit]:
    """Yield the memory limits of the process's control group and of its parents.

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
        own_group = Path(group.lstrip("/"))
        for path in (own_group, *own_group.parents):
            limit_bytes = _read_int(base / path / file)
            if limit_bytes is not None:
                yield MemoryLimit(limit_bytes, f"control group /{'' if path == Path() else path}")


def _slurm_limits(environment: Mapping[str, str]) -> Iterator[MemoryLimit]:
    """Yield the memory that Slurm granted, which it may enforce without control groups.

    Source: sbatch(1), output variables.
    """
    names = ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE")
    per_node, per_cpu, cpus = (int(text) if (text := environment.get(name, "")).isdecimal() else 0 for name in names)
    if per_node:
        yield MemoryLimit(per_node * MIB, "SLURM_MEM_PER_NODE")
    if per_cpu and cpus:
        yield MemoryLimit(per_cpu * cpus * MIB, "SLURM_MEM_PER_CPU")


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # such as "max": no limit
        return None


def visible_devices(device: str, environment: Mapping[str, str] = os.environ) -> tuple[str, ...] | None:
    """Return the devices that the scheduler gave to this node, None if it named none.

    Args:
        device: cpu, cuda or rocm. With cpu, the devices in any of the vendors' variables.
        environment: Variables of the process.
    """
    for name in [_VISIBLE_VARIABLE[device]] if device in _VISIBLE_VARIABLE else _ANY_VISIBLE_VARIABLE:
        if devices := environment.get(name):
            return tuple(devices.split(","))
    return None


def missing_devices(device: str, num_needed: int, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return an error message if the scheduler gave fewer devices than the node has ranks, else None."""
    visible = visible_devices(device, environment)
    if device == "cpu" or visible is None or len(visible) >= num_needed:
        return None
    name = _VISIBLE_VARIABLE[device]
    return f"{name} names {len(visible)} devices ({','.join(visible)}), {num_needed} ranks need one each"


def rank_environment(device: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of the ranks: that of this process without variables that would filter devices twice.

    Ranks on the CPU see no GPU of their machine, which libraries would open.
    """
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    removed = _FILTERED_TWICE.get(device, ()) if _VISIBLE_VARIABLE.get(device, "") in environment else ()
    return {name: value for name, value in environment.items() if name not in removed} | hidden


def placement(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the devices, cores and network of this process on its node, with the fields of `manifest.Placement`."""
    return {
        "switches": environment.get("SLURM_TOPOLOGY_ADDR"),
        "devices": visible_devices("cpu", environment),
        "cpus": ranges(os.sched_getaffinity(0)),
        "adapters": {path.name: _numa_node(path) for path in sorted(_ADAPTERS.glob("*"))},
    }


def count_host_kills() -> int:
    """Return the number of processes that the out-of-memory killer of this machine has ended since the machine started.

    Source: Linux, `oom_kill` of /proc/vmstat, which includes processes in memory cgroups.
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
