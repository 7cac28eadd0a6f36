"""Clock governor: throttling by power limit, temperature and power brake, with NVML's names of the reasons.

The driver controls the clock by the power of the last control period. It moves the clock to where a straight line
through that power meets the limit: down at once, and up no faster than its slew rate. Power therefore exceeds the limit
for one period when the load rises. Under a varying load clocks stay near what its heaviest part allows, and mean power
is below the limit.

A clock is an index into the table of clocks, lowest first; with a fraction, it lies between two clocks.
"""

from dataclasses import dataclass
from enum import IntFlag

import numpy as np
import numpy.typing as npt

from triplepoint.simulate.heat.parameters import LimitConfig
from triplepoint.simulate.power.gpu import Clocks, Float, Int64

Bool = npt.NDArray[np.bool_]

_ROUNDING_S = 1e-9
"""Remaining time of a slowdown that counts as none. Unit: s."""


class Reason(IntFlag):
    """Reasons for throttled clocks, with NVML's bits (nvmlClocksEventReasons)."""

    IDLE = 0x1
    POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SW_THERMAL = 0x20
    HW_THERMAL = 0x40
    POWER_BRAKE = 0x80


COUNTED = {
    Reason.POWER_CAP: "gpu_power_cap_s",
    Reason.SW_THERMAL: "gpu_sw_thermal_s",
    Reason.HW_THERMAL: "gpu_hw_thermal_s",
    Reason.POWER_BRAKE: "gpu_power_brake_s",
}
"""Reasons whose time the driver counts, with the telemetry column of that counter."""


@dataclass
class ClockState:
    """Clocks of devices and their limits; arrays of shape (num_nodes, num_devices).

    Attributes:
        allowed: Clock that the power limit allows, with its fraction.
        requested: Clock that the governor has raised to so far, at most `allowed`, with its fraction.
        ceiling: Highest clock that the driver's temperature limit allows, with its fraction.
        slowdown_left_s: Remaining time of the hardware slowdown. Unit: s.
        is_slowed: Whether the hardware slowdown is active.
        index: Clock in force.
        is_held: Whether temperature or a power brake limits any device.
        has_slowdown: Whether the hardware slowdown is active on any device.
    """

    allowed: Float
    requested: Float
    ceiling: Float
    slowdown_left_s: Float
    is_slowed: Bool
    index: Int64
    is_held: bool = False
    has_slowdown: bool = False


def free_clocks(table: Clocks, shape: tuple[int, ...]) -> ClockState:
    """Return the highest clocks, without throttling."""
    index = np.full(shape, len(table.mhz) - 1, dtype=np.int64)
    highest = index.astype(float)
    return ClockState(highest, highest.copy(), highest.copy(), np.zeros(shape), np.zeros(shape, dtype=np.bool_), index)


class Governor:
    """Governor of the clocks of all devices.

    Attributes:
        growth: Relative growth of clock-dependent power from each clock to the next; shape (num_clocks,).
        rise_step: Most clocks by which the driver raises a clock in a control period.
    """

    def __init__(self, table: Clocks, limits: LimitConfig, rise: float, brake: Bool, period_s: float) -> None:
        """Prepare the tables.

        Args:
            table: Clocks of the GPU type.
            limits: Temperature limits of the GPU type.
            rise: Share of the highest clock by which the driver raises clocks in a second. Unit: 1/s.
            brake: Devices whose power brake is active; shape (num_nodes, num_devices).
            period_s: Control period. Unit: s.
        """
        self._brake, self._is_braked = brake, bool(brake.any())
        self._lowest, self._highest = np.zeros((1, 1)), np.full((1, 1), len(table.mhz) - 1.0)
        switching = table.energy_share * table.share
        growth = switching[1:] / switching[:-1] - 1.0
        self.growth = np.append(growth, growth[-1])
        self._slowdown_index = table.nearest(table.mhz * limits.slowdown_share.value)
        max_c, slowdown_c = limits.max_temperature.value, limits.slowdown_temperature.value
        cool_c, release_c = max_c - limits.hysteresis.value, slowdown_c - limits.hysteresis.value
        self._cool_c, self._slowdown_c = cool_c, slowdown_c
        # Four temperatures divide the scale into zones, and the effect of heat depends on the zone alone: one search
        # finds it, and most of the time of a simulation is spent here.
        self._zones_c = np.sort([cool_c, release_c, max_c, slowdown_c])
        zone_start_c = np.append(-np.inf, self._zones_c)
        indices_per_share = (len(table.mhz) - 1) / (1.0 - float(table.share[0]))
        thermal_step = limits.thermal_slew.value * period_s * indices_per_share
        self.rise_step = rise * period_s * indices_per_share
        self._ceiling_step = thermal_step * (zone_start_c < cool_c) - thermal_step * (zone_start_c >= max_c)
        # The time of a slowdown runs only once the die has cooled below the release temperature.
        self._elapsed_s = -period_s * (zone_start_c < release_c)
        self._restart_s = limits.release_time.value * (zone_start_c >= slowdown_c)

    def steer(self, state: ClockState, spare_w: Float, clocked_w: Float, temp_c: Float, max_temp_c: float) -> None:
        """Set the clocks of the next period from the measurements of the last one.

        Args:
            state: State of the clocks; changed.
            spare_w: Power limit less power; shape (num_nodes, num_devices), as the next two. Unit: W.
            clocked_w: Power that depends on the clock. Unit: W.
            temp_c: Die temperatures. Unit: degC.
            max_temp_c: The highest die temperature. Unit: degC.
        """
        change = spare_w / (clocked_w * self.growth.take(state.index))
        change += state.requested
        np.maximum(change, self._lowest, out=change)
        state.allowed = np.minimum(change, self._highest, out=change)
        state.requested = np.minimum(state.allowed, state.requested + self.rise_step)
        # Temperatures are nearly always below all limits, and most of the time of a simulation is spent here.
        if self._is_braked or state.is_held or max_temp_c >= self._cool_c:
            self._limit_by_heat_and_brake(state, temp_c, max_temp_c)
        else:
            state.index = state.requested.astype(np.int64)

    def _limit_by_heat_and_brake(self, state: ClockState, temp_c: Float, max_temp_c: float) -> None:
        """Update the ceiling and the hardware slowdown, and set the clocks; arguments as `steer`."""
        zone = self._zones_c.searchsorted(temp_c, side="right")
        state.ceiling = np.minimum(np.maximum(state.ceiling + self._ceiling_step[zone], self._lowest), self._highest)
        state.index = np.minimum(state.requested, state.ceiling).astype(np.int64)
        if self._is_braked or state.has_slowdown or max_temp_c >= self._slowdown_c:
            left_s = np.maximum(state.slowdown_left_s + self._elapsed_s[zone], self._restart_s[zone])
            state.slowdown_left_s, state.is_slowed = left_s, left_s > _ROUNDING_S
            state.has_slowdown = bool(np.count_nonzero(state.is_slowed))
            is_reduced = state.is_slowed | self._brake if self._is_braked else state.is_slowed
            state.index = np.where(is_reduced, self._slowdown_index[state.index], state.index)
        has_ceiling = bool(np.minimum.reduce(state.ceiling, axis=None) < self._highest)
        state.is_held = self._is_braked or state.has_slowdown or has_ceiling

    def reasons(self, allowed: Float, ceiling: Float, is_slowed: Bool, is_held: Bool | bool) -> Int64:
        """Return the reasons for throttled clocks, bits of `Reason`; arguments as in `ClockState`, at any times.

        Args:
            allowed: Shape (..., num_nodes, num_devices), as the next two. A clock that is still rising to the highest
                is not throttled.
            ceiling: Highest clock that the temperature limit allows.
            is_slowed: Whether the hardware slowdown is active.
            is_held: Whether temperature or a power brake limits any device; shape (...).

        Returns:
            Bits; shape (..., num_nodes, num_devices).
        """
        brake = self._brake & np.asarray(is_held)[..., None, None]
        # Whole clocks: if both limits give the same clock, the reason is the power limit.
        is_thermal = np.floor(ceiling) < np.floor(allowed)
        is_capped = (allowed < self._highest) & ~is_thermal
        is_active = {
            Reason.POWER_CAP: is_capped,
            Reason.HW_SLOWDOWN: is_slowed | brake,
            Reason.SW_THERMAL: is_thermal,
            Reason.HW_THERMAL: is_slowed,
            Reason.POWER_BRAKE: brake,
        }
        return np.asarray(sum(np.int64(reason) * active for reason, active in is_active.items()))
