"""Metrics of NVIDIA GPUs: which fields and functions of NVML a GPU answers, and one sensor per GPU and lane.

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
    """One value of the batched nvmlDeviceGetFieldValues."""

    column: str
    field: int
    lane: str
    scale: float
    """Multiplies the driver's value into the unit of the column."""
    scope: int = 0


@dataclass(frozen=True)
class Call:
    """One function that writes one structure: `num_words` 32-bit words of which each column takes one value."""

    columns: tuple[str, ...]
    function: str
    lane: str
    scale: float
    arguments: tuple[int, ...] = ()
    kind: str = "u4"
    """numpy type of the values."""
    places: tuple[int, ...] = (0,)
    """Index of each column's value in an array of `kind`."""
    num_words: int = 2
    version: int = 0
    """Written into the first word before the call, as versioned structures want it."""

    @property
    def name(self) -> str:
        """Function with its arguments, for accounts."""
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
"""Of two fields with the same column the first that works is taken. The violation fields 74, 76 and 269 to 271 count
nanoseconds; 138 and 139 count KiB, 202 and 204 bytes. The averaged power of scope memory is what H100 and H200 have."""

CALLS = (
    # NVML_TEMPERATURE_GPU is the only sensor this function knows; memory is field 82.
    Call(("gpu_temp_c",), "nvmlDeviceGetTemperature", FAST, 1.0, (0,)),
    Call(("sm_clock_mhz",), "nvmlDeviceGetClockInfo", FAST, 1.0, (1,)),
    Call(("memory_clock_mhz",), "nvmlDeviceGetClockInfo", FAST, 1.0, (2,)),
    Call(("gpu_throttle_reasons",), "nvmlDeviceGetCurrentClocksEventReasons", FAST, 1.0, kind="u8"),
    Call(("gpu_throttle_reasons",), "nvmlDeviceGetCurrentClocksThrottleReasons", FAST, 1.0, kind="u8"),
    # Averaged over a second from Ampere on (but not GA100), instantaneous before: only where the fields are missing.
    Call(("gpu_power_w",), "nvmlDeviceGetPowerUsage", FAST, _MILLI),
    Call(("gpu_energy_j",), "nvmlDeviceGetTotalEnergyConsumption", FAST, _MILLI, kind="u8"),
    Call(("gpu_power_limit_w",), "nvmlDeviceGetEnforcedPowerLimit", SLOW, _MILLI),
    Call(("gpu_utilisation", "gpu_memory_utilisation"), "nvmlDeviceGetUtilizationRates", SLOW, _PERCENT, places=(0, 1)),
    # nvmlMemory_v2_t: version, total, reserved, free, used; the first version's `used` includes the reserved part.
    Call(
        ("gpu_memory_used_bytes",),
        "nvmlDeviceGetMemoryInfo_v2",
        SLOW,
        1.0,
        kind="u8",
        places=(4,),
        num_words=10,
        version=0x02000028,
    ),
    Call(("gpu_memory_used_bytes",), "nvmlDeviceGetMemoryInfo", SLOW, 1.0, kind="u8", places=(2,), num_words=6),
    Call(
        ("gpu_temp_margin_c",),
        "nvmlDeviceGetMarginTemperature",
        SLOW,
        1.0,
        kind="i4",
        places=(1,),
        version=0x01000008,
    ),
)
"""Of two calls with the same columns, and of a call and a field, the first that works is taken, fields before calls.
nvmlDeviceGetPcieThroughput is never called: it blocks for 20 ms to count over that time."""


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

    def note(self, columns: Sequence[str], source: str, reason: str | None) -> None:
        """Note columns as measured, or as absent for a reason."""
        if reason:
            self.absent |= dict.fromkeys(columns, reason)
        else:
            self.sources |= dict.fromkeys(columns, source)

    def of(self, lane: str) -> tuple[tuple[Field, ...], tuple[Call, ...]]:
        """Return what is asked in a lane."""
        fields = tuple(wanted for wanted in self.fields if wanted.lane == lane)
        return fields, tuple(call for call in self.calls if call.lane == lane)


def probe(nvml: Nvml, handle: int) -> Supported:
    """Ask one GPU for everything, one thing at a time."""
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
    """The fields and calls, in one lane, of GPUs that answer the same."""

    def __init__(self, nvml: Nvml, gpus: Mapping[str, int], fields: Sequence[Field], calls: Sequence[Call]) -> None:
        self.devices = tuple(gpus)
        self._nvml, self._handles = nvml, list(gpus.values())
        self._fields, self._calls = fields, calls
        self.columns = tuple(_columns(fields, calls))
        self._scales = np.array(
            [*(wanted.scale for wanted in fields), *(call.scale for call in calls for _ in call.columns)]
        )
        self._counted = np.flatnonzero([name in CUMULATIVE for name in self.columns])
        self._counters = Counters(len(self.devices) * len(self._counted))

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Make room for `num_slots` reads and return their calls: one for all fields, one for each function."""
        shape = (num_slots, len(self.devices))
        self._values = np.zeros((*shape, len(self._fields)), FIELD_VALUE)
        self._values["field"] = [wanted.field for wanted in self._fields]
        self._values["scope"] = [wanted.scope for wanted in self._fields]
        self._words = [np.zeros((*shape, call.num_words), "u4") for call in self._calls]
        for call, words in zip(self._calls, self._words, strict=True):
            words[..., 0] = call.version
        self._results = np.zeros((*shape, 1 + len(self._calls)), "i8")
        return [self._steps(index) for index in range(len(self.devices))]

    def _steps(self, index: int) -> list[Step]:
        """Return the calls of one GPU."""
        handle, results = self._handles[index], self._results[:, index]
        steps = []
        if self._fields:
            batch = (handle, len(self._fields), self._values[:, index])
            steps.append(Step(self._nvml.address("nvmlDeviceGetFieldValues"), batch, results[:, 0]))
        for place, (call, words) in enumerate(zip(self._calls, self._words, strict=True), start=1):
            function = self._nvml.address(call.function)
            steps.append(Step(function, (handle, *call.arguments, words[:, index]), results[:, place]))
        return steps

    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads, decoded."""
        statuses, raw = self._results[:num_slots].astype("i4"), self._values[:num_slots]
        found = np.full((*raw.shape[:2], len(self.columns)), np.nan)
        num_fields = len(self._fields)
        if num_fields:
            found[..., :num_fields] = decode(raw)
            found[statuses[..., 0] != SUCCESS, :num_fields] = np.nan
        at = num_fields
        for place, (call, words) in enumerate(zip(self._calls, self._words, strict=True), start=1):
            answers = words[:num_slots].view(call.kind)[..., list(call.places)]
            is_good = (statuses[..., place] == SUCCESS)[..., None]
            found[..., at : at + len(call.places)] = np.where(is_good, answers, np.nan)
            at += len(call.places)
        if len(self._counted):
            wraps_at = np.zeros(found.shape[1:])
            is_short = ((raw["status"] == SUCCESS) & is_32_bit(raw["type"])).any(axis=0)
            wraps_at[:, :num_fields] = np.where(is_short, _WRAP, 0.0)
            counted = found[..., self._counted]
            totals = self._counters.advance(counted.reshape(num_slots, -1), wraps_at[:, self._counted].ravel())
            found[..., self._counted] = totals.reshape(counted.shape)
        return np.asarray(found * self._scales)


def _columns(fields: Sequence[Field], calls: Sequence[Call]) -> Iterator[str]:
    yield from (wanted.column for wanted in fields)
    for call in calls:
        yield from call.columns
