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
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.heat.nodes import is_known, node_power_of, power_of
from triplepoint.simulate.heat.warm import Warm, slow_ranks, warm_up, with_factors
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import memory_by_stage
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.power.over_time import Meter, Stretch, read_meters, with_jitter
from triplepoint.simulate.predict.power import nodes_power_w
from triplepoint.simulate.stacks import OF_ENGINE
from triplepoint.simulate.step import costs_of

COMPARED_HZ = 0.25
"""Highest frequency at which simulated power was compared with readings, of 64 nodes every 2 s. Unit: Hz.

Source: docs/power-and-heat.md, power over time.
"""


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
        name: Run id of the point.
        step: Power of every node in a step.
        passed: Power of every node in the forward passes of a step alone.
        jitter: Relative standard deviation of step times; 0 if unknown. Unit: 1.
        global_batch_size: Sequences of a step.
        nodes_per_rack: Nodes of a rack; None if unknown.
        power_limit_w: Power limit of a GPU. Unit: W.
    """

    name: str
    step: Stretch
    passed: Stretch
    jitter: float
    global_batch_size: int
    nodes_per_rack: int | None
    power_limit_w: float


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
        cluster = cluster.model_copy(
            update={"conditions": cluster.conditions.model_copy(update={"power_limit_w": cap_w})}
        )
    jitter = job.software.step_jitter
    limit_w = power_of(cluster.conditions, job.gpu, config, cluster.name).power_limit.value
    return SimulatedPower(
        run_id(request.point),
        _stretch(job, cluster, config, is_training=True),
        _stretch(job, cluster, config, is_training=False),
        jitter.value if jitter else 0.0,
        request.point.global_batch_size,
        cluster.nodes_per_rack,
        limit_w,
    )


def _stretch(job: Job, cluster: ClusterConfig, config: Path, is_training: bool) -> Stretch:
    """Return the power of nodes over a step, or over its forward passes alone."""
    costs, slow = costs_of(job, Calibration.load(config).constants(job), config), slow_ranks(cluster, job)

    def once_more(factor: Mapping[int, float]) -> Training[Simulated]:
        step = simulate(job, costs, [0.0] * job.layout.pp, with_factors(slow, factor))
        return Training(step if is_training else forward_only(step))

    warm: Warm[Training[Simulated]] = warm_up(once_more({}), once_more, cluster, config)
    return Stretch(nodes_power_w(warm, node_power_of(job.gpu, config)), warm.load.length_s)


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
    block = [simulated.step] * (evaluations.every if evaluations else 1)
    if evaluations:
        # An evaluation consists of whole batches; its last one is not shortened.
        num_batches = math.ceil(evaluations.sequences / simulated.global_batch_size)
        block += [simulated.passed] * num_batches
    blocks = max(1, num_steps // (evaluations.every if evaluations else 1))
    stretches = with_jitter(block * blocks, simulated.jitter, seed)
    own_s = simulated.step.length_s / len(simulated.step.nodes_w)
    read_s, readings_w = read_meters(stretches, meter or Meter(own_s, own_s), seed if meter else None)
    nodes_w, period_s = swings.at_even_times(list(read_s.T), list(readings_w.T))
    notes = [] if simulated.jitter else ["the jitter of steps is not known of this software: all last equally long"]
    window_s = meter.window_s if meter else own_s
    if swings.highest_hz(period_s, window_s) > COMPARED_HZ:
        notes.append(
            f"above {COMPARED_HZ:g} Hz simulated power was never compared with measurements: faster swings follow from "
            "the model alone"
        )
    return NodePower(
        simulated.name, "simulated", np.asarray(nodes_w), period_s, window_s, simulated.nodes_per_rack, tuple(notes)
    )
