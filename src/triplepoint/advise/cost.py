"""Predicted cost of a plan before it is launched: time, GPU hours and energy of every run."""

import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from triplepoint.advise.existing import Existing, find_existing
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.plan import Plan, PlanEntry
from triplepoint.config.point import Point, canonical
from triplepoint.simulate.predict.point import predict_point
from triplepoint.simulate.predict.prediction import Prediction
from triplepoint.status import Status
from triplepoint.units import KILO, S_PER_HOUR

START_S = 120.0
"""Wall time of a launch besides its steps: processes, communicators, weights, traces. Assumed, not measured."""

_UNPRICED = frozenset(
    {"steps", "trace_ranks", "telemetry_period_s", "repeat", "seed", "corpus", "tokenizer", "contents"}
)
"""Fields of a point that the simulated time of a step does not depend on."""

_MANY = 200
"""Points from which on starting processes pays: a point takes some 5 ms."""


@dataclass(frozen=True)
class RunCost:
    """One run of the plan with what it is expected to take.

    Attributes:
        entry: The run.
        existing: What is there of it.
        prediction: Of one step and of memory.
        wall_s: Of the launch: the steps and `START_S`; a run predicted out of memory takes the start alone. No more
            than the time limit. NaN if not predicted. Unit: s.
        wall_hi_s: The same at the upper end of the step time's 90 % interval. Unit: s.
        num_gpus: GPUs of the nodes it takes; whole nodes are allocated.
        num_at_once: Runs like it that the cluster has room for.
        board_power_w: Power limit of those GPUs together, 0 on cpu. Unit: W.
    """

    entry: PlanEntry
    existing: Existing
    prediction: Prediction
    wall_s: float
    wall_hi_s: float
    num_gpus: int
    num_at_once: int
    board_power_w: float

    @property
    def is_ahead(self) -> bool:
        """Whether it is still to be launched, or simulated."""
        return self.existing.state != "done"

    @property
    def is_simulated(self) -> bool:
        """Whether a simulation takes the place of the launch: it costs no GPU hours."""
        return self.entry.planned.point.engine == "simulated"

    @property
    def gpu_hours(self) -> float:
        """GPU hours of the launch; NaN if not predicted. Unit: h."""
        return self.wall_s * self.num_gpus / S_PER_HOUR

    @property
    def board_energy_kwh(self) -> float:
        """Energy of the GPU boards if they drew their power limit throughout; NaN if not predicted. Unit: kWh.

        An upper bound of the boards for the expected time; hosts, network and cooling come on top.
        """
        return self.board_power_w * self.wall_s / S_PER_HOUR / KILO

    @property
    def is_cut_short(self) -> bool:
        """Whether the steps alone are expected to take longer than the time limit."""
        return self.wall_s >= self.entry.planned.limits.time_limit_s


def plan_cost(plan: Plan, results: Path, config: Path) -> list[RunCost]:
    """Return the cost of every valid run of a plan, in its order.

    Args:
        plan: The plan.
        results: Folder of results, for what exists already.
        config: Folder of the configuration.

    Raises:
        UserError: If the description of a cluster is missing or wrong.
    """
    catalogue = Catalogue(config)
    points = {_price_key(entry.planned.point): entry.planned.point for entry in plan.valid}
    predictions = dict(zip(points, _predict_all(list(points.values()), config), strict=True))
    costs = []
    for entry in plan.valid:
        cluster = catalogue.cluster(entry.planned.point.cluster.name)
        found, prediction = find_existing(entry.planned, results), predictions[_price_key(entry.planned.point)]
        costs.append(_run_cost(entry, found, prediction, cluster, catalogue.gpu_of(cluster)))
    return costs


def _price_key(point: Point) -> str:
    """Return what is the same for all points whose steps take the same time."""
    return canonical(point.model_dump(mode="json", exclude=set(_UNPRICED)))


def _predict_all(points: Sequence[Point], config: Path) -> list[Prediction]:
    """Return a prediction for each point, on all cores where there are many."""
    predict_one = partial(predict_point, config=config, with_power=False)
    if len(points) < _MANY:
        return [predict_one(point) for point in points]
    with ProcessPoolExecutor() as pool:
        return list(pool.map(predict_one, points, chunksize=_MANY // 4))


def _run_cost(
    entry: PlanEntry, existing: Existing, prediction: Prediction, cluster: ClusterConfig, gpu: GpuConfig | None
) -> RunCost:
    point, limit_s = entry.planned.point, entry.planned.limits.time_limit_s
    num_gpus = point.num_nodes * cluster.gpus_per_node
    board_power_w = gpu.package_power_limit.value * num_gpus / gpu.gpus_per_package if gpu else 0.0
    wall = [
        _wall_s(prediction, len(point.steps.kinds), step_s, limit_s)
        for step_s in (prediction.step_time_s, _highest_s(prediction))
    ]
    num_at_once = max(1, cluster.num_nodes // point.num_nodes)
    return RunCost(entry, existing, prediction, wall[0], wall[1], num_gpus, num_at_once, board_power_w)


def _highest_s(prediction: Prediction) -> float:
    """Return the upper end of the interval, the time itself where there is none, as of inference."""
    return prediction.step_time_s if math.isnan(prediction.step_time_hi_s) else prediction.step_time_hi_s


def _wall_s(prediction: Prediction, num_steps: int, step_s: float, limit_s: float) -> float:
    if prediction.status == Status.OOM:
        return min(START_S, limit_s)
    if math.isnan(step_s):
        return math.nan
    return min(START_S + num_steps * step_s, limit_s)
