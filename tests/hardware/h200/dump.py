"""What the driver of this machine answers: every field and call, with its status, type, value and latency."""

import ctypes
import time
from typing import Any

import numpy as np

from triplepoint.telemetry.nvidia import GpmSensor, why_no_gpm
from triplepoint.telemetry.nvml import CALLS
from triplepoint.telemetry.nvml_library import ALL_LINKS, FIELD_VALUE, Nvml, NvmlError, decode

_LAST_FIELD = 310
_POWER_FIELDS = (185, 186, 187, 188, 189, 190, 192)
_LINK_FIELDS = (138, 139, 140, 141, 201, 202, 203, 204)
_NUMBERS = {
    "nvmlDeviceGetTemperature": [(0,), (1,)],
    "nvmlDeviceGetTemperatureThreshold": [(kind,) for kind in range(8)],
    "nvmlDeviceGetClockInfo": [(kind,) for kind in range(4)],
    "nvmlDeviceGetMaxClockInfo": [(kind,) for kind in range(4)],
    "nvmlDeviceGetApplicationsClock": [(1,), (2,)],
    "nvmlDeviceGetPowerUsage": [()],
    "nvmlDeviceGetEnforcedPowerLimit": [()],
    "nvmlDeviceGetPowerManagementLimit": [()],
    "nvmlDeviceGetPowerManagementDefaultLimit": [()],
    "nvmlDeviceGetModuleId": [()],
    "nvmlDeviceGetPerformanceState": [()],
    "nvmlDeviceGetPersistenceMode": [()],
    "nvmlDeviceGetNumGpuCores": [()],
    "nvmlDeviceGetMemoryBusWidth": [()],
    "nvmlDeviceGetCurrPcieLinkGeneration": [()],
    "nvmlDeviceGetCurrPcieLinkWidth": [()],
    "nvmlDeviceGetMaxPcieLinkGeneration": [()],
    "nvmlDeviceGetPcieThroughput": [(0,), (1,)],
    "nvmlDeviceGetFanSpeed": [()],
}
"""Functions that write one unsigned number: GPU, arguments, pointer."""
_SAMPLES = {0: "total_power", 1: "gpu_utilisation", 2: "memory_utilisation", 5: "processor_clock", 7: "module_power"}
"""nvmlSamplingType_t: the driver's own ring buffers."""


def dump_fields(nvml: Nvml, handle: int, repeats: int) -> list[dict[str, Any]]:
    """Return one entry for each field and scope that is not simply unknown to this driver."""
    get = nvml.function("nvmlDeviceGetFieldValues", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    found = []
    for number in range(1, _LAST_FIELD):
        scopes = (0, 1, 2, 3) if number in _POWER_FIELDS else (0, ALL_LINKS) if number in _LINK_FIELDS else (0,)
        for scope in scopes:
            value = np.zeros(1, FIELD_VALUE)
            value["field"], value["scope"] = number, scope
            arguments = (handle, 1, value.ctypes.data)
            status, latencies_us = _timed(get, arguments, repeats)
            entry = {"field": number, "scope": scope, "status": status or int(value["status"][0])}
            if entry["status"] == 0:
                entry |= {
                    "type": int(value["type"][0]),
                    "value": float(decode(value)[0]),
                    "raw": int(value["value"][0]),
                }
                entry |= latencies_us | {"driver_latency_us": int(value["latency_us"][0])}
            found.append(entry)
    return found


def dump_calls(nvml: Nvml, handle: int, repeats: int) -> list[dict[str, Any]]:
    """Return status, value and latency of the sampler's calls and of every getter of limits and identity."""
    found = []
    for name, variants in _NUMBERS.items():
        for arguments in variants:
            entry: dict[str, Any] = {"call": name, "arguments": arguments}
            if nvml.has(name):
                out = ctypes.c_uint()
                types = [ctypes.c_void_p, *(ctypes.c_uint for _ in arguments), ctypes.c_void_p]
                function = nvml.function(name, *types)
                few = 3 if name == "nvmlDeviceGetPcieThroughput" else repeats
                status, latencies_us = _timed(function, (handle, *arguments, ctypes.addressof(out)), few)
                entry |= {"status": status, "value": out.value, **latencies_us}
            found.append(entry)
    for call in CALLS:
        entry = {"call": call.function, "arguments": call.arguments}
        if nvml.has(call.function):
            words = np.zeros(call.num_words, "u4")
            words[0] = call.version
            types = [ctypes.c_void_p, *(ctypes.c_uint for _ in call.arguments), ctypes.c_void_p]
            function = nvml.function(call.function, *types)
            status, latencies_us = _timed(function, (handle, *call.arguments, words.ctypes.data), repeats)
            entry |= {"status": status, "words": words.tolist(), **latencies_us}
        found.append(entry)
    return found


def dump_activity(nvml: Nvml, handle: int) -> dict[str, Any]:
    """Return latency and answers of the activity counters."""
    reason = why_no_gpm(nvml, handle)
    if reason:
        return {"absent": reason}
    try:
        sensor = GpmSensor(nvml, handle, "gpu0")
    except NvmlError as error:
        return {"absent": str(error)}
    latencies = []
    sensor.allocate(5)
    for slot in range(5):
        time.sleep(0.15)
        before = time.perf_counter_ns()
        sensor.read(slot)
        latencies.append((time.perf_counter_ns() - before) / 1e3)
    values = dict(zip(sensor.columns, sensor.take(5).T.tolist(), strict=True))
    sensor.close()
    return {"latency_us": latencies, "values": values}


def driver_samples(nvml: Nvml, handle: int) -> dict[str, Any]:
    """Return what the driver kept in its own buffers, newest last: times in microseconds and values."""
    if not nvml.has("nvmlDeviceGetSamples"):
        return {}
    pointers = [ctypes.c_void_p] * 3
    get = nvml.function("nvmlDeviceGetSamples", ctypes.c_void_p, ctypes.c_uint, ctypes.c_ulonglong, *pointers)
    found = {}
    for kind, name in _SAMPLES.items():
        value_type, number = ctypes.c_uint(), ctypes.c_uint(0)
        at = ctypes.addressof(value_type), ctypes.addressof(number)
        status = get(handle, kind, 0, *at, None)
        entry: dict[str, Any] = {"status": status, "num": number.value}
        if status == 0 and number.value:
            buffer = np.zeros(number.value, [("t_us", "u8"), ("value", "u8")])
            before = time.perf_counter_ns()
            entry["status"] = get(handle, kind, 0, *at, buffer.ctypes.data)
            entry["latency_us"] = (time.perf_counter_ns() - before) / 1e3
            kept = buffer[: number.value]
            values = (kept["value"] & 0xFFFFFFFF).tolist() if value_type.value == 1 else kept["value"].tolist()
            entry |= {"type": value_type.value, "t_us": kept["t_us"].tolist(), "values": values}
        found[name] = entry
    return found


def _timed(function: Any, arguments: tuple[Any, ...], repeats: int) -> tuple[int, dict[str, float]]:
    latencies = np.zeros(repeats)
    status = 0
    for index in range(repeats):
        before = time.perf_counter_ns()
        status = function(*arguments)
        latencies[index] = (time.perf_counter_ns() - before) / 1e3
        if status:
            break
    return status, {"median_us": float(np.median(latencies)), "max_us": float(latencies.max())}
