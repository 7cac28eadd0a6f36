"""What a node of the gang was given: devices, processors, adapters, its place behind the switches.

NVIDIA and AMD differ in the names of two variables, nothing else.
"""

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

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
