"""A run that begins on nodes at rest: dies are cool and clocks high, until heat has settled."""

from dataclasses import dataclass, replace

import numpy as np

from triplepoint.simulate.heat.clocks import free_clocks
from triplepoint.simulate.heat.loop import State, Trace, run
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.power.gpu import Activity, Float, gpu_power_w

_SETTLING_STEPS = 2
"""Steps of a job that starts warm until its clocks are those of a warm step."""


@dataclass(frozen=True, eq=False)
class FromRest:
    """A job whose first steps are followed through time.

    Attributes:
        machine: The nodes, with fans as they run under its load.
        profile: Of a step at the highest clocks, a bin for each control period.
        step_s: About the length of its step once it is warm. Unit: s.
        mean_w: Mean power of every device over that; shape (num_nodes, num_devices). Unit: W.
    """

    machine: Machine
    profile: Profile
    step_s: float
    mean_w: Float

    def follow(self, num_steps: int, warm_s: float) -> tuple[Trace, Float]:
        """Return what happens in steps from rest on, and a step more, and when each begins and the last ends in it.

        Args:
            num_steps: How many.
            warm_s: Length of the simulated step of the warm job, which that of the closed loop stands for. Unit: s.

        Returns:
            The trace, and times of shape (num_steps + 1,). Unit: s.
        """
        _, warm = _run(self, self.mean_w, _SETTLING_STEPS)
        trace, edges_s = _run(self, _rest_w(self.machine), num_steps)
        scale = warm_s / float(warm[-1] - warm[-2])
        return replace(trace, period_s=trace.period_s * scale), edges_s * scale


def _run(job: FromRest, before_w: Float, num_steps: int) -> tuple[Trace, Float]:
    """Return steps, and one more, after a long time at a power; and when each begins. Units: W, s."""
    fine = replace(job.machine, period_s=job.step_s / len(job.profile.duration_s))
    state = State(fine.network.steady(before_w), free_clocks(fine.table, fine.shape))
    trace = run(fine, job.profile, (num_steps + 1) * job.step_s, state)
    ends_s = trace.period_s * np.arange(len(trace.rate) + 1)
    position_s = np.append(0.0, trace.position_s)
    return trace, np.interp(job.profile.step_s * np.arange(num_steps + 1), position_s, ends_s)


def _rest_w(machine: Machine) -> Float:
    """Return the power of devices where nothing runs; shape (num_nodes, num_devices). Unit: W."""
    power = machine.power
    idle_w = gpu_power_w(power, Activity(awake=0.0), power.clocks.min_clock.value, machine.inlet_c)
    return np.broadcast_to(idle_w[:, None], machine.shape)
