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
    """Clocks of devices and their limits; arrays of shape (num_nodes, num_devices), which loops change in place.

    Attributes:
        allowed: Clock that the power limit allows, with its fraction.
        requested: Clock that the governor has raised to so far, at most `allowed`, with its fraction.
        ceiling: Highest clock that the driver's temperature limit allows, with its fraction.
        slowdown_left_s: Remaining time of the hardware slowdown. Unit: s.
        index: Clock in force.
        is_steered: Whether the governor has set the clocks, as it does at the end of a period; brakes act from then on.
    """

    allowed: Float
    requested: Float
    ceiling: Float
    slowdown_left_s: Float
    index: Int64
    is_steered: bool = False


def free_clocks(table: Clocks, shape: tuple[int, ...]) -> ClockState:
    """Return the highest clocks, without throttling."""
    index = np.full(shape, len(table.mhz) - 1, dtype=np.int64)
    highest = index.astype(float)
    return ClockState(highest, highest.copy(), highest.copy(), np.zeros(shape), index)


class Governor:
    """Parameters of the governor of all devices, which `stretches/` steps in C, and the reasons for its clocks.

    Attributes:
        growth: Relative growth of clock-dependent power from each clock to the next; shape (num_clocks,).
        rise_step: Most clocks by which the driver raises a clock in a control period.
        slowdown_index: Clock under the hardware slowdown or a power brake, by the clock without; shape (num_clocks,).
        zones: Effect of heat, which depends only on the zone between two temperatures: start of the zone in degC,
            clocks by which the ceiling rises in a control period, change of the remaining time of a slowdown in s, and
            its least remaining time in s; shape (4, 5).
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
        self._brake, self._highest = brake, len(table.mhz) - 1.0
        switching = table.energy_share * table.share
        growth = switching[1:] / switching[:-1] - 1.0
        self.growth = np.append(growth, growth[-1])
        self.slowdown_index = table.nearest(table.mhz * limits.slowdown_share.value)
        max_c, slowdown_c = limits.max_temperature.value, limits.slowdown_temperature.value
        cool_c, release_c = max_c - limits.hysteresis.value, slowdown_c - limits.hysteresis.value
        start_c = np.append(-np.inf, np.sort([cool_c, release_c, max_c, slowdown_c]))
        indices_per_share = (len(table.mhz) - 1) / (1.0 - float(table.share[0]))
        thermal_step = limits.thermal_slew.value * period_s * indices_per_share
        self.rise_step = rise * period_s * indices_per_share
        self.zones = np.stack([
            start_c,
            thermal_step * (start_c < cool_c) - thermal_step * (start_c >= max_c),
            # The time of a slowdown runs only once the die has cooled below the release temperature.
            -period_s * (start_c < release_c),
            limits.release_time.value * (start_c >= slowdown_c),
        ])  # fmt: skip

    def reasons(self, allowed: Float, ceiling: Float, is_slowed: Bool, is_steered: Bool | bool) -> Int64:
        """Return the reasons for throttled clocks, bits of `Reason`; arguments as in `ClockState`, at any times.

        Args:
            allowed: Shape (..., num_nodes, num_devices), as the next two. A clock that is still rising to the highest
                is not throttled.
            ceiling: Highest clock that the temperature limit allows.
            is_slowed: Whether the hardware slowdown is active.
            is_steered: Whether the governor has set the clocks; shape (...).

        Returns:
            Bits; shape (..., num_nodes, num_devices).
        """
        brake = self._brake & np.asarray(is_steered)[..., None, None]
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
