"""Metrics of NVIDIA GPUs from NVML: fields and functions, the probe of a GPU, and the sensor that reads them.

Source: nvml.h (version 13), field identifiers NVML_FI_DEV_* and their comments.
"""

import ctypes
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from triplepoint.tables.telemetry import CUMULATIVE
from triplepoint.telemetry.nvml_library import (
    ALL_LINKS,
    FIELD_VALUE,
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    Nvml,
    decode,
    is_32_bit,
)
from triplepoint.telemetry.sensor import FAST, SLOW, Counters, Sensor, Step
from triplepoint.units import KIB, NS_PER_S, US_PER_S


@dataclass(frozen=True)
class Field:
    """A metric read by the batched function nvmlDeviceGetFieldValues."""

    column: str
    """Column of `tables.SAMPLES`."""
    field: int
    """Field identifier of NVML."""
    lane: str
    """FAST or SLOW."""
    scale: float
    """Factor from the driver's unit to that of the column."""
    scope: int = 0
    """Scope of the field."""


@dataclass(frozen=True)
class Call:
    """Metrics read by a function that writes a structure of `num_words` 32-bit words."""

    columns: tuple[str, ...]
    """Columns of `tables.SAMPLES`."""
    function: str
    """Function of NVML."""
    lane: str
    """FAST or SLOW."""
    scale: float
    """Factor from the driver's unit to that of the columns."""
    arguments: tuple[int, ...] = ()
    """Integer arguments between the GPU and the structure."""
    kind: str = "u4"
    """numpy type of the values."""
    indices: tuple[int, ...] = (0,)
    """Index of each column's value in the structure as an array of `kind`."""
    num_words: int = 2
    """Size of the structure in 32-bit words."""
    version: int = 0
    """Version to write into the first word before the call, for versioned structures."""

    @property
    def name(self) -> str:
        """Function with its arguments, for facts and reasons."""
        return f"{self.function}({','.join(map(str, self.arguments))})"


_MILLI = 1e-3
_NANO = 1e-9
_PERCENT = 1e-2
_GPU, _MODULE, _MEMORY = 0, 1, 2
"""Scopes of the power fields (nvmlPowerScopeType_t)."""

FIELDS = (
    Field("gpu_power_w", 186, FAST, _MILLI, _GPU),
    Field("gpu_power_average_w", 185, FAST, _MILLI, _GPU),
    Field("gpu_memory_power_w", 185, FAST, _MILLI, _MEMORY),
    Field("gpu_module_power_w", 186, FAST, _MILLI, _MODULE),
    Field("gpu_energy_j", 83, FAST, _MILLI),
    Field("gpu_energy_j", 191, FAST, _MILLI),
    Field("gpu_memory_temp_c", 82, FAST, 1.0),
    Field("gpu_power_cap_s", 74, FAST, _NANO),
    Field("gpu_sync_boost_s", 76, FAST, _NANO),
    Field("gpu_sw_thermal_s", 269, FAST, _NANO),
    Field("gpu_hw_thermal_s", 270, FAST, _NANO),
    Field("gpu_power_brake_s", 271, FAST, _NANO),
    Field("pcie_tx_bytes", 197, SLOW, 1.0),
    Field("pcie_rx_bytes", 198, SLOW, 1.0),
    Field("nvlink_tx_bytes", 138, SLOW, KIB, ALL_LINKS),
    Field("nvlink_tx_bytes", 202, SLOW, 1.0, ALL_LINKS),
    Field("nvlink_rx_bytes", 139, SLOW, KIB, ALL_LINKS),
    Field("nvlink_rx_bytes", 204, SLOW, 1.0, ALL_LINKS),
    Field("gpu_ecc_corrected", 3, SLOW, 1.0),
    Field("gpu_ecc_uncorrected", 4, SLOW, 1.0),
    Field("pcie_replays", 94, SLOW, 1.0),
)
"""Fields, best first: the first supported one of a column is used. The violation fields 74, 76 and 269 to 271 count
nanoseconds, 138 and 139 KiB, 202 and 204 bytes. H100 and H200 have memory power as an average only."""

CALLS = (
    # NVML_TEMPERATURE_GPU is the only sensor of this function; the memory temperature is field 82.
    Call(("gpu_temp_c",), "nvmlDeviceGetTemperature", FAST, 1.0, (0,)),
    Call(("sm_clock_mhz",), "nvmlDeviceGetClockInfo", FAST, 1.0, (1,)),
    Call(("memory_clock_mhz",), "nvmlDeviceGetClockInfo", FAST, 1.0, (2,)),
    Call(("gpu_throttle_reasons",), "nvmlDeviceGetCurrentClocksEventReasons", FAST, 1.0, kind="u8"),
    Call(("gpu_throttle_reasons",), "nvmlDeviceGetCurrentClocksThrottleReasons", FAST, 1.0, kind="u8"),
    # Only used without the power fields: from Ampere on (except GA100) it is an average over a second.
    Call(("gpu_power_w",), "nvmlDeviceGetPowerUsage", FAST, _MILLI),
    Call(("gpu_energy_j",), "nvmlDeviceGetTotalEnergyConsumption", FAST, _MILLI, kind="u8"),
    Call(("gpu_power_limit_w",), "nvmlDeviceGetEnforcedPowerLimit", SLOW, _MILLI),
    Call(
        ("gpu_utilisation", "gpu_memory_utilisation"), "nvmlDeviceGetUtilizationRates", SLOW, _PERCENT, indices=(0, 1)
    ),
    # nvmlMemory_v2_t: version, total, reserved, free, used. In the first version `used` includes `reserved`.
    Call(
        ("gpu_memory_used_bytes",),
        "nvmlDeviceGetMemoryInfo_v2",
        SLOW,
        1.0,
        kind="u8",
        indices=(4,),
        num_words=10,
        version=0x02000028,
    ),
    Call(("gpu_memory_used_bytes",), "nvmlDeviceGetMemoryInfo", SLOW, 1.0, kind="u8", indices=(2,), num_words=6),
    Call(
        ("gpu_temp_margin_c",),
        "nvmlDeviceGetMarginTemperature",
        SLOW,
        1.0,
        kind="i4",
        indices=(1,),
        version=0x01000008,
    ),
)
"""Functions, best first: the first supported one of a column is used, but only if no field has the column.
nvmlDeviceGetPcieThroughput is never called: it counts over 20 ms and blocks for that time."""


_PROBES = 3
"""Calls of a function in a probe; their median latency counts."""
_TOO_SLOW_S = 5e-3
"""Longest acceptable latency of a call, for periods of tens of milliseconds."""
_WRAP = float(1 << 32)


@dataclass
class Supported:
    """Metrics that one GPU supports, and reasons for the others."""

    fields: list[Field] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Columns without a source, each with the reason."""
    sources: dict[str, str] = field(default_factory=dict)
    """Field or function of each column."""
    latency_us: dict[str, float] = field(default_factory=dict)
    """Latency of reading each column alone. Unit: microsecond."""

    def note(self, columns: Sequence[str], source: str, reason: str | None) -> None:
        """Record columns as measured by a source, or as absent for a reason."""
        if reason:
            self.absent |= dict.fromkeys(columns, reason)
        else:
            self.sources |= dict.fromkeys(columns, source)

    def in_lane(self, lane: str) -> tuple[tuple[Field, ...], tuple[Call, ...]]:
        """Return the fields and calls of a lane."""
        fields = tuple(candidate for candidate in self.fields if candidate.lane == lane)
        return fields, tuple(call for call in self.calls if call.lane == lane)


def probe(nvml: Nvml, handle: int) -> Supported:
    """Read every metric of one GPU, one at a time, to find out which ones it supports."""
    supported = Supported()
    for candidate in FIELDS:
        column = candidate.column
        if column in supported.sources:
            continue
        status, latency_s, value = try_field(nvml, handle, candidate.field, candidate.scope)
        reason = _reason(nvml, status, latency_s, f"field {candidate.field}")
        if reason:
            supported.absent.setdefault(column, reason)
            continue
        # A 32-bit byte counter wraps within 67 ms at the link's full rate, too fast for the slow lane.
        is_short = column.startswith("pcie_") and column.endswith("_bytes") and is_32_bit(value["type"])
        supported.fields.append(replace(candidate, lane=FAST) if is_short else candidate)
        supported.sources[column] = f"field {candidate.field}"
        supported.latency_us[column] = latency_s * US_PER_S
    for call in CALLS:
        if call.columns[0] in supported.sources:
            continue
        status, latency_s = try_call(nvml, handle, call)
        reason = _reason(nvml, status, latency_s, call.name)
        for column in call.columns:
            if reason:
                supported.absent.setdefault(column, reason)
            else:
                supported.sources[column] = call.name
                supported.latency_us[column] = latency_s * US_PER_S
        if not reason:
            supported.calls.append(call)
    supported.absent = {name: why for name, why in supported.absent.items() if name not in supported.sources}
    return supported


def _reason(nvml: Nvml, status: int, latency_s: float, what: str) -> str | None:
    """Return why a field or function is not sampled; None if it is."""
    if status in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
        return f"{what}: not supported by this GPU or driver"
    if status != SUCCESS:
        return f"{what}: {nvml.explain(status)}"
    if latency_s > _TOO_SLOW_S:
        return f"{what}: one read takes {latency_s * 1e3:.0f} ms, and a sampler must not block"
    return None


def try_field(nvml: Nvml, handle: int, number: int, scope: int) -> tuple[int, float, np.void]:
    """Return status, median latency in s, and value of one field."""
    values = np.zeros(1, FIELD_VALUE)
    values["field"], values["scope"] = number, scope
    get = nvml.function("nvmlDeviceGetFieldValues", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    statuses, latency_s = _timed(get, (handle, 1, values.ctypes.data))
    return statuses or int(values["status"][0]), latency_s, values[0]


def try_call(nvml: Nvml, handle: int, call: Call) -> tuple[int, float]:
    """Return status and median latency in s of one function."""
    if not nvml.has(call.function):
        return FUNCTION_NOT_FOUND, 0.0
    words = np.zeros(call.num_words, "u4")
    words[0] = call.version
    return _timed(_bind(nvml, call), (handle, *call.arguments, words.ctypes.data))


def _timed(function: "ctypes._FuncPointer", arguments: tuple[int, ...]) -> tuple[int, float]:
    """Call a function several times and return its last status and the median latency in s."""
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
    """The metrics of one lane of GPUs that support the same metrics."""

    def __init__(self, nvml: Nvml, gpus: Mapping[str, int], fields: Sequence[Field], calls: Sequence[Call]) -> None:
        self.devices = tuple(gpus)
        self._nvml, self._handles = nvml, list(gpus.values())
        self._fields, self._calls = fields, calls
        self.columns = tuple(_columns(fields, calls))
        self._scales = np.array(
            [*(each.scale for each in fields), *(call.scale for call in calls for _ in call.columns)]
        )
        self._counted = np.flatnonzero([name in CUMULATIVE for name in self.columns])
        self._counters = Counters(len(self.devices) * len(self._counted))

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Allocate buffers for `num_slots` reads and return their steps: one for all fields, one for each function."""
        shape = (num_slots, len(self.devices))
        self._field_values = np.zeros((*shape, len(self._fields)), FIELD_VALUE)
        self._field_values["field"] = [each.field for each in self._fields]
        self._field_values["scope"] = [each.scope for each in self._fields]
        self._words = [np.zeros((*shape, call.num_words), "u4") for call in self._calls]
        for call, words in zip(self._calls, self._words, strict=True):
            words[..., 0] = call.version
        self._statuses = np.zeros((*shape, 1 + len(self._calls)), "i8")
        return [self._steps(index) for index in range(len(self.devices))]

    def _steps(self, index: int) -> list[Step]:
        """Return the steps of one GPU."""
        handle, statuses = self._handles[index], self._statuses[:, index]
        steps = []
        if self._fields:
            arguments = (handle, len(self._fields), self._field_values[:, index])
            steps.append(Step(self._nvml.address("nvmlDeviceGetFieldValues"), arguments, statuses[:, 0]))
        for number, (call, words) in enumerate(zip(self._calls, self._words, strict=True), start=1):
            function = self._nvml.address(call.function)
            steps.append(Step(function, (handle, *call.arguments, words[:, index]), statuses[:, number]))
        return steps

    def take(self, num_slots: int) -> np.ndarray:
        """Decode the first `num_slots` reads."""
        statuses, raw = self._statuses[:num_slots].astype("i4"), self._field_values[:num_slots]
        values = np.full((*raw.shape[:2], len(self.columns)), np.nan)
        num_fields = len(self._fields)
        if num_fields:
            values[..., :num_fields] = decode(raw)
            values[statuses[..., 0] != SUCCESS, :num_fields] = np.nan
        first = num_fields
        for number, (call, words) in enumerate(zip(self._calls, self._words, strict=True), start=1):
            members = words[:num_slots].view(call.kind)[..., list(call.indices)]
            is_good = (statuses[..., number] == SUCCESS)[..., None]
            values[..., first : first + len(call.indices)] = np.where(is_good, members, np.nan)
            first += len(call.indices)
        if len(self._counted):
            wraps_at = np.zeros(values.shape[1:])
            is_short = ((raw["status"] == SUCCESS) & is_32_bit(raw["type"])).any(axis=0)
            wraps_at[:, :num_fields] = np.where(is_short, _WRAP, 0.0)
            counted = values[..., self._counted]
            totals = self._counters.advance(counted.reshape(num_slots, -1), wraps_at[:, self._counted].ravel())
            values[..., self._counted] = totals.reshape(counted.shape)
        return np.asarray(values * self._scales)


def _columns(fields: Sequence[Field], calls: Sequence[Call]) -> Iterator[str]:
    yield from (each.column for each in fields)
    for call in calls:
        yield from call.columns
