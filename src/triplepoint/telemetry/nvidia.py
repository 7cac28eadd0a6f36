"""NVIDIA GPUs of this node as sensors: their identity, activity counters (GPM) and errors (XID).

Source: nvml.h (version 13): nvmlGpmMetricsGet, of which two samples of one GPU must lie more than 100 ms apart;
nvmlEventSetWait_v2, event type 0x8 (nvmlEventTypeXidCriticalError).
"""

import ctypes
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triplepoint.tables.telemetry import GPU_METRICS
from triplepoint.telemetry.nvml import NvmlSensor, Supported, probe
from triplepoint.telemetry.nvml_library import LIBRARY, SUCCESS, Nvml, NvmlError
from triplepoint.telemetry.sensor import (
    FAST,
    SLOW,
    Found,
    Gpu,
    Sensor,
    Step,
    Value,
    Vendor,
    alike,
    carried,
    open_vendor,
    slot_of,
    tell_time,
)
from triplepoint.units import NS_PER_S

_METRICS = {"gpu_sm_activity": 2, "gpu_tensor_activity": 5, "gpu_dram_activity": 10}
"""NVML_GPM_METRIC_SM_UTIL, _ANY_TENSOR_UTIL, _DRAM_BW_UTIL; each from 0 to 100."""
_PERCENT = 1e-2
_VERSION = 1
_APART_NS = round(0.11 * NS_PER_S)


class _Metric(ctypes.Structure):
    """nvmlGpmMetric_t."""

    _fields_ = [
        ("metric", ctypes.c_uint),
        ("status", ctypes.c_uint),
        ("value", ctypes.c_double),
        ("names", ctypes.c_char_p * 3),
    ]


class _Query(ctypes.Structure):
    """nvmlGpmMetricsGet_t, with room for what is asked here: the library reads `num_metrics` entries."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("num_metrics", ctypes.c_uint),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("metrics", _Metric * len(_METRICS)),
    ]


class _Support(ctypes.Structure):
    """nvmlGpmSupport_t."""

    _fields_ = [("version", ctypes.c_uint), ("is_supported", ctypes.c_uint)]


def why_no_gpm(nvml: Nvml, handle: int) -> str | None:
    """Return why a GPU has no activity counters, None if it has them."""
    if not nvml.has("nvmlGpmQueryDeviceSupport"):
        return "this driver has no GPM"
    support = _Support(_VERSION, 0)
    query = nvml.function("nvmlGpmQueryDeviceSupport", ctypes.c_void_p, ctypes.c_void_p)
    status = query(handle, ctypes.addressof(support))
    if status != SUCCESS:
        return f"GPM: {nvml.explain(status)}"
    if not support.is_supported:
        return "GPM: not supported by this GPU"
    try:
        nvml.function("nvmlGpmSampleFree", ctypes.c_void_p)(_sample(nvml))
    except NvmlError as error:
        return f"GPM: {error}"
    return None


class GpmSensor(Sensor):
    """Activity of GPUs between a read and the last one that lies far enough before."""

    columns = tuple(_METRICS)

    def __init__(self, nvml: Nvml, gpus: Mapping[str, int]) -> None:
        self.devices = tuple(gpus)
        self._nvml, self._handles = nvml, list(gpus.values())
        self._compute = nvml.function("nvmlGpmMetricsGet", ctypes.c_void_p)
        self._query = _Query(_VERSION, len(_METRICS))
        for place, number in enumerate(_METRICS.values()):
            self._query.metrics[place].metric = number
        # The sample the next one is compared with, and its time, of each GPU.
        self._before = [_sample(nvml) for _ in gpus]
        self._before_ns = [0] * len(gpus)

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Make room for `num_slots` reads, with a sample of the driver's for each, and return their calls."""
        shape = (num_slots, len(self._handles))
        self._samples, self._results, self._t_ns = (np.zeros(shape, kind) for kind in ("u8", "i8", "i8"))
        self._every = math.ceil(_APART_NS / (period_s * NS_PER_S))
        for slot in range(0, num_slots, self._every):
            self._samples[slot] = [_sample(self._nvml) for _ in self._handles]
        get = self._nvml.address("nvmlGpmSampleGet")
        return [
            [
                Step(get, (handle, Value(self._samples[:, index])), self._results[:, index], self._every),
                tell_time(self._t_ns[:, index]),
            ]
            for index, handle in enumerate(self._handles)
        ]

    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads, empty where none was done."""
        found = np.full((num_slots, len(self._handles), len(_METRICS)), np.nan)
        is_good = self._results[:num_slots].astype("i4") == SUCCESS
        for slot, index in np.argwhere(is_good).tolist():
            t_ns = int(self._t_ns[slot, index])
            if t_ns - self._before_ns[index] < _APART_NS:
                continue
            sample = int(self._samples[slot, index])
            if self._before_ns[index]:
                found[slot, index] = self._activity(self._before[index], sample)
            # The driver writes into this slot's sample again: the one before takes its place.
            self._before[index], self._samples[slot, index] = sample, self._before[index]
            self._before_ns[index] = t_ns
        return np.clip(found * _PERCENT, 0.0, 1.0)

    def _activity(self, first: int, second: int) -> list[float]:
        """Return what the library makes of two samples, in percent."""
        query = self._query
        query.first, query.second = first, second
        if self._compute(ctypes.addressof(query)) != SUCCESS:
            return [math.nan] * len(_METRICS)
        return [metric.value if metric.status == SUCCESS else math.nan for metric in query.metrics]

    def close(self) -> None:
        """Give the samples back."""
        free = self._nvml.function("nvmlGpmSampleFree", ctypes.c_void_p)
        for sample in (*self._before, *self._samples[self._samples > 0].tolist()):
            free(sample)


def _sample(nvml: Nvml) -> int:
    made = ctypes.c_void_p()
    nvml.check(nvml.function("nvmlGpmSampleAlloc", ctypes.c_void_p)(ctypes.addressof(made)))
    assert made.value is not None
    return made.value


_XID = 0x8
_EVENT = np.dtype([("device", "u8"), ("type", "u8"), ("data", "u8"), ("instances", "2u4")])
"""nvmlEventData_t."""


class XidSensor(Sensor):
    """The last XID of each GPU; nothing until there is one. Each read takes one event off the driver's list."""

    columns = ("gpu_xid",)

    def __init__(self, nvml: Nvml, events: Mapping[str, int]) -> None:
        self.devices = tuple(events)
        self._nvml, self._events = nvml, list(events.values())
        self._last = np.full(len(events), np.nan)

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Make room for `num_slots` reads and return their calls, which look for news without waiting."""
        self._seen = np.zeros((num_slots, len(self._events)), _EVENT)
        self._results = np.zeros(self._seen.shape, "i8")
        wait = self._nvml.address("nvmlEventSetWait_v2")
        return [
            [Step(wait, (events, self._seen[:, index], 0), self._results[:, index])]
            for index, events in enumerate(self._events)
        ]

    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads."""
        seen = self._seen[:num_slots]
        is_new = (self._results[:num_slots].astype("i4") == SUCCESS) & (seen["type"] == _XID)
        found = carried(np.where(is_new, seen["data"].astype(float), np.nan), self._last)
        self._last = found[-1]
        return found[..., None]

    def close(self) -> None:
        """Give the events back."""
        free = self._nvml.function("nvmlEventSetFree", ctypes.c_void_p)
        for events in self._events:
            free(events)


def register(nvml: Nvml, handle: int) -> int:
    """Return a new event set in which the driver puts the XIDs of a GPU.

    Raises:
        NvmlError: If this GPU or driver announces none.
        AttributeError: If this driver has no events.
    """
    made = ctypes.c_void_p()
    nvml.check(nvml.function("nvmlEventSetCreate", ctypes.c_void_p)(ctypes.addressof(made)))
    assert made.value is not None
    announce = nvml.function("nvmlDeviceRegisterEvents", ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_void_p)
    status = announce(handle, _XID, made.value)
    if status != SUCCESS:
        nvml.function("nvmlEventSetFree", ctypes.c_void_p)(made.value)
        raise NvmlError(status, nvml.explain(status))
    return made.value


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
        "driver": nvml.version("nvmlSystemGetDriverVersion"),
    }
