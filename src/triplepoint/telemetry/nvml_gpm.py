"""Activity of compute units, tensor units and memory, as Hopper and later GPUs count it without a profiler.

Source: nvml.h (version 13), nvmlGpmMetricsGet; two samples of one GPU must lie more than 100 ms apart.
"""

import ctypes
import math
from collections.abc import Mapping

import numpy as np

from triplepoint.telemetry.nvml_library import SUCCESS, Nvml, NvmlError
from triplepoint.telemetry.sensor import Sensor
from triplepoint.telemetry.sweep import Step, Value, tell_time
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
        """Choose what to read.

        Args:
            nvml: The library.
            gpus: Names and handles.
        """
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
