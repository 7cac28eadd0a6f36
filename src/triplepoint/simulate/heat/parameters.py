"""Cooling and sensors of a GPU type, `config/heat/<gpu>.yaml`, and the airflow of a node, `config/heat/airflow/`."""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

import numpy as np
from pydantic import Field, model_validator

from triplepoint.config.base import NAME_PATTERN, Quantity, Strict, unit_is
from triplepoint.config.yaml_file import read_named
from triplepoint.errors import UserError
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.parameters import Celsius, Kelvin, KelvinPerWatt, Ratio, Seconds, Watt

Cooling = Literal["air", "liquid", "ideal"]

LEARNED = ("inlet_temp_c", "die_resistance", "sink_resistance", "preheat", "full_power", "least_flow")
"""What temperatures in balance depend on, as far as runs tell it: of a cluster, its chassis and fans."""

Shown = Literal[
    "gpu_power_average_w", "gpu_power_w", "gpu_energy_j", "gpu_power_limit_w", "gpu_temp_c", "sm_clock_mhz",
    "gpu_temp_margin_c", "gpu_throttle_reasons", "gpu_power_cap_s", "gpu_sw_thermal_s", "gpu_hw_thermal_s",
    "gpu_power_brake_s",
]  # fmt: skip
SHOWN: tuple[Shown, ...] = get_args(Shown)
"""Columns of the telemetry that simulated sensors can fill, in the order of recordings."""


_IDEAL = 1e-3
"""Resistance of ideal cooling over that of the usual one: 0.1 K of a rise of 50 K remain, less than sensors show."""


class CoolingConfig(Strict):
    """From the die to the coolant."""

    die_resistance: KelvinPerWatt
    """Die to sink: die, thermal interface, spreader."""
    die_time: Seconds
    """Time in which the die follows its power."""
    sink_resistance: KelvinPerWatt
    """Sink to the air or liquid at it."""
    sink_time: Seconds
    """Time in which the sink follows the heat it takes up."""
    twin_resistance: KelvinPerWatt | None = None
    """Between the halves of a sink under the two dies of a package; none where a device has its own."""
    preheat_share: Ratio
    """How much of the node's preheat reaches the coolant: 1 for air, 0 for liquid that is fed to every device."""

    def without_rise(self) -> Self:
        """Return cooling that keeps dies at the inlet's temperature, to a thousandth of their rise, as fast as this."""
        names = ("die_resistance", "sink_resistance")
        found = {name: getattr(self, name) for name in names}
        cold = {name: one.model_copy(update={"value": one.value * _IDEAL, "sigma": 0.0}) for name, one in found.items()}
        dry = self.preheat_share.model_copy(update={"value": 0.0, "sigma": 0.0})
        return self.model_copy(update={**cold, "preheat_share": dry})


class LimitConfig(Strict):
    """Temperatures at which clocks go down, and how far."""

    max_temperature: Celsius
    """Highest operating temperature: above it the driver takes clocks down."""
    slowdown_temperature: Celsius
    """The hardware cuts the clock."""
    shutdown_temperature: Celsius
    """The device turns itself off."""
    hysteresis: Kelvin
    """How far below a limit clocks are let up again."""
    thermal_slew: Ratio
    """Share of the highest clock by which the driver moves its thermal ceiling in a second."""
    slowdown_share: Ratio
    """Clock that is left under a hardware slowdown or a power brake, over the one asked for."""
    release_time: Seconds
    """How long a hardware slowdown holds at least."""


class SensorConfig(Strict):
    """How the driver of a GPU type shows power, temperature and clocks."""

    shows: Annotated[list[Shown], Field(min_length=1)]
    """Columns of the telemetry that have values."""
    power_die: Annotated[int, Field(ge=0)] = 0
    """Die of a package that shows its power, energy and power limit; the other dies show no value."""
    publish_period: Annotated[Quantity, unit_is("s")]
    """Time between two values."""
    instant_window: Annotated[Quantity, unit_is("s")] | None = None
    """Time before a value over which the instantaneous power is averaged; none where there is only `average_window`."""
    average_window: Annotated[Quantity, unit_is("s")]
    """The same of the average power."""
    energy_step: Annotated[Quantity, unit_is("J")]
    """Step of the energy counter."""
    temperature_step: Annotated[Quantity, unit_is("K")]
    """Step of temperatures."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("publish_period", "instant_window", "average_window", "energy_step", "temperature_step"):
            quantity = getattr(self, key)
            if quantity and not quantity.value:
                raise ValueError(f"{key} is 0 {quantity.unit}, expected more")
        return self


class HeatConfig(Strict):
    """Cooling, limits and sensors of one GPU type."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the GPU type; the file is called the same."""
    cooling: dict[Cooling, CoolingConfig]
    """By coolant."""
    limits: LimitConfig
    """Temperatures."""
    sensors: SensorConfig
    """What the driver shows."""
    resistance_spread: Ratio
    """Relative standard deviation of the die's resistance from part to part."""
    sensor_offset: Kelvin | None = None
    """Standard deviation of what a part's temperature sensor shows besides its die; none where it is not known apart
    from `resistance_spread`."""
    bad_contact_share: Ratio
    """Share of parts with bad contact to their sink."""
    bad_contact_factor: Ratio
    """What bad contact multiplies the die's resistance with."""

    def cooling_by(self, coolant: Cooling) -> CoolingConfig:
        """Return the cooling by a coolant, or an ideal one. Raises `UserError` if this GPU type has none by it."""
        if coolant == "ideal" and coolant not in self.cooling:
            return next(iter(self.cooling.values())).without_rise()
        if coolant not in self.cooling:
            known = ", ".join(self.cooling)
            raise UserError(
                f"conditions.coolant is {coolant}, config/heat/{self.name}.yaml describes cooling by {known}"
            )
        return self.cooling[coolant]


class FanConfig(Strict):
    """Fans that follow the load of their node, so that the air behind it stays about as warm."""

    full_power: Watt
    """Mean power of a node's GPUs from which fans run at their full flow; below it the flow goes with the power."""
    least_flow: Ratio
    """Share of the full flow that fans never go below."""

    def flow(self, power_w: Float) -> Float:
        """Return the flow of nodes over the full one, from the mean power of their GPUs in W."""
        return np.clip(power_w / self.full_power.value, self.least_flow.value, 1.0)


class AirflowConfig(Strict):
    """Where air passes the devices of a node, in the driver's order. Data: it differs from chassis to chassis."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the node's kind; the file is called the same."""
    rows: list[list[int]]
    """Devices of every row, from the inlet on; each row warms the ones behind it."""
    packages: list[list[int]]
    """Devices that share a sink; alone where a device has its own."""
    preheat: KelvinPerWatt
    """Air at a row, warmer for each watt of the mean device of the row before."""
    package_preheat: KelvinPerWatt | None = None
    """Air at the second device of a package, warmer for each watt of the first; none where sinks are not shared."""
    fans: FanConfig | None = None
    """How flow follows load; without it the flow is what resistances and preheat were measured at."""
    air_time: Seconds
    """Time in which the air behind a row follows the heat it takes up, with metal and cables on the way."""
    die_resistance: KelvinPerWatt | None = None
    """Die to sink as these nodes have it; that of the GPU type if not given."""
    sink_resistance: KelvinPerWatt | None = None
    """Sink to air at full flow as these nodes have it; that of the GPU type if not given."""
    sink_time: Seconds | None = None
    """Time in which sinks follow, as these nodes have them; that of the GPU type if not given."""
    correlation: dict[str, list[float]] | None = None
    """How errors of what was learned from the same runs go together, -1 to 1: a row for each of inlet, both
    resistances, preheat, full power, least flow; independent if not given. `triplepoint calibrate --heat` writes it."""

    @property
    def correlations(self) -> Float:
        """How errors of `LEARNED` go together; shape (len(LEARNED), len(LEARNED))."""
        if self.correlation is None:
            return np.eye(len(LEARNED))
        return np.array([self.correlation[name] for name in LEARNED])

    def over(self, cooling: CoolingConfig) -> CoolingConfig:
        """Return the cooling of a GPU type by air, as these nodes have it."""
        own = {name: getattr(self, name) for name in ("die_resistance", "sink_resistance", "sink_time")}
        return cooling.model_copy(update={name: known for name, known in own.items() if known is not None})

    @model_validator(mode="after")
    def _check(self) -> Self:
        devices = sorted(device for row in self.rows for device in row)
        if devices != list(range(len(devices))):
            raise ValueError(f"rows name devices {devices}, expected every one from 0 once")
        if sorted(device for package in self.packages for device in package) != devices:
            raise ValueError("packages and rows must name the same devices, each once")
        if any(len(package) > 2 for package in self.packages):
            raise ValueError("a package has one or two devices")
        if self.correlation is not None and (
            set(self.correlation) != set(LEARNED)
            or any(len(row) != len(LEARNED) or max(map(abs, row)) > 1 for row in self.correlation.values())
        ):
            raise ValueError(f"correlation has a row of {len(LEARNED)} numbers from -1 to 1 for each of {LEARNED}")
        return self

    @property
    def num_devices(self) -> int:
        """Devices of a node."""
        return sum(len(row) for row in self.rows)


@lru_cache(maxsize=32)
def read_heat(name: str, config: Path) -> HeatConfig:
    """Return what is known of a GPU's cooling. Raises `UserError` if the file is missing or wrong."""
    return read_named(HeatConfig, config / "heat" / f"{name}.yaml")


@lru_cache(maxsize=8)
def read_airflow(name: str, config: Path) -> AirflowConfig:
    """Return the airflow of a kind of node. Raises `UserError` if the file is missing or wrong."""
    return read_named(AirflowConfig, config / "heat" / "airflow" / f"{name}.yaml")
