"""A job in thermal steady state: power, heat and clocks of its step, and the step time at those clocks.

The constants of stacks were fitted to steps at the clocks that those jobs had. The activity of a step is therefore
converted to the highest clock, and the closed loop determines the clocks that power, heat and faults allow. All ranks
compute at the pace of the slowest GPU without a fault; a GPU that is slower because of a fault has its own factor.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Generic

import numpy as np

from triplepoint.config.cluster import ClusterConfig, ConditionsConfig
from triplepoint.errors import PointError
from triplepoint.simulate.costs import expected_maximum
from triplepoint.simulate.fabric import Fabric
from triplepoint.simulate.heat.alike import NodeSample, sample_nodes
from triplepoint.simulate.heat.from_rest import FromRest
from triplepoint.simulate.heat.loop import Trace
from triplepoint.simulate.heat.machine import Machine, Profile
from triplepoint.simulate.heat.nodes import machine_of, usual_machine
from triplepoint.simulate.heat.pace import (
    AnyLoad,
    Estimate,
    Reload,
    Start,
    common_factor,
    estimate,
    fault_factors,
    iterate_common_pace,
    iterate_factors,
    match_timeline_length,
    solve_factors,
    stage_factors,
)
from triplepoint.simulate.heat.periodic import Periodic
from triplepoint.simulate.heat.step_profile import Seats, prepare_step_activity, seats_of
from triplepoint.simulate.job import Job
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.parameters import with_deviates

_MAX_USUAL_STAGES = 4
"""Stages of a long pipeline that are simulated on usual nodes."""


@dataclass(frozen=True, eq=False)
class Warm(Generic[AnyLoad]):
    """A job in thermal steady state.

    Attributes:
        load: The load at the clocks of the steady state.
        machine: The nodes.
        seats: Ranks of the devices.
        profile: Activity of a step at the clocks of the calibration.
        trace: Periodic trace of the step, or of several steps under a power brake.
        num_alike: Number of devices of a node that each device of the machine represents; shape (num_devices,).
        num_nics: Number of network adapters of a node.
        spread: Relative standard deviation of the thermal resistance of parts that are equal in the trace.
        factor: Factor on the computation time of every rank, relative to the calibrated clock; empty without a cluster.
        is_steady: Whether the steps before had the same mean power.
        fastest_s: Length of the step if all clocks were at their highest; NaN where it was not simulated. Unit: s.
        from_rest: The job with first steps on idle nodes; None without a cluster.
        start: State from which similar jobs can start; None without a cluster or under a power brake.
    """

    load: AnyLoad
    machine: Machine
    seats: Seats
    profile: Profile
    trace: Trace
    num_alike: Float
    num_nics: int
    spread: float = 0.0
    factor: Mapping[int, float] = field(default_factory=dict)
    is_steady: bool = True
    fastest_s: float = math.nan
    from_rest: FromRest | None = None
    start: Start | None = None

    @property
    def slower_ranks(self) -> list[int]:
        """Ranks that are slower than the ranks without a fault."""
        pace = min(self.factor.values(), default=1.0)
        return [rank for rank, factor in self.factor.items() if factor > pace]

    def hottest_c(self, number: int) -> Float:
        """Return the expected temperatures of the hottest of `number` parts that are equal in the trace.

        Args:
            number: Number of parts.

        Returns:
            Temperatures in the shape of `trace.temp_c`. Unit: degC.
        """
        inlet_c = self.machine.inlet_c[:, None]
        return np.asarray(inlet_c + (self.trace.temp_c - inlet_c) * (1.0 + self.spread * expected_maximum(number)))


def warm_up(
    load: AnyLoad,
    reload: Reload[AnyLoad],
    cluster: ClusterConfig,
    config: Path,
    with_few_nodes: bool = False,
    start: Start | None = None,
    power_deviates: Mapping[str, float] = MappingProxyType({}),
) -> Warm[AnyLoad]:
    """Find the thermal steady state of a job under the conditions of its cluster, and its step time there.

    Args:
        load: The load at the clocks of the calibration.
        reload: Simulates the timeline again, with factors on the computation of ranks.
        cluster: The cluster.
        config: Folder of the configuration.
        with_few_nodes: Whether nodes without faults may represent others, see `sample_nodes`: faster and slightly
            different.
        start: Steady state of a similar job to start from, for all nodes: needs a fraction of the iterations, and ranks
            without faults keep its pace. None: start at the clocks of the calibration.
        power_deviates: Deviation of power parameters from their values, see `with_deviates`.

    Raises:
        PointError: If GPUs would shut down under these conditions.
    """
    site = _Site.of(load.job, cluster, config, power_deviates)
    if start is None:
        return WarmUp(_estimate_calibrated(load, site, with_few_nodes), reload, site, with_few_nodes).steady
    return _matched(_continue_from(start, reload, site), cluster)


@dataclass(frozen=True, eq=False)
class WarmUp(Generic[AnyLoad]):
    """The way of a job from the clocks of the calibration to its thermal steady state.

    Attributes:
        calibrated: Estimate at the clocks of the calibration, without faults.
        reload: Simulates the timeline again, with factors on the computation of ranks.
        site: Nodes of the job.
        with_few_nodes: See `warm_up`.
    """

    calibrated: Estimate[AnyLoad]
    reload: Reload[AnyLoad]
    site: "_Site"
    with_few_nodes: bool

    @classmethod
    def of(
        cls, load: AnyLoad, reload: Reload[AnyLoad], cluster: ClusterConfig, config: Path, with_few_nodes: bool
    ) -> "WarmUp[AnyLoad]":
        """Estimate a job at the clocks of the calibration; arguments are those of `warm_up`."""
        site = _Site.of(load.job, cluster, config)
        return cls(_estimate_calibrated(load, site, with_few_nodes), reload, site, with_few_nodes)

    @property
    def first(self) -> Warm[AnyLoad]:
        """The job in the first estimate: its power is about right, clocks have not changed the length of its step."""
        return _warm_of(self.calibrated, self.calibrated.prepared.machine, self.site.cluster, math.nan, None)

    @cached_property
    def steady(self) -> Warm[AnyLoad]:
        """The thermal steady state. Raises `PointError` if GPUs would shut down."""
        free = _apply_faults(iterate_common_pace(self.calibrated, self.reload), self.reload, self.site)
        fastest_s = math.nan
        if not self.with_few_nodes:
            fastest_s = _length_at_highest_clocks(self.calibrated, self.reload, is_by_stage=False)
        return _matched(free, self.site.cluster, fastest_s)


def _matched(free: Estimate[AnyLoad], cluster: ClusterConfig, fastest_s: float = math.nan) -> Warm[AnyLoad]:
    """Return the steady state of the last estimate of a job whose clocks are not locked."""
    machine = free.prepared.machine
    last = free if machine.braked.any() else match_timeline_length(free)
    return _sound(_warm_of(last, machine, cluster, fastest_s, free.start))


@dataclass(frozen=True, eq=False)
class Lockable(Generic[AnyLoad]):
    """A job whose clocks can be locked; each pipeline stage has its own pace.

    Attributes:
        load: The load at `factor`.
        reload: Simulates the timeline again.
        cluster: The cluster.
        machine: The nodes.
        factor: Factor on the computation time of every rank, from which the iteration starts.
        sample: Nodes that are simulated: all.
        fastest_s: Length of the step if all clocks were at their highest; NaN where it was not simulated. Unit: s.
    """

    load: AnyLoad
    reload: Reload[AnyLoad]
    cluster: ClusterConfig
    machine: Machine
    factor: dict[int, float]
    sample: NodeSample
    fastest_s: float = math.nan

    @classmethod
    def of(cls, load: AnyLoad, reload: Reload[AnyLoad], cluster: ClusterConfig, config: Path) -> "Lockable[AnyLoad]":
        """Simulate a job without a power brake under the governor; arguments and errors are those of `warm_up`."""
        site = _Site.of(load.job, cluster, config)
        calibrated = _estimate_calibrated(load, site, with_few_nodes=False)
        free = _apply_faults(iterate_common_pace(calibrated, reload), reload, site)
        fastest_s = _length_at_highest_clocks(calibrated, reload, is_by_stage=True)
        # These nodes, and so their fan flow, stay as they are without locked clocks.
        return cls(free.load, reload, cluster, free.prepared.machine, free.factor, free.sample, fastest_s)

    @classmethod
    def like(
        cls,
        similar: Start,
        reload: Reload[AnyLoad],
        cluster: ClusterConfig,
        config: Path,
        power_deviates: Mapping[str, float],
    ) -> "Lockable[AnyLoad]":
        """Return a job that is like another one, without a simulation; other arguments are those of `warm_up`.

        Args:
            similar: Steady state of the other job, from which every simulation should start.
            reload: Simulates the timeline again.
            cluster: The cluster.
            config: Folder of the configuration.
            power_deviates: Deviation of power parameters from their values, see `with_deviates`.
        """
        factor = dict(similar.factor)
        load = reload(factor)
        site = _Site.of(load.job, cluster, config, power_deviates)
        return cls(load, reload, cluster, site.machine(site.conditions), factor, site.sample)

    def locked(self, clock_limit_mhz: Mapping[int, float], start: Start | None = None) -> Warm[AnyLoad]:
        """Return the thermal steady state with locked clocks.

        Args:
            clock_limit_mhz: Clock of pipeline stages, by stage; those of other stages are free. Unit: MHz.
            start: Steady state of a similar job with the same locked clocks to start from. None: start at `factor`.

        Raises:
            PointError: If GPUs would shut down.
        """
        machine = _lock_clocks(self.machine, self.load, clock_limit_mhz)
        if start is None:
            first = estimate(self.load, machine, self.factor, self.sample)
        else:
            first = estimate(self.reload(dict(start.factor)), machine, dict(start.factor), self.sample, start)
        # Each pipeline stage computes at the pace of its slowest device.
        last = solve_factors(first, self.reload, lambda each: stage_factors(each.compute_factor, each.load))
        return _sound(_warm_of(last, machine, self.cluster, self.fastest_s, last.start))


@dataclass(frozen=True, eq=False)
class _Site:
    """The nodes of a job on its cluster.

    Attributes:
        job: The job.
        cluster: The cluster.
        conditions: Conditions of the cluster, with the power limits of the job.
        config: Folder of the configuration.
        power_deviates: Deviation of power parameters from their values, by name. Unit: standard deviations.
    """

    job: Job
    cluster: ClusterConfig
    conditions: ConditionsConfig
    config: Path
    power_deviates: Mapping[str, float]

    @classmethod
    def of(
        cls, job: Job, cluster: ClusterConfig, config: Path, power_deviates: Mapping[str, float] = MappingProxyType({})
    ) -> "_Site":
        """Return the nodes of a job."""
        return cls(job, cluster, cluster.conditions.with_limits(dict(job.power_limits_w)), config, power_deviates)

    @property
    def has_faults(self) -> bool:
        """Whether any GPU or node has a fault."""
        return self.conditions != self.conditions.without_faults

    @property
    def sample(self) -> NodeSample:
        """A sample of all nodes."""
        per_node = self.cluster.gpus_per_node
        return NodeSample.all((-(-self.job.num_gpus // per_node), per_node))

    def machine(self, conditions: ConditionsConfig) -> Machine:
        """Return all nodes under some conditions, in the order of the job."""
        job, name = self.job, self.cluster.like or self.cluster.name
        machine = machine_of(conditions, job.gpu, self.sample.shape, name, self.config, job.draw)
        machine = replace(machine, power=with_deviates(machine.power, self.power_deviates))
        return machine.of_nodes(np.array(job.nodes)) if job.nodes else machine


def _estimate_calibrated(load: AnyLoad, site: _Site, with_few_nodes: bool) -> Estimate[AnyLoad]:
    """Estimate the step at the clocks of the calibration, without the faults of the site."""
    machine, sample = site.machine(site.conditions.without_faults), site.sample
    if with_few_nodes and not site.has_faults and not site.conditions.power_limits_w:
        sample = sample_nodes(seats_of(load, sample).stage, machine)
        machine = machine.of_nodes(sample.nodes)
    return estimate(load, machine, {}, sample)


def _apply_faults(sound: Estimate[AnyLoad], reload: Reload[AnyLoad], site: _Site) -> Estimate[AnyLoad]:
    """Add the faults of the site to a job without faults: GPUs with faults may be slower than its pace."""
    if not site.has_faults:
        return sound
    pace = min(sound.factor.values())
    first = estimate(sound.load, site.machine(site.conditions), sound.factor, sound.sample)
    return iterate_factors(first, reload, lambda last: fault_factors(last, pace))


def _continue_from(start: Start, reload: Reload[AnyLoad], site: _Site) -> Estimate[AnyLoad]:
    """Find the steady state from that of a similar job, whose pace ranks without faults keep if there are faults."""
    factor = dict(start.factor)
    first = estimate(reload(factor), site.machine(site.conditions), factor, site.sample, start)
    pace = min(factor.values())
    if site.has_faults:
        return iterate_factors(first, reload, lambda last: fault_factors(last, pace))
    if site.power_deviates:
        # Further from the similar job than the plain iteration gets.
        return solve_factors(first, reload, common_factor)
    return iterate_common_pace(first, reload, pace)


def _length_at_highest_clocks(calibrated: Estimate[AnyLoad], reload: Reload[AnyLoad], is_by_stage: bool) -> float:
    """Return the length of the step if all clocks were at their highest. Unit: s.

    Args:
        calibrated: Estimate at the clocks of the calibration, of all nodes.
        reload: Simulates the timeline again.
        is_by_stage: Whether each stage computes at its own pace.
    """
    factor, load = 1.0 / calibrated.prepared.calibrated_slowdown, calibrated.load
    if is_by_stage:
        return reload(stage_factors(factor, load)).length_s
    return reload(dict.fromkeys(range(load.job.num_gpus), float(factor.max()))).length_s


def _lock_clocks(machine: Machine, load: AnyLoad, clock_limit_mhz: Mapping[int, float]) -> Machine:
    """Return nodes with the clocks of pipeline stages locked, by stage; all nodes of the job. Unit: MHz."""
    num_nodes, num_devices = machine.shape
    limits_mhz = np.full(num_nodes * num_devices, machine.power.clocks.max_clock.value)
    for rank in range(load.job.num_gpus):
        limits_mhz[rank] = clock_limit_mhz.get(load.place(rank)[0], limits_mhz[rank])
    return replace(machine, clock_limit_mhz=limits_mhz.reshape(machine.shape))


def _warm_of(
    last: Estimate[AnyLoad], machine: Machine, cluster: ClusterConfig, fastest_s: float, start: Start | None
) -> Warm[AnyLoad]:
    """Return the steady state of an estimate, whose trace is scaled to the length of the timeline."""
    step, num_periods = last.step, len(last.step.trace.rate)
    simulated_s = step.trace.period_s * num_periods / step.num_steps
    trace = replace(step.trace, period_s=step.num_steps * last.load.length_s / num_periods)
    return Warm(
        last.load,
        machine,
        last.prepared.seats,
        last.prepared.profile,
        trace,
        num_alike=np.ones(cluster.gpus_per_node),
        num_nics=cluster.num_nics,
        factor=last.factor,
        is_steady=step.is_steady,
        fastest_s=fastest_s,
        from_rest=FromRest(machine, last.prepared.highest_profile, simulated_s, trace.power_w.mean(axis=0)),
        start=start,
    )


def _sound(warm: Warm[AnyLoad]) -> Warm[AnyLoad]:
    """Return a job; raise `PointError` if the mean temperature of a device reaches its shutdown temperature."""
    # The mean: real clocks drop faster than the simulated control period, in which the temperature may overshoot.
    hottest = warm.trace.temp_c.mean(axis=0)
    node, gpu = np.unravel_index(hottest.argmax(), hottest.shape)
    most_c = warm.machine.heat.limits.shutdown_temperature.value
    if hottest[node, gpu] >= most_c:
        raise PointError(
            f"node{node}.gpu{gpu} comes to {hottest[node, gpu]:.0f} degC under the conditions of its cluster and shuts "
            f"down at {most_c:g} degC; no job runs on it, ease them"
        )
    return warm


def warm_up_anywhere(load: AnyLoad, config: Path) -> Warm[AnyLoad]:
    """Find the thermal steady state of a job on usual nodes of its GPU type, in steps of the calibrated length.

    Parts are equal. One device represents all with the same cooling, and some stages of a long pipeline represent the
    others.

    Args:
        load: The load at the clocks of the calibration.
        config: Folder of the configuration.
    """
    job = load.job
    num_stages, per_node = job.layout.pp, job.fabric.gpus_per_node
    sampled = np.linspace(0, num_stages - 1, min(num_stages, _MAX_USUAL_STAGES))
    stages = np.unique(sampled.round().astype(np.int64))
    machine, num_alike = usual_machine(job.gpu, per_node, len(stages), config)
    nearest = np.abs(np.arange(num_stages)[:, None] - stages).argmin(axis=1)
    num_alike_stages = np.bincount(nearest)
    kind = np.repeat(np.arange(len(stages))[:, None], len(num_alike), axis=1)
    weight = num_alike_stages[:, None] * num_alike / (num_stages * num_alike.sum()) * job.num_gpus
    seats = Seats([(stage, 0) for stage in stages.tolist()], kind, weight)
    prepared = prepare_step_activity(load, seats, machine)
    periodic = Periodic(prepared.machine, prepared.highest_profile, load.length_s)
    trace = periodic.settle(prepared.start_w, load.length_s)
    num_alike_used = num_alike * (min(per_node, job.num_gpus) / num_alike.sum())
    spread = machine.heat.resistance_spread.value
    return Warm(
        load, prepared.machine, seats, prepared.profile, trace, num_alike_used, _num_nics(job.fabric), spread
    )  # fmt: skip


def _num_nics(fabric: Fabric) -> int:
    """Return the number of network adapters of a node: one per GPU, unless GPUs share them."""
    for level in fabric.levels:
        if level.num_gpus > fabric.gpus_per_node and level.single:
            return max(1, round(fabric.gpus_per_node * level.bandwidth / level.single))
    return fabric.gpus_per_node


def slow_ranks(cluster: ClusterConfig, job: Job) -> dict[int, float]:
    """Return the factor on the computation time of each rank on a GPU that the cluster lists as slow, by rank."""
    position = {node: index for index, node in enumerate(job.nodes)}
    speed_of_rank = {
        position.get(node, node) * cluster.gpus_per_node + gpu: speed for (node, gpu), speed in cluster.speeds.items()
    }
    return {rank: 1 / speed for rank, speed in speed_of_rank.items() if rank < job.num_gpus}


def with_factors(slow: Mapping[int, float], factor: Mapping[int, float]) -> dict[int, float]:
    """Return the products of two sets of factors on the computation time, by rank; a missing factor is 1."""
    if not slow:
        return dict(factor)
    return {rank: slow.get(rank, 1.0) * factor.get(rank, 1.0) for rank in sorted({*slow, *factor})}
