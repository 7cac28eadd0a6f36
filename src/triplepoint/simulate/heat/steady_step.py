"""Simulation of one step of a job in thermal steady state, with or without a power brake."""

import math
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from triplepoint.simulate.heat.loop import Loop, Trace, settle
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.periodic import Periodic
from triplepoint.simulate.power.gpu import Activity, Float

_MAX_WARMING_PERIODS = 64
"""Control periods of a step while a machine with a power brake warms up; the period is longer for long steps."""
_SETTLED_K, _MAX_LEAPS = 0.2, 24
"""A machine has warmed up once a leap changes no temperature by more; sensors show whole degrees."""
_BRAKED_TRACE_S = 10.0
"""Least length of the trace under a power brake, of as many steps as it takes: heat throttles clocks in turns. Unit:
s."""
_EQUAL_POWER, _MAX_TRACES, _MAX_PERIODS = 0.001, 20, 16_000
"""Traces are equal if their mean power differs by less than this share; simulated traces until then, at most; and their
control periods in all, at most, not counting the first two traces."""


class SteadyStep(NamedTuple):
    """A periodic trace of one or several steps.

    Attributes:
        trace: The trace.
        is_steady: Whether the steps before had the same mean power.
        num_steps: Number of steps in the trace.
        ceiling: Index of the clock that the temperature limit allows every device, with its fraction; shape
            (num_nodes, num_devices). None under a power brake.
    """

    trace: Trace
    is_steady: bool
    num_steps: int = 1
    ceiling: Float | None = None


def simulate_steady_step(
    machine: Machine, profile: Profile, start_w: Float, step_s: float, ceiling: Float | None = None
) -> SteadyStep:
    """Simulate a step of a job in thermal steady state.

    Args:
        machine: The nodes.
        profile: Profile of a step at the highest clocks, with one bin per control period.
        start_w: Approximate mean power of every device; shape (num_nodes, num_devices). Unit: W.
        step_s: Approximate length of the step. Unit: s.
        ceiling: Approximate clocks that the temperature limit allows, see `SteadyStep`. None: unknown.
    """
    if machine.braked.any():
        return _simulate_braked(machine, profile, step_s)
    # With locked clocks, stages differ on purpose: the timeline sets the length of the step, not its slowest device.
    fixed_s = step_s if machine.clock_limit_mhz.size else None
    periodic = Periodic(machine, profile, step_s, ceiling)
    return SteadyStep(periodic.settle_held(start_w, fixed_s), is_steady=True, ceiling=periodic.ceiling)


def _simulate_braked(machine: Machine, profile: Profile, step_s: float) -> SteadyStep:
    """Warm up a machine with a power brake over time, then simulate traces until two of them are equal."""
    num_steps = max(1, math.ceil(_BRAKED_TRACE_S / profile.step_s))
    profile, trace_s = _repeat(profile, num_steps), num_steps * step_s
    coarse = replace(machine, period_s=max(machine.period_s, profile.step_s / _MAX_WARMING_PERIODS))
    warm = settle(coarse, profile, _SETTLED_K, _MAX_LEAPS)
    fine = replace(machine, period_s=trace_s / len(profile.duration_s))
    loop, state = Loop(fine, profile), replace(warm.state, position_s=0.0)
    trace, is_steady = loop.run(warm.step_s, state), False
    for _ in range(max(1, min(_MAX_TRACES, _MAX_PERIODS // len(profile.duration_s)))):
        before, trace = trace, loop.run(warm.step_s, state)
        is_steady = abs(float(trace.power_w.mean() / before.power_w.mean()) - 1.0) < _EQUAL_POWER
        if is_steady:
            break
    return SteadyStep(replace(trace, repeats=True), is_steady, num_steps)


def _repeat(profile: Profile, number: int) -> Profile:
    """Return `number` steps in a row."""
    columns = {part.name: getattr(profile.activity, part.name) for part in fields(profile.activity)}
    activity = Activity(**{name: np.tile(np.asarray(column), (number, 1)) for name, column in columns.items()})
    return Profile(np.tile(profile.duration_s, number), activity, profile.kind)
