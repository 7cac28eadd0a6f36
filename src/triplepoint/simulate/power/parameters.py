"""Parameters of the power of a GPU and of its node: `config/power/<gpu>.yaml`."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Quantity, Strict, unit_is
from triplepoint.config.yaml_file import read_named


class Estimate(Quantity):
    """A number with its unit, where it comes from, and how far it can be trusted."""

    sigma: Annotated[float, Field(ge=0)]
    """Standard deviation of `value`, in `unit`; of an assumption, how sure it is."""


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
    """Clocks a GPU can take, and the voltage each needs."""

    min_clock: Megahertz
    """Clock of an idle GPU, and the lowest the governor takes."""
    max_clock: Megahertz
    """Highest clock; all powers of this file are at its voltage."""
    clock_step: Megahertz
    """Distance between clocks."""
    min_voltage: Volt
    """Voltage at the lowest clock, and up to `knee_clock`."""
    knee_clock: Megahertz
    """Clock from where voltage rises, in a straight line up to `max_voltage`."""
    max_voltage: Volt
    """Voltage at the highest clock."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.min_clock.value <= self.knee_clock.value < self.max_clock.value:
            raise ValueError("knee_clock must lie between min_clock and max_clock")
        return self


class PowerConfig(Strict):
    """Power of one device of a GPU type, at its highest clock and voltage unless said otherwise.

    Of MI250, one GCD of the two in a package.
    """

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the GPU type; the file is called the same."""
    clocks: ClockConfig
    """Clocks and voltages."""
    memory_idle: Watt
    """Memory at rest: refresh and the interface kept awake."""
    base: Watt
    """What is always on and knows neither clock nor temperature: links, regulators, management."""
    leakage: Watt
    """Leakage of the die at the highest voltage and `leakage_temperature`."""
    leakage_temperature: Celsius
    """Die temperature `leakage` is given at."""
    leakage_growth: PerKelvin
    """Relative growth of leakage with temperature."""
    leakage_voltage_exponent: Ratio
    """Leakage grows with this power of the voltage."""
    clock_tree: Watt
    """Clock distribution and everything that switches while a kernel runs, whatever it does."""
    polling_share: Ratio
    """Share of `clock_tree` that a kernel drives which only waits for others."""
    tensor: Watt
    """Tensor units at the peak rate of `config/gpus/`, operands random, with what feeds them inside the SMs."""
    sm: Watt
    """Other units of the SMs at the peak fp32 rate, operands random."""
    hbm: Watt
    """Memory at its peak bandwidth, beyond `memory_idle`, with the caches and wires on the way; of any clock."""
    link: Watt
    """Links to other GPUs at their peak rate, both directions together; of any clock."""
    zeros_share: Ratio
    """Share of tensor, SM and memory switching that is left when operands are zeros."""
    power_limit: Watt
    """Power the governor holds; of a package, its limit over its devices."""
    least_limit: Watt
    """Lowest limit that the driver takes."""
    excursion_limit: Watt
    """Power that hardware lets through before the governor acts; a sensor shows no more. It goes with the limit."""
    clock_rise: PerSecond
    """Share of the highest clock by which the governor raises clocks in a second; it lowers them at once."""
    calibrated_clock: Megahertz
    """Clock of computation in the steps that constants of stacks were fitted to."""
    leakage_spread: Ratio
    """Relative standard deviation of leakage from part to part."""


class NodePowerConfig(Strict):
    """Power that a node draws besides its GPUs."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the kind of node."""
    cpu_idle: Watt
    """All CPUs of a node at rest."""
    cpu_busy: Watt
    """All CPUs of a node with all cores busy."""
    dram: Watt
    """Memory of the host."""
    nic: Watt
    """One network adapter, with its transceiver."""
    storage: Watt
    """Disks."""
    switch: Watt
    """Switches between the GPUs of a node; none on xGMI."""
    board: Watt
    """Power of other boards: PCIe switches, retimers, management."""
    fan_idle: Watt
    """All fans at rest."""
    fan_full: Watt
    """All fans at full flow, as they run where the airflow has no `fans`."""
    converter_efficiency: Ratio
    """Power at chips and fans over direct current into the boards."""
    rectifier_efficiency: Ratio
    """Direct current into the boards over alternating current at the plug."""


@lru_cache(maxsize=32)
def read_power(name: str, config: Path) -> PowerConfig:
    """Return what is known of a GPU's power. Raises `UserError` if the file is missing or wrong."""
    return read_named(PowerConfig, config / "power" / f"{name}.yaml")


@lru_cache(maxsize=8)
def read_node_power(name: str, config: Path) -> NodePowerConfig:
    """Return what is known of a kind of node. Raises `UserError` if the file is missing or wrong."""
    return read_named(NodePowerConfig, config / "power" / "nodes" / f"{name}.yaml")
