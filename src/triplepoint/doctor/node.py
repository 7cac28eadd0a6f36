"""Facts of this node: GPUs, network ports, sensors, kernel log, versions and limits."""

import contextlib
import importlib
import io
import os
import re
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from triplepoint.doctor.check import GpuFacts, NodeFacts, PortFacts
from triplepoint.doctor.read_gpus import read_amd, read_nvidia
from triplepoint.provenance import host_memory_bytes, versions
from triplepoint.telemetry.nvml_library import NvmlError
from triplepoint.units import BITS_PER_BYTE, GIGA

_XID = re.compile(r"NVRM: (Xid .*)")
"""Line of the kernel log with a GPU error. Source: NVIDIA, XID Errors, "Viewing Xid Error Messages"."""
_MOST_XIDS = 20
"""Most errors that are kept."""


def read_ports(sys: Path) -> tuple[PortFacts, ...]:
    """Read the ports of all RDMA adapters from `sys`, the folder `/sys`."""
    return tuple(_read_port(port) for port in sorted(sys.glob("class/infiniband/*/ports/*")))


def _read_port(port: Path) -> PortFacts:
    state, rate = _line(port / "state"), _line(port / "rate")
    return PortFacts(
        name=f"{port.parents[1].name}/{port.name}",
        state=state.partition(":")[2].strip() or state,  # "4: ACTIVE"
        link_layer=_line(port / "link_layer"),
        bytes_per_s=_rate(rate),
        counters=_unreadable(port / "counters" / "port_xmit_data"),
    )


def _rate(text: str) -> float | None:
    """Parse a rate such as `100 Gb/sec (4X EDR)`; None if it is none. Unit: byte/s."""
    match = re.match(r"([\d.]+) Gb/sec", text)
    return float(match[1]) * GIGA / BITS_PER_BYTE if match else None


def read_sensors(sys: Path) -> dict[str, str]:
    """Return the reason by sensor of the host that it cannot be read; empty if it can."""
    powercap = sorted(sys.glob("class/powercap/intel-rapl:*/energy_uj"))
    hwmon = sorted(sys.glob("class/hwmon/hwmon*/temp*_input"))
    return {
        "cpu energy (RAPL)": _unreadable(powercap[0]) if powercap else f"no RAPL zone in {sys}/class/powercap",
        "host temperatures (hwmon)": _unreadable(hwmon[0]) if hwmon else f"no sensor in {sys}/class/hwmon",
    }


def _unreadable(path: Path) -> str:
    """Return the reason that a file cannot be read; empty if it can."""
    try:
        path.read_bytes()
    except PermissionError:
        return f"{path} is not readable for this user"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def read_xids(kernel_log: Path) -> tuple[str, ...] | None:
    """Return the last errors of NVIDIA GPUs in the kernel log; None if the log cannot be read.

    Args:
        kernel_log: `/dev/kmsg`, which returns one record per read.
    """
    try:
        log = os.open(kernel_log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    text = ""
    try:
        while record := _next_record(log):
            text += record
    finally:
        os.close(log)
    lines = text.splitlines()
    return tuple(match[1].strip() for line in lines if (match := _XID.search(line)))[-_MOST_XIDS:]


def _next_record(log: int) -> str:
    """Return the next record of the kernel log; empty at its end."""
    while True:
        try:
            return os.read(log, 1 << 16).decode(errors="replace")
        except BlockingIOError:
            return ""
        except BrokenPipeError:  # Unread records were overwritten; the next read continues after them.
            continue


def read_torch() -> tuple[dict[str, str], int | None]:
    """Return the versions of torch's CUDA or ROCm and collective library, and the number of its devices.

    Without torch there are no versions, and the number is None.
    """
    try:
        import torch
    except ImportError:
        return {}, None
    torch_versions: dict[str, str] = {}
    built: Any = torch.version
    if built.cuda:
        torch_versions["cuda of torch"] = built.cuda
    if built.hip:
        torch_versions["rocm of torch"] = built.hip
    if torch.distributed.is_available() and torch.distributed.is_nccl_available():
        # Torch for ROCm calls RCCL by the name of NCCL.
        name = "rccl" if built.hip else "nccl"
        torch_versions[name] = ".".join(map(str, torch.cuda.nccl.version()))
    return torch_versions, torch.cuda.device_count()


def read_limits() -> dict[str, int | None]:
    """Return the memory limits that matter to collective libraries, as fields of `NodeFacts`."""
    shm: int | None = None
    with contextlib.suppress(OSError):
        file_system = os.statvfs("/dev/shm")
        shm = file_system.f_frsize * file_system.f_blocks
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {"shm_bytes": shm, "memlock_bytes": None if soft == resource.RLIM_INFINITY else soft}


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


Vendor = Literal["nvidia", "amd", "none"]
SYSFS_VARIABLE = "TRIPLEPOINT_SYSFS"
"""Environment variable with a folder to read instead of `/sys`, as for the sampler."""

Gpus = tuple[list[GpuFacts], dict[str, str]]
"""Facts of GPUs, and versions of driver and libraries."""


@dataclass(frozen=True)
class Sources:
    """Files and libraries that facts are read from, which tests replace.

    Attributes:
        sys: The folder `/sys`.
        kernel_log: The kernel log.
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
    """Read the facts of this node.

    Args:
        node: Number of the node in the job.
        vendors: Vendors whose GPUs to look for.
        sources: Files and libraries to read from. Default: those of the system.
        with_torch: Whether to import torch, which takes seconds.
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
        versions=versions() | torch_versions | driver,
        num_torch_devices=num_torch_devices,
        ports=read_ports(sources.sys),
        telemetry=read_sensors(sources.sys),
        xids=read_xids(sources.kernel_log) if vendor == "nvidia" else None,
        num_cores=len(os.sched_getaffinity(0)),
        memory_bytes=host_memory_bytes(),
        **read_limits(),
    )


def _read_gpus(vendors: tuple[Vendor, ...], sources: Sources) -> tuple[Vendor, Gpus, str]:
    """Return the vendor whose driver answered, its GPUs, and the reason that none answered."""
    problems = [] if vendors else ["not looked for: the cluster is one of processors"]
    for vendor in vendors:
        gpus = _read_nvidia() if vendor == "nvidia" else _read_amd(sources)
        if not isinstance(gpus, str):
            return vendor, gpus, ""
        problems.append(gpus)
    return "none", ([], {}), "; ".join(problems)


def _read_nvidia() -> Gpus | str:
    """Return the NVIDIA GPUs, or the reason that there are none."""
    try:
        return read_nvidia()
    except OSError:
        return "NVML: NVML Shared Library Not Found"
    except NvmlError as error:
        return f"NVML: {error}"


def _read_amd(sources: Sources) -> Gpus | str:
    """Return the AMD GPUs, or the reason that there are none."""
    # Without ROCm, importing amdsmi prints to stdout and raises KeyError.
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
