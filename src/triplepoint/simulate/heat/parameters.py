"""Cooling and sensors of a GPU type, `config/heat/<gpu>.yaml`, and airflow of a node, `config/heat/airflow/`."""

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
"""Parameters of steady temperatures that runs can determine: of a cluster, its chassis and its fans."""

Shown = Literal[
    "gpu_power_average_w", "gpu_power_w", "gpu_energy_j", "gpu_power_limit_w", "gpu_temp_c", "sm_clock_mhz",
    "gpu_temp_margin_c", "gpu_throttle_reasons", "gpu_power_cap_s", "gpu_sw_thermal_s", "gpu_hw_thermal_s",
    "gpu_power_brake_s",
]  # fmt: skip
SHOWN: tuple[Shown, ...] = get_args(Shown)
"""Telemetry columns that simulated sensors can fill, in the order of recordings."""


_IDEAL = 1e-3
"""Resistance of ideal cooling over the usual one: of a rise of 50 K, 0.1 K remain, less than sensors resolve."""


class CoolingConfig(Strict):
    """Cooling from the die to the coolant."""

    die_resistance: KelvinPerWatt
    """Thermal resistance from die to sink: die, thermal interface, spreader."""
    die_time: Seconds
    """Time constant of the die."""
    sink_resistance: KelvinPerWatt
    """Thermal resistance from sink to the air or liquid at it."""
    sink_time: Seconds
    """Time constant of the sink."""
    twin_resistance: KelvinPerWatt | None = None
    """Thermal resistance between the halves of a sink under the two dies of a package; None if each device has its own
    sink."""
    preheat_share: Ratio
    """Share of the node's preheat that reaches the coolant: 1 for air, 0 for liquid fed to every device."""

    def without_rise(self) -> Self:
        """Return cooling with the same time constants that keeps dies at the inlet temperature, but for `_IDEAL`."""
        known = {name: getattr(self, name) for name in ("die_resistance", "sink_resistance")}
        ideal = {
            name: estimate.model_copy(update={"value": estimate.value * _IDEAL, "sigma": 0.0})
            for name, estimate in known.items()
        }
        no_preheat = self.preheat_share.model_copy(update={"value": 0.0, "sigma": 0.0})
        return self.model_copy(update={**ideal, "preheat_share": no_preheat})


class LimitConfig(Strict):
    """Temperatures that lower clocks, and by how much."""

    max_temperature: Celsius
    """Highest operating temperature, above which the driver lowers clocks."""
    slowdown_temperature: Celsius
    """Temperature at which the hardware cuts the clock."""
    shutdown_temperature: Celsius
    """Temperature at which the device turns itself off."""
    hysteresis: Kelvin
    """Distance below a limit at which clocks may rise again."""
    thermal_slew: Ratio
    """Share of the highest clock by which the driver moves its thermal ceiling per second."""
    slowdown_share: Ratio
    """Clock under a hardware slowdown or a power brake, over the requested clock."""
    release_time: Seconds
    """Shortest duration of a hardware slowdown."""


class SensorConfig(Strict):
    """How the driver of a GPU type reports power, temperature and clocks."""

    shows: Annotated[list[Shown], Field(min_length=1)]
    """Telemetry columns with values."""
    power_die: Annotated[int, Field(ge=0)] = 0
    """Die of a package that reports its power, energy and power limit; the other dies report none."""
    publish_period: Annotated[Quantity, unit_is("s")]
    """Time between two values."""
    instant_window: Annotated[Quantity, unit_is("s")] | None = None
    """Time before a value over which instantaneous power is averaged; None if there is only `average_window`."""
    average_window: Annotated[Quantity, unit_is("s")]
    """Time before a value over which average power is averaged."""
    energy_step: Annotated[Quantity, unit_is("J")]
    """Resolution of the energy counter."""
    temperature_step: Annotated[Quantity, unit_is("K")]
    """Resolution of temperatures."""

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
    """Name of the GPU type; the file has the same name."""
    cooling: dict[Cooling, CoolingConfig]
    """Cooling by coolant."""
    limits: LimitConfig
    """Temperatures that lower clocks."""
    sensors: SensorConfig
    """Sensors as the driver reports them."""
    resistance_spread: Ratio
    """Relative standard deviation of the die's resistance between parts."""
    sensor_offset: Kelvin | None = None
    """Standard deviation of the offset of a part's temperature sensor; None if it cannot be separated from
    `resistance_spread`."""
    bad_contact_share: Ratio
    """Share of parts with bad contact to their sink."""
    bad_contact_factor: Ratio
    """Factor of bad contact on the die's resistance."""

    def cooling_by(self, coolant: Cooling) -> CoolingConfig:
        """Return the cooling by a coolant, or ideal cooling.

        Raises:
            UserError: If the GPU type has no cooling by that coolant.
        """
        if coolant == "ideal" and coolant not in self.cooling:
            return next(iter(self.cooling.values())).without_rise()
        if coolant not in self.cooling:
            known = ", ".join(self.cooling)
            raise UserError(
                f"conditions.coolant is {coolant}, config/heat/{self.name}.yaml describes cooling by {known}"
            )
        return self.cooling[coolant]


class FanConfig(Strict):
    """Fans that follow the load of their node, so that the temperature of the air behind it changes little."""

    full_power: Watt
    """Mean power of a node's GPUs above which fans run at full flow; below it the flow is proportional to power."""
    least_flow: Ratio
    """Lowest flow over the full flow."""

    def flow(self, power_w: Float) -> Float:
        """Return the flow of nodes over the full flow, from the mean power of their GPUs in W."""
        return np.clip(power_w / self.full_power.value, self.least_flow.value, 1.0)


class AirflowConfig(Strict):
    """Air path past the devices of a node, in the driver's order of devices. It differs between chassis."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the airflow; the file has the same name."""
    rows: list[list[int]]
    """Devices of every row, from the inlet on; each row heats the air of those behind it."""
    packages: list[list[int]]
    """Devices that share a sink; single devices for sinks of their own."""
    preheat: KelvinPerWatt
    """Temperature rise of the air at a row per watt of the mean device of the row before."""
    package_preheat: KelvinPerWatt | None = None
    """Temperature rise of the air at the second device of a package per watt of the first; None if sinks are not
    shared."""
    fans: FanConfig | None = None
    """How the flow follows load; None if it is constant, at the flow that resistances and preheat hold for."""
    air_time: Seconds
    """Time constant of the air behind a row, including metal and cables on the way."""
    die_resistance: KelvinPerWatt | None = None
    """Thermal resistance from die to sink in these nodes; None for that of the GPU type."""
    sink_resistance: KelvinPerWatt | None = None
    """Thermal resistance from sink to air at full flow in these nodes; None for that of the GPU type."""
    sink_time: Seconds | None = None
    """Time constant of sinks in these nodes; None for that of the GPU type."""
    correlation: dict[str, list[float]] | None = None
    """Correlations, -1 to 1, between the errors of parameters learned from the same runs: a row each for inlet, both
    resistances, preheat, full power, least flow. None if they are independent. `triplepoint calibrate --heat` writes
    it."""

    @property
    def correlations(self) -> Float:
        """Correlations between the errors of `LEARNED`; shape (len(LEARNED), len(LEARNED))."""
        if self.correlation is None:
            return np.eye(len(LEARNED))
        return np.array([self.correlation[name] for name in LEARNED])

    def over(self, cooling: CoolingConfig) -> CoolingConfig:
        """Return the air cooling of a GPU type with the values of these nodes."""
        values = {name: getattr(self, name) for name in ("die_resistance", "sink_resistance", "sink_time")}
        return cooling.model_copy(update={name: known for name, known in values.items() if known is not None})

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
    """Return cooling and sensors of a GPU type. Raises `UserError` if the file is missing or wrong."""
    return read_named(HeatConfig, config / "heat" / f"{name}.yaml")


@lru_cache(maxsize=8)
def read_airflow(name: str, config: Path) -> AirflowConfig:
    """Return an airflow. Raises `UserError` if the file is missing or wrong."""
    return read_named(AirflowConfig, config / "heat" / "airflow" / f"{name}.yaml")
