"""Power of GPUs from rates, clock and temperature: pure functions over broadcastable arrays.

Energy belongs to work: an operation costs the energy that its voltage demands, whenever it runs. Power is therefore
linear in rates (FLOP/s, byte/s), given as shares of the data sheet's peaks; the clock itself drives only the clock
tree.

    P = base + memory_idle + hbm*u + link*u + leakage*v^n*exp(growth*(T - T0))
        + v^2*(clock_tree*f*awake + tensor*u + sm*u)

v and f are shares of the highest voltage and clock, and u the rates.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from triplepoint.simulate.power.parameters import ClockConfig, PowerConfig

Float = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Number = Float | float

_STREAMING_SHARE = 0.5
"""Share of the highest clock below which SMs cannot saturate memory bandwidth. Assumption: twice as many loads are in
flight as needed."""
_SAMPLED_CLOCKS = 12
"""Clocks at which power is sampled to find that at the limit; in between it is interpolated linearly."""


@dataclass(frozen=True, eq=False)
class Activity:
    """Mean activity of devices over a time. Rates are shares of the peaks in `config/gpus/`.

    NVIDIA states peaks at a clock below the highest (1830 MHz on H100), so tensor and SM rates may slightly exceed 1.

    Attributes:
        awake: Share of the time in which a kernel runs, 0-1; a kernel that only waits for others counts by
            `polling_share`.
        tensor: FLOP/s of GEMMs over peak bf16 FLOP/s; fp8 GEMMs count by their energy.
        sm: Other arithmetic and data movement inside SMs, as a share of their issue rate.
        hbm: Bytes/s from and to memory over peak bandwidth.
        link: Bytes/s over links to other GPUs, both directions, over their peak.
        randomness: Randomness of operands: 1 for random bits, 0 for zeros.
        clock_bound: Share of the time that scales with the clock: at a lower clock a kernel takes
            `clock_bound*max/clock + 1 - clock_bound` times as long.
    """

    awake: Number
    tensor: Number = 0.0
    sm: Number = 0.0
    hbm: Number = 0.0
    link: Number = 0.0
    randomness: Number = 1.0
    clock_bound: Number = 0.0

    def at_rate(self, rate: Number) -> "Activity":
        """Return the same work at `rate` times the speed: rates scale with it, the awake share does not."""
        return replace(self, tensor=self.tensor * rate, sm=self.sm * rate, hbm=self.hbm * rate, link=self.link * rate)


@dataclass(frozen=True, eq=False)
class Parts:
    """Power of devices by component. Unit: W.

    Attributes:
        base: Links, regulators and management, always on.
        leakage: Leakage of the die.
        clock_tree: Clock distribution while kernels run.
        tensor: Tensor units.
        sm: Other units of the SMs.
        hbm: Memory traffic.
        link: Traffic to other GPUs.
        memory_idle: Memory at rest.
    """

    base: Number
    leakage: Number
    clock_tree: Number
    tensor: Number
    sm: Number
    hbm: Number
    link: Number
    memory_idle: Number

    @property
    def total(self) -> Float:
        """Power of the devices."""
        return np.asarray(sum((getattr(self, part.name) for part in fields(self)), start=0.0))


@dataclass(frozen=True, eq=False)
class Clocks:
    """Clocks of a GPU type and their effect on power, one entry per clock from lowest to highest.

    Attributes:
        mhz: Clocks. Unit: MHz.
        share: Clock over the highest clock.
        voltage_share: Voltage over that of the highest clock.
    """

    mhz: Float
    share: Float
    voltage_share: Float

    @cached_property
    def stretch(self) -> Float:
        """Additional time of clock-bound work, over its time at the highest clock."""
        return np.asarray(1.0 / self.share - 1.0)

    @cached_property
    def starved(self) -> Float:
        """Additional time of memory traffic, over its time at the highest clock: slow SMs leave memory waiting."""
        return np.asarray(np.maximum(_STREAMING_SHARE / self.share - 1.0, 0.0))

    @cached_property
    def energy_share(self) -> Float:
        """Energy of one operation over that at the highest clock."""
        return np.asarray(self.voltage_share**2)

    def nearest(self, clock_mhz: Number) -> Int64:
        """Return the index of the highest clock that is not above `clock_mhz`, or of the lowest clock."""
        place = np.searchsorted(self.mhz, np.asarray(clock_mhz) + 1e-6, side="right") - 1
        return np.asarray(np.maximum(place, 0), dtype=np.int64)


def clock_table(config: ClockConfig) -> Clocks:
    """Return the clocks of a GPU type."""
    low, high, step = config.min_clock.value, config.max_clock.value, config.clock_step.value
    mhz = np.append(np.arange(low, high - 1e-6, step), high)
    return Clocks(mhz, mhz / high, voltage_v(config, mhz) / config.max_voltage.value)


def voltage_v(config: ClockConfig, clock_mhz: Number) -> Float:
    """Return the voltage that a clock needs. Unit: V."""
    knee, high = config.knee_clock.value, config.max_clock.value
    return np.asarray(np.interp(clock_mhz, [knee, high], [config.min_voltage.value, config.max_voltage.value]))


def leakage_w(config: PowerConfig, clock_mhz: Number, temp_c: Number) -> Float:
    """Return the leakage at a clock's voltage and a die temperature. Unit: W."""
    voltage_share = voltage_v(config.clocks, clock_mhz) / config.clocks.max_voltage.value
    growth = np.exp(config.leakage_growth.value * (np.asarray(temp_c) - config.leakage_temperature.value))
    return np.asarray(config.leakage.value * voltage_share**config.leakage_voltage_exponent.value * growth)


def data_share(config: PowerConfig, randomness: Number) -> Float:
    """Return the switching power of operands over that of random ones: 1 for random bits, `zeros_share` for zeros."""
    zeros = config.zeros_share.value
    return np.asarray(zeros + (1.0 - zeros) * np.asarray(randomness))


def power_parts(config: PowerConfig, activity: Activity, clock_mhz: Number, temp_c: Number) -> Parts:
    """Return power by component.

    Args:
        config: Parameters of the GPU type.
        activity: Activity with the real rates at this clock.
        clock_mhz: Clock of the SMs. Unit: MHz.
        temp_c: Die temperature. Unit: degC.
    """
    voltage_share = voltage_v(config.clocks, clock_mhz) / config.clocks.max_voltage.value
    energy_share = voltage_share**2
    clock_share = np.asarray(clock_mhz) / config.clocks.max_clock.value
    data = data_share(config, activity.randomness)
    return Parts(
        base=config.base.value,
        leakage=leakage_w(config, clock_mhz, temp_c),
        clock_tree=config.clock_tree.value * activity.awake * clock_share * energy_share,
        tensor=config.tensor.value * activity.tensor * data * energy_share,
        sm=config.sm.value * activity.sm * data * energy_share,
        hbm=config.hbm.value * activity.hbm * data,
        link=config.link.value * activity.link,
        memory_idle=config.memory_idle.value,
    )


def gpu_power_w(config: PowerConfig, activity: Activity, clock_mhz: Number, temp_c: Number) -> Float:
    """Return the power of devices; arguments are those of `power_parts`. Unit: W."""
    return power_parts(config, activity, clock_mhz, temp_c).total


def rate_at(clock_share: Number, clock_bound: Number) -> Float:
    """Return the speed of work at a share of the highest clock, over its speed at the highest clock."""
    return np.asarray(1.0 / (np.asarray(clock_bound) / clock_share + 1.0 - np.asarray(clock_bound)))


def power_at_limit(config: PowerConfig, activity: Activity, temp_c: Number) -> tuple[Float, Float]:
    """Return the share of the highest clock, and the power, of work under the power limit.

    Args:
        config: Parameters of the GPU type.
        activity: Activity; its rates are kept at lower clocks.
        temp_c: Die temperature, broadcastable to the activity's shape. Unit: degC.
    """
    high, limit_w = config.clocks.max_clock.value, config.power_limit.value
    watts = gpu_power_w(config, activity, high, temp_c)
    share, over = np.ones_like(watts), watts > limit_w
    if over.any():
        limited = Activity(
            **{part.name: np.broadcast_to(getattr(activity, part.name), watts.shape)[over] for part in fields(activity)}
        )
        share[over], watts[over] = _share_at_limit(config, limited, np.broadcast_to(temp_c, watts.shape)[over])
    return share, watts


def _share_at_limit(config: PowerConfig, activity: Activity, temp_c: Float) -> tuple[Float, Float]:
    """Return the share of the highest clock, and the power, of work that exceeds the limit at the highest clock."""
    limit_w, high = config.power_limit.value, config.clocks.max_clock.value
    clocks = np.linspace(config.clocks.min_clock.value, high, _SAMPLED_CLOCKS)
    watts = gpu_power_w(config, activity, clocks[:, None], temp_c)
    last = np.clip((watts <= limit_w).sum(axis=0), 1, _SAMPLED_CLOCKS - 1)
    before, after = (np.take_along_axis(watts, index[None], axis=0)[0] for index in (last - 1, last))
    part = np.clip((limit_w - before) / np.maximum(after - before, 1e-9), 0.0, 1.0)
    clock = clocks[last - 1] + part * (clocks[1] - clocks[0])
    return np.asarray(clock / high), np.asarray(before + part * (after - before))


def clock_at_limit(config: PowerConfig, activity: Activity, limit_w: Number, temp_c: Number) -> Float:
    """Return the highest clock at which devices stay within a power limit, or the lowest clock.

    Args:
        config: Parameters of the GPU type.
        activity: Activity with the rates at the highest clock; they scale with the clock by `clock_bound`.
        limit_w: Power limit. Unit: W.
        temp_c: Die temperature. Unit: degC.

    Returns:
        Clock in MHz, of the broadcast shape of the arguments.
    """
    table = clock_table(config.clocks)
    shapes = (np.shape(getattr(activity, part.name)) for part in fields(activity))
    shape = np.broadcast_shapes(*shapes, np.shape(limit_w), np.shape(temp_c))
    clocks = table.mhz.reshape(-1, *(1 for _ in shape))
    rate = rate_at(clocks / config.clocks.max_clock.value, activity.clock_bound)
    power = np.broadcast_to(gpu_power_w(config, activity.at_rate(rate), clocks, temp_c), (len(table.mhz), *shape))
    # Power grows with the clock, so the clocks within the limit come first.
    within = (power <= np.asarray(limit_w)).sum(axis=0)
    return np.asarray(table.mhz[np.maximum(within - 1, 0)])
