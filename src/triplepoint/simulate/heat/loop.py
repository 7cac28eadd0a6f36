"""Closed loop over time: activity determines power, power heats dies, both set clocks, and clocks set the job's speed.

The job runs at the speed of its slowest device, and the others work as slowly. The position in the job gives the place
in its profile, so that power is the mean over exactly the work of a control period, whatever the clocks.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from triplepoint.simulate.heat.clocks import ClockState, Governor, Reason, free_clocks
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.network import propagator
from triplepoint.simulate.power.gpu import Float, Int64

AT_REST = 1e-9
"""Share of the time that a device is awake, below which it is idle."""


@dataclass
class State:
    """State of a machine and its job.

    Attributes:
        heat: State of the thermal network; shape (num_nodes, 3 num_devices). Unit: K.
        clocks: Clocks and their limits.
        position_s: Position in the job, as time at the highest clocks. Unit: s.
        rate: Speed of the job over that at the highest clocks.
    """

    heat: Float
    clocks: ClockState
    position_s: float = 0.0
    rate: float = 1.0


@dataclass(frozen=True, eq=False)
class Trace:
    """Power, temperature and clocks by control period; arrays of shape (num_periods, num_nodes, num_devices).

    Attributes:
        period_s: Length of a period. Unit: s.
        power_w: Mean power over each period. Unit: W.
        temp_c: Die temperature at the end of each period; in a trace of `Periodic`, at its beginning. Unit: degC.
        clock_mhz: Clock over each period. Unit: MHz.
        reasons: Reasons for throttled clocks, bits of `Reason`.
        slowdown: Time of the device's work over that at the highest clock.
        rate: Speed of the job over that at the highest clocks; shape (num_periods,).
        position_s: Position in the job at the end of each period, as time at the highest clocks; shape (num_periods,).
            Unit: s.
        repeats: Whether the trace is periodic, such as one step of many.
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
    """Return the state of a machine at the temperature of its inlet, with the highest clocks."""
    return State(machine.network.at_rest(), free_clocks(machine.table, machine.shape))


def run(
    machine: Machine, profile: Profile, duration_s: float, state: State | None = None, is_closed: bool = True
) -> Trace:
    """Simulate a machine that repeats the step of a job.

    Args:
        machine: The nodes.
        profile: Profile of a step at the highest clocks.
        duration_s: Time to simulate. Unit: s.
        state: State at the beginning; changed to that at the end. None: that of `start`.
        is_closed: Whether clocks follow power and temperature; otherwise they stay as in the state.
    """
    state = start(machine) if state is None else state
    num_periods = max(1, round(duration_s / machine.period_s))
    stepper = _Stepper(machine, profile, state, num_periods)
    for index in range(num_periods):
        stepper.step(index, is_closed)
    return stepper.trace()


class _Stepper:
    """Simulation of one control period after the other, with arrays that are allocated once."""

    def __init__(self, machine: Machine, profile: Profile, state: State, num_periods: int) -> None:
        power, table, shape = machine.power, machine.table, machine.shape
        self._machine, self._state, self._period_s, self._table = machine, state, machine.period_s, table
        self._integral = profile.integral(power, shape)
        self._bin_integral = np.diff(self._integral, axis=0)
        self._edges_s = [0.0, *np.cumsum(profile.duration_s).tolist()]
        self._step_s = profile.step_s
        self._can_rest = bool((self._bin_integral[:, 2] < AT_REST).any())
        self._propagator = machine.step.both
        self._column = np.concatenate([state.heat, np.zeros(shape)], axis=-1)[..., None]
        self._num_states = state.heat.shape[1]
        self._fixed_w, self._most_w = power.base.value + power.memory_idle.value, power.excursion_limit.value
        self._leakage_share = table.voltage_share**power.leakage_voltage_exponent.value
        self._leakage_growth = power.leakage_growth.value
        # Leakage at the inlet temperature, because states are relative to it.
        self._inlet_leakage_w = power.leakage.value * machine.devices.leakage * np.exp(
            self._leakage_growth * (machine.inlet_c[:, None] - power.leakage_temperature.value)
        )  # fmt: skip
        self._shutdown_k = machine.heat.limits.shutdown_temperature.value - machine.inlet_c[:, None]
        self._clock_energy = table.energy_share * table.share
        self._governor = Governor(
            table, machine.heat.limits, machine.power.clock_rise.value,
            machine.braked, self._period_s,
        )  # fmt: skip
        self._limits_w, self._inlet_c = machine.limits_w, machine.inlet_c[:, None]
        self._twin = machine.twin if (machine.twin != np.arange(shape[1])).any() else None
        self._num_steps, self._steps_integral = 0.0, 0.0 * self._integral[-1]
        self._done = self._integral_to(state.position_s)
        full = (num_periods, *shape)
        self._power_w, self._rise_k, self._slowdown = np.empty(full), np.empty(full), np.empty(full)
        self._allowed, self._index = np.empty(full), np.empty(full, dtype=np.int64)
        # Ceilings and slowdowns are recorded only in periods in which temperature or a brake limits a device.
        self._ceiling, self._is_slowed = np.full(full, float(len(table.mhz))), np.zeros(full, dtype=np.bool_)
        self._is_held = np.zeros(num_periods, dtype=np.bool_)
        self._rate, self._position_s = np.empty(num_periods), np.empty(num_periods)

    def _integral_to(self, position_s: float) -> Float:
        """Return the integral of the profile up to a position in any of its repetitions."""
        num_steps, within_s = divmod(position_s, self._step_s)
        index = min(bisect_right(self._edges_s, within_s) - 1, len(self._edges_s) - 2)
        low_s, high_s = self._edges_s[index], self._edges_s[index + 1]
        if num_steps != self._num_steps:
            self._num_steps, self._steps_integral = num_steps, num_steps * self._integral[-1]
        part = (within_s - low_s) / (high_s - low_s)
        return np.asarray(self._steps_integral + self._integral[index] + part * self._bin_integral[index])

    def step(self, period: int, is_closed: bool) -> None:
        """Simulate one control period and record it."""
        state, clocks = self._state, self._state.clocks
        moved_s = state.rate * self._period_s
        state.position_s += moved_s
        done = self._integral_to(state.position_s)
        traffic_w, work_w, awake_w, bound, streams = (done - self._done) * (1.0 / moved_s)
        self._done = done
        index, heat = clocks.index, self._column[:, : self._num_states, 0]
        if self._can_rest:
            index = np.where(awake_w < AT_REST, 0, index)
        slowdown = 1.0 + bound * self._table.stretch[index] + streams * self._table.starved[index]
        energy = self._machine.table.energy_share[index]
        # A view: from the product below on, it holds the temperatures at the end of the period.
        rise_k = heat[:, : index.shape[1]]
        # Leakage stops growing at the shutdown temperature, where a real device turns off.
        leakage_w = (
            self._inlet_leakage_w
            * np.exp(self._leakage_growth * np.minimum(rise_k, self._shutdown_k))
            * self._leakage_share[index]
        )
        clocked_w = leakage_w + state.rate * work_w * energy + awake_w * self._clock_energy[index]
        # Hardware limits power to this within less than a control period.
        power_w = np.minimum(clocked_w + (self._fixed_w + state.rate * traffic_w), self._most_w)
        self._column[:, self._num_states :, 0] = power_w
        self._column[:, : self._num_states] = self._propagator @ self._column
        self._power_w[period], self._rise_k[period], self._slowdown[period] = power_w, rise_k, slowdown
        self._allowed[period], self._index[period] = clocks.allowed, index
        if clocks.is_held:
            self._is_held[period], self._ceiling[period] = True, clocks.ceiling
            if clocks.has_slowdown:
                self._is_slowed[period] = clocks.is_slowed
        self._rate[period], self._position_s[period] = state.rate, state.position_s
        if is_closed:
            self._steer(power_w, clocked_w, rise_k)
        state.rate = 1.0 / float(np.maximum.reduce(slowdown, axis=None))

    def _steer(self, power_w: Float, clocked_w: Float, rise_k: Float) -> None:
        """Set the clocks of the next period."""
        if self._twin is not None:
            # The package has one limit: the governor sees half of its power on each of its devices.
            power_w, clocked_w = (0.5 * (watts + watts[:, self._twin]) for watts in (power_w, clocked_w))
        temp_c = rise_k + self._inlet_c
        self._governor.steer(
            self._state.clocks, self._limits_w - power_w, clocked_w, temp_c,
            float(np.maximum.reduce(temp_c, axis=None)),
        )  # fmt: skip

    def trace(self) -> Trace:
        """Return the recorded periods, and set the state to that at the end."""
        self._state.heat = self._column[:, : self._num_states, 0].copy()
        reasons = self._governor.reasons(self._allowed, self._ceiling, self._is_slowed, self._is_held)
        if self._can_rest:
            is_idle = (self._index == 0) & (self._allowed >= 1.0) & ((reasons & ~int(Reason.POWER_CAP)) == 0)
            reasons = np.where(is_idle, int(Reason.IDLE), reasons)
        return Trace(
            self._period_s, self._power_w, self._rise_k + self._inlet_c, self._machine.table.mhz[self._index], reasons,
            self._slowdown, self._rate, self._position_s,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Steady:
    """A job after its machine has warmed up.

    Attributes:
        trace: The last step, or a few control periods if those are longer.
        slowdown: Mean slowdown of every device over the trace; shape (num_nodes, num_devices).
        step_s: Length of a step. Unit: s.
        elapsed_s: Time until then. Unit: s.
        is_settled: Whether temperatures have settled.
        state: State of the machine then.
    """

    trace: Trace
    slowdown: Float
    step_s: float
    elapsed_s: float
    is_settled: bool
    state: State


def settle(machine: Machine, profile: Profile, tolerance_k: float = 0.05, max_leaps: int = 100) -> Steady:
    """Warm up a machine until temperatures no longer change from step to step.

    Steps are simulated one by one at the control period. Between two of them, the thermal network leaps ahead by a time
    constant of the sinks, under the mean power of the step before.

    Args:
        machine: The nodes.
        profile: Profile of a step at the highest clocks.
        tolerance_k: Largest change of any state over a leap that counts as none. Unit: K.
        max_leaps: Number of leaps after which to stop, for example because clocks keep changing.
    """
    state, elapsed_s, is_settled = start(machine), 0.0, False
    window_s = max(profile.step_s, 4 * machine.period_s)
    leap_s = max(window_s, machine.cooled_by.sink_time.value)
    leap = propagator(machine.network, leap_s)
    trace = run(machine, profile, window_s, state)
    for _ in range(max_leaps):
        before = state.heat
        state.heat = leap(state.heat, trace.power_w.mean(axis=0))
        trace = run(machine, profile, window_s / float(trace.rate.mean()), state)
        elapsed_s += leap_s + len(trace.rate) * machine.period_s
        if is_settled := bool(np.abs(state.heat - before).max() < tolerance_k):
            break
    step_s = profile.step_s / float(trace.rate.mean())
    return Steady(trace, trace.slowdown.mean(axis=0), step_s, elapsed_s, is_settled, state)
