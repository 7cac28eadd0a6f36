"""What the scheduler gave a node of the gang: devices, processors, adapters, memory, its place behind the switches.

NVIDIA and AMD differ in the names of two variables, nothing else.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from triplepoint.units import MIB

WHOLE = 0.9
"""Share of a node's memory that counts as all of it: schedulers keep some for the system. Our choice."""


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
    """Return what keeps this process from using the memory of its node, or None where nothing does.

    Args:
        memory_bytes: Memory of the node.
        environment: Variables of the process.
        root: Root of the file system.
    """
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


_VISIBLE = {"cuda": "CUDA_VISIBLE_DEVICES", "rocm": "ROCR_VISIBLE_DEVICES"}
"""The variable in which Slurm names the devices of a job. Source: Slurm, gres.html, "GPU Management"."""
_FILTER_AGAIN = {"cuda": (), "rocm": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")}
"""Variables that count within the devices left by the one above. Slurm sets them with the same numbers, so devices 4
to 7 would be looked for among four. Source: ROCm documentation, "GPU isolation techniques"."""
_ANY = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""All variables that choose devices; the first that is set is the one that ranks are left with."""
_ADAPTERS = Path("/sys/class/infiniband")
_VMSTAT = Path("/proc/vmstat")


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
        "cpus": _ranges(sorted(os.sched_getaffinity(0))),
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


def _ranges(numbers: list[int]) -> str:
    """Return `0-3,8` for 0, 1, 2, 3, 8."""
    if not numbers:
        return ""
    cuts = [0, *(i + 1 for i, (a, b) in enumerate(pairwise(numbers)) if b != a + 1), len(numbers)]
    runs = [numbers[begin:end] for begin, end in pairwise(cuts)]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
