"""AMD GPUs: one sensor per die and lane; power and energy belong to packages.

On MI250 both dies of a package share one power sensor and one energy counter, which only the primary die has; the
secondary one reads 0. Here its power and energy are missing, with the reason, and the primary die's are the package's.

Source: Linux kernel, amdgpu swsmu (aldebaran_get_gpu_metrics: "valid power data is available only from primary die").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triplepoint.tables.telemetry import CUMULATIVE, GPU_METRICS
from triplepoint.telemetry.amd_values import ANSWERS, ENERGY_COUNT, HELD, TABLE, VALUES, Held, Value
from triplepoint.telemetry.amdsmi_library import LIBRARY, SUCCESS, AmdSmi
from triplepoint.telemetry.gpus import Gpu, Vendor, alike, open_vendor
from triplepoint.telemetry.pci import slot_of
from triplepoint.telemetry.sensor import FAST, SLOW, Counters, Found, Sensor
from triplepoint.telemetry.sweep import Step

_PACKAGE = ("gpu_power_w", "gpu_power_average_w", "gpu_energy_j", "gpu_power_limit_w")
"""Columns that are the package's."""


class AmdSensor(Sensor):
    """The values, in one lane, of dies that answer the same."""

    def __init__(self, library: AmdSmi, dies: Mapping[str, int], values: Sequence[Value]) -> None:
        """Choose what to read.

        Args:
            library: The library.
            dies: Names and handles.
            values: What they answer in this lane.
        """
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
