"""Runs that start on idle nodes: dies are cool and clocks high until temperatures have settled."""

from dataclasses import dataclass, replace

import numpy as np

from triplepoint.simulate.heat.clocks import free_clocks
from triplepoint.simulate.heat.loop import State, Trace, run
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.power.gpu import Float

_SETTLING_STEPS = 2
"""Steps that a warm job needs until its clocks are those of a warm step."""


@dataclass(frozen=True, eq=False)
class FromRest:
    """A job whose first steps are simulated over time, starting on idle nodes.

    Attributes:
        machine: The nodes, with fans as they run under the job's load.
        profile: Profile of a step at the highest clocks, with one bin per control period.
        step_s: Approximate length of a warm step. Unit: s.
        mean_w: Mean power of every device over a warm step; shape (num_nodes, num_devices). Unit: W.
    """

    machine: Machine
    profile: Profile
    step_s: float
    mean_w: Float

    def follow(self, num_steps: int, warm_s: float) -> tuple[Trace, Float]:
        """Return power, heat and clocks of the first steps, and the times of the steps in that trace.

        Args:
            num_steps: Number of steps; the trace has one more.
            warm_s: Length of the simulated step of the warm job; the trace is scaled so that its warm step has that
                length. Unit: s.

        Returns:
            The trace; and the start of every step and the end of the last, shape (num_steps + 1,). Unit: s.
        """
        _, warm_edges_s = _run(self, self.mean_w, _SETTLING_STEPS)
        trace, edges_s = _run(self, self.machine.idle_w, num_steps)
        scale = warm_s / float(warm_edges_s[-1] - warm_edges_s[-2])
        return replace(trace, period_s=trace.period_s * scale), edges_s * scale


def _run(job: FromRest, before_w: Float, num_steps: int) -> tuple[Trace, Float]:
    """Return `num_steps` steps and one more, after a long time at constant power, and the times of the steps.

    Args:
        job: The job.
        before_w: Power of every device before the first step. Unit: W.
        num_steps: Number of steps.
    """
    fine = replace(job.machine, period_s=job.step_s / len(job.profile.duration_s))
    state = State(fine.network.steady(before_w), free_clocks(fine.table, fine.shape))
    trace = run(fine, job.profile, (num_steps + 1) * job.step_s, state)
    ends_s = trace.period_s * np.arange(len(trace.rate) + 1)
    position_s = np.append(0.0, trace.position_s)
    return trace, np.interp(job.profile.step_s * np.arange(num_steps + 1), position_s, ends_s)
