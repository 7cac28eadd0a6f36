"""Warm a simulated job up: the loop of power, heat and clocks closed, from the timeline to the GPUs' speed and back.

GPUs that are slower than the slowest sound one under usual conditions slow their ranks, and so the timeline; what runs
when changes what GPUs draw, and how slow they are, so both are gone through in turn until neither changes.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.conditions import USUAL
from triplepoint.simulate.artefacts.simulated import Heated, Simulated
from triplepoint.simulate.heat.job import (
    at_highest_clocks,
    compute_slowdown,
    machine_of,
    node_power_of,
    num_bins,
    one_step,
    stretched,
    warm_up,
)
from triplepoint.simulate.heat.machine import Profile, profile_from
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.parameters import PowerConfig
from triplepoint.simulate.power.step import NOTHING, Ran, StepPieces
from triplepoint.simulate.predict.power import predict_power
from triplepoint.units import NS_PER_S

_MOST_TURNS = 3
_STEP_OF_SPEED = 0.005
"""Speeds of GPUs are told apart in steps of this: each different one makes a replica more to simulate."""

Resimulate = Callable[[dict[int, float]], Simulated]
"""Simulates the job once more with these factors on the computation of ranks."""


def heat_up(simulated: Simulated, resimulate: Resimulate, cluster: ClusterConfig, config: Path) -> Heated:
    """Return a job in thermal steady state under the conditions of its cluster.

    Args:
        simulated: The job as calibrated.
        resimulate: Simulates it once more.
        cluster: Where it runs.
        config: Folder of the configuration.

    Raises:
        UserError: If GPUs cannot work under these conditions.
    """
    gpu, conditions = simulated.job.gpu, cluster.conditions
    shape = -(-simulated.job.num_gpus // cluster.gpus_per_node), cluster.gpus_per_node
    usual = machine_of(USUAL, gpu, shape, cluster.name, config)
    high = at_highest_clocks(step_profile(simulated, shape, usual.power), usual)
    steady = warm_up(usual, high)
    # Clocks dither, which no calibration has: under usual conditions the step is as long as calibrated.
    longer = simulated.timeline.step_time_s / steady.step_s
    machine, factor, profile = usual, dict[int, float](), stretched(high, longer)
    if conditions != USUAL:
        machine = machine_of(conditions, gpu, shape, cluster.name, config)
        slowest = float(compute_slowdown(steady, compute_shares(simulated, shape)).max())
        steady = warm_up(machine, profile)
        for _ in range(_MOST_TURNS):
            slowdown = compute_slowdown(steady, compute_shares(simulated, shape))
            if (now := _factors(slowdown / slowest, simulated.job.num_gpus)) == factor:
                break
            factor, simulated = now, resimulate(now)
            high = at_highest_clocks(step_profile(simulated, shape, usual.power), usual, 1.0 / slowdown)
            profile = stretched(high, longer)
            steady = warm_up(machine, profile)
    trace, is_steady = one_step(machine, profile, steady, simulated.timeline.step_time_s)
    num_nics = int(cluster.nics_per_node.value) if cluster.nics_per_node else cluster.gpus_per_node
    known = predict_power(ran(simulated), (math.nan, math.nan), config, conditions)
    node = node_power_of(gpu, config)
    return Heated(simulated, machine, node, num_nics, cluster.nodes_per_rack, trace, factor, is_steady, known)


def ran(simulated: Simulated) -> Ran:
    """Return what power is made of."""
    return Ran(simulated.job, simulated.stages, simulated.timeline, simulated.time_of)


def step_profile(simulated: Simulated, shape: tuple[int, int], power: PowerConfig) -> Profile:
    """Return what every device does in a step; those without a rank do nothing."""
    timeline = simulated.timeline
    pieces = StepPieces(ran(simulated), power)
    total_ns = round(timeline.step_time_s * NS_PER_S)
    places = [simulated.place(rank) for rank in range(simulated.job.num_gpus)]
    known = {place: pieces.of(*place) for place in dict.fromkeys(places)}
    idle = (np.array([0, total_ns]), NOTHING)
    devices = [known[place] for place in places] + [idle] * (shape[0] * shape[1] - len(places))
    bins_ns = np.rint(np.linspace(0, total_ns, num_bins(timeline.step_time_s) + 1)).astype(np.int64)
    return profile_from(devices, shape, bins_ns)


def compute_shares(simulated: Simulated, shape: tuple[int, int]) -> Float:
    """Return the share of the step that every device computes; shape (num_nodes, num_devices)."""
    timeline = simulated.timeline
    share = timeline.accounts.compute_s / timeline.step_time_s
    found = np.zeros(shape[0] * shape[1])
    ranks = range(simulated.job.num_gpus)
    found[: len(ranks)] = [share[simulated.place(rank)] for rank in ranks]
    return found.reshape(shape)


def _factors(slowdown: Float, num_gpus: int) -> dict[int, float]:
    """Return the ranks that are slower than usual, and how much."""
    steps = np.rint((slowdown.reshape(-1)[:num_gpus] - 1.0) / _STEP_OF_SPEED)
    return {rank: 1.0 + _STEP_OF_SPEED * float(steps[rank]) for rank in np.flatnonzero(steps > 0).tolist()}


def with_factors(slow: dict[int, float], factor: dict[int, float]) -> dict[int, float]:
    """Return the factors on the computation of ranks, of both causes."""
    return {rank: slow.get(rank, 1.0) * factor.get(rank, 1.0) for rank in sorted({*slow, *factor})}
