"""What holds clocks down: the power limit, heat, a power brake; labelled as NVML labels it.

The driver steers by the power of the last control period: it moves the clock to where a straight line through that
power meets the limit. So power passes the limit for a period where load rises; where load stays, the clock goes to and
fro between the two around the limit, which the mean power meets.
"""

from dataclasses import dataclass
from enum import IntFlag

import numpy as np
import numpy.typing as npt

from triplepoint.simulate.heat.config import LimitConfig
from triplepoint.simulate.power.model import Clocks, Float, Int64
from triplepoint.units import NS_PER_S

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
        asked: Place of the clock the power limit leaves; its fraction is kept so that mean power meets the limit.
        ceiling: Share of the highest clock the driver's thermal limit leaves.
        slowed_s: How long the hardware's slowdown still holds. Unit: s.
        place: Place of the clock in force.
        reasons: Bits of `Reason`.
        is_held: Whether heat or a brake still holds any of them.
        is_cut: Whether the hardware's slowdown still holds any of them.
    """

    asked: Float
    ceiling: Float
    slowed_s: Float
    place: Int64
    reasons: Int64
    is_held: bool = False
    is_cut: bool = False


def free_clocks(table: Clocks, shape: tuple[int, int]) -> ClockState:
    """Return clocks that nothing holds down."""
    top = np.full(shape, len(table.mhz) - 1, dtype=np.int64)
    return ClockState(top.astype(float), np.ones(shape), np.zeros(shape), top, np.zeros(shape, dtype=np.int64))


class Governor:
    """Clocks of all devices, period after period."""

    def __init__(self, table: Clocks, limits: LimitConfig, brake: Bool, period_s: float) -> None:
        """Prepare the tables.

        Args:
            table: Clocks of the GPU type.
            limits: Its temperatures.
            brake: Devices whose power brake is pulled; shape (num_nodes, num_devices).
            period_s: How often the driver looks. Unit: s.
        """
        self._table, self._limits, self._brake, self._period_s = table, limits, brake, period_s
        self._top = len(table.mhz) - 1
        switching = table.energy_share * table.share
        self._growth = np.append(switching[1:] / switching[:-1] - 1.0, 1.0)
        self._cut = table.nearest(table.mhz * limits.slowdown_share.value)
        self._lowest = float(table.share[0])
        self._slew = limits.thermal_slew.value * period_s
        self._is_braked = bool(brake.any())
        self._release_c = limits.slowdown_temperature.value - limits.hysteresis.value
        self._watch_c = limits.max_temperature.value - limits.hysteresis.value

    def steer(self, state: ClockState, over_w: Float, movable_w: Float, temp_c: Float, hottest_c: float) -> None:
        """Set clocks for the next period from what the last one measured.

        Args:
            state: Changed in place.
            over_w: What power limits leave unused; negative above the limit. Unit: W.
            movable_w: Power that goes with the clock. Unit: W.
            temp_c: Die temperatures. Unit: degC.
            hottest_c: The highest of them. Unit: degC.
        """
        moved = over_w / (movable_w * self._growth[state.place])
        state.asked = np.minimum(np.maximum(state.asked + moved, 0.0), self._top)
        state.place = state.asked.astype(np.int64)
        # Nearly always nothing is near a limit, and most of the time goes here.
        if self._is_braked or hottest_c >= self._watch_c or state.is_held:
            self._hold(state, temp_c, hottest_c)

    def _hold(self, state: ClockState, temp_c: Float, hottest_c: float) -> None:
        is_cool, is_hot = temp_c < self._watch_c, temp_c > self._limits.max_temperature.value
        ceiling = state.ceiling + self._slew * is_cool - self._slew * is_hot
        state.ceiling = np.minimum(np.maximum(ceiling, self._lowest), 1.0)
        allowed = self._table.share.searchsorted(state.ceiling + _ROUNDING, side="right") - 1
        is_soft = allowed < state.place
        state.place = np.minimum(state.place, allowed)
        state.reasons = is_soft * np.int64(Reason.SW_THERMAL)
        if self._is_braked or state.is_cut or hottest_c >= self._limits.slowdown_temperature.value:
            self._cut_clocks(state, temp_c)
        state.is_held = bool(state.is_cut or state.ceiling.min() < 1.0)

    def _cut_clocks(self, state: ClockState, temp_c: Float) -> None:
        limits = self._limits
        # Time runs only once it is cool again.
        left = np.maximum(state.slowed_s - self._period_s * (temp_c < self._release_c), 0.0)
        state.slowed_s = np.where(temp_c >= limits.slowdown_temperature.value, limits.release_time.value, left)
        is_slowed = state.slowed_s > _ROUNDING
        state.place = np.where(is_slowed | self._brake, self._cut[state.place], state.place)
        state.reasons = (
            state.reasons
            + is_slowed * np.int64(Reason.HW_THERMAL)
            + self._brake * np.int64(Reason.POWER_BRAKE)
            + (is_slowed | self._brake) * np.int64(Reason.HW_SLOWDOWN)
        )
        state.is_cut = bool(is_slowed.any())

    def power_reasons(self, asked: Float, reasons: Int64) -> Int64:
        """Return `reasons` with the power limit where it holds the clock down and heat does not hold it further."""
        is_capped = (asked < self._top) & ((reasons & int(Reason.SW_THERMAL)) == 0)
        return np.asarray(reasons | (is_capped * np.int64(Reason.POWER_CAP)))


def violation_ns(reasons: Int64, period_s: float) -> dict[Reason, Int64]:
    """Return for each counted cause how long it has held clocks down, as NVML's violation counters do.

    Args:
        reasons: Bits in force over every period; shape (num_periods, ...).
        period_s: Length of a period. Unit: s.

    Returns:
        Counters after every period, of the shape of `reasons`. Unit: ns.
    """
    period_ns = round(period_s * NS_PER_S)
    return {cause: np.cumsum((reasons & int(cause)) != 0, axis=0) * period_ns for cause in COUNTED}
