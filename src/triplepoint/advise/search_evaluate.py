"""What a search knows of one configuration: whether it fits, its time, power and heat on few nodes, and on all."""

import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.advise.search_space import Row
from triplepoint.config.base import parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import run_id
from triplepoint.config.point import Point
from triplepoint.errors import PointError
from triplepoint.predictions import Configuration, Request, request_of
from triplepoint.simulate.heat.nodes import is_known, node_power_of
from triplepoint.simulate.heat.warm import Warm
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.predict.point import job_on_cluster
from triplepoint.simulate.predict.power import nodes_power_w
from triplepoint.simulate.predict.prediction import Prediction, predict_warm, read_calibrations
from triplepoint.status import PredictionStatus
from triplepoint.units import GIB

_WHERE = "search"


@dataclass(frozen=True)
class Candidate:
    """One configuration with what is known of it; NaN where that was not worked out.

    Attributes:
        row: Its settings.
        request: Its point, and why it cannot run.
        fits_probability: That it fits in memory, 0 to 1.
        memory_gib: Peak on the fullest rank.
        prediction: Of its step.
        num_nodes: Nodes it takes.
        node_power_w: Mean of a node at the plug.
        node_power_peak_w: Highest of any node at the plug, over a control period.
        job_power_peak_w: The same of all its nodes together.
        followed: Whose heat was followed: of no node, of few that stand for others, or of all.
    """

    row: Row
    request: Request
    fits_probability: float = math.nan
    memory_gib: float = math.nan
    prediction: Prediction = Prediction(PredictionStatus.INVALID)
    num_nodes: int = 1
    node_power_w: float = math.nan
    node_power_peak_w: float = math.nan
    job_power_peak_w: float = math.nan
    followed: str = "none"

    @property
    def run(self) -> str:
        """Run id of its point."""
        return run_id(self.point)

    @property
    def point(self) -> Point:
        """Its point."""
        return self.request.point

    @property
    def step_time_s(self) -> float:
        """Predicted time of a step. Unit: s."""
        return self.prediction.step_time_s


def look(row: Row, config: Path, least_fit: float) -> Candidate:
    """Return whether a configuration is legal and fits, and its time where it does, at the calibrated clocks.

    Args:
        row: Its settings.
        config: Folder of the configuration.
        least_fit: Probability of fitting in memory below which nothing more is worked out.

    Raises:
        UserError: If a setting is wrong.
    """
    request = request_of(parse(Configuration, row, _WHERE), _WHERE, 1, _catalogue(config))
    found = Candidate(row, request, num_nodes=request.point.num_nodes)
    if request.invalid_because:
        return _refused(found, request.invalid_because)
    try:
        job, cluster = job_on_cluster(request.point, config, request.stack)
        memory = peak_memory(job)
        found = replace(found, fits_probability=memory.fits_probability, memory_gib=memory.total / GIB)
        if found.fits_probability < least_fit:
            reason = f"does not fit: {memory.explain()}"
            return replace(found, prediction=Prediction(PredictionStatus.OOM, reason, memory_gib=found.memory_gib))
        calibration = read_calibrations(config)[0]
        prediction, _ = predict_warm(job, calibration, config, cluster, with_power=False, memory=memory)
    except PointError as error:
        return _refused(found, str(error))
    return replace(found, prediction=prediction)


def follow(candidate: Candidate, config: Path, with_few_nodes: bool) -> Candidate:
    """Return a configuration with its power and heat, and its time at the clocks that these leave.

    Args:
        candidate: One that fits.
        config: Folder of the configuration.
        with_few_nodes: Whether nodes may stand for others, see `simulate.heat.alike`.
    """
    request = candidate.request
    try:
        job, cluster = job_on_cluster(request.point, config, request.stack)
        calibration = read_calibrations(config)[0]
        prediction, warm = predict_warm(job, calibration, config, cluster, with_few_nodes=with_few_nodes)
    except PointError as error:
        return _refused(candidate, str(error))
    if warm is None or not is_known(job.gpu, config):
        return replace(candidate, prediction=prediction)
    followed = "few" if with_few_nodes and not cluster.conditions.slows_gpus else "all"
    mean_w, peak_w, all_w = node_power(warm, config)
    return replace(
        candidate, prediction=prediction, followed=followed,
        node_power_w=mean_w, node_power_peak_w=peak_w, job_power_peak_w=all_w,
    )  # fmt: skip


def node_power(warm: Warm[Any], config: Path) -> tuple[float, float, float]:
    """Return power of nodes at the plug: mean, highest of one, highest of all together. Unit: W."""
    watts, weight = nodes_power_w(warm, node_power_of(warm.load.job.gpu, config)), warm.seats.weight.max(axis=1)
    return float(np.average(watts.mean(axis=0), weights=weight)), float(watts.max()), float((watts @ weight).max())


def _refused(candidate: Candidate, reason: str) -> Candidate:
    return replace(candidate, prediction=Prediction(PredictionStatus.INVALID, reason))


@cache
def _catalogue(config: Path) -> Catalogue:
    return Catalogue(config)
