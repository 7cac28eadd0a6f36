"""AMD GPUs: one sensor per die and lane; power and energy belong to packages.

On MI250 both dies of a package share one power sensor and one energy counter, which only the primary die has; the
secondary one reads 0. Here its power and energy are missing, with the reason, and the primary die's are the package's.

Source: Linux kernel, amdgpu swsmu (aldebaran_get_gpu_metrics: "valid power data is available only from primary die");
bits of indep_throttle_status in amdgpu_smu.h: 0 to 31 power and current, 32 to 55 temperature.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triplepoint.tables.telemetry import CUMULATIVE, GPU_METRICS
from triplepoint.telemetry.amdsmi_library import (
    ENERGY,
    ERRORS,
    LIBRARY,
    METRICS,
    POWER_CAP,
    SUCCESS,
    VRAM,
    AmdSmi,
    AmdSmiError,
)
from triplepoint.telemetry.pci import slot_of
from triplepoint.telemetry.sensor import FAST, SLOW, Counters, Found, Sensor, absent_everywhere
from triplepoint.units import KIB, MEGA, MIB

_PERCENT = 1e-2
_POWER_CAP_REASON, _THERMAL_REASON = 0x4, 0x20
"""Bits of `gpu_throttle_reasons`, as NVML has them: software power cap, software thermal slowdown."""
_THERMAL_SHIFT = 32


@dataclass(frozen=True)
class _Value:
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


_TABLE, _ENERGY = "amdsmi_get_gpu_metrics_info", "amdsmi_get_energy_count"
_VALUES = (
    _Value("gpu_power_w", _TABLE, FAST, _first_known("current_power_w", "average_power_w")),
    _Value("gpu_power_average_w", _TABLE, FAST, _level("average_power_w")),
    _Value("gpu_energy_j", _ENERGY, FAST, _energy_j),
    _Value("gpu_temp_c", _TABLE, FAST, _level("hotspot_c")),
    _Value("gpu_edge_temp_c", _TABLE, FAST, _level("edge_c")),
    _Value("gpu_memory_temp_c", _TABLE, FAST, _highest("hbm_c", "memory_c")),
    _Value("sm_clock_mhz", _TABLE, FAST, _clock),
    _Value("memory_clock_mhz", _TABLE, FAST, _level("uclk_mhz")),
    _Value("gpu_throttle_reasons", _TABLE, FAST, _reasons),
    _Value("gpu_utilisation", _TABLE, SLOW, _level("gfx_percent", _PERCENT)),
    _Value("gpu_memory_utilisation", _TABLE, SLOW, _level("umc_percent", _PERCENT)),
    _Value("xgmi_rx_bytes", _TABLE, SLOW, _sum("xgmi_read_kb", KIB)),
    _Value("xgmi_tx_bytes", _TABLE, SLOW, _sum("xgmi_write_kb", KIB)),
    _Value("pcie_replays", _TABLE, SLOW, _level("pcie_replays")),
    _Value("gpu_memory_used_bytes", "amdsmi_get_gpu_vram_usage", SLOW, _level("used_mb", MIB)),
    _Value("gpu_power_limit_w", "amdsmi_get_power_cap_info", SLOW, _level("cap_uw", 1 / MEGA)),
    _Value("gpu_ecc_corrected", "amdsmi_get_gpu_total_ecc_count", SLOW, _level("corrected")),
    _Value("gpu_ecc_uncorrected", "amdsmi_get_gpu_total_ecc_count", SLOW, _level("uncorrected")),
)
_ANSWERS = {
    _TABLE: METRICS,
    _ENERGY: ENERGY,
    "amdsmi_get_gpu_vram_usage": VRAM,
    "amdsmi_get_power_cap_info": POWER_CAP,
    "amdsmi_get_gpu_total_ecc_count": ERRORS,
}
_PACKAGE = ("gpu_power_w", "gpu_power_average_w", "gpu_energy_j", "gpu_power_limit_w")
"""Columns that are the package's."""


class AmdSensor(Sensor):
    """The chosen values of one die in one lane."""

    def __init__(self, library: AmdSmi, handle: int, device: str, values: list[_Value]) -> None:
        """Choose what to read.

        Args:
            library: The library.
            handle: The die.
            device: Its name.
            values: What it answers in this lane.
        """
        self.device = device
        self._handle = handle
        self._chosen = values
        self.columns = tuple(value.column for value in values)
        self._names = list(dict.fromkeys(value.call for value in values))
        self._functions = [_bind(library, name) for name in self._names]
        self._counted = np.flatnonzero([name in CUMULATIVE for name in self.columns])
        self._counters = Counters(len(self._counted))

    def allocate(self, num_slots: int) -> None:
        """Make room for `num_slots` reads."""
        self._answers = [np.zeros(num_slots, _ANSWERS[name]) for name in self._names]
        self._codes = np.zeros((num_slots, len(self._names)), "i4")
        self._code_view = self._codes.reshape(-1).data
        self._plan = [
            (function, _addresses(name, answers), answers.strides[0])
            for name, function, answers in zip(self._names, self._functions, self._answers, strict=True)
        ]

    def read(self, slot: int) -> None:
        """Ask the driver; it writes into the slot."""
        first = slot * len(self._names)
        for index, (function, (before, addresses), stride) in enumerate(self._plan):
            places = [address + slot * stride for address in addresses]
            self._code_view[first + index] = function(self._handle, *before, *places)

    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads, decoded."""
        found = np.full((num_slots, len(self.columns)), np.nan)
        for place, value in enumerate(self._chosen):
            index = self._names.index(value.call)
            good = self._codes[:num_slots, index] == SUCCESS
            found[:, place] = np.where(good, value.read(self._answers[index][:num_slots]), np.nan)
        if len(self._counted):
            wraps_at = np.zeros(len(self._counted))
            found[:, self._counted] = self._counters.advance(found[:, self._counted], wraps_at)
        return found


def _bind(library: AmdSmi, name: str) -> Any:
    before = [ctypes.c_uint32] if name == "amdsmi_get_power_cap_info" else []
    pointers = len(ENERGY.fields or ()) if name == _ENERGY else 1
    return library.function(name, ctypes.c_void_p, *before, *[ctypes.c_void_p] * pointers)


def _addresses(name: str, answers: np.ndarray) -> tuple[tuple[int, ...], list[int]]:
    """Return the arguments before the pointers, and where the first slot's answers go."""
    at = answers.ctypes.data
    if name == _ENERGY:  # count, resolution, time
        return (), [answers[part].ctypes.data for part in ("count", "resolution_uj", "t_ns")]
    return ((0,) if name == "amdsmi_get_power_cap_info" else ()), [at]


@dataclass
class _Die:
    """What one die answers."""

    values: list[_Value] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    now: dict[str, float] = field(default_factory=dict)


def open_amd() -> Found:
    """Return the AMD GPUs of this node, named as HIP numbers them; without a driver only reasons."""
    try:
        library = AmdSmi()
        handles = library.devices()
    except OSError:
        return Found(absent=dict.fromkeys(GPU_METRICS, f"no ROCm here: {LIBRARY} is not found"))
    except AmdSmiError as error:
        return Found(absent=dict.fromkeys(GPU_METRICS, f"AMD SMI cannot be used: {error}"))
    if not handles:
        return Found(absent=dict.fromkeys(GPU_METRICS, "AMD SMI finds no GPU"))
    found, missing, package, primary = Found(close=library.close), [], -1, ""
    for index, handle in enumerate(handles):
        hip = library.hip_index(handle)
        device = f"gpu{index if hip is None else hip}"
        die = _probe(library, handle)
        is_secondary = bool(primary) and die.now.get("gpu_power_w") == 0 and die.now.get("gpu_energy_j") == 0
        if is_secondary:
            _leave_to(primary, die)
        else:
            package, primary = package + 1, device
        for lane, sensors in ((FAST, found.fast), (SLOW, found.slow)):
            sensors.append(AmdSensor(library, handle, device, [value for value in die.values if value.lane == lane]))
        facts = {"device": device, "driver_index": index, "package": package, "is_primary": not is_secondary}
        found.facts.append(facts | _identity(library, handle) | {"absent": die.absent})
        unknown = dict.fromkeys(GPU_METRICS, "AMD GPUs of this kind have no such sensor")
        missing.append({name: why for name, why in (unknown | die.absent).items() if name not in _columns(die)})
    found.absent = absent_everywhere(missing)
    return found


def _columns(die: _Die) -> set[str]:
    return {value.column for value in die.values}


def _probe(library: AmdSmi, handle: int) -> _Die:
    die = _Die()
    for value in _VALUES:
        if not library.has(value.call):
            die.absent[value.column] = f"{value.call}: not in this version of AMD SMI"
            continue
        answers = np.zeros(1, _ANSWERS[value.call])
        before, addresses = _addresses(value.call, answers)
        status = _bind(library, value.call)(handle, *before, *addresses)
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
