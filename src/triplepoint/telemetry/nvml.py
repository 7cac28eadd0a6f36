"""NVIDIA GPUs: which of their sensors work, and one sensor per GPU and lane."""

import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from triplepoint.tables.telemetry import CUMULATIVE
from triplepoint.telemetry.nvml_fields import CALLS, FIELDS, Call, Field
from triplepoint.telemetry.nvml_library import (
    FIELD_VALUE,
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    Nvml,
    decode,
    is_32_bit,
)
from triplepoint.telemetry.sensor import FAST, Counters, Sensor
from triplepoint.units import NS_PER_S, US_PER_S

_PROBES = 3
_TOO_SLOW_S = 5e-3
"""A call that takes longer has no place in a loop with a period of tens of milliseconds."""
_WRAP = float(1 << 32)


@dataclass
class Supported:
    """What one GPU answers, and why it does not answer the rest."""

    fields: list[Field] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """Field or function behind each column."""
    latency_us: dict[str, float] = field(default_factory=dict)
    """Time that reading each column alone took. Unit: microsecond."""


def probe(nvml: Nvml, handle: int) -> Supported:
    """Ask one GPU for everything, one thing at a time.

    Args:
        nvml: The library.
        handle: The GPU.
    """
    found = Supported()
    for wanted in FIELDS:
        if wanted.column in found.sources:
            continue
        status, latency_s, value = try_field(nvml, handle, wanted.field, wanted.scope)
        reason = _reason(nvml, status, latency_s, f"field {wanted.field}")
        if reason:
            found.absent.setdefault(wanted.column, reason)
            continue
        # A 32-bit byte counter wraps within 67 ms at the speed of the link: the slow lane cannot follow it.
        is_short = wanted.column.startswith("pcie_") and wanted.column.endswith("_bytes") and is_32_bit(value["type"])
        found.fields.append(replace(wanted, lane=FAST) if is_short else wanted)
        found.sources[wanted.column] = f"field {wanted.field}"
        found.latency_us[wanted.column] = latency_s * US_PER_S
    for call in CALLS:
        if call.columns[0] in found.sources:
            continue
        status, latency_s = try_call(nvml, handle, call)
        reason = _reason(nvml, status, latency_s, call.name)
        for column in call.columns:
            if reason:
                found.absent.setdefault(column, reason)
            else:
                found.sources[column] = call.name
                found.latency_us[column] = latency_s * US_PER_S
        if not reason:
            found.calls.append(call)
    found.absent = {column: why for column, why in found.absent.items() if column not in found.sources}
    return found


def _reason(nvml: Nvml, status: int, latency_s: float, what: str) -> str | None:
    """Return why something is not sampled, None if it is."""
    if status in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
        return f"{what}: not supported by this GPU or driver"
    if status != SUCCESS:
        return f"{what}: {nvml.explain(status)}"
    if latency_s > _TOO_SLOW_S:
        return f"{what}: one read takes {latency_s * 1e3:.0f} ms, and a sampler must not block"
    return None


def try_field(nvml: Nvml, handle: int, number: int, scope: int) -> tuple[int, float, np.void]:
    """Return status, median latency and answer of one field. Unit of the latency: s."""
    values = np.zeros(1, FIELD_VALUE)
    values["field"], values["scope"] = number, scope
    get = nvml.function("nvmlDeviceGetFieldValues", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    statuses, latency_s = _timed(get, (handle, 1, values.ctypes.data))
    return statuses or int(values["status"][0]), latency_s, values[0]


def try_call(nvml: Nvml, handle: int, call: Call) -> tuple[int, float]:
    """Return status and median latency of one function. Unit of the latency: s."""
    if not nvml.has(call.function):
        return FUNCTION_NOT_FOUND, 0.0
    words = np.zeros(call.num_words, "u4")
    words[0] = call.version
    return _timed(_bind(nvml, call), (handle, *call.arguments, words.ctypes.data))


def _timed(function: "ctypes._FuncPointer", arguments: tuple[int, ...]) -> tuple[int, float]:
    latencies = []
    status = SUCCESS
    for _ in range(_PROBES):
        before = time.monotonic_ns()
        status = function(*arguments)
        latencies.append(time.monotonic_ns() - before)
    return status, sorted(latencies)[_PROBES // 2] / NS_PER_S


def _bind(nvml: Nvml, call: Call) -> "ctypes._FuncPointer":
    types = [ctypes.c_void_p, *(ctypes.c_uint for _ in call.arguments), ctypes.c_void_p]
    function: ctypes._FuncPointer = nvml.function(call.function, *types)
    return function


class NvmlSensor(Sensor):
    """The fields and calls of one GPU in one lane."""

    def __init__(self, nvml: Nvml, handle: int, device: str, found: Supported, lane: str) -> None:
        """Choose what to read.

        Args:
            nvml: The library.
            handle: The GPU.
            device: Its name.
            found: What it answers.
            lane: `fast` or `slow`.
        """
        self.device = device
        self._handle = handle
        self._fields = [wanted for wanted in found.fields if wanted.lane == lane]
        self._calls = [call for call in found.calls if call.lane == lane]
        self.columns = tuple(_columns(self._fields, self._calls))
        self._scales = np.array([*(wanted.scale for wanted in self._fields), *_call_scales(self._calls)])
        self._counted = np.flatnonzero([name in CUMULATIVE for name in self.columns])
        self._counters = Counters(len(self._counted))
        self._get = nvml.fast_function("nvmlDeviceGetFieldValues")
        self._functions = [nvml.fast_function(call.function) for call in self._calls]

    def allocate(self, num_slots: int) -> None:
        """Make room for `num_slots` reads."""
        self._values = np.zeros((num_slots, len(self._fields)), FIELD_VALUE)
        self._values["field"] = [wanted.field for wanted in self._fields]
        self._values["scope"] = [wanted.scope for wanted in self._fields]
        self._words = [np.zeros((num_slots, call.num_words), "u4") for call in self._calls]
        for words, call in zip(self._words, self._calls, strict=True):
            words[:, 0] = call.version
        self._codes = np.zeros((num_slots, 1 + len(self._calls)), "i4")
        self._code_view = self._codes.reshape(-1).data
        self._plan = [self._calls_into(slot) for slot in range(num_slots)]

    def _calls_into(self, slot: int) -> list[tuple[int, Any, tuple[Any, ...]]]:
        """Return place of the status, function and arguments of every call of one read, made once for all."""
        handle, first = ctypes.c_void_p(self._handle), slot * self._codes.shape[1]
        made: list[tuple[int, Any, tuple[Any, ...]]] = []
        if self._fields:
            values = ctypes.c_void_p(self._values[slot].ctypes.data)
            made.append((first, self._get, (handle, ctypes.c_int(len(self._fields)), values)))
        for index, (call, words) in enumerate(zip(self._calls, self._words, strict=True), start=1):
            into = ctypes.c_void_p(words[slot].ctypes.data)
            arguments = (handle, *map(ctypes.c_uint, call.arguments), into)
            made.append((first + index, self._functions[index - 1], arguments))
        return made

    def read(self, slot: int) -> None:
        """Ask the driver for everything; it writes into the slot."""
        # No numpy here: plain numbers, values made beforehand and one memory view are several times cheaper.
        codes = self._code_view
        for place, function, arguments in self._plan[slot]:
            codes[place] = function(*arguments)

    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads, decoded."""
        codes, raw = self._codes[:num_slots], self._values[:num_slots]
        found = np.full((num_slots, len(self.columns)), np.nan)
        if self._fields:
            found[:, : len(self._fields)] = decode(raw)
        at = len(self._fields)
        for call, words in zip(self._calls, self._words, strict=True):
            found[:, at : at + len(call.places)] = words[:num_slots].view(call.kind)[:, list(call.places)]
            at += len(call.places)
        if codes.any():
            self._drop_failed(found, codes)
        if len(self._counted):
            wraps_at = np.zeros(len(self.columns))
            is_short = ((raw["status"] == SUCCESS) & is_32_bit(raw["type"])).any(axis=0)
            wraps_at[: len(self._fields)] = np.where(is_short, _WRAP, 0.0)
            found[:, self._counted] = self._counters.advance(found[:, self._counted], wraps_at[self._counted])
        return np.asarray(found * self._scales)

    def _drop_failed(self, found: np.ndarray, codes: np.ndarray) -> None:
        found[codes[:, 0] != SUCCESS, : len(self._fields)] = np.nan
        at = len(self._fields)
        for index, call in enumerate(self._calls, start=1):
            found[codes[:, index] != SUCCESS, at : at + len(call.columns)] = np.nan
            at += len(call.columns)


def _columns(fields: list[Field], calls: list[Call]) -> Iterator[str]:
    yield from (wanted.column for wanted in fields)
    for call in calls:
        yield from call.columns


def _call_scales(calls: list[Call]) -> Iterator[float]:
    for call in calls:
        yield from [call.scale] * len(call.columns)
