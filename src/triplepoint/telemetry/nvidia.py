"""Sensors of NVIDIA GPUs: identity, activity counters (GPM) and errors (XID); `nvml` has the other metrics.

Source: nvml.h (version 13): nvmlGpmMetricsGet, whose two samples of one GPU must be more than 100 ms apart;
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
    Gpu,
    GpuSensors,
    PerSlot,
    Sensor,
    Step,
    Vendor,
    clock_step,
    fill_forward,
    group_by_key,
    open_vendor,
    slot_of,
)
from triplepoint.units import NS_PER_S

_METRICS = {"gpu_sm_activity": 2, "gpu_tensor_activity": 5, "gpu_dram_activity": 10}
"""NVML_GPM_METRIC_SM_UTIL, _ANY_TENSOR_UTIL and _DRAM_BW_UTIL by column; each from 0 to 100."""
_PERCENT = 1e-2
_VERSION = 1
_LEAST_INTERVAL_NS = round(0.11 * NS_PER_S)
"""Shortest time between two GPM samples."""


class _Metric(ctypes.Structure):
    """nvmlGpmMetric_t."""

    _fields_ = [
        ("metric", ctypes.c_uint),
        ("status", ctypes.c_uint),
        ("value", ctypes.c_double),
        ("names", ctypes.c_char_p * 3),
    ]


class _Query(ctypes.Structure):
    """nvmlGpmMetricsGet_t with as many metrics as are read here; the library uses the first `num_metrics`."""

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
    """Return why a GPU has no activity counters; None if it has them."""
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
    """Activity of GPUs between two GPM samples that are far enough apart."""

    columns = tuple(_METRICS)

    def __init__(self, nvml: Nvml, gpus: Mapping[str, int]) -> None:
        self.devices = tuple(gpus)
        self._nvml, self._handles = nvml, list(gpus.values())
        self._compute = nvml.function("nvmlGpmMetricsGet", ctypes.c_void_p)
        self._query = _Query(_VERSION, len(_METRICS))
        for index, number in enumerate(_METRICS.values()):
            self._query.metrics[index].metric = number
        # For each GPU the sample that the next one is compared with, and its time.
        self._last_samples = [_sample(nvml) for _ in gpus]
        self._last_ns = [0] * len(gpus)

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Allocate buffers and GPM samples of the driver for `num_slots` reads and return their steps."""
        shape = (num_slots, len(self._handles))
        self._samples, self._statuses, self._t_ns = (np.zeros(shape, kind) for kind in ("u8", "i8", "i8"))
        self._every = math.ceil(_LEAST_INTERVAL_NS / (period_s * NS_PER_S))
        for slot in range(0, num_slots, self._every):
            self._samples[slot] = [_sample(self._nvml) for _ in self._handles]
        get = self._nvml.address("nvmlGpmSampleGet")
        return [
            [
                Step(get, (handle, PerSlot(self._samples[:, index])), self._statuses[:, index], self._every),
                clock_step(self._t_ns[:, index]),
            ]
            for index, handle in enumerate(self._handles)
        ]

    def take(self, num_slots: int) -> np.ndarray:
        """Decode the first `num_slots` reads; slots without a read are NaN."""
        percent = np.full((num_slots, len(self._handles), len(_METRICS)), np.nan)
        is_good = self._statuses[:num_slots].astype("i4") == SUCCESS
        for slot, index in np.argwhere(is_good).tolist():
            t_ns = int(self._t_ns[slot, index])
            if t_ns - self._last_ns[index] < _LEAST_INTERVAL_NS:
                continue
            sample = int(self._samples[slot, index])
            if self._last_ns[index]:
                percent[slot, index] = self._activity(self._last_samples[index], sample)
            # The driver will overwrite the sample of this slot, so this one is kept and the old one takes its slot.
            self._last_samples[index], self._samples[slot, index] = sample, self._last_samples[index]
            self._last_ns[index] = t_ns
        return np.clip(percent * _PERCENT, 0.0, 1.0)

    def _activity(self, first: int, second: int) -> list[float]:
        """Return the metrics between two samples. Unit: percent."""
        query = self._query
        query.first, query.second = first, second
        if self._compute(ctypes.addressof(query)) != SUCCESS:
            return [math.nan] * len(_METRICS)
        return [metric.value if metric.status == SUCCESS else math.nan for metric in query.metrics]

    def close(self) -> None:
        """Free the samples."""
        free = self._nvml.function("nvmlGpmSampleFree", ctypes.c_void_p)
        for sample in (*self._last_samples, *self._samples[self._samples > 0].tolist()):
            free(sample)


def _sample(nvml: Nvml) -> int:
    """Allocate a GPM sample and return its pointer."""
    sample = ctypes.c_void_p()
    nvml.check(nvml.function("nvmlGpmSampleAlloc", ctypes.c_void_p)(ctypes.addressof(sample)))
    assert sample.value is not None
    return sample.value


_XID = 0x8
_EVENT = np.dtype([("device", "u8"), ("type", "u8"), ("data", "u8"), ("instances", "2u4")])
"""nvmlEventData_t."""


class XidSensor(Sensor):
    """The last XID of each GPU, NaN before the first. Each read removes one event from the driver's queue."""

    columns = ("gpu_xid",)

    def __init__(self, nvml: Nvml, event_sets: Mapping[str, int]) -> None:
        self.devices = tuple(event_sets)
        self._nvml, self._event_sets = nvml, list(event_sets.values())
        self._last = np.full(len(event_sets), np.nan)

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Allocate buffers for `num_slots` reads and return their steps, which poll without waiting."""
        self._events = np.zeros((num_slots, len(self._event_sets)), _EVENT)
        self._statuses = np.zeros(self._events.shape, "i8")
        wait = self._nvml.address("nvmlEventSetWait_v2")
        return [
            [Step(wait, (event_set, self._events[:, index], 0), self._statuses[:, index])]
            for index, event_set in enumerate(self._event_sets)
        ]

    def take(self, num_slots: int) -> np.ndarray:
        """Decode the first `num_slots` reads."""
        events = self._events[:num_slots]
        is_xid = (self._statuses[:num_slots].astype("i4") == SUCCESS) & (events["type"] == _XID)
        xids = fill_forward(np.where(is_xid, events["data"].astype(float), np.nan), self._last)
        self._last = xids[-1]
        return xids[..., None]

    def close(self) -> None:
        """Free the event sets."""
        free = self._nvml.function("nvmlEventSetFree", ctypes.c_void_p)
        for event_set in self._event_sets:
            free(event_set)


def register_xid(nvml: Nvml, handle: int) -> int:
    """Return a new event set to which the driver adds the XIDs of a GPU.

    Raises:
        NvmlError: If this GPU or driver reports no XIDs.
        AttributeError: If this driver has no events.
    """
    event_set = ctypes.c_void_p()
    nvml.check(nvml.function("nvmlEventSetCreate", ctypes.c_void_p)(ctypes.addressof(event_set)))
    assert event_set.value is not None
    register = nvml.function("nvmlDeviceRegisterEvents", ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_void_p)
    status = register(handle, _XID, event_set.value)
    if status != SUCCESS:
        nvml.function("nvmlEventSetFree", ctypes.c_void_p)(event_set.value)
        raise NvmlError(status, nvml.explain(status))
    return event_set.value


@dataclass
class _Gpu(Gpu):
    """A GPU with its supported metrics."""

    supported: Supported = field(default_factory=Supported)
    event_set: int = 0
    """Event set of its XIDs; 0 if it has none."""
    has_gpm: bool = False


def open_nvidia() -> GpuSensors:
    """Return the sensors of the NVIDIA GPUs of this node; without a driver, only reasons for missing metrics."""
    return open_vendor(Vendor("NVIDIA driver", "NVML", LIBRARY, Nvml, Nvml.num_devices, _add, Nvml.close))


def _add(nvml: Nvml, sensors: GpuSensors) -> list[_Gpu]:
    """Add facts and sensors of every GPU that can be opened; return these GPUs."""
    gpus = []
    for index in range(nvml.num_devices()):
        device = f"gpu{index}"
        try:
            gpus.append(_open(nvml, device, nvml.device(index)))
            sensors.facts.append(gpus[-1].facts)
        except NvmlError as error:
            sensors.facts.append({"device": device, "unusable": str(error)})
            print(f"triplepoint: {device}: {error}; it is not sampled", file=sys.stderr)
    for lane, lane_sensors in ((FAST, sensors.fast), (SLOW, sensors.slow)):
        groups = group_by_key((gpu, gpu.supported.in_lane(lane)) for gpu in gpus)
        lane_sensors += [NvmlSensor(nvml, members, fields, calls) for (fields, calls), members in groups.items()]
    if with_gpm := {gpu.device: gpu.handle for gpu in gpus if gpu.has_gpm}:
        sensors.slow.append(GpmSensor(nvml, with_gpm))
    if event_sets := {gpu.device: gpu.event_set for gpu in gpus if gpu.event_set}:
        sensors.slow.append(XidSensor(nvml, event_sets))
    return gpus


def _open(nvml: Nvml, device: str, handle: int) -> _Gpu:
    """Probe one GPU and return it with its supported and absent metrics."""
    supported = probe(nvml, handle)
    gpu = _Gpu(device, handle, supported=supported)
    reason = why_no_gpm(nvml, handle)
    gpu.has_gpm = reason is None
    supported.note(GpmSensor.columns, "GPM", reason)
    try:
        gpu.event_set = register_xid(nvml, handle)
        supported.note(XidSensor.columns, "events", None)
    except (NvmlError, AttributeError) as error:
        supported.note(XidSensor.columns, "events", f"XID events: {error}")
    if _is_partitioned(nvml, handle):
        supported.absent = {name: f"{why} (MIG is on)" for name, why in supported.absent.items()}
    metrics = {"sources": supported.sources, "absent": supported.absent, "latency_us": supported.latency_us}
    gpu.facts = _identity(nvml, handle, device) | metrics
    no_sensor = {name: "NVIDIA GPUs have no such sensor" for name in GPU_METRICS if name not in supported.sources}
    gpu.absent = no_sensor | supported.absent
    return gpu


def _is_partitioned(nvml: Nvml, handle: int) -> bool:
    """Return whether the GPU is in MIG mode, in which the driver hides many metrics of the whole GPU."""
    if not nvml.has("nvmlDeviceGetMigMode"):
        return False
    modes = (ctypes.c_uint * 2)()  # current and pending
    address = ctypes.addressof(modes)
    get = nvml.function("nvmlDeviceGetMigMode", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    return get(handle, address, address + ctypes.sizeof(ctypes.c_uint)) == SUCCESS and modes[0] == 1


def _identity(nvml: Nvml, handle: int, device: str) -> dict[str, Any]:
    """Return the identity of a GPU for the facts of a recording."""
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
