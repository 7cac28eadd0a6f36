"""Activity of compute units, tensor units and memory, as Hopper and later GPUs count it without a profiler.

Source: nvml.h (version 13), nvmlGpmMetricsGet; two samples of one GPU must lie more than 100 ms apart.
"""

import ctypes
import time
from typing import Any

import numpy as np

from triplepoint.telemetry.nvml_library import SUCCESS, Nvml
from triplepoint.telemetry.sensor import Sensor
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
    return None if support.is_supported else "GPM: not supported by this GPU"


class GpmSensor(Sensor):
    """Activity of one GPU between this read and the last one at least 0.11 s before."""

    columns = tuple(_METRICS)

    def __init__(self, nvml: Nvml, handle: int, device: str) -> None:
        """Take the first sample.

        Args:
            nvml: The library.
            handle: The GPU.
            device: Its name.
        """
        self.device = device
        self._handle = handle
        self._get = nvml.function("nvmlGpmSampleGet", ctypes.c_void_p, ctypes.c_void_p)
        self._compute = nvml.function("nvmlGpmMetricsGet", ctypes.c_void_p)
        self._free = nvml.function("nvmlGpmSampleFree", ctypes.c_void_p)
        self._samples = [_sample(nvml), _sample(nvml)]
        self._query = _Query(_VERSION, len(_METRICS))
        for place, number in enumerate(_METRICS.values()):
            self._query.metrics[place].metric = number
        self._query_at = ctypes.addressof(self._query)
        self._newest = 0
        self._is_primed = self._get(handle, self._samples[0]) == SUCCESS
        self._t_ns = time.monotonic_ns()

    def allocate(self, num_slots: int) -> None:
        """Make room for `num_slots` reads."""
        self._values = np.full((num_slots, len(_METRICS)), np.nan)
        self._value_view: Any = self._values.reshape(-1).data

    def read(self, slot: int) -> None:
        """Compare with the last sample; leaves the slot empty where it is too young."""
        view, at = self._value_view, slot * len(_METRICS)
        for place in range(len(_METRICS)):
            view[at + place] = np.nan
        now = time.monotonic_ns()
        if now - self._t_ns < _APART_NS:
            return
        older, newer = self._newest, 1 - self._newest
        is_good = self._get(self._handle, self._samples[newer]) == SUCCESS
        if is_good and self._is_primed:
            query = self._query
            query.first, query.second = self._samples[older], self._samples[newer]
            if self._compute(self._query_at) == SUCCESS:
                for place in range(len(_METRICS)):
                    metric = query.metrics[place]
                    if metric.status == SUCCESS:
                        view[at + place] = metric.value
        self._newest, self._is_primed, self._t_ns = newer, is_good, now

    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads."""
        return np.asarray(np.clip(self._values[:num_slots] * _PERCENT, 0.0, 1.0))

    def close(self) -> None:
        """Give the samples back."""
        for sample in self._samples:
            self._free(sample)


def _sample(nvml: Nvml) -> int:
    made = ctypes.c_void_p()
    nvml.check(nvml.function("nvmlGpmSampleAlloc", ctypes.c_void_p)(ctypes.addressof(made)))
    assert made.value is not None
    return made.value
