"""How much of a node's memory a launch may use: limits of control groups and of Slurm."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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
