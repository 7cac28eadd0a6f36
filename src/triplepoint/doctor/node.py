"""Reads the facts of the node this runs on."""

import contextlib
import importlib
import io
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

from triplepoint.doctor.amd import read_amd
from triplepoint.doctor.facts import GpuFacts, NodeFacts
from triplepoint.doctor.host import read_limits, read_ports, read_sensors, read_torch, read_versions, read_xids
from triplepoint.doctor.nvidia import read_nvidia

Vendor = Literal["nvidia", "amd", "none"]
SYSFS_VARIABLE = "TRIPLEPOINT_SYSFS"
"""Environment variable that names another folder than `/sys`, as for the sampler."""

Gpus = tuple[list[GpuFacts], dict[str, str]]


@dataclass(frozen=True)
class Sources:
    """Where facts are read from; tests put their own in place.

    Attributes:
        sys: The folder `/sys`.
        kernel_log: The kernel's log.
        load: Imports a device library by name.
    """

    sys: Path = field(default_factory=lambda: Path(os.environ.get(SYSFS_VARIABLE, "/sys")))
    kernel_log: Path = Path("/dev/kmsg")
    load: Callable[[str], Any] = importlib.import_module


def read_node(
    node: int,
    vendors: tuple[Vendor, ...] = ("nvidia", "amd"),
    sources: Sources | None = None,
    with_torch: bool = True,
) -> NodeFacts:
    """Return the facts of this node.

    Args:
        node: Its number in the job.
        vendors: Whose GPUs to look for.
        sources: Where to read.
        with_torch: Whether to ask torch, which takes seconds.
    """
    sources = sources or Sources()
    vendor, (gpus, driver), problem = _read_gpus(vendors, sources)
    torch_versions, num_torch_devices = read_torch() if with_torch else ({}, None)
    return NodeFacts(
        node=node,
        host=socket.gethostname(),
        vendor=vendor,
        no_gpus_because=problem,
        gpus=tuple(gpus),
        versions=read_versions() | torch_versions | driver,
        num_torch_devices=num_torch_devices,
        ports=read_ports(sources.sys),
        telemetry=read_sensors(sources.sys),
        xids=read_xids(sources.kernel_log) if vendor == "nvidia" else None,
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        **read_limits(),
    )


def _read_gpus(vendors: tuple[Vendor, ...], sources: Sources) -> tuple[Vendor, Gpus, str]:
    """Return whose GPUs answered, the GPUs, and why none did."""
    problems = [] if vendors else ["not looked for: the cluster is one of processors"]
    for vendor in vendors:
        found = _read_nvidia(sources) if vendor == "nvidia" else _read_amd(sources)
        if not isinstance(found, str):
            return vendor, found, ""
        problems.append(found)
    return "none", ([], {}), "; ".join(problems)


def _read_nvidia(sources: Sources) -> Gpus | str:
    try:
        nvml = sources.load("pynvml")
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        return read_nvidia(nvml)
    except nvml.NVMLError as error:
        return f"NVML: {error}"


def _read_amd(sources: Sources) -> Gpus | str:
    # Without ROCm, importing amdsmi prints on stdout and raises KeyError.
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            smi = sources.load("amdsmi")
        except ImportError:
            return "amdsmi is not installed"
        except (KeyError, OSError) as error:
            return f"amdsmi finds no ROCm ({error})"
        try:
            return read_amd(smi)
        except smi.AmdSmiException as error:
            return f"amdsmi: {error}"
