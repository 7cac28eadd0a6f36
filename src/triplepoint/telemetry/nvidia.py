"""All NVIDIA GPUs of this node as sensors, with what identifies them and what they do not measure."""

from dataclasses import dataclass, field
from typing import Any

from triplepoint.tables.telemetry import GPU_METRICS
from triplepoint.telemetry.nvml import NvmlSensor, Supported, probe
from triplepoint.telemetry.nvml_gpm import GpmSensor, why_no_gpm
from triplepoint.telemetry.nvml_library import LIBRARY, Nvml, NvmlError
from triplepoint.telemetry.pci import slot_of
from triplepoint.telemetry.sensor import FAST, SLOW, Sensor


@dataclass
class Found:
    """Sensors of one kind of device on this node."""

    fast: list[Sensor] = field(default_factory=list)
    slow: list[Sensor] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Metrics no device here measures, each with the reason."""
    facts: list[dict[str, Any]] = field(default_factory=list)
    """One entry per device: identity, sources of its metrics, and what it alone lacks."""


def open_nvidia() -> Found:
    """Return the NVIDIA GPUs of this node; without a driver only reasons."""
    try:
        nvml = Nvml()
        handles = nvml.devices()
    except OSError:
        return Found(absent=dict.fromkeys(GPU_METRICS, f"no NVIDIA driver here: {LIBRARY} is not found"))
    except NvmlError as error:
        return Found(absent=dict.fromkeys(GPU_METRICS, f"NVML cannot be used: {error}"))
    found = Found()
    missing: list[dict[str, str]] = []
    for index, handle in enumerate(handles):
        supported = probe(nvml, handle)
        device = f"gpu{index}"
        sensors = {lane: NvmlSensor(nvml, handle, device, supported, lane) for lane in (FAST, SLOW)}
        found.fast.append(sensors[FAST])
        found.slow.append(sensors[SLOW])
        _add_activity(nvml, handle, device, supported, found)
        without = {name: "NVIDIA GPUs have no such sensor" for name in GPU_METRICS if name not in supported.sources}
        missing.append(without | supported.absent)
        found.facts.append(_identity(nvml, handle, device) | {"sources": supported.sources, "absent": supported.absent})
    everywhere = set.intersection(*(set(each) for each in missing)) if missing else set()
    found.absent = {name: missing[0][name] for name in GPU_METRICS if name in everywhere}
    if not handles:
        found.absent = dict.fromkeys(GPU_METRICS, "NVML finds no GPU")
    return found


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
    import ctypes

    buffer = ctypes.create_string_buffer(96)
    status = nvml.function("nvmlSystemGetDriverVersion", ctypes.c_char_p, ctypes.c_uint)(buffer, 96)
    return buffer.value.decode() if status == 0 else None
