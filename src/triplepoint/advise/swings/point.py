"""Power of the nodes of a simulated point over many steps and evaluations, as meters read it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from triplepoint import swings
from triplepoint.advise.swings.source import NodePower
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.plan import run_id
from triplepoint.errors import PointError
from triplepoint.predictions import Request
from triplepoint.simulate.artefacts.evaluation import forward_only
from triplepoint.simulate.artefacts.simulate_run import job_of, simulate
from triplepoint.simulate.artefacts.simulated import Simulated
from triplepoint.simulate.costs import Costs
from triplepoint.simulate.heat.nodes import check_power_limit, is_known, node_power_of, power_of
from triplepoint.simulate.heat.pace import Start
from triplepoint.simulate.heat.warm import Warm, slow_ranks, warm_up, with_factors
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import memory_by_stage
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.power.over_time import Meter, Stretch, read_meters, with_jitter
from triplepoint.simulate.predict.draws import Draw, simulate_draws, time_sigma_of
from triplepoint.simulate.predict.power import nodes_power_w
from triplepoint.simulate.predict.prediction import read_calibrations
from triplepoint.simulate.stacks import OF_ENGINE
from triplepoint.simulate.step import costs_of, uncertainty_of

COMPARED_HZ = 0.25
"""Highest frequency at which simulated power was compared with readings, of 64 nodes every 2 s. Unit: Hz.

Source: docs/power-and-heat.md, power over time.
"""
_DRAWN_STEPS = 96
"""Steps of each draw of what is unknown, at least; steps repeat."""


@dataclass(frozen=True)
class Evaluations:
    """Evaluations between steps.

    Attributes:
        every: Number of steps between evaluations.
        sequences: Sequences of an evaluation.
    """

    every: int
    sequences: int


@dataclass(frozen=True, eq=False)
class SimulatedPower:
    """Power of a simulated job in a step.

    Attributes:
        point: The point.
        step: Power of every node in a step.
        passed: Power of every node in the forward passes of a step alone.
        warm: The step in steady state.
    """

    point: "PowerPoint"
    step: Stretch
    passed: Stretch
    warm: Warm[Training[Simulated]]


@dataclass(frozen=True, eq=False)
class PowerPoint:
    """A point whose power is simulated.

    Attributes:
        name: Run id of the point.
        job: Its job.
        cluster: Its cluster.
        config: Folder of the configuration.
        global_batch_size: Sequences of a step.
    """

    name: str
    job: Job
    cluster: ClusterConfig
    config: Path
    global_batch_size: int

    @classmethod
    def of(cls, request: Request, config: Path, cap_w: float | None = None, draw: int = 0) -> "PowerPoint":
        """Return a point; arguments and errors are those of `simulate_power`."""
        if request.invalid_because:
            raise PointError(f"{request.where}: {request.invalid_because}")
        if request.point.task == "inference":
            raise PointError(f"{request.where}: inference; swings are simulated of training, or read from a run")
        catalogue = Catalogue(config)
        cluster = catalogue.cluster(request.point.cluster.name)
        stack = request.stack or OF_ENGINE.get(request.point.engine)
        job = replace(job_of(request.point, catalogue, stack), draw=draw)
        if not is_known(job.gpu, config):
            raise PointError(f"{request.where}: power and heat of {job.gpu.name} are not known")
        fullest = max(memory_by_stage(job), key=lambda use: use.total)
        if fullest.is_out_of_memory:
            raise PointError(f"{request.where}: {fullest.explain()}")
        if cap_w is not None:
            check_power_limit("--cap", cap_w, job.gpu, config)
            conditions = cluster.conditions.model_copy(update={"power_limit_w": cap_w})
            cluster = cluster.model_copy(update={"conditions": conditions})
        return cls(run_id(request.point), job, cluster, config, request.point.global_batch_size)

    def simulate(self) -> "SimulatedPower":
        """Return the power in a step."""
        step, passed = self._warm(is_training=True), self._warm(is_training=False)
        return SimulatedPower(self, self._stretch(step), self._stretch(passed), step)

    @property
    def jitter(self) -> float:
        """Relative standard deviation of step times; 0 if unknown. Unit: 1."""
        jitter = self.job.software.step_jitter
        return jitter.value if jitter else 0.0

    @property
    def power_limit_w(self) -> float:
        """Power limit of a GPU. Unit: W."""
        return power_of(self.cluster.conditions, self.job.gpu, self.config, self.cluster.name).power_limit.value

    def draws(self, like: "SimulatedPower") -> list["SimulatedPower"]:
        """Return the power with what is unknown of the job drawn, `NUM_DRAWS` times.

        Forward passes alone change as the whole step does.

        Args:
            like: Power without errors, from whose steady state to start.
        """

        def of_draw(draw: Draw) -> SimulatedPower:
            step = self.drawn_step(draw, like.warm.start)
            more_w = step.nodes_w.mean(axis=0) / like.step.nodes_w.mean(axis=0)
            longer = step.length_s / like.step.length_s
            return replace(like, step=step, passed=Stretch(like.passed.nodes_w * more_w, like.passed.length_s * longer))

        return simulate_draws(self.job, self.cluster, self.config, self.time_sigma(like), of_draw)

    def time_sigma(self, like: "SimulatedPower") -> float:
        """Return the standard deviation of the logarithm of the step time; `like` is its power without errors."""
        step = like.warm.load.ran
        uncertainty = uncertainty_of(step.timeline, self._costs(self.job), step.stages[step.timeline.critical_stage])
        return time_sigma_of(self.job, uncertainty, read_calibrations(self.config)[0])

    def drawn_step(self, draw: Draw, start: Start | None = None) -> Stretch:
        """Return the power in a step with what is unknown drawn.

        Args:
            draw: The job with what is unknown of it drawn.
            start: Steady state without errors, from which to start. None: start without one.
        """
        return self._stretch(self._warm(is_training=True, draw=draw, start=start), draw.more_work)

    def _costs(self, job: Job) -> Costs:
        """Return the costs of a job's operations."""
        return costs_of(job, read_calibrations(self.config)[0].constants(job), self.config)

    def _warm(
        self, is_training: bool, draw: Draw | None = None, start: Start | None = None
    ) -> Warm[Training[Simulated]]:
        """Return a step, or its forward passes alone, in thermal steady state."""
        job, cluster = (draw.job, draw.cluster) if draw else (self.job, self.cluster)
        costs, slow = self._costs(job), slow_ranks(cluster, job)

        def once_more(factor: Mapping[int, float]) -> Training[Simulated]:
            step = simulate(job, costs, [0.0] * job.layout.pp, with_factors(slow, factor))
            return Training(step if is_training else forward_only(step))

        deviates = draw.power_deviates if draw else {}
        return warm_up(once_more({}), once_more, cluster, self.config, start=start, power_deviates=deviates)

    def _stretch(self, warm: Warm[Training[Simulated]], longer: float = 1.0) -> Stretch:
        """Return the power of nodes over a step that lasts `longer` times as long at the same power."""
        nodes_w = nodes_power_w(warm, node_power_of(self.job.gpu, self.config))
        return Stretch(nodes_w, warm.load.length_s * longer)


def simulate_power(request: Request, config: Path, cap_w: float | None = None, draw: int = 0) -> SimulatedPower:
    """Return the power of a point in a step.

    Args:
        request: The point.
        config: Folder of the configuration.
        cap_w: Power limit of GPUs. None: that of the cluster. Unit: W.
        draw: Number of the draw of GPU parts.

    Raises:
        PointError: If it cannot run, is not training, or power and heat of its GPU are unknown.
    """
    return PowerPoint.of(request, config, cap_w, draw).simulate()


def over_steps(
    simulated: SimulatedPower, num_steps: int, evaluations: Evaluations | None, meter: Meter | None, seed: int = 0
) -> NodePower:
    """Return the power of nodes over steps and evaluations.

    Args:
        simulated: Power in a step.
        num_steps: Number of steps.
        evaluations: Evaluations between steps. None: no evaluations.
        meter: Meters at the plugs, read at different times. None: power as simulated, of all nodes at the same times.
        seed: Seed of the jitter of steps and of the times of readings.
    """
    point, block = simulated.point, [simulated.step] * (evaluations.every if evaluations else 1)
    if evaluations:
        # An evaluation consists of whole batches; its last one is not shortened.
        num_batches = math.ceil(evaluations.sequences / point.global_batch_size)
        block += [simulated.passed] * num_batches
    blocks = max(1, num_steps // (evaluations.every if evaluations else 1))
    stretches = with_jitter(block * blocks, point.jitter, seed)
    own_s = simulated.step.length_s / len(simulated.step.nodes_w)
    read_s, readings_w = read_meters(stretches, meter or Meter(own_s, own_s), seed if meter else None)
    nodes_w, period_s = swings.at_even_times(list(read_s.T), list(readings_w.T))
    notes = [] if point.jitter else ["the jitter of steps is not known of this software: all last equally long"]
    window_s = meter.window_s if meter else own_s
    if swings.highest_hz(period_s, window_s) > COMPARED_HZ:
        notes.append(
            f"above {COMPARED_HZ:g} Hz simulated power was never compared with measurements: faster swings follow from "
            "the model alone"
        )
    per_rack = point.cluster.nodes_per_rack
    return NodePower(point.name, "simulated", np.asarray(nodes_w), period_s, window_s, per_rack, tuple(notes))


def drawn_over_steps(
    simulated: SimulatedPower, lowest_hz: float, evaluations: Evaluations | None, meter: Meter | None, like: NodePower
) -> list[NodePower]:
    """Return the power of nodes for each draw of what is unknown, as often, over the same time or `_DRAWN_STEPS`.

    Jitter of steps and times of readings are drawn anew.

    Args:
        simulated: Power in a step without errors.
        lowest_hz: Lowest frequency that is asked about; draws last long enough to resolve it. Unit: Hz.
        evaluations: Evaluations between steps. None: no evaluations.
        meter: Meters at the plugs. None: power as simulated.
        like: Its power over many steps.
    """
    enough_s = max(_DRAWN_STEPS * simulated.step.length_s, (swings.LOWEST_PERIODS + 1) / lowest_hz)
    lasts_s, drawn = min(like.lasts_s, enough_s), list[NodePower]()
    for seed, one in enumerate(simulated.point.draws(simulated), 1):
        # Readings begin after a window and end before the last period.
        edge_s = like.period_s + like.window_s + (meter.period_s if meter else 0.0)
        number = math.ceil((lasts_s + 2.0 * edge_s) / one.step.length_s)
        number += evaluations.every if evaluations else 1
        power = over_steps(one, number, evaluations, meter, seed)
        # Without meters, samples are as far apart as those of the drawn step: others would blur it.
        times = like if meter else power
        drawn.append(replace(like, nodes_w=power.nodes_w, period_s=times.period_s, window_s=times.window_s))
    return drawn
