"""Power parameters of a GPU type and of its node: `config/power/<gpu>.yaml`, `config/power/nodes/<chassis>.yaml`."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Quantity, Strict, unit_is
from triplepoint.config.yaml_file import read_named


class Estimate(Quantity):
    """A number with unit, source and uncertainty."""

    sigma: Annotated[float, Field(ge=0)]
    """Standard deviation of `value`, in `unit`; for an assumption, its assumed uncertainty."""


Watt = Annotated[Estimate, unit_is("W")]
Volt = Annotated[Estimate, unit_is("V")]
Megahertz = Annotated[Estimate, unit_is("MHz")]
Ratio = Annotated[Estimate, unit_is("1")]
PerKelvin = Annotated[Estimate, unit_is("1/K")]
PerSecond = Annotated[Estimate, unit_is("1/s")]
Celsius = Annotated[Estimate, unit_is("degC")]
Kelvin = Annotated[Estimate, unit_is("K")]
KelvinPerWatt = Annotated[Estimate, unit_is("K/W")]
Seconds = Annotated[Estimate, unit_is("s")]


class ClockConfig(Strict):
    """Clocks of a GPU type, and the voltage that each needs."""

    min_clock: Megahertz
    """Clock of an idle GPU, and the lowest clock of the governor."""
    max_clock: Megahertz
    """Highest clock; all powers of this file are at its voltage."""
    clock_step: Megahertz
    """Distance between clocks."""
    min_voltage: Volt
    """Voltage at the lowest clock and up to `knee_clock`."""
    knee_clock: Megahertz
    """Clock above which voltage rises linearly up to `max_voltage`."""
    max_voltage: Volt
    """Voltage at the highest clock."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.min_clock.value <= self.knee_clock.value < self.max_clock.value:
            raise ValueError("knee_clock must lie between min_clock and max_clock")
        return self


class PowerConfig(Strict):
    """Power of one device of a GPU type, at its highest clock and voltage unless stated otherwise.

    On MI250 a device is one of the two dies (GCDs) of a package.
    """

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the GPU type; the file has the same name."""
    clocks: ClockConfig
    """Clocks and voltages."""
    memory_idle: Watt
    """Memory at rest: refresh, and the interface kept awake."""
    base: Watt
    """Power that is always on and depends on neither clock nor temperature: links, regulators, management."""
    leakage: Watt
    """Leakage of the die at the highest voltage and `leakage_temperature`."""
    leakage_temperature: Celsius
    """Die temperature at which `leakage` is given."""
    leakage_growth: PerKelvin
    """Relative growth of leakage with temperature."""
    leakage_voltage_exponent: Ratio
    """Exponent of the voltage in the growth of leakage."""
    clock_tree: Watt
    """Clock distribution and everything that switches while any kernel runs."""
    polling_share: Ratio
    """Share of `clock_tree` that a kernel drives while it only waits for others."""
    tensor: Watt
    """Tensor units at the peak rate of `config/gpus/` with random operands, including data supply inside the SMs."""
    sm: Watt
    """Other units of the SMs at the peak fp32 rate with random operands."""
    hbm: Watt
    """Memory traffic at peak bandwidth, beyond `memory_idle`, including caches and wires; it does not depend on the
    clock."""
    link: Watt
    """Links to other GPUs at their peak rate, both directions together; it does not depend on the clock."""
    zeros_share: Ratio
    """Share of tensor, SM and memory switching that remains if operands are zeros."""
    power_limit: Watt
    """Power limit that the governor holds; for a package, its limit divided by its devices."""
    least_limit: Watt
    """Lowest power limit that the driver accepts."""
    excursion_limit: Watt
    """Highest power that the hardware allows before the governor acts, and that a sensor shows. It scales with the
    limit."""
    clock_rise: PerSecond
    """Share of the highest clock by which the governor raises clocks per second; it lowers them at once."""
    calibrated_clock: Megahertz
    """Clock of computation in the steps that calibration constants of stacks were fitted to."""
    leakage_spread: Ratio
    """Relative standard deviation of leakage between parts."""


_LEAST_SHARE, _MOST_POLLING = 0.1, 0.9
"""Smallest value of a deviating parameter over its value, since sigma of `base` is as large as its value; and largest
`polling_share`. Our choice."""


def with_deviates(power: PowerConfig, deviates: Mapping[str, float]) -> PowerConfig:
    """Return power parameters that deviate from their values, within what they may be.

    Args:
        power: The parameters.
        deviates: Deviation in standard deviations, by name of a parameter of `PowerConfig` or of its clocks.
    """
    if not deviates:
        return power
    clocks = power.clocks
    low, high, step = clocks.min_clock.value, clocks.max_clock.value, clocks.clock_step.value
    least = {"knee_clock": low, "max_voltage": clocks.min_voltage.value}
    most = {
        "knee_clock": high - step, "min_voltage": clocks.max_voltage.value, "calibrated_clock": high,
        "polling_share": _MOST_POLLING,
    }  # fmt: skip

    def moved(parameters: Strict) -> dict[str, Estimate]:
        changed = dict[str, Estimate]()
        for name in sorted(deviates.keys() & type(parameters).model_fields.keys()):
            estimate: Estimate = getattr(parameters, name)
            value = max(estimate.value + deviates[name] * estimate.sigma, _LEAST_SHARE * estimate.value)
            value = min(max(value, least.get(name, value)), most.get(name, value))
            changed[name] = estimate.model_copy(update={"value": value})
        return changed

    changes: dict[str, object] = {**moved(power), "clocks": clocks.model_copy(update=moved(clocks))}
    return power.model_copy(update=changes)


class NodePowerConfig(Strict):
    """Power of a node without its GPUs."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the chassis."""
    cpu_idle: Watt
    """All CPUs of a node, idle."""
    cpu_busy: Watt
    """All CPUs of a node with all cores busy."""
    dram: Watt
    """Host memory."""
    nic: Watt
    """One network adapter, with its transceiver."""
    storage: Watt
    """Disks."""
    switch: Watt
    """Switches between the GPUs of a node; 0 on xGMI."""
    board: Watt
    """Other boards: PCIe switches, retimers, management."""
    fan_idle: Watt
    """All fans at rest."""
    fan_full: Watt
    """All fans at full flow, the constant flow if the airflow has no `fans`."""
    converter_efficiency: Ratio
    """Power at chips and fans over direct current into the boards."""
    rectifier_efficiency: Ratio
    """Direct current into the boards over alternating current at the plug."""


@lru_cache(maxsize=32)
def read_power(name: str, config: Path) -> PowerConfig:
    """Return the power parameters of a GPU type. Raises `UserError` if the file is missing or wrong."""
    return read_named(PowerConfig, config / "power" / f"{name}.yaml")


@lru_cache(maxsize=8)
def read_node_power(name: str, config: Path) -> NodePowerConfig:
    """Return the power parameters of a chassis. Raises `UserError` if the file is missing or wrong."""
    return read_named(NodePowerConfig, config / "power" / "nodes" / f"{name}.yaml")
