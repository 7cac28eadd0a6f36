"""Sensors of AMD GPUs: supported metrics of each die, their decoding, and the package power of MI250.

On MI250 both dies of a package share one power sensor and one energy counter, which only the primary die has; the
secondary die reads 0. So power and energy of the secondary die are absent, with the reason, and those of the primary
die are the package's.

Source: Linux kernel, amdgpu swsmu (aldebaran_get_gpu_metrics: "valid power data is available only from primary die");
kgd_pp_interface.h (the metrics table); bits of indep_throttle_status in amdgpu_smu.h: 0 to 31 power and current, 32 to
55 temperature.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triplepoint.tables.telemetry import CUMULATIVE, GPU_METRICS
from triplepoint.telemetry.amdsmi_library import ENERGY, ERRORS, LIBRARY, METRICS, POWER_CAP, SUCCESS, VRAM, AmdSmi
from triplepoint.telemetry.sensor import (
    FAST,
    SLOW,
    Counters,
    Gpu,
    GpuSensors,
    Sensor,
    Step,
    Vendor,
    fill_forward,
    group_by_key,
    open_vendor,
    slot_of,
)
from triplepoint.units import KIB, MEGA, MIB, NS_PER_S

_PERCENT = 1e-2
_POWER_CAP_REASON, _THERMAL_REASON = 0x4, 0x20
"""Bits of `gpu_throttle_reasons` as in NVML: software power cap, software thermal slowdown."""
_THERMAL_SHIFT = 32
"""First thermal bit of indep_throttle_status; those below are of power and current."""

Decoder = Callable[[np.ndarray], np.ndarray]
"""Computes the values of a column from structures that the library wrote; NaN where not measured."""


@dataclass(frozen=True)
class Metric:
    """One column and its source.

    Attributes:
        column: Column of `tables.SAMPLES`.
        call: Function of AMD SMI.
        lane: FAST or SLOW.
        decode: Decodes the structure that the function writes.
    """

    column: str
    call: str
    lane: str
    decode: Decoder


def _number(name: str, scale: float = 1.0) -> Decoder:
    """Return a decoder of one field."""
    return lambda structures: np.asarray(_measured(structures[name]) * scale)


def _measured(numbers: np.ndarray) -> np.ndarray:
    """Return numbers with NaN for all ones, which mean that nothing was measured."""
    return np.asarray(np.where(numbers == np.iinfo(numbers.dtype).max, np.nan, numbers.astype(float)))


def _highest(array: str, number: str) -> Decoder:
    """Return a decoder of the maximum over an array field and another field."""
    return lambda structures: np.fmax(
        np.fmax.reduce(_measured(structures[array]), axis=1), _measured(structures[number])
    )


def _first_measured(*names: str) -> Decoder:
    """Return a decoder of the first field that is measured."""

    def decode(structures: np.ndarray) -> np.ndarray:
        values = _measured(structures[names[0]])
        for name in names[1:]:
            values = np.where(np.isnan(values), _measured(structures[name]), values)
        return values

    return decode


def _sum(name: str, scale: float) -> Decoder:
    """Return a decoder of the sum over an array field."""

    def decode(structures: np.ndarray) -> np.ndarray:
        links = _measured(structures[name])
        return np.where(np.isnan(links).all(axis=1), np.nan, np.nansum(links, axis=1)) * scale

    return decode


def _clock(structures: np.ndarray) -> np.ndarray:
    """Decode the clock of a die; for a device of several dies, their mean. Unit: MHz."""
    clocks = _measured(structures["gfxclks_mhz"])
    clocks = np.where(clocks == 0, np.nan, clocks)
    num_clocks = np.isfinite(clocks).sum(axis=1)
    mean = np.where(num_clocks > 0, np.nansum(clocks, axis=1) / np.maximum(num_clocks, 1), np.nan)
    return np.where(np.isnan(mean), _measured(structures["gfxclk_mhz"]), mean)


def _reasons(structures: np.ndarray) -> np.ndarray:
    """Decode the throttle reasons as bits of NVML."""
    bits = structures["throttle"]
    power = np.where(bits & np.uint64(0xFFFFFFFF), _POWER_CAP_REASON, 0)
    heat = np.where(bits >> np.uint64(_THERMAL_SHIFT), _THERMAL_REASON, 0)
    return np.where(bits == np.iinfo("u8").max, np.nan, (power | heat).astype(float))


def _energy_j(structures: np.ndarray) -> np.ndarray:
    """Decode the energy counter. Unit: J."""
    return np.asarray(structures["count"].astype(float) * structures["resolution_uj"].astype(float) / MEGA)


def _throttled_cycles(*names: str) -> Decoder:
    """Return a decoder of the firmware cycles in which a limit throttled the clocks; for several limits, the most."""

    def decode(structures: np.ndarray) -> np.ndarray:
        cycles = np.fmax.reduce([_measured(structures[name]) for name in names])
        return np.where(structures["cycles"] > 0, cycles, np.nan)  # 0 if the library does not have the field

    return decode


TABLE, ENERGY_COUNT = "amdsmi_get_gpu_metrics_info", "amdsmi_get_energy_count"
AMD_METRICS = (
    Metric("gpu_power_w", TABLE, FAST, _first_measured("current_power_w", "average_power_w")),
    Metric("gpu_power_average_w", TABLE, FAST, _number("average_power_w")),
    Metric("gpu_energy_j", ENERGY_COUNT, FAST, _energy_j),
    Metric("gpu_temp_c", TABLE, FAST, _number("hotspot_c")),
    Metric("gpu_edge_temp_c", TABLE, FAST, _number("edge_c")),
    Metric("gpu_memory_temp_c", TABLE, FAST, _highest("hbm_c", "memory_c")),
    Metric("sm_clock_mhz", TABLE, FAST, _clock),
    Metric("memory_clock_mhz", TABLE, FAST, _number("uclk_mhz")),
    Metric("gpu_throttle_reasons", TABLE, FAST, _reasons),
    Metric("gpu_power_cap_s", TABLE, FAST, _throttled_cycles("ppt_cycles")),
    Metric(
        "gpu_sw_thermal_s",
        TABLE,
        FAST,
        _throttled_cycles("socket_hot_cycles", "regulator_hot_cycles", "hbm_hot_cycles"),
    ),
    Metric("gpu_hw_thermal_s", TABLE, FAST, _throttled_cycles("prochot_cycles")),
    Metric("gpu_utilisation", TABLE, SLOW, _number("gfx_percent", _PERCENT)),
    Metric("gpu_memory_utilisation", TABLE, SLOW, _number("umc_percent", _PERCENT)),
    Metric("xgmi_rx_bytes", TABLE, SLOW, _sum("xgmi_read_kb", KIB)),
    Metric("xgmi_tx_bytes", TABLE, SLOW, _sum("xgmi_write_kb", KIB)),
    Metric("pcie_replays", TABLE, SLOW, _number("pcie_replays")),
    Metric("gpu_memory_used_bytes", "amdsmi_get_gpu_vram_usage", SLOW, _number("used_mb", MIB)),
    Metric("gpu_power_limit_w", "amdsmi_get_power_cap_info", SLOW, _number("cap_uw", 1 / MEGA)),
    Metric("gpu_ecc_corrected", "amdsmi_get_gpu_total_ecc_count", SLOW, _number("corrected")),
    Metric("gpu_ecc_uncorrected", "amdsmi_get_gpu_total_ecc_count", SLOW, _number("uncorrected")),
)
STRUCTURES = {
    TABLE: METRICS,
    ENERGY_COUNT: ENERGY,
    "amdsmi_get_gpu_vram_usage": VRAM,
    "amdsmi_get_power_cap_info": POWER_CAP,
    "amdsmi_get_gpu_total_ecc_count": ERRORS,
}
THROTTLE_TIMES = ("gpu_power_cap_s", "gpu_sw_thermal_s", "gpu_hw_thermal_s")
"""Columns that are read as firmware cycles, which `ThrottleTimes` converts to seconds."""


class ThrottleTimes:
    """Time for which limits throttled the clocks, from firmware cycles.

    The firmware counts its cycles and, for each limit, the cycles in which it throttled. The ratio of both between two
    reads, times the time between them, is the throttled time. amdsmi_get_violation_status computes the same, but blocks
    for 100 ms, which a sampler must not.
    """

    def __init__(self, num_dies: int, num_limits: int) -> None:
        self._last = np.full((2 + num_limits) * num_dies, np.nan)
        self._total_s = np.zeros((num_dies, num_limits))

    def advance(self, cycles: np.ndarray, t_ns: np.ndarray, throttled: np.ndarray) -> np.ndarray:
        """Return the throttled time since the first read, NaN where `throttled` is NaN. Unit: s.

        Args:
            cycles: Number of all firmware cycles. Shape (num_slots, num_dies).
            t_ns: Firmware clock at that number. Shape (num_slots, num_dies). Unit: ns.
            throttled: Number of cycles in which each limit throttled. Shape (num_slots, num_dies, num_limits).
        """
        is_read = np.isfinite(throttled).all(axis=-1, keepdims=True)
        read = np.where(is_read, np.concatenate([cycles[..., None], t_ns[..., None], throttled], axis=-1), np.nan)
        flat = read.reshape(len(read), -1)
        first = np.where(np.isnan(self._last), _first_finite(flat), self._last)
        filled = fill_forward(flat, first)
        increments = np.diff(filled, axis=0, prepend=first[None]).reshape(read.shape)
        self._last = filled[-1]
        num_cycles, elapsed_ns = increments[..., 0], increments[..., 1]
        per_cycle_s = elapsed_ns / NS_PER_S / np.where(num_cycles > 0, num_cycles, np.inf)
        # A decreasing counter was reset with the GPU; the lost increment is unknown.
        seconds = np.nan_to_num(np.maximum(increments[..., 2:], 0.0) * np.maximum(per_cycle_s, 0.0)[..., None])
        totals = self._total_s + np.cumsum(seconds, axis=0)
        self._total_s = totals[-1]
        return np.where(is_read, totals, np.nan)


def _first_finite(values: np.ndarray) -> np.ndarray:
    """Return the first finite value of each column, NaN for a column without. Shape (num_columns,)."""
    return np.asarray(values[np.isfinite(values).argmax(axis=0), np.arange(values.shape[1])])


_PACKAGE = ("gpu_power_w", "gpu_power_average_w", "gpu_energy_j", "gpu_power_limit_w")
"""Columns that describe the package."""


class AmdSensor(Sensor):
    """The metrics of one lane of dies that support the same metrics."""

    def __init__(self, library: AmdSmi, dies: Mapping[str, int], metrics: Sequence[Metric]) -> None:
        self.devices = tuple(dies)
        self._library, self._handles = library, list(dies.values())
        self._metrics = metrics
        self.columns = tuple(metric.column for metric in metrics)
        self._calls = list(dict.fromkeys(metric.call for metric in metrics))
        self._counted = np.flatnonzero([name in CUMULATIVE and name not in THROTTLE_TIMES for name in self.columns])
        self._counters = Counters(len(self.devices) * len(self._counted))
        self._limits = [index for index, name in enumerate(self.columns) if name in THROTTLE_TIMES]
        self._throttle_times = ThrottleTimes(len(self.devices), len(self._limits))

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Allocate buffers for `num_slots` reads and return their steps, one for each function."""
        shape = (num_slots, len(self.devices))
        self._structures = {call: np.zeros(shape, STRUCTURES[call]) for call in self._calls}
        self._statuses = {call: np.zeros(shape, "i8") for call in self._calls}
        return [
            [
                Step(
                    self._library.address(call),
                    (handle, *_arguments(call, self._structures[call][:, index])),
                    self._statuses[call][:, index],
                )
                for call in self._calls
            ]
            for index, handle in enumerate(self._handles)
        ]

    def take(self, num_slots: int) -> np.ndarray:
        """Decode the first `num_slots` reads."""
        shape = (num_slots, len(self.devices))
        values = np.full((*shape, len(self.columns)), np.nan)
        for index, metric in enumerate(self._metrics):
            is_good = self._statuses[metric.call][:num_slots].astype("i4") == SUCCESS
            structures = self._structures[metric.call][:num_slots].reshape(-1)
            values[..., index] = np.where(is_good, metric.decode(structures).reshape(shape), np.nan)
        if len(self._counted):
            counted = values[..., self._counted].reshape(num_slots, -1)
            totals = self._counters.advance(counted, np.zeros(counted.shape[1]))
            values[..., self._counted] = totals.reshape(*shape, -1)
        if self._limits:
            table, cycles = self._structures[TABLE][:num_slots], values[..., self._limits]
            values[..., self._limits] = self._throttle_times.advance(table["cycles"], table["clock_ns"], cycles)
        return values


def _arguments(name: str, answers: np.ndarray) -> list[int | np.ndarray]:
    """Return what a function takes after the handle: where each slot's answers go, and what stands before."""
    if name == ENERGY_COUNT:
        return [answers["count"], answers["resolution_uj"], answers["t_ns"]]
    return [0, answers] if name == "amdsmi_get_power_cap_info" else [answers]


@dataclass
class _Die(Gpu):
    """A die with its supported metrics."""

    metrics: list[Metric] = field(default_factory=list)
    first_values: dict[str, float] = field(default_factory=dict)
    """Value of each column at the first read."""


def open_amd() -> GpuSensors:
    """Return the sensors of the AMD GPUs of this node, with HIP's device numbers; without a driver, only reasons."""
    return open_vendor(Vendor("ROCm", "AMD SMI", LIBRARY, AmdSmi, _count, _add, AmdSmi.close))


def _count(library: AmdSmi) -> int:
    return len(library.devices())


def _add(library: AmdSmi, sensors: GpuSensors) -> list[_Die]:
    """Add facts and sensors of every die; return the dies."""
    dies: list[_Die] = []
    package, primary = -1, ""
    for index, handle in enumerate(library.devices()):
        hip = library.hip_index(handle)
        die = _probe(library, f"gpu{index if hip is None else hip}", handle)
        first = die.first_values
        is_secondary = bool(primary) and first.get("gpu_power_w") == 0 and first.get("gpu_energy_j") == 0
        if is_secondary:
            _remove_package_metrics(die, primary)
        else:
            package, primary = package + 1, die.device
        facts = {"device": die.device, "driver_index": index, "package": package, "is_primary": not is_secondary}
        sensors.facts.append(facts | _identity(library, handle) | {"absent": dict(die.absent)})
        measured = {metric.column for metric in die.metrics}
        no_sensor = {name: "AMD GPUs of this kind have no such sensor" for name in GPU_METRICS if name not in measured}
        die.absent = no_sensor | {name: why for name, why in die.absent.items() if name not in measured}
        dies.append(die)
    for lane, lane_sensors in ((FAST, sensors.fast), (SLOW, sensors.slow)):
        groups = group_by_key((die, tuple(metric for metric in die.metrics if metric.lane == lane)) for die in dies)
        lane_sensors += [AmdSensor(library, members, metrics) for metrics, members in groups.items()]
    return dies


def _probe(library: AmdSmi, device: str, handle: int) -> _Die:
    """Read every metric of a die once to find out which ones it supports."""
    die = _Die(device, handle)
    for metric in AMD_METRICS:
        if not library.has(metric.call):
            die.absent[metric.column] = f"{metric.call}: not in this version of AMD SMI"
            continue
        structure = np.zeros(1, STRUCTURES[metric.call])
        status = library.call(metric.call, handle, *_arguments(metric.call, structure))
        if status != SUCCESS:
            die.absent[metric.column] = f"{metric.call}: {library.explain(status)}"
        elif np.isnan(value := float(metric.decode(structure)[0])):
            die.absent[metric.column] = f"{metric.call}: not measured by this GPU"
        else:
            die.metrics.append(metric)
            die.first_values[metric.column] = value
    return die


def _remove_package_metrics(die: _Die, primary: str) -> None:
    """Mark the metrics of the package as absent on a secondary die."""
    for column in _PACKAGE:
        die.absent[column] = f"secondary die: {primary} measures the package of both"
    die.metrics = [metric for metric in die.metrics if metric.column not in _PACKAGE]


def _identity(library: AmdSmi, handle: int) -> dict[str, Any]:
    product, serial = library.names(handle)
    address = library.pci_address(handle)
    return {
        "product": product,
        "uuid": library.uuid(handle),
        "serial": serial,
        "pci_address": address,
        "slot": slot_of(address),
    }
