"""Iteration between step and clocks: activity sets power and heat, they set clocks, and clocks change the step.

An estimate has a timeline at some factors on computation, and the power, heat and clocks of that step. Each iteration
derives new factors from the clocks and simulates the step again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from triplepoint.simulate.heat.alike import NodeSample
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.steady_step import SteadyStep, simulate_steady_step
from triplepoint.simulate.heat.step_profile import PreparedStep, compute_slowdown, prepare_step_activity, seats_of
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.load import Load

_MAX_ITERATIONS = 3
"""Most iterations between step and clocks. Each simulates the step again; on 12 training jobs on H100, H200 and MI250
the step time after two is within 0.1 % of that after eight, and later ones move it back and forth by as much.

Without convergence there is no error or warning: `iterate_common_pace` returns the step at the latest pace with power
and heat of the estimate before, `iterate_factors` returns the last estimate.
"""
_EQUAL_PACE = 0.02
"""Relative change of the pace below which power and heat are not simulated again."""
_MAX_SECANTS, _SECANT_TOLERANCE, _COARSE_TOLERANCE = 6, 0.0015, 0.004
"""Most iterations of the secant method, and difference of the logarithm of factors that is ignored; of a step that
starts from a similar one, for draws of what is unknown. Energies of two steps then differ by 0.1 and 0.3 %."""
_USUAL_SLOPE, _LEAST_SLOPE = -0.5, -4.0
"""Change of the logarithm of a factor that clocks ask for, per change of that at which the step was simulated: between
none, of a locked clock, and that of a clock which the power limit throttles. First guess, and least that is used."""
_FACTOR_RESOLUTION = 0.005
"""Resolution of the factors of ranks: every distinct factor adds a replica to the simulation."""
_EQUAL_LENGTH = 0.01
"""Relative difference between the lengths of the simulated step and the timeline that is ignored: the uncertainty of
power is larger."""
_EQUAL_FLOW = 0.005
"""Difference of the fan flow, as a share of the full flow, that is ignored: 0.1 K behind the first row."""

AnyLoad = TypeVar("AnyLoad", bound=Load)
Reload = Callable[[dict[int, float]], AnyLoad]
"""Simulates the timeline of a load again, with factors on the computation of ranks, by rank."""


class Start(NamedTuple):
    """Steady state of a similar job, from which the iteration can start.

    Attributes:
        factor: Factor on the computation time of every rank, relative to the clock of its calibration.
        power_w: Mean power of every device; shape (num_nodes, num_devices). Unit: W.
        ceiling: Index of the clock that the temperature limit allows every device, with its fraction; same shape.
    """

    factor: Mapping[int, float]
    power_w: Float
    ceiling: Float


@dataclass(frozen=True, eq=False)
class Estimate(Generic[AnyLoad]):
    """A step at some factors on computation, with its power, heat and clocks.

    Attributes:
        load: The load at these factors.
        machine: The nodes, with fans that do not follow this load yet.
        prepared: Activity of the step, on nodes whose fans follow the load.
        step: The simulated step.
        factor: Factor on the computation time of ranks, by rank, relative to the clock of the calibration.
        sample: Nodes that are simulated.
        has_start: Whether it was searched from a similar steady state.
    """

    load: AnyLoad
    machine: Machine
    prepared: PreparedStep
    step: SteadyStep
    factor: dict[int, float]
    sample: NodeSample
    has_start: bool = False

    @property
    def mean_w(self) -> Float:
        """Mean power of every device; shape (num_nodes, num_devices). Unit: W."""
        return np.asarray(self.step.trace.power_w.mean(axis=0))

    @property
    def start(self) -> Start | None:
        """State from which similar jobs can start; None under a power brake."""
        ceiling = self.step.ceiling
        return None if ceiling is None else Start(self.factor, self.mean_w, ceiling)

    @property
    def compute_factor(self) -> Float:
        """Computation time of every device at these clocks over that at the calibrated clock.

        Shape (num_nodes, num_devices).
        """
        trace = self.step.trace
        # The mean over work, not over time, so that it gives the time of the whole step.
        work_s = np.diff(trace.position_s, prepend=trace.position_s[0] - trace.rate[0] * trace.period_s)
        slowdown = np.average(trace.slowdown, axis=0, weights=work_s)
        at_highest = compute_slowdown(slowdown, self.prepared.compute_share)
        return np.asarray(at_highest / self.prepared.calibrated_slowdown)

    def again(self, reload: Reload[AnyLoad], factor: dict[int, float]) -> "Estimate[AnyLoad]":
        """Estimate the step at other factors; an estimate that had a start continues from this one."""
        return estimate(reload(factor), self.machine, factor, self.sample, self.start if self.has_start else None)


def estimate(
    load: AnyLoad, machine: Machine, factor: dict[int, float], sample: NodeSample, start: Start | None = None
) -> Estimate[AnyLoad]:
    """Simulate power, heat and clocks of a step.

    Args:
        load: The load, with `factor` applied.
        machine: The nodes of the sample.
        factor: Factor on the computation time of ranks, by rank; ranks not listed have 1.
        sample: Nodes that are simulated.
        start: Powers and ceilings to start from. None: powers that the power limits allow, and clocks not limited by
            temperature.
    """
    by_device = np.ones(sample.shape[0] * sample.shape[1])
    by_device[list(factor)] = list(factor.values())
    by_device = by_device.reshape(sample.shape)[sample.nodes]
    prepared = prepare_step_activity(load, seats_of(load, sample), machine, by_device)
    ceiling = None
    if start is not None:
        prepared = prepared._replace(machine=machine.under_load(start.power_w), start_w=start.power_w)
        ceiling = start.ceiling
    step = simulate_steady_step(prepared.machine, prepared.highest_profile, prepared.start_w, load.length_s, ceiling)
    # Fans follow the simulated power, which is less than the power limits allow.
    mean_w = step.trace.power_w.mean(axis=0)
    with_fans = prepared.machine.under_load(mean_w)
    if np.abs(with_fans.fan_flow - prepared.machine.fan_flow).max() > _EQUAL_FLOW:
        prepared = prepared._replace(machine=with_fans, start_w=mean_w)
        ceiling = step.ceiling if start else None
        step = simulate_steady_step(with_fans, prepared.highest_profile, mean_w, load.length_s, ceiling)
    return Estimate(load, machine, prepared, step, factor, sample, start is not None)


def iterate_common_pace(
    first: Estimate[AnyLoad], reload: Reload[AnyLoad], first_pace: float = 1.0
) -> Estimate[AnyLoad]:
    """Find the step in which all ranks compute at the pace of the slowest clock.

    Args:
        first: Estimate at `first_pace`.
        reload: Simulates the timeline again.
        first_pace: Factor on the computation time, relative to the clock of the calibration.

    Returns:
        The last estimate, with the timeline at the pace of its slowest clock.
    """
    last, last_pace = first, first_pace
    for iteration in range(1, _MAX_ITERATIONS + 1):
        factor = common_factor(last)
        pace = factor[0]
        if iteration == _MAX_ITERATIONS or abs(pace / last_pace - 1.0) < _EQUAL_PACE:
            break
        last, last_pace = last.again(reload, factor), pace
    return replace(last, load=reload(factor), factor=factor)


def iterate_factors(
    first: Estimate[AnyLoad],
    reload: Reload[AnyLoad],
    factors_of: Callable[[Estimate[AnyLoad]], dict[int, float]],
) -> Estimate[AnyLoad]:
    """Find the step in which ranks compute at different paces, until no factor changes by half of the resolution.

    Args:
        first: The first estimate, with a factor for every rank.
        reload: Simulates the timeline again.
        factors_of: Derives the factor of every rank from an estimate.
    """
    last = first
    for _ in range(_MAX_ITERATIONS):
        factor = factors_of(last)
        if all(abs(last.factor[rank] / new - 1.0) < _FACTOR_RESOLUTION / 2 for rank, new in factor.items()):
            break
        last = last.again(reload, factor)
    return last


def solve_factors(
    first: Estimate[AnyLoad],
    reload: Reload[AnyLoad],
    factors_of: Callable[[Estimate[AnyLoad]], dict[int, float]],
) -> Estimate[AnyLoad]:
    """Find the step as `iterate_factors` does, by the secant method: for small differences between two steps.

    A slower computation lowers power and so raises clocks, and the plain iteration swings about the result, or between
    two wrong ones.

    Args:
        first: The first estimate, with a factor for every rank.
        reload: Simulates the timeline again.
        factors_of: Derives the factor of every rank from an estimate.
    """
    last, before = first, None
    ranks, tolerance = list(first.factor), _COARSE_TOLERANCE if first.has_start else _SECANT_TOLERANCE
    for _ in range(_MAX_SECANTS):
        used, factor = last.factor, factors_of(last)
        at, wanted = (np.log([each[rank] for rank in ranks]) for each in (used, factor))
        if np.abs(wanted - at).max() < tolerance:
            break
        slope = np.full(len(ranks), _USUAL_SLOPE)
        if before is not None:
            moved = at - before[0]
            is_known = np.abs(moved) > tolerance / 2
            slope[is_known] = np.clip((wanted - before[1])[is_known] / moved[is_known], _LEAST_SLOPE, 0.0)
        before = at, wanted
        new = np.exp(at + (wanted - at) / (1.0 - slope))
        last = last.again(reload, dict(zip(ranks, new.tolist(), strict=True)))
    return last


def common_factor(last: Estimate[AnyLoad]) -> dict[int, float]:
    """Return the factor of every rank if all compute at the pace of the slowest clock."""
    return dict.fromkeys(range(last.load.job.num_gpus), float(last.compute_factor.max()))


def fault_factors(last: Estimate[AnyLoad], pace: float) -> dict[int, float]:
    """Return the factor of every rank if some GPUs have faults: `pace`, or more for slower GPUs, in discrete steps.

    Args:
        last: An estimate with the faults.
        pace: Factor of the slowest GPU without the faults.
    """
    num_gpus = last.load.job.num_gpus
    excess = np.maximum(last.compute_factor.reshape(-1)[:num_gpus] / pace - 1.0, 0.0)
    steps = np.rint(excess / _FACTOR_RESOLUTION)
    return {rank: pace * (1.0 + _FACTOR_RESOLUTION * float(steps[rank])) for rank in range(num_gpus)}


def stage_factors(compute_factor: Float, load: Load) -> dict[int, float]:
    """Return the factor of every rank if each pipeline stage computes at the pace of its slowest device.

    Args:
        compute_factor: Factor on the computation time of every device; shape (num_nodes, num_devices).
        load: The load.
    """
    job = load.job
    stage = np.array([load.place(rank)[0] for rank in range(job.num_gpus)])
    pace = np.zeros(job.layout.pp)
    np.maximum.at(pace, stage, compute_factor.reshape(-1)[: job.num_gpus])
    return dict(enumerate(pace[stage].tolist()))


def match_timeline_length(last: Estimate[AnyLoad]) -> Estimate[AnyLoad]:
    """Simulate the step again with the length of its timeline if they differ: mean power depends on the length.

    The closed loop scales a step by the effect of clocks on computation alone. Hosts and links for which ranks wait do
    not follow the clocks.
    """
    trace = last.step.trace
    stretch = last.load.length_s / (trace.period_s * len(trace.rate))
    if abs(stretch - 1.0) < _EQUAL_LENGTH:
        return last
    profile = last.prepared.highest_profile
    profile = Profile(profile.duration_s * stretch, profile.activity.at_rate(1.0 / stretch), profile.kind)
    ceiling = last.step.ceiling if last.has_start else None
    step = simulate_steady_step(last.prepared.machine, profile, last.mean_w, last.load.length_s, ceiling)
    return replace(last, prepared=last.prepared._replace(highest_profile=profile), step=step)
