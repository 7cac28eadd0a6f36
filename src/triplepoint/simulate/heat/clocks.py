"""Throttling: by the power limit, heat or a power brake; with NVML's names of reasons.

The driver steers by the power of the last control period: it moves the clock to where a straight line through that
power meets the limit, down at once and up no faster than its slew. So power passes the limit for a period where load
rises; where load comes and goes clocks stay near what its heaviest part leaves, and the mean lies below the limit.
"""

from dataclasses import dataclass
from enum import IntFlag

import numpy as np
import numpy.typing as npt

from triplepoint.simulate.heat.parameters import LimitConfig
from triplepoint.simulate.power.gpu import Clocks, Float, Int64

Bool = npt.NDArray[np.bool_]

_ROUNDING = 1e-9


class Reason(IntFlag):
    """Causes for lower clocks, with NVML's bits (nvmlClocksEventReasons)."""

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
"""Causes whose time the driver counts, and the column of the telemetry that shows it."""


@dataclass
class ClockState:
    """What holds the clocks of devices; arrays of shape (num_nodes, num_devices).

    Attributes:
        wanted: Place of the clock the power limit leaves, with its fraction.
        asked: Place that the governor has come to on its way there.
        ceiling: Place of the highest clock the driver's thermal limit leaves, with its fraction.
        slowed_s: How long the hardware's slowdown still holds. Unit: s.
        is_slowed: Whether it does.
        place: Place of the clock in force.
        is_held: Whether heat or a brake holds any of them.
        is_cut: Whether the hardware's slowdown holds any of them.
    """

    wanted: Float
    asked: Float
    ceiling: Float
    slowed_s: Float
    is_slowed: Bool
    place: Int64
    is_held: bool = False
    is_cut: bool = False


def free_clocks(table: Clocks, shape: tuple[int, ...]) -> ClockState:
    """Return clocks that nothing throttles."""
    top = np.full(shape, len(table.mhz) - 1, dtype=np.int64)
    highest = top.astype(float)
    return ClockState(highest, highest, highest, np.zeros(shape), np.zeros(shape, dtype=np.bool_), top)


class Governor:
    """Clocks of all devices, period after period.

    Attributes:
        growth: By place, how much more power goes with the next clock, relative.
    """

    def __init__(self, table: Clocks, limits: LimitConfig, rise: float, brake: Bool, period_s: float) -> None:
        """Prepare the tables.

        Args:
            table: Clocks of the GPU type.
            limits: Its temperatures.
            rise: Share of the highest clock by which the driver raises clocks in a second.
            brake: Devices whose power brake is pulled; shape (num_nodes, num_devices).
            period_s: How often the driver looks. Unit: s.
        """
        self._brake, self._is_braked = brake, bool(brake.any())
        self._lowest, self._top = np.zeros((1, 1)), np.full((1, 1), len(table.mhz) - 1.0)
        switching = table.energy_share * table.share
        growth = switching[1:] / switching[:-1] - 1.0
        self.growth = np.append(growth, growth[-1])
        self._cut = table.nearest(table.mhz * limits.slowdown_share.value)
        highest, slowdown = limits.max_temperature.value, limits.slowdown_temperature.value
        watch, release = highest - limits.hysteresis.value, slowdown - limits.hysteresis.value
        self._watch_c, self._slowdown_c = watch, slowdown
        # What heat does depends on the zone between limits a die is in: one look tells, most of the time goes here.
        self._zones_c = np.sort([watch, release, highest, slowdown])
        lower = np.append(-np.inf, self._zones_c)
        a_share = (len(table.mhz) - 1) / (1.0 - float(table.share[0]))
        slew = limits.thermal_slew.value * period_s * a_share
        self._rise = rise * period_s * a_share
        self._lift = slew * (lower < watch) - slew * (lower >= highest)
        # Time runs only once it is cool again.
        self._tick_s = -period_s * (lower < release)
        self._restart_s = limits.release_time.value * (lower >= slowdown)

    def steer(self, state: ClockState, over_w: Float, movable_w: Float, temp_c: Float, hottest_c: float) -> None:
        """Set clocks for the next period from what the last one measured.

        Args:
            state: Changed in place.
            over_w: What power limits leave unused; negative above the limit. Unit: W.
            movable_w: Power that goes with the clock. Unit: W.
            temp_c: Die temperatures. Unit: degC.
            hottest_c: The highest of them. Unit: degC.
        """
        moved = over_w / (movable_w * self.growth.take(state.place))
        state.wanted = np.minimum(np.maximum(state.asked + moved, self._lowest), self._top)
        state.asked = np.minimum(state.wanted, state.asked + self._rise)
        # Nearly always nothing is near a limit, and most of the time goes here.
        if self._is_braked or state.is_held or hottest_c >= self._watch_c:
            self._hold(state, temp_c, hottest_c)
        else:
            state.place = state.asked.astype(np.int64)

    def _hold(self, state: ClockState, temp_c: Float, hottest_c: float) -> None:
        zone = self._zones_c.searchsorted(temp_c, side="right")
        state.ceiling = np.minimum(np.maximum(state.ceiling + self._lift[zone], self._lowest), self._top)
        state.place = np.minimum(state.asked, state.ceiling).astype(np.int64)
        if self._is_braked or state.is_cut or hottest_c >= self._slowdown_c:
            state.slowed_s = np.maximum(state.slowed_s + self._tick_s[zone], self._restart_s[zone])
            state.is_slowed = state.slowed_s > _ROUNDING
            state.is_cut = bool(np.count_nonzero(state.is_slowed))
            is_lower = state.is_slowed | self._brake if self._is_braked else state.is_slowed
            state.place = np.where(is_lower, self._cut[state.place], state.place)
        state.is_held = self._is_braked or state.is_cut or bool(np.minimum.reduce(state.ceiling, axis=None) < self._top)

    def reasons(self, wanted: Float, ceiling: Float, is_slowed: Bool, is_held: Bool | bool) -> Int64:
        """Return why clocks are throttled, bits of `Reason`; arguments as `ClockState` has them, over any times.

        Args:
            wanted: Shape (..., num_nodes, num_devices), as the next two. Clocks that only rise again count as free.
            ceiling: Left by heat.
            is_slowed: Whether the hardware's slowdown holds.
            is_held: Shape (...).
        """
        brake = self._brake & np.asarray(is_held)[..., None, None]
        # Whole places: where both leave the same clock, it is the power limit that holds it.
        is_soft = np.floor(ceiling) < np.floor(wanted)
        is_capped = (wanted < self._top) & ~is_soft
        causes = {
            Reason.POWER_CAP: is_capped,
            Reason.HW_SLOWDOWN: is_slowed | brake,
            Reason.SW_THERMAL: is_soft,
            Reason.HW_THERMAL: is_slowed,
            Reason.POWER_BRAKE: brake,
        }
        return np.asarray(sum(np.int64(cause) * holds for cause, holds in causes.items()))
