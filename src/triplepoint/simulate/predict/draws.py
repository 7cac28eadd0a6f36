"""Draws of what is unknown of a training job: power parameters, times, links, inlet and parts.

Two steps of one draw share its errors, so these cancel in their ratio as far as both depend on them alike.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from scipy.special import ndtri

from triplepoint.config.cluster import ClusterConfig
from triplepoint.errors import PointError
from triplepoint.metrics import Z90, Interval
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.heat.nodes import power_of
from triplepoint.simulate.intervals import Uncertainty
from triplepoint.simulate.job import Job
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.parameters import Estimate, PowerConfig
from triplepoint.simulate.predict.power import RATE_SHARE

NUM_DRAWS = 19
"""Draws for a 90 % interval: of 20 draws, the last is the lowest or the highest with a probability of 2 in 20. So the
interval from the lowest to the highest of 19 needs no assumption on the shape of a distribution."""
_KNOWN = ("power_limit", "least_limit", "excursion_limit", "leakage_spread")
"""Power parameters that are not drawn: limits, which a driver reports, and the spread of parts, which are drawn."""
_CLOCKS = ("min_voltage", "knee_clock", "max_voltage")
"""Parameters of clocks that are drawn."""
_MOST_SEEDS = 3
"""Sets of draws that are tried where GPUs shut down in some of them."""
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Draw:
    """A job on its cluster, with what is unknown of it drawn.

    Attributes:
        job: The job, with links and parts as drawn.
        cluster: The cluster, with speeds of GPUs and inlet as drawn.
        power_deviates: Deviation of power parameters from their values, by name. Unit: standard deviations.
        more_work: Factor on times due to wrongly counted work. It leaves power and ratios of two steps of the job as
            they are, and is not in `job` and `cluster`. Unit: 1.
    """

    job: Job
    cluster: ClusterConfig
    power_deviates: Mapping[str, float]
    more_work: float


def draw_unknowns(
    job: Job, cluster: ClusterConfig, config: Path, time_sigma: float, number: int = NUM_DRAWS, seed: int = 0
) -> list[Draw]:
    """Return draws of a job with known power; equal for equal seeds.

    Args:
        job: The job.
        cluster: Its cluster.
        config: Folder of the configuration.
        time_sigma: Standard deviation of the logarithm of the step time, see `time_sigma_of`. Unit: 1.
        number: Number of draws.
        seed: Seed of the random numbers.
    """
    power = power_of(cluster.conditions, job.gpu, config, cluster.name)
    unknown = [name for name in PowerConfig.model_fields if name not in _KNOWN and _is_unknown(getattr(power, name))]
    unknown += [name for name in _CLOCKS if _is_unknown(getattr(power.clocks, name))]
    link_sigma = {level.is_network: load_link(level.kind, config).sigma for level in reversed(job.fabric.levels)}
    rows, work = _deviates(number, len(unknown) + 4, seed), _deviates(number, 1, seed + _MOST_SEEDS)[:, 0]
    # Rates of work and counts of work are independent.
    rate_sigma, work_sigma = RATE_SHARE * time_sigma, math.sqrt(1.0 - RATE_SHARE**2) * time_sigma
    draws = list[Draw]()
    for which, (computing, network, scale_up, inlet, *of_power) in enumerate(rows.tolist(), 1):
        fabric = job.fabric
        for is_network, deviate in ((True, network), (False, scale_up)):
            fabric = fabric.faster(is_network, math.exp(deviate * link_sigma.get(is_network, 0.0)))
        # Each draw has parts of its own; seeds differ so that parts of draws of other seeds differ too.
        drawn = replace(job, fabric=fabric, draw=job.draw + which + number * seed)
        speed = math.exp(computing * rate_sigma)
        deviates, more_work = dict(zip(unknown, of_power, strict=True)), math.exp(float(work[which - 1]) * work_sigma)
        draws.append(Draw(drawn, _changed(cluster, speed, inlet), deviates, more_work))
    return draws


def simulate_draws(
    job: Job, cluster: ClusterConfig, config: Path, time_sigma: float, simulate: Callable[[Draw], _Result]
) -> list[_Result]:
    """Return the results of `NUM_DRAWS` draws in which the job runs; other arguments are those of `draw_unknowns`.

    Args:
        job: The job.
        cluster: Its cluster.
        config: Folder of the configuration.
        time_sigma: Standard deviation of the logarithm of the step time. Unit: 1.
        simulate: Returns the result of a draw; a `PointError` means that GPUs shut down in it.

    Raises:
        PointError: If GPUs shut down in most draws.
    """
    results, failed = list[_Result](), list[PointError]()
    for seed in range(_MOST_SEEDS):
        for draw in draw_unknowns(job, cluster, config, time_sigma, seed=seed):
            try:
                results.append(simulate(draw))
            except PointError as error:
                failed.append(error)
            if len(results) == NUM_DRAWS:
                return results
    raise failed[-1]


def time_sigma_of(job: Job, uncertainty: Uncertainty, calibration: Calibration) -> float:
    """Return the standard deviation of the log step time by the calibrated error of predictions.

    Args:
        job: The job.
        uncertainty: Uncertainty of its step time.
        calibration: Constants of stacks and spread of errors.
    """
    return calibration.quantile * calibration.scale(job, uncertainty) / Z90


def interval_of(value: float, drawn: Sequence[float]) -> Interval:
    """Return the 90 % interval of a number, from the lowest to the highest of its draws; it holds the number itself."""
    assert len(drawn) == NUM_DRAWS, "the level of the interval follows from the number of draws"
    return Interval(min(value, *drawn), max(value, *drawn))


def _is_unknown(parameter: object) -> bool:
    return isinstance(parameter, Estimate) and parameter.sigma > 0.0


def _deviates(number: int, num_unknown: int, seed: int) -> Float:
    """Return standard normal deviates, evenly spread in each column (a Latin hypercube); shape (number, num_unknown).

    Source:
        McKay, Beckman and Conover 1979, doi:10.1080/00401706.1979.10489755.
    """
    random = np.random.default_rng(seed)
    ranks = np.stack([random.permutation(number) for _ in range(num_unknown)], axis=1)
    return np.asarray(ndtri((ranks + random.random(ranks.shape)) / number))


def _changed(cluster: ClusterConfig, speed: float, inlet_deviate: float) -> ClusterConfig:
    """Return the cluster with a factor on the speed of all GPUs, beside that of slow ones, and another inlet."""
    slow, conditions = cluster.slow_gpus, cluster.conditions
    names = [f"node{node}.gpu{gpu}" for node in range(cluster.num_nodes) for gpu in range(cluster.gpus_per_node)]
    inlet_c = conditions.inlet_temp_c + inlet_deviate * conditions.inlet_sigma_k
    return cluster.model_copy(update={
        "slow_gpus": slow | {name: slow.get(name, 1.0) * speed for name in names},
        "conditions": conditions.model_copy(update={"inlet_temp_c": inlet_c}),
    })  # fmt: skip
