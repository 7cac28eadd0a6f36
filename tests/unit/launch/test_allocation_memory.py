"""Limits of host memory, from files of control groups in all versions and from Slurm's variables."""

from pathlib import Path

import pytest

from triplepoint.launch.slurm import MemoryLimit, memory_limit
from triplepoint.units import GIB, MIB

NODE = 64 * GIB


def root(folder: Path, groups: str, **limits: str) -> Path:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(groups)
    for name, text in limits.items():
        path = folder / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


def test_memory_limit_v2_lowest_of_the_groups_around(tmp_path: Path) -> None:
    limits = {"memory.max": "max", "slurm/memory.max": str(4 * GIB), "slurm/job/memory.max": "max"}
    found = memory_limit(NODE, {}, root(tmp_path, "0::/slurm/job\n", **limits))
    assert found == MemoryLimit(4 * GIB, "control group /slurm")
    assert str(found) == "4096 MiB (control group /slurm)"


def test_memory_limit_v1(tmp_path: Path) -> None:
    unlimited = str(9223372036854771712)
    limits = {"memory/memory.limit_in_bytes": unlimited, "memory/box/memory.limit_in_bytes": str(GIB)}
    groups = "5:cpu,cpuacct:/other\n4:memory:/box\n0::/\n"
    assert memory_limit(NODE, {}, root(tmp_path, groups, **limits)) == MemoryLimit(GIB, "control group /box")


def test_memory_limit_inside_a_container(tmp_path: Path) -> None:
    found = memory_limit(NODE, {}, root(tmp_path, "0::/\n", **{"memory.max": str(2 * GIB)}))
    assert found == MemoryLimit(2 * GIB, "control group /")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_MEM_PER_NODE": "60"}, MemoryLimit(60 * MIB, "SLURM_MEM_PER_NODE")),
        ({"SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_ON_NODE": "3"}, MemoryLimit(300 * MIB, "SLURM_MEM_PER_CPU")),
        ({"SLURM_MEM_PER_NODE": "0"}, None),
        ({"SLURM_MEM_PER_NODE": "62000"}, None),  # all that Slurm has of 65,536 MiB
        ({}, None),
    ],
)
def test_memory_limit_slurm(tmp_path: Path, environment: dict[str, str], expected: MemoryLimit | None) -> None:
    assert memory_limit(NODE, environment, root(tmp_path, "0::/\n")) == expected
