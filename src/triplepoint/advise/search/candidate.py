"""Candidates of a search: memory and time of a configuration, and its power and heat on a few or all nodes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from triplepoint.advise.search.space import Row, with_power_limit
from triplepoint.config.base import parse
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.plan import run_id
from triplepoint.config.point import Point
from triplepoint.errors import PointError
from triplepoint.predictions import Configuration, Request, request_of
from triplepoint.prices import TOKENS_PRICED, UNPRICED, Prices
from triplepoint.simulate.heat.nodes import node_power_of
from triplepoint.simulate.heat.warm import Warm, WarmUp
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import MemoryUse, peak_memory
from triplepoint.simulate.power.node import rack_power_w
from triplepoint.simulate.predict.point import job_on_cluster
from triplepoint.simulate.predict.power import highest_w, nodes_power_w, plug_power_w
from triplepoint.simulate.predict.prediction import ColdJob, Prediction, predict_times, read_calibrations
from triplepoint.status import PredictionStatus
from triplepoint.units import GIB

_WHERE = "search"


@dataclass(frozen=True)
class Candidate:
    """A configuration and its predicted quantities; NaN for those not computed.

    Attributes:
        row: Settings of the configuration.
        request: Its point, and the reason if it cannot run.
        config: Folder of the configuration.
        fits_probability: Probability of fitting in memory, 0 to 1.
        memory_gib: Peak memory of the fullest rank. Unit: GiB.
        memory: Peak memory by purpose.
        prediction: Prediction of its step.
        num_nodes: Number of nodes.
        node_power_w: Mean power of a node at the plug. Unit: W.
        node_power_peak_w: Highest power of any node at the plug over a control period. Unit: W.
        rack_power_peak_w: Highest power of any rack over a control period, if all nodes were simulated and racks are
            known. Unit: W.
        job_power_peak_w: Highest power of all nodes together over a control period. Unit: W.
        cost_per_mtoken: Cost of a million tokens, with prices. Unit: currency.
        energy_cost_share: Share of energy in the cost, 0 to 1.
        power_limit_w: Power limit of every GPU instead of that of the cluster; None: that of the cluster. Unit: W.
        followed: Nodes whose heat was simulated: `none`, `few` that represent the others, or `all`.
    """

    row: Row
    request: Request
    config: Path
    fits_probability: float = math.nan
    memory_gib: float = math.nan
    memory: MemoryUse | None = None
    prediction: Prediction = Prediction(PredictionStatus.INVALID)
    num_nodes: int = 1
    node_power_w: float = math.nan
    node_power_peak_w: float = math.nan
    rack_power_peak_w: float = math.nan
    job_power_peak_w: float = math.nan
    cost_per_mtoken: float = math.nan
    energy_cost_share: float = 0.0
    power_limit_w: float | None = None
    followed: str = "none"

    @property
    def run(self) -> str:
        """Run id of the point."""
        return run_id(self.point)

    @property
    def point(self) -> Point:
        """The point; with a power limit, on a cluster of that limit, see `with_power_limit`."""
        point = self.request.point
        if self.power_limit_w is None:
            return point
        name = with_power_limit(_catalogue(self.config).cluster(point.cluster.name), self.power_limit_w).name
        return point.model_copy(update={"cluster": point.cluster.model_copy(update={"name": name})})

    @property
    def step_time_s(self) -> float:
        """Predicted step time. Unit: s."""
        return self.prediction.step_time_s


def look(rows: Sequence[Row], config: Path, least_fit: float) -> dict[Point, Candidate]:
    """Return candidates: whether they can run and fit in memory, and their time at calibrated clocks.

    Args:
        rows: Settings of configurations. Of those with the same point, such as an empty overlap, only the first counts.
        config: Folder of the configuration.
        least_fit: Probability of fitting in memory below which no time is computed.

    Returns:
        Candidate by point.

    Raises:
        UserError: If a setting is invalid.
    """
    found: dict[Point, Candidate] = {}
    jobs: dict[Point, tuple[Job, MemoryUse]] = {}
    memory_of = cache(peak_memory)
    for row in rows:
        request = request_of(parse(Configuration, row, _WHERE), _WHERE, 1, _catalogue(config))
        if (point := request.point) in found:
            continue
        one = Candidate(row, request, config, num_nodes=point.num_nodes)
        found[point] = one
        if request.invalid_because:
            found[point] = refused(one, request.invalid_because)
            continue
        try:
            job, cluster = job_on_cluster(point, config, request.stack)
            # Overlap does not change memory.
            memory = memory_of(replace(job, overlap=frozenset()))
        except PointError as error:
            found[point] = refused(one, str(error))
            continue
        memory_gib = memory.total / GIB
        one = replace(one, fits_probability=memory.fits_probability, memory_gib=memory_gib, memory=memory)
        if memory.fits_probability < least_fit:
            reason = f"does not fit: {memory.explain()}"
            one = replace(one, prediction=Prediction(PredictionStatus.OOM, reason, memory_gib=memory_gib))
        else:
            jobs[point] = job, memory
        found[point] = one
    if jobs:
        times = predict_times(list(jobs.values()), read_calibrations(config)[0], config, cluster)
        found |= {point: replace(found[point], prediction=one) for point, one in zip(jobs, times, strict=True)}
    return found


@dataclass(frozen=True, eq=False)
class Cold:
    """A candidate that fits in memory, at the clocks of the calibration: power and heat can be predicted from there.

    Attributes:
        candidate: The candidate.
        config: Folder of the configuration.
        with_few_nodes: Whether a few nodes may represent the others, see `simulate.heat.alike`.
        cluster: The cluster, with its own power limits.
        job: The simulated job.
    """

    candidate: Candidate
    config: Path
    with_few_nodes: bool
    cluster: ClusterConfig
    job: ColdJob

    @classmethod
    def of(cls, candidate: Candidate, config: Path, with_few_nodes: bool) -> "Cold":
        """Simulate a candidate; arguments are those of the class. Raises `PointError` if it cannot run."""
        job, cluster = job_on_cluster(candidate.request.point, config, candidate.request.stack)
        calibration = read_calibrations(config)[0]
        cold = ColdJob.of(job, calibration, config, cluster, candidate.memory)
        return cls(candidate, config, with_few_nodes, cluster, cold)

    def warm_up(self, limit_w: float | None) -> WarmUp[Any]:
        """Return the way of the job to its steady state at a power limit of every GPU; None: that of the cluster."""
        cluster = with_power_limit(self.cluster, limit_w)
        return WarmUp.of(self.job.load, self.job.reload, cluster, self.config, self.with_few_nodes)

    def follow(self, limit_w: float | None, warm_up: WarmUp[Any] | None, prices: Prices = UNPRICED) -> Candidate:
        """Return the candidate with power and heat, and its time at the resulting clocks.

        Args:
            limit_w: Power limit of every GPU. None: that of the cluster. Unit: W.
            warm_up: Result of `warm_up` at this limit. None: power and heat of this GPU type are not known.
            prices: Prices for the cost; none: no cost.

        Raises:
            PointError: If GPUs would shut down.
        """
        warm = warm_up.steady if warm_up else None
        found = replace(self.candidate, prediction=self.job.prediction(warm), power_limit_w=limit_w)
        if warm is not None:
            found = replace(found, followed="few" if self._is_few else "all")
            found = self.with_peaks(found, warm)
        return _priced(found, prices)

    def with_peaks(self, candidate: Candidate, warm: Warm[Any], share: float = 0.0) -> Candidate:
        """Return a candidate with the power of a warm job at the plug; `share` is that of `highest_w`."""
        mean_w, node_w, job_w = plug_power_w(warm, self.config, share)
        rack_w = math.nan
        if self.cluster.nodes_per_rack and not self._is_few:
            watts = nodes_power_w(warm, node_power_of(warm.load.job.gpu, self.config))
            numbers, step = range(watts.shape[1]), self.cluster.nodes_per_rack
            rack_w = highest_w(rack_power_w(watts, [numbers[low : low + step] for low in numbers[::step]]), share)
        return replace(
            candidate, node_power_w=mean_w, node_power_peak_w=node_w, rack_power_peak_w=rack_w, job_power_peak_w=job_w
        )

    @property
    def _is_few(self) -> bool:
        """Whether a few nodes represent the others."""
        conditions = self.cluster.conditions
        return self.with_few_nodes and conditions == conditions.without_faults and not conditions.power_limits_w


def _priced(one: Candidate, prices: Prices) -> Candidate:
    """Return a candidate with its cost, if prices are given and the priced quantities are known."""
    step_s, tokens_per_s = one.step_time_s, one.prediction.tokens_per_s_per_gpu * one.point.num_gpus
    gpu_s, energy_j = step_s * one.point.num_gpus, one.node_power_w * one.num_nodes * step_s
    of_step, of_gpus = prices.cost(gpu_s, energy_j), replace(prices, kwh=None).cost(gpu_s, energy_j)
    if math.isnan(of_step):
        return one
    share = 0.0 if prices.kwh is None else 1.0 - (0.0 if math.isnan(of_gpus) else of_gpus / of_step)
    return replace(one, cost_per_mtoken=of_step * TOKENS_PRICED / (tokens_per_s * step_s), energy_cost_share=share)


def refused(candidate: Candidate, reason: str) -> Candidate:
    """Return a candidate that cannot run, and why."""
    return replace(candidate, prediction=Prediction(PredictionStatus.INVALID, reason))


@cache
def _catalogue(config: Path) -> Catalogue:
    return Catalogue(config)
