"""AMD GPUs of this node as sensors: what each answers, one sensor per die and lane; power and energy of packages.

On MI250 both dies of a package share one power sensor and one energy counter, which only the primary die has; the
secondary one reads 0. Here its power and energy are missing, with the reason, and the primary die's are the package's.

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
    Found,
    Gpu,
    Sensor,
    Step,
    Vendor,
    alike,
    carried,
    open_vendor,
    slot_of,
)
from triplepoint.units import KIB, MEGA, MIB, NS_PER_S

_PERCENT = 1e-2
_POWER_CAP_REASON, _THERMAL_REASON = 0x4, 0x20
"""Bits of `gpu_throttle_reasons`, as NVML has them: software power cap, software thermal slowdown."""
_THERMAL_SHIFT = 32


@dataclass(frozen=True)
class Value:
    """One column and how it comes out of the answer of a call."""

    column: str
    call: str
    lane: str
    read: Callable[[np.ndarray], np.ndarray]


def _level(name: str, scale: float = 1.0) -> Callable[[np.ndarray], np.ndarray]:
    return lambda answers: np.asarray(_known(answers[name]) * scale)


def _known(numbers: np.ndarray) -> np.ndarray:
    """Return numbers with all ones, which mean that nothing was measured, as NaN."""
    return np.asarray(np.where(numbers == np.iinfo(numbers.dtype).max, np.nan, numbers.astype(float)))


def _highest(name: str, otherwise: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda answers: np.fmax(np.fmax.reduce(_known(answers[name]), axis=1), _known(answers[otherwise]))


def _first_known(*names: str) -> Callable[[np.ndarray], np.ndarray]:
    def read(answers: np.ndarray) -> np.ndarray:
        found = _known(answers[names[0]])
        for name in names[1:]:
            found = np.where(np.isnan(found), _known(answers[name]), found)
        return found

    return read


def _sum(name: str, scale: float) -> Callable[[np.ndarray], np.ndarray]:
    def read(answers: np.ndarray) -> np.ndarray:
        links = _known(answers[name])
        return np.where(np.isnan(links).all(axis=1), np.nan, np.nansum(links, axis=1)) * scale

    return read


def _clock(answers: np.ndarray) -> np.ndarray:
    """Return the clock of the die, or the mean over those of a device of several."""
    each = _known(answers["gfxclks_mhz"])
    each = np.where(each == 0, np.nan, each)
    counted = np.isfinite(each).sum(axis=1)
    mean = np.where(counted > 0, np.nansum(each, axis=1) / np.maximum(counted, 1), np.nan)
    return np.where(np.isnan(mean), _known(answers["gfxclk_mhz"]), mean)


def _reasons(answers: np.ndarray) -> np.ndarray:
    bits = answers["throttle"]
    power = np.where(bits & np.uint64(0xFFFFFFFF), _POWER_CAP_REASON, 0)
    heat = np.where(bits >> np.uint64(_THERMAL_SHIFT), _THERMAL_REASON, 0)
    return np.where(bits == np.iinfo("u8").max, np.nan, (power | heat).astype(float))


def _energy_j(answers: np.ndarray) -> np.ndarray:
    return np.asarray(answers["count"].astype(float) * answers["resolution_uj"].astype(float) / MEGA)


def _held(*names: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return the cycles of the firmware in which a limit throttled the clocks; of several the one that did most."""

    def read(answers: np.ndarray) -> np.ndarray:
        cycles = np.fmax.reduce([_known(answers[name]) for name in names])
        return np.where(answers["cycles"] > 0, cycles, np.nan)  # 0 where the library does not know the field

    return read


TABLE, ENERGY_COUNT = "amdsmi_get_gpu_metrics_info", "amdsmi_get_energy_count"
VALUES = (
    Value("gpu_power_w", TABLE, FAST, _first_known("current_power_w", "average_power_w")),
    Value("gpu_power_average_w", TABLE, FAST, _level("average_power_w")),
    Value("gpu_energy_j", ENERGY_COUNT, FAST, _energy_j),
    Value("gpu_temp_c", TABLE, FAST, _level("hotspot_c")),
    Value("gpu_edge_temp_c", TABLE, FAST, _level("edge_c")),
    Value("gpu_memory_temp_c", TABLE, FAST, _highest("hbm_c", "memory_c")),
    Value("sm_clock_mhz", TABLE, FAST, _clock),
    Value("memory_clock_mhz", TABLE, FAST, _level("uclk_mhz")),
    Value("gpu_throttle_reasons", TABLE, FAST, _reasons),
    Value("gpu_power_cap_s", TABLE, FAST, _held("ppt_cycles")),
    Value("gpu_sw_thermal_s", TABLE, FAST, _held("socket_hot_cycles", "regulator_hot_cycles", "hbm_hot_cycles")),
    Value("gpu_hw_thermal_s", TABLE, FAST, _held("prochot_cycles")),
    Value("gpu_utilisation", TABLE, SLOW, _level("gfx_percent", _PERCENT)),
    Value("gpu_memory_utilisation", TABLE, SLOW, _level("umc_percent", _PERCENT)),
    Value("xgmi_rx_bytes", TABLE, SLOW, _sum("xgmi_read_kb", KIB)),
    Value("xgmi_tx_bytes", TABLE, SLOW, _sum("xgmi_write_kb", KIB)),
    Value("pcie_replays", TABLE, SLOW, _level("pcie_replays")),
    Value("gpu_memory_used_bytes", "amdsmi_get_gpu_vram_usage", SLOW, _level("used_mb", MIB)),
    Value("gpu_power_limit_w", "amdsmi_get_power_cap_info", SLOW, _level("cap_uw", 1 / MEGA)),
    Value("gpu_ecc_corrected", "amdsmi_get_gpu_total_ecc_count", SLOW, _level("corrected")),
    Value("gpu_ecc_uncorrected", "amdsmi_get_gpu_total_ecc_count", SLOW, _level("uncorrected")),
)
ANSWERS = {
    TABLE: METRICS,
    ENERGY_COUNT: ENERGY,
    "amdsmi_get_gpu_vram_usage": VRAM,
    "amdsmi_get_power_cap_info": POWER_CAP,
    "amdsmi_get_gpu_total_ecc_count": ERRORS,
}
HELD = ("gpu_power_cap_s", "gpu_sw_thermal_s", "gpu_hw_thermal_s")
"""Columns read as cycles of the firmware, of which `Held` makes seconds."""


class Held:
    """Time for which limits throttled the clocks, from the cycles in which they did.

    The firmware counts all its cycles and, of each limit, those in which it held. Their ratio between two reads, times
    the time between them, is what amdsmi_get_violation_status works out too: that call waits for 100 ms in between,
    which a sampler must not.
    """

    def __init__(self, num_dies: int, num_limits: int) -> None:
        self._last = np.full((2 + num_limits) * num_dies, np.nan)
        self._total_s = np.zeros((num_dies, num_limits))

    def advance(self, cycles: np.ndarray, t_ns: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Return seconds since the first read, NaN where `held` is.

        Args:
            cycles: The firmware's count of all cycles. Shape (num_slots, num_dies).
            t_ns: Its clock at that count. Shape (num_slots, num_dies). Unit: ns.
            held: Count of the cycles in which each limit held. Shape (num_slots, num_dies, num_limits).
        """
        is_read = np.isfinite(held).all(axis=-1, keepdims=True)
        read = np.where(is_read, np.concatenate([cycles[..., None], t_ns[..., None], held], axis=-1), np.nan)
        flat = read.reshape(len(read), -1)
        first = np.where(np.isnan(self._last), _first_finite(flat), self._last)
        steps = np.diff(carried(flat, first), axis=0, prepend=first[None]).reshape(read.shape)
        self._last = carried(flat, first)[-1]
        per_cycle_s = steps[..., 1] / NS_PER_S / np.where(steps[..., 0] > 0, steps[..., 0], np.inf)
        # Counters that go back were set to zero by a reset of the GPU: what was lost is unknown.
        seconds = np.nan_to_num(np.maximum(steps[..., 2:], 0.0) * np.maximum(per_cycle_s, 0.0)[..., None])
        totals = self._total_s + np.cumsum(seconds, axis=0)
        self._total_s = totals[-1]
        return np.where(is_read, totals, np.nan)


def _first_finite(values: np.ndarray) -> np.ndarray:
    """Return the first value of each column that is one, NaN for a column without. Shape (num_columns,)."""
    return np.asarray(values[np.isfinite(values).argmax(axis=0), np.arange(values.shape[1])])


_PACKAGE = ("gpu_power_w", "gpu_power_average_w", "gpu_energy_j", "gpu_power_limit_w")
"""Columns that are the package's."""


class AmdSensor(Sensor):
    """The values, in one lane, of dies that answer the same."""

    def __init__(self, library: AmdSmi, dies: Mapping[str, int], values: Sequence[Value]) -> None:
        self.devices = tuple(dies)
        self._library, self._handles = library, list(dies.values())
        self._chosen = values
        self.columns = tuple(value.column for value in values)
        self._names = list(dict.fromkeys(value.call for value in values))
        self._counted = np.flatnonzero([name in CUMULATIVE and name not in HELD for name in self.columns])
        self._counters = Counters(len(self.devices) * len(self._counted))
        self._limits = [place for place, name in enumerate(self.columns) if name in HELD]
        self._held = Held(len(self.devices), len(self._limits))

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Make room for `num_slots` reads and return their calls."""
        shape = (num_slots, len(self.devices))
        self._answers = {name: np.zeros(shape, ANSWERS[name]) for name in self._names}
        self._results = {name: np.zeros(shape, "i8") for name in self._names}
        return [
            [
                Step(
                    self._library.address(name),
                    (handle, *_arguments(name, self._answers[name][:, index])),
                    self._results[name][:, index],
                )
                for name in self._names
            ]
            for index, handle in enumerate(self._handles)
        ]

    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads, decoded."""
        shape = (num_slots, len(self.devices))
        found = np.full((*shape, len(self.columns)), np.nan)
        for place, value in enumerate(self._chosen):
            is_good = self._results[value.call][:num_slots].astype("i4") == SUCCESS
            answers = self._answers[value.call][:num_slots].reshape(-1)
            found[..., place] = np.where(is_good, value.read(answers).reshape(shape), np.nan)
        if len(self._counted):
            counted = found[..., self._counted].reshape(num_slots, -1)
            totals = self._counters.advance(counted, np.zeros(counted.shape[1]))
            found[..., self._counted] = totals.reshape(*shape, -1)
        if self._limits:
            table = self._answers[TABLE][:num_slots]
            found[..., self._limits] = self._held.advance(table["cycles"], table["clock_ns"], found[..., self._limits])
        return found


def _arguments(name: str, answers: np.ndarray) -> list[int | np.ndarray]:
    """Return what a function takes after the handle: where each slot's answers go, and what stands before."""
    if name == ENERGY_COUNT:
        return [answers["count"], answers["resolution_uj"], answers["t_ns"]]
    return [0, answers] if name == "amdsmi_get_power_cap_info" else [answers]


@dataclass
class _Die(Gpu):
    """A die and what it answers."""

    values: list[Value] = field(default_factory=list)
    now: dict[str, float] = field(default_factory=dict)


def open_amd() -> Found:
    """Return the AMD GPUs of this node, named as HIP numbers them; without a driver only reasons."""
    return open_vendor(Vendor("ROCm", "AMD SMI", LIBRARY, AmdSmi, _count, _add, AmdSmi.close))


def _count(library: AmdSmi) -> int:
    return len(library.devices())


def _add(library: AmdSmi, found: Found) -> list[_Die]:
    """Add facts and sensors of every die."""
    dies: list[_Die] = []
    package, primary = -1, ""
    for index, handle in enumerate(library.devices()):
        hip = library.hip_index(handle)
        die = _probe(library, f"gpu{index if hip is None else hip}", handle)
        is_secondary = bool(primary) and die.now.get("gpu_power_w") == 0 and die.now.get("gpu_energy_j") == 0
        if is_secondary:
            _leave_to(primary, die)
        else:
            package, primary = package + 1, die.device
        facts = {"device": die.device, "driver_index": index, "package": package, "is_primary": not is_secondary}
        found.facts.append(facts | _identity(library, handle) | {"absent": dict(die.absent)})
        measured = {value.column for value in die.values}
        unknown = {name: "AMD GPUs of this kind have no such sensor" for name in GPU_METRICS if name not in measured}
        die.absent = unknown | {name: why for name, why in die.absent.items() if name not in measured}
        dies.append(die)
    for lane, sensors in ((FAST, found.fast), (SLOW, found.slow)):
        groups = alike((die, tuple(value for value in die.values if value.lane == lane)) for die in dies)
        sensors += [AmdSensor(library, members, values) for values, members in groups.items()]
    return dies


def _probe(library: AmdSmi, device: str, handle: int) -> _Die:
    die = _Die(device, handle)
    for value in VALUES:
        if not library.has(value.call):
            die.absent[value.column] = f"{value.call}: not in this version of AMD SMI"
            continue
        answers = np.zeros(1, ANSWERS[value.call])
        status = library.call(value.call, handle, *_arguments(value.call, answers))
        if status != SUCCESS:
            die.absent[value.column] = f"{value.call}: {library.explain(status)}"
        elif np.isnan(now := float(value.read(answers)[0])):
            die.absent[value.column] = f"{value.call}: not measured by this GPU"
        else:
            die.values.append(value)
            die.now[value.column] = now
    return die


def _leave_to(primary: str, die: _Die) -> None:
    """Take the package's columns from a secondary die."""
    for column in _PACKAGE:
        die.absent[column] = f"secondary die: {primary} measures the package of both"
    die.values = [value for value in die.values if value.column not in _PACKAGE]


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
