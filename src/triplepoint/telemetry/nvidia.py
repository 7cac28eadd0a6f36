"""All NVIDIA GPUs of this node as sensors, with what identifies them and what they do not measure."""

import ctypes
import sys
from dataclasses import dataclass, field
from typing import Any

from triplepoint.tables.telemetry import GPU_METRICS
from triplepoint.telemetry.gpus import Gpu, Vendor, alike, open_vendor
from triplepoint.telemetry.nvml import NvmlSensor, Supported, probe
from triplepoint.telemetry.nvml_events import XidSensor, register
from triplepoint.telemetry.nvml_gpm import GpmSensor, why_no_gpm
from triplepoint.telemetry.nvml_library import LIBRARY, SUCCESS, Nvml, NvmlError
from triplepoint.telemetry.pci import slot_of
from triplepoint.telemetry.sensor import FAST, SLOW, Found


@dataclass
class _Gpu(Gpu):
    """A GPU and what it answers."""

    supported: Supported = field(default_factory=Supported)
    events: int = 0
    """Where the driver puts its XIDs; 0 if it has none."""
    has_gpm: bool = False


def open_nvidia() -> Found:
    """Return the NVIDIA GPUs of this node; without a driver only reasons."""
    return open_vendor(Vendor("NVIDIA driver", "NVML", LIBRARY, Nvml, Nvml.num_devices, _add, Nvml.close))


def _add(nvml: Nvml, found: Found) -> list[_Gpu]:
    """Add facts and sensors of every GPU that can be opened."""
    gpus = []
    for index in range(nvml.num_devices()):
        device = f"gpu{index}"
        try:
            gpus.append(_open(nvml, device, nvml.device(index)))
            found.facts.append(gpus[-1].facts)
        except NvmlError as error:
            found.facts.append({"device": device, "unusable": str(error)})
            print(f"triplepoint: {device}: {error}; it is not sampled", file=sys.stderr)
    for lane, sensors in ((FAST, found.fast), (SLOW, found.slow)):
        groups = alike((gpu, gpu.supported.of(lane)) for gpu in gpus)
        sensors += [NvmlSensor(nvml, members, fields, calls) for (fields, calls), members in groups.items()]
    if active := {gpu.device: gpu.handle for gpu in gpus if gpu.has_gpm}:
        found.slow.append(GpmSensor(nvml, active))
    if announcing := {gpu.device: gpu.events for gpu in gpus if gpu.events}:
        found.slow.append(XidSensor(nvml, announcing))
    return gpus


def _open(nvml: Nvml, device: str, handle: int) -> _Gpu:
    """Return one GPU with what it answers and what it lacks."""
    supported = probe(nvml, handle)
    gpu = _Gpu(device, handle, supported=supported)
    reason = why_no_gpm(nvml, handle)
    gpu.has_gpm = reason is None
    supported.note(GpmSensor.columns, "GPM", reason)
    try:
        gpu.events = register(nvml, handle)
        supported.note(XidSensor.columns, "events", None)
    except (NvmlError, AttributeError) as error:
        supported.note(XidSensor.columns, "events", f"XID events: {error}")
    if _is_partitioned(nvml, handle):
        supported.absent = {name: f"{why} (MIG is on)" for name, why in supported.absent.items()}
    answers = {"sources": supported.sources, "absent": supported.absent, "latency_us": supported.latency_us}
    gpu.facts = _identity(nvml, handle, device) | answers
    without = {name: "NVIDIA GPUs have no such sensor" for name in GPU_METRICS if name not in supported.sources}
    gpu.absent = without | supported.absent
    return gpu


def _is_partitioned(nvml: Nvml, handle: int) -> bool:
    """Return whether the GPU is in MIG mode, where the driver keeps much of the whole GPU back."""
    if not nvml.has("nvmlDeviceGetMigMode"):
        return False
    modes = (ctypes.c_uint * 2)()  # current and pending
    at = ctypes.addressof(modes)
    get = nvml.function("nvmlDeviceGetMigMode", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return get(handle, at, at + ctypes.sizeof(ctypes.c_uint)) == SUCCESS and modes[0] == 1


def _identity(nvml: Nvml, handle: int, device: str) -> dict[str, Any]:
    address = nvml.pci_address(handle)
    return {
        "device": device,
        "product": nvml.text("nvmlDeviceGetName", handle),
        "uuid": nvml.text("nvmlDeviceGetUUID", handle),
        "instances": nvml.instances(handle),
        "serial": nvml.text("nvmlDeviceGetSerial", handle),
        "pci_address": address,
        "slot": slot_of(address),
        "module": nvml.number("nvmlDeviceGetModuleId", handle),
        "power_limit_mw": nvml.number("nvmlDeviceGetEnforcedPowerLimit", handle),
        "driver": _driver(nvml),
    }


def _driver(nvml: Nvml) -> str | None:
    buffer = ctypes.create_string_buffer(96)
    status = nvml.function("nvmlSystemGetDriverVersion", ctypes.c_char_p, ctypes.c_uint)(buffer, 96)
    return buffer.value.decode() if status == SUCCESS else None
