"""All NVIDIA GPUs of this node as sensors, with what identifies them and what they do not measure."""

import ctypes
import sys
from typing import Any

from triplepoint.tables.telemetry import GPU_METRICS
from triplepoint.telemetry.nvml import NvmlSensor, Supported, probe
from triplepoint.telemetry.nvml_events import XidSensor
from triplepoint.telemetry.nvml_gpm import GpmSensor, why_no_gpm
from triplepoint.telemetry.nvml_library import LIBRARY, SUCCESS, Nvml, NvmlError
from triplepoint.telemetry.pci import slot_of
from triplepoint.telemetry.sensor import FAST, SLOW, Found, absent_everywhere


def open_nvidia() -> Found:
    """Return the NVIDIA GPUs of this node; without a driver only reasons."""
    try:
        nvml = Nvml()
        num = nvml.num_devices()
    except OSError:
        return Found(absent=dict.fromkeys(GPU_METRICS, f"no NVIDIA driver here: {LIBRARY} is not found"))
    except NvmlError as error:
        return Found(absent=dict.fromkeys(GPU_METRICS, f"NVML cannot be used: {error}"))
    found = Found(close=nvml.close)
    opened = [_open(nvml, index, found) for index in range(num)]
    missing = [each for each in opened if each is not None]
    if not missing:
        found.absent = dict.fromkeys(GPU_METRICS, f"NVML can use none of {num} GPUs" if num else "NVML finds no GPU")
    else:
        found.absent = absent_everywhere(missing)
    return found


def _open(nvml: Nvml, index: int, found: Found) -> dict[str, str] | None:
    """Add the sensors of one GPU and return what it lacks; None for a GPU that cannot be opened, the rest goes on."""
    device = f"gpu{index}"
    try:
        handle = nvml.device(index)
    except NvmlError as error:
        found.facts.append({"device": device, "unusable": str(error)})
        print(f"triplepoint: {device}: {error}; it is not sampled", file=sys.stderr)
        return None
    supported = probe(nvml, handle)
    for lane, sensors in ((FAST, found.fast), (SLOW, found.slow)):
        sensors.append(NvmlSensor(nvml, handle, device, supported, lane))
    _add_activity(nvml, handle, device, supported, found)
    _add_errors(nvml, handle, device, supported, found)
    if _is_partitioned(nvml, handle):
        supported.absent = {name: f"{why} (MIG is on)" for name, why in supported.absent.items()}
    answers = {"sources": supported.sources, "absent": supported.absent, "latency_us": supported.latency_us}
    found.facts.append(_identity(nvml, handle, device) | answers)
    without = {name: "NVIDIA GPUs have no such sensor" for name in GPU_METRICS if name not in supported.sources}
    return without | supported.absent


def _add_activity(nvml: Nvml, handle: int, device: str, supported: Supported, found: Found) -> None:
    reason = why_no_gpm(nvml, handle)
    if reason:
        supported.absent |= dict.fromkeys(GpmSensor.columns, reason)
        return
    try:
        found.slow.append(GpmSensor(nvml, handle, device))
    except NvmlError as error:
        supported.absent |= dict.fromkeys(GpmSensor.columns, f"GPM: {error}")
        return
    supported.sources |= dict.fromkeys(GpmSensor.columns, "GPM")


def _add_errors(nvml: Nvml, handle: int, device: str, supported: Supported, found: Found) -> None:
    try:
        found.slow.append(XidSensor(nvml, handle, device))
    except (NvmlError, AttributeError) as error:
        supported.absent |= dict.fromkeys(XidSensor.columns, f"XID events: {error}")
        return
    supported.sources |= dict.fromkeys(XidSensor.columns, "events")


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
