"""Closed loop over time: activity determines power, power heats dies, both set clocks, and clocks set the job's speed.

The job runs at the speed of its slowest device, and the others work as slowly. The position in the job gives the place
in its profile, so that power is the mean over exactly the work of a control period, whatever the clocks. The steps are
in C, in `stretches/`.
"""

from dataclasses import dataclass

import numpy as np

from triplepoint.simulate.heat import _stretches
from triplepoint.simulate.heat.clocks import ClockState, Governor, Reason, free_clocks
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.network import propagator
from triplepoint.simulate.power.gpu import Clocks, Float, Int64
from triplepoint.simulate.power.parameters import PowerConfig

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


def clock_effects(table: Clocks, power: PowerConfig, governor: Governor) -> Float:
    """Return what each clock changes.

    Returns:
        Shape (6, num_clocks): `stretch` and `starved` of `Clocks`, share of leakage, `energy_share`, power of the clock
        tree over that at the highest clock, growth of power to the next clock.
    """
    return np.stack([
        table.stretch, table.starved, table.voltage_share**power.leakage_voltage_exponent.value,
        table.energy_share, table.energy_share * table.share, governor.growth,
    ])  # fmt: skip


def device_limits(machine: Machine) -> tuple[Float, Float, Float]:
    """Return power limit in W, leakage at the inlet temperature in W, and rise over the inlet at the shutdown in K.

    Returns:
        Three arrays of shape (num_nodes, num_devices).
    """
    power, inlet_c = machine.power, machine.inlet_c[:, None]
    # At the inlet temperature, because states are relative to it.
    growth = np.exp(power.leakage_growth.value * (inlet_c - power.leakage_temperature.value))
    shutdown_k = np.broadcast_to(machine.heat.limits.shutdown_temperature.value - inlet_c, machine.shape)
    return machine.limits_w, power.leakage.value * machine.devices.leakage * growth, shutdown_k


def numbers_of(power: PowerConfig, governor: Governor, scale: float = 1.0) -> tuple[float, ...]:
    """Return the numbers that the loops in C need; see `_stretches.run`.

    Args:
        power: Power parameters of the GPU type.
        governor: Governor of the clocks.
        scale: Length of the step over that of its profile.
    """
    fixed_w = power.base.value + power.memory_idle.value
    return power.leakage_growth.value, fixed_w, power.excursion_limit.value, scale, governor.rise_step, AT_REST


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
    return Loop(machine, profile).run(duration_s, start(machine) if state is None else state, is_closed)


class Loop:
    """A machine that repeats the step of a job, prepared for simulation through time."""

    def __init__(self, machine: Machine, profile: Profile) -> None:
        """Prepare the arrays; arguments as in `run`."""
        power, shape = machine.power, machine.shape
        self._machine, self._step_s = machine, profile.step_s
        self._edges_s = np.append(0.0, np.cumsum(profile.duration_s))
        self._integral = np.ascontiguousarray(profile.integral(power, shape))
        self._can_rest = bool((np.diff(self._integral[:, 2], axis=0) < AT_REST).any())
        self._governor = governor = Governor(
            machine.table, machine.heat.limits, power.clock_rise.value, machine.braked, machine.period_s
        )
        self._tables = clock_effects(machine.table, power, governor)
        inlet_c = np.broadcast_to(machine.inlet_c[:, None], shape)
        self._values = np.stack([*device_limits(machine), inlet_c, machine.braked])
        self._propagator = np.ascontiguousarray(machine.step.both.swapaxes(1, 2))

    def run(self, duration_s: float, state: State, is_closed: bool = True) -> Trace:
        """Simulate for a time; arguments and result as those of the function `run`."""
        machine, governor, clocks = self._machine, self._governor, state.clocks
        number = max(1, round(duration_s / machine.period_s))
        full = (number, *machine.shape)
        record, index, is_slowed = np.empty((5, *full)), np.empty(full, dtype=np.int64), np.empty(full, dtype=np.bool_)
        rate, position_s, job = np.empty(number), np.empty(number), np.array([state.position_s, state.rate])
        numbers = (*numbers_of(machine.power, governor), machine.period_s, self._step_s, is_closed)
        state.heat = np.array(state.heat, order="C")
        _stretches.follow(
            self._edges_s, self._integral, self._tables, self._values, machine.twin, self._propagator,
            np.array(numbers), governor.zones, governor.slowdown_index, record, is_slowed, index, rate, position_s,
            clocks.allowed, clocks.requested, clocks.index, clocks.ceiling, clocks.slowdown_left_s, state.heat, job,
        )  # fmt: skip
        is_steered = np.full(number, clocks.is_steered or is_closed)
        is_steered[0] = clocks.is_steered
        clocks.is_steered |= is_closed
        state.position_s, state.rate = float(job[0]), float(job[1])
        power_w, rise_k, slowdown, allowed, ceiling = record
        reasons = governor.reasons(allowed, ceiling, is_slowed, is_steered)
        if self._can_rest:
            is_idle = (index == 0) & (allowed >= 1.0) & ((reasons & ~int(Reason.POWER_CAP)) == 0)
            reasons = np.where(is_idle, int(Reason.IDLE), reasons)
        return Trace(
            machine.period_s, power_w, rise_k + machine.inlet_c[:, None], machine.table.mhz[index], reasons, slowdown,
            rate, position_s,
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
    leap, loop = propagator(machine.network, leap_s), Loop(machine, profile)
    trace = loop.run(window_s, state)
    for _ in range(max_leaps):
        before = state.heat
        state.heat = leap(state.heat, trace.power_w.mean(axis=0))
        trace = loop.run(window_s / float(trace.rate.mean()), state)
        elapsed_s += leap_s + len(trace.rate) * machine.period_s
        if is_settled := bool(np.abs(state.heat - before).max() < tolerance_k):
            break
    step_s = profile.step_s / float(trace.rate.mean())
    return Steady(trace, trace.slowdown.mean(axis=0), step_s, elapsed_s, is_settled, state)
