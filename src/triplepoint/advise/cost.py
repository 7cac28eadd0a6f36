"""Predicted cost of a plan before it is launched: what exists, and time, GPU hours and energy of every run."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.plan import Plan, PlanEntry, PlannedRun
from triplepoint.config.point import Point, canonical
from triplepoint.errors import UserError
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.predict.model import Prediction, predict
from triplepoint.simulate.predict.point import STACKS, predict_point
from triplepoint.status import RESULTS, Status
from triplepoint.units import KILO, S_PER_HOUR

State = Literal["done", "failed", "missing"]

STATES: tuple[State, ...] = ("done", "failed", "missing")
START_S = 120.0
"""Wall time of a launch besides its steps: processes, communicators, weights, traces. Assumed, not measured."""

_UNPRICED = frozenset(
    {"steps", "trace_ranks", "telemetry_period_s", "repeat", "seed", "corpus", "tokenizer", "contents"}
)
"""Fields of a point that the simulated time of a step does not depend on."""

_MANY = 200
"""Points from which on starting processes pays: a point takes some 5 ms."""


@dataclass(frozen=True)
class Existing:
    """What is there of one run.

    Attributes:
        state: done (a result), failed (attempts that left no result) or missing. All but done are launched.
        status: Outcome of what is there: ok, oom, invalid, or how the last attempt failed; empty if missing.
        duration_s: Wall time of the launch that is there, None without one. Unit: s.
    """

    state: State
    status: str = ""
    duration_s: float | None = None


def find_existing(planned: PlannedRun, results: Path) -> Existing:
    """Return what `results` has of a run.

    A manifest that is damaged, or of another point, counts as a failed attempt: the run is launched again.

    Args:
        planned: The run.
        results: Folder of results.
    """
    folder = results / "runs" / planned.run
    manifest = _read(folder / "raw" / "manifest.json")
    if manifest is not None and manifest.get("digest") != planned.digest:
        manifest = {}
    if manifest is not None and manifest.get("status") in RESULTS:
        return Existing("done", manifest["status"], manifest.get("duration_s"))
    attempts = sorted((folder / "attempts").glob("*/manifest.json"))
    last = _read(attempts[-1]) if attempts else manifest
    if last is not None:
        return Existing("failed", str(last.get("status", "damaged")))
    return Existing("missing")


def typical_duration_s(found: Iterable[Existing]) -> float | None:
    """Return the median wall time of launches that ended well, None if there is none. Unit: s."""
    durations = [one.duration_s for one in found if one.status == Status.OK and one.duration_s is not None]
    return statistics.median(durations) if durations else None


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of a manifest, empty if it is damaged, None if it is not there.

    Only three keys are needed of it, and a study has thousands: checking all of it takes ten times as long.
    """
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


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
        UserError: If the calibration or the description of a machine is missing or wrong.
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
    predict_one = partial(_predict, config=config)
    if len(points) < _MANY:
        return [predict_one(point) for point in points]
    with ProcessPoolExecutor() as pool:
        return list(pool.map(predict_one, points, chunksize=_MANY // 4))


def _predict(point: Point, config: Path) -> Prediction:
    if point.cluster.device == "cpu":
        return Prediction("unsupported", "processors are not simulated")
    if point.task == "inference":
        return predict_point(point, config).step
    catalogue, calibration = _load(config)
    try:
        return predict(job_of(point, catalogue, STACKS.get(point.engine)), calibration, config, with_power=False)
    except UserError as error:
        return Prediction("unsupported", str(error))


@cache
def _load(config: Path) -> tuple[Catalogue, Calibration]:
    return Catalogue(config), Calibration.load(config)


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
