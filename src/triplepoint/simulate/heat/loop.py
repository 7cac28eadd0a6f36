"""The closed loop: what a job does becomes power, power heat, both clocks, and clocks the speed of the job.

Everyone waits: the job goes at the speed of its slowest device, and the others do their work as slowly. Its profile is
followed by position, so that power is over exactly the work of a control period, whatever the clocks.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from triplepoint.simulate.heat.clocks import ClockState, Governor, Reason, free_clocks
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.network import propagator
from triplepoint.simulate.power.gpu import Float, Int64

AT_REST = 1e-9
"""A device that is awake for less of the time is idle."""


@dataclass
class State:
    """Where a machine stands.

    Attributes:
        heat: State of the network.
        clocks: What holds clocks.
        position_s: How far the job is, in time at the highest clocks. Unit: s.
        rate: Its speed over that at the highest clocks.
    """

    heat: Float
    clocks: ClockState
    position_s: float = 0.0
    rate: float = 1.0


@dataclass(frozen=True, eq=False)
class Trace:
    """What happened, period by period; arrays of shape (num_periods, num_nodes, num_devices).

    Attributes:
        period_s: Length of a period. Unit: s.
        power_w: Mean power over the period. Unit: W.
        temp_c: Die temperature at its end. Unit: degC.
        clock_mhz: Clock over the period. Unit: MHz.
        reasons: What held the clock down, bits of `Reason`.
        slowdown: Time the device's own work takes over that at the highest clock.
        rate: Speed of the job over that at the highest clocks; shape (num_periods,).
        position_s: How far the job is at the end of every period; shape (num_periods,). Unit: s.
        repeats: Whether it goes on from its start where it ends, as one step of many.
    """

    period_s: float
    power_w: Float
    temp_c: Float
    clock_mhz: Float
    reasons: Int64
    slowdown: Float
    rate: Float
    position_s: Float
    repeats: bool = False


def start(machine: Machine) -> State:
    """Return a machine that nothing has warmed yet."""
    return State(machine.network.at_rest(), free_clocks(machine.table, machine.shape))


def run(
    machine: Machine, profile: Profile, duration_s: float, state: State | None = None, is_closed: bool = True
) -> Trace:
    """Return what a machine does for a time, running the steps of a job one after the other.

    Args:
        machine: The nodes.
        profile: Of a step.
        duration_s: How long. Unit: s.
        state: Where the machine stands; changed. From `start` if not given.
        is_closed: Whether clocks follow power and heat; otherwise they stay where the state has them.
    """
    state = start(machine) if state is None else state
    num_periods = max(1, round(duration_s / machine.period_s))
    stepper = _Stepper(machine, profile, state, num_periods)
    for index in range(num_periods):
        stepper.step(index, is_closed)
    return stepper.trace()


class _Stepper:
    """The loop's arrays, allocated once."""

    def __init__(self, machine: Machine, profile: Profile, state: State, num_periods: int) -> None:
        power, table, shape = machine.power, machine.table, machine.shape
        self._machine, self._state, self._period_s, self._table = machine, state, machine.period_s, table
        self._integral = profile.integral(power, shape)
        self._between = np.diff(self._integral, axis=0)
        self._borders = [0.0, *np.cumsum(profile.duration_s).tolist()]
        self._step_s = profile.step_s
        self._can_rest = bool((self._between[:, 2] < AT_REST).any())
        self._both = machine.step.both
        self._column = np.concatenate([state.heat, np.zeros(shape)], axis=-1)[..., None]
        self._num_states = state.heat.shape[1]
        self._fixed, self._most_w = power.base.value + power.memory_idle.value, power.excursion_limit.value
        self._leakage = table.voltage_share**power.leakage_voltage_exponent.value
        self._growth = power.leakage_growth.value
        # Leakage over states, which stand above the inlet.
        self._leakage_at_inlet = power.leakage.value * machine.devices.leakage * np.exp(
            self._growth * (machine.inlet_c[:, None] - power.leakage_temperature.value)
        )  # fmt: skip
        self._hottest = machine.heat.limits.shutdown_temperature.value - machine.inlet_c[:, None]
        self._clock_energy = table.energy_share * table.share
        self._governor = Governor(
            table, machine.heat.limits, machine.power.clock_rise.value,
            machine.braked, self._period_s,
        )  # fmt: skip
        self._limits, self._inlet = machine.limits_w, machine.inlet_c[:, None]
        self._twin = machine.twin if (machine.twin != np.arange(shape[1])).any() else None
        self._steps, self._whole = 0.0, 0.0 * self._integral[-1]
        self._done = self._at(state.position_s)
        whole = (num_periods, *shape)
        self._power, self._warm, self._slowdown = np.empty(whole), np.empty(whole), np.empty(whole)
        self._wanted, self._place = np.empty(whole), np.empty(whole, dtype=np.int64)
        # Of heat only the periods in which it holds anything are written down.
        self._ceiling, self._is_slowed = np.full(whole, float(len(table.mhz))), np.zeros(whole, dtype=np.bool_)
        self._is_held = np.zeros(num_periods, dtype=np.bool_)
        self._rate, self._position = np.empty(num_periods), np.empty(num_periods)

    def _at(self, position_s: float) -> Float:
        """Return the profile's integral up to a position in any of its repetitions."""
        steps, within = divmod(position_s, self._step_s)
        piece = min(bisect_right(self._borders, within) - 1, len(self._borders) - 2)
        low, high = self._borders[piece], self._borders[piece + 1]
        if steps != self._steps:
            self._steps, self._whole = steps, steps * self._integral[-1]
        part = (within - low) / (high - low)
        return np.asarray(self._whole + self._integral[piece] + part * self._between[piece])

    def step(self, index: int, is_closed: bool) -> None:
        state, clocks = self._state, self._state.clocks
        moved_s = state.rate * self._period_s
        state.position_s += moved_s
        done = self._at(state.position_s)
        traffic, work, awake, bound, streams = (done - self._done) * (1.0 / moved_s)
        self._done = done
        place, heat = clocks.place, self._column[:, : self._num_states, 0]
        if self._can_rest:
            place = np.where(awake < AT_REST, 0, place)
        slowdown = 1.0 + bound * self._table.stretch[place] + streams * self._table.starved[place]
        energy = self._machine.table.energy_share[place]
        warm = heat[:, : place.shape[1]]
        # A device that would pass the temperature it turns itself off at gets no hotter in here.
        leakage = self._leakage_at_inlet * np.exp(self._growth * np.minimum(warm, self._hottest)) * self._leakage[place]
        movable = leakage + state.rate * work * energy + awake * self._clock_energy[place]
        # Hardware lets no more through, within less than a control period.
        power = np.minimum(movable + (self._fixed + state.rate * traffic), self._most_w)
        self._column[:, self._num_states :, 0] = power
        self._column[:, : self._num_states] = self._both @ self._column
        self._power[index], self._warm[index], self._slowdown[index] = power, warm, slowdown
        self._wanted[index], self._place[index] = clocks.wanted, place
        if clocks.is_held:
            self._is_held[index], self._ceiling[index] = True, clocks.ceiling
            if clocks.is_cut:
                self._is_slowed[index] = clocks.is_slowed
        self._rate[index], self._position[index] = state.rate, state.position_s
        if is_closed:
            self._steer(power, movable, warm)
        state.rate = 1.0 / float(np.maximum.reduce(slowdown, axis=None))

    def _steer(self, power: Float, movable: Float, warm: Float) -> None:
        if self._twin is not None:
            # One limit holds for the package: each of its devices is given half of what it draws.
            power, movable = (0.5 * (of + of[:, self._twin]) for of in (power, movable))
        temp = warm + self._inlet
        self._governor.steer(
            self._state.clocks, self._limits - power, movable, temp, float(np.maximum.reduce(temp, axis=None))
        )

    def trace(self) -> Trace:
        """Return what was written down, and leave the state where the loop ended."""
        self._state.heat = self._column[:, : self._num_states, 0].copy()
        reasons = self._governor.reasons(self._wanted, self._ceiling, self._is_slowed, self._is_held)
        if self._can_rest:
            is_idle = (self._place == 0) & (self._wanted >= 1.0) & ((reasons & ~int(Reason.POWER_CAP)) == 0)
            reasons = np.where(is_idle, int(Reason.IDLE), reasons)
        return Trace(
            self._period_s, self._power, self._warm + self._inlet, self._machine.table.mhz[self._place], reasons,
            self._slowdown, self._rate, self._position,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Steady:
    """A job whose machine is as warm as it gets.

    Attributes:
        trace: Its last step, or a control period where that is longer.
        slowdown: Of every device's own work, mean over it; shape (num_nodes, num_devices).
        step_s: Length of a step. Unit: s.
        elapsed_s: Time it took to get there. Unit: s.
        is_settled: Whether it got there.
        state: Where the machine stands then.
    """

    trace: Trace
    slowdown: Float
    step_s: float
    elapsed_s: float
    is_settled: bool
    state: State


def settle(machine: Machine, profile: Profile, tolerance_k: float = 0.05, most: int = 100) -> Steady:
    """Return the job's step once temperatures no longer change from step to step.

    Steps are run one by one at the control period; in between, slow parts of the network are taken ahead by whole steps
    of their mean power.

    Args:
        machine: The nodes.
        profile: Of a step.
        tolerance_k: Largest change of any state over a leap that counts as none. Unit: K.
        most: Leaps after which to give up, as where clocks never come to rest.
    """
    state, elapsed, is_settled = start(machine), 0.0, False
    window_s = max(profile.step_s, 4 * machine.period_s)
    leap_s = max(window_s, machine.cooled_by.sink_time.value)
    leap = propagator(machine.network, leap_s)
    trace = run(machine, profile, window_s, state)
    for _ in range(most):
        before = state.heat
        state.heat = leap(state.heat, trace.power_w.mean(axis=0))
        trace = run(machine, profile, window_s / float(trace.rate.mean()), state)
        elapsed += leap_s + len(trace.rate) * machine.period_s
        if is_settled := bool(np.abs(state.heat - before).max() < tolerance_k):
            break
    return Steady(trace, trace.slowdown.mean(axis=0), profile.step_s / float(trace.rate.mean()), elapsed, is_settled,
                  state)  # fmt: skip
