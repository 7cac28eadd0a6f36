"""Predicted cost of a plan before its launch: existing results, time, GPU hours, energy and the budget."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any, Literal

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.plan import Plan, PlanEntry, PlannedRun
from triplepoint.config.point import Point, canonical
from triplepoint.files import load_json
from triplepoint.processes import on_all_cores
from triplepoint.simulate.predict.point import MANY_POINTS, predict_if_configured
from triplepoint.simulate.predict.prediction import Prediction
from triplepoint.status import RESULTS, PredictionStatus, Status
from triplepoint.units import KILO, S_PER_HOUR, counted

HEADINGS = ("have", "step s", "GiB", "GPU h", "kWh")

State = Literal["done", "failed", "missing"]

STATES: tuple[State, ...] = ("done", "failed", "missing")
START_S = 120.0
"""Wall time of a launch outside its steps: processes, communicators, weights, traces. Assumed, not measured."""

LEGEND = f"""\
expected: step time and memory are simulated, of each engine's software, in brackets with every run at
    the upper end of its 90 % interval; {START_S:.0f} s of start-up a launch are assumed. Steps are at the clocks that
    constants were fitted at; `triplepoint predict` has them at those that power and heat leave
kWh: GPU boards at their power limit for the expected time, an upper bound of theirs; hosts and cooling are not in it"""

_WITHOUT_COST = frozenset(
    {"steps", "trace_ranks", "telemetry_period_s", "repeat", "seed", "corpus", "tokenizer", "contents"}
)
"""Keys of a point that do not affect the simulated step time."""


@dataclass(frozen=True)
class Existing:
    """Existing result of one run.

    Attributes:
        state: done (a result), failed (attempts without a result) or missing. All but done will be launched.
        status: Outcome: ok, oom, invalid, or how the last attempt failed; empty if missing.
        duration_s: Wall time of the finished launch; None without one. Unit: s.
    """

    state: State
    status: str = ""
    duration_s: float | None = None


def find_existing(planned: PlannedRun, results: Path) -> Existing:
    """Return the existing result of a run in a results folder.

    A manifest that is damaged or belongs to another point counts as a failed attempt: the run is launched again.
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


def typical_duration_s(runs: Iterable[Existing]) -> float | None:
    """Return the median wall time of launches with status ok; None if there is none. Unit: s."""
    durations = [run.duration_s for run in runs if run.status == Status.OK and run.duration_s is not None]
    return statistics.median(durations) if durations else None


def _read(path: Path) -> dict[str, Any] | None:
    """Return the unvalidated content of a manifest; empty if it is damaged, None if there is none.

    A study has thousands of manifests and only three keys are needed; validation would take ten times as long.
    """
    try:
        content = load_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


@dataclass(frozen=True)
class RunCost:
    """One run of the plan with its expected cost.

    Attributes:
        entry: The run.
        existing: Existing result of the run.
        prediction: Predicted step time and memory.
        wall_s: Expected wall time of the launch: `START_S` plus the steps, or `START_S` alone if it is predicted to run
            out of memory; at most the time limit. NaN if not predicted. Unit: s.
        wall_hi_s: Expected wall time at the upper end of the step time's 90 % interval. Unit: s.
        num_gpus: GPUs of the allocated nodes; whole nodes are allocated.
        num_at_once: Number of such runs that fit on the cluster at the same time.
        board_power_w: Sum of the power limits of these GPUs; 0 on cpu. Unit: W.
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
        """Whether the run has no result yet."""
        return self.existing.state != "done"

    @property
    def is_simulated(self) -> bool:
        """Whether the run is simulated and so costs no GPU hours."""
        return self.entry.planned.point.engine == "simulated"

    @property
    def gpu_hours(self) -> float:
        """GPU hours of the launch; NaN if not predicted. Unit: h."""
        return self.wall_s * self.num_gpus / S_PER_HOUR

    @property
    def board_energy_kwh(self) -> float:
        """Energy of the GPU boards at their power limit for the expected time; NaN if not predicted. Unit: kWh.

        It is an upper bound for the boards; hosts, network and cooling are not included.
        """
        return self.board_power_w * self.wall_s / S_PER_HOUR / KILO

    @property
    def is_cut_short(self) -> bool:
        """Whether the steps alone are expected to take longer than the time limit."""
        return self.wall_s >= self.entry.planned.limits.time_limit_s


def plan_cost(plan: Plan, results: Path, config: Path) -> list[RunCost]:
    """Return the cost of every valid run of a plan, in its order.

    Raises:
        UserError: If the file of a cluster is missing or invalid.
    """
    catalogue = Catalogue(config)
    points = {_cost_key(entry.planned.point): entry.planned.point for entry in plan.valid}
    predictions = dict(zip(points, _predict_all(list(points.values()), config), strict=True))
    costs = []
    for entry in plan.valid:
        cluster = catalogue.cluster(entry.planned.point.cluster.name)
        existing, prediction = find_existing(entry.planned, results), predictions[_cost_key(entry.planned.point)]
        costs.append(_run_cost(entry, existing, prediction, cluster, catalogue.gpu_of(cluster)))
    return costs


def _cost_key(point: Point) -> str:
    """Return a key that is equal for all points with the same simulated step time."""
    return canonical(point.model_dump(mode="json", exclude=set(_WITHOUT_COST)))


def _predict_all(points: Sequence[Point], config: Path) -> list[Prediction]:
    """Return a prediction for each point, computed on all cores if there are many."""
    return on_all_cores(partial(predict_if_configured, config=config, with_power=False), points, MANY_POINTS)


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
    """Return the upper end of the step time's interval; the step time itself without interval, as for inference."""
    return prediction.step_time_s if math.isnan(prediction.step_time_hi_s) else prediction.step_time_hi_s


def _wall_s(prediction: Prediction, num_steps: int, step_s: float, limit_s: float) -> float:
    """Return the expected wall time of a launch, see `RunCost.wall_s`."""
    if prediction.status == PredictionStatus.OOM:
        return min(START_S, limit_s)
    if math.isnan(step_s):
        return math.nan
    return min(START_S + num_steps * step_s, limit_s)


def cells(cost: RunCost) -> tuple[str, ...]:
    """Return the cells of one run below `HEADINGS`."""
    prediction, state = cost.prediction, cost.existing.state
    have = f"{cost.existing.status} (done)" if state == "done" else state
    numbers = (prediction.step_time_s, prediction.memory_gib, cost.gpu_hours, cost.board_energy_kwh)
    texts = ["-" if isnan(number) else f"{number:.3g}" if number < 100 else f"{number:.0f}" for number in numbers]
    return (have, *texts)


def note(cost: RunCost) -> str | None:
    """Return a warning about one run: predicted out of memory, or longer than its time limit; None for none."""
    if cost.prediction.status == PredictionStatus.OOM:
        return f"predicted out of memory: {cost.prediction.reason}"
    if cost.prediction.status == PredictionStatus.UNDECIDED:
        return cost.prediction.reason
    if cost.is_cut_short:
        limit_s = cost.entry.planned.limits.time_limit_s
        steps_s = len(cost.entry.planned.point.steps.kinds) * cost.prediction.step_time_s
        return (
            f"predicted to time out: {steps_s:.0f} s of steps and {START_S:.0f} s of start-up, the limit is "
            f"{limit_s:.0f} s; raise time_limit_s of the cluster"
        )
    return None


def summarise(costs: Sequence[RunCost]) -> str:
    """Return existing results and expected cost as text, a block for each cluster and engine, and the total."""
    blocks: dict[str, list[RunCost]] = {}
    for cost in costs:
        point = cost.entry.planned.point
        blocks.setdefault(f"{point.cluster.name}, {point.engine}", []).append(cost)
    lines = [line for title, block in blocks.items() for line in _block(title, block)]
    launches = [cost for cost in costs if cost.is_ahead and not cost.is_simulated]
    if any(not isnan(cost.wall_s) for cost in launches):
        lines.append(f"in all: {counted(len(launches), 'launch', 'launches')} ahead, {_amounts(launches)}")
    if any(not isnan(cost.wall_s) for cost in costs if cost.is_ahead):
        lines.append(LEGEND)
    return "\n".join(lines)


def _block(title: str, costs: Sequence[RunCost]) -> list[str]:
    """Return the lines about the runs of one cluster and engine."""
    states = Counter(cost.existing.state for cost in costs)
    have = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    lines = [f"{title}: {counted(len(costs), 'run')}: {have}"]
    ahead = [cost for cost in costs if cost.is_ahead]
    predicted = [cost for cost in ahead if not isnan(cost.wall_s)]
    if ahead and costs[0].is_simulated:
        lines.append(f"  ahead: {counted(len(ahead), 'simulation')}, no GPU hours")
        if predicted:
            lines.append(f"  launched they would take {_wall(predicted)}, {_amounts(predicted)}")
    elif ahead:
        lines.append(f"  ahead: {counted(len(ahead), 'launch', 'launches')}, {_job_sizes(ahead)}")
        if predicted:
            lines.append(f"  expected: {_wall(predicted)}, {_amounts(predicted)}")
        lines += _without_prediction([cost for cost in ahead if isnan(cost.wall_s)], costs)
    for problem, affected in _warnings(ahead):
        more = f" and {len(affected) - 3} more" if len(affected) > 3 else ""
        lines.append(f"  {problem}: {len(affected)}: {', '.join(cost.entry.run for cost in affected[:3])}{more}")
    return lines


def _warnings(ahead: Sequence[RunCost]) -> list[tuple[str, list[RunCost]]]:
    """Return each predicted problem with the runs that have it."""
    oom = [cost for cost in ahead if cost.prediction.status == PredictionStatus.OOM]
    warnings = [
        ("predicted out of memory", oom),
        ("predicted to time out", [cost for cost in ahead if cost.is_cut_short and cost not in oom]),
        ("may run out of memory", [cost for cost in ahead if cost.prediction.status == PredictionStatus.UNDECIDED]),
    ]
    return [(problem, affected) for problem, affected in warnings if affected]


def _job_sizes(costs: Sequence[RunCost]) -> str:
    """Return the number of jobs by number of nodes, such as `jobs of 1 node: 2, 4 nodes: 40`."""
    sizes = Counter(cost.entry.planned.point.num_nodes for cost in costs)
    return "jobs of " + ", ".join(
        f"{size} {'node' if size == 1 else 'nodes'}: {number}" for size, number in sorted(sizes.items())
    )


def _without_prediction(costs: Sequence[RunCost], others: Sequence[RunCost]) -> list[str]:
    """Return a line about the runs without a prediction: earlier wall times of the others, or the time limits."""
    if not costs:
        return []
    typical_s = typical_duration_s(cost.existing for cost in others)
    if typical_s is not None:
        estimate = f"about {_time(typical_s * len(costs))} if each takes {_time(typical_s)} as those launched before"
    else:
        estimate = (
            f"at most {_time(sum(cost.entry.planned.limits.time_limit_s for cost in costs))} by their time limits"
        )
    return [f"  not predicted: {len(costs)} ({costs[0].prediction.reason}); {estimate}"]


def _wall(costs: Sequence[RunCost]) -> str:
    """Return the wall time of runs that have the cluster to themselves, as many at once as it holds, as text."""
    expected_s = max(_shared(costs, "wall_s"), max(cost.wall_s for cost in costs))
    highest_s = max(_shared(costs, "wall_hi_s"), max(cost.wall_hi_s for cost in costs))
    return f"{_time(expected_s)} wall with the cluster to itself (to {_time(highest_s)})"


def _shared(costs: Sequence[RunCost], name: str) -> float:
    """Return the sum of a wall time of runs, each divided by the number that run at once. Unit: s."""
    return sum(float(getattr(cost, name)) / cost.num_at_once for cost in costs)


def _amounts(costs: Sequence[RunCost]) -> str:
    """Return GPU hours and energy of the runs with a prediction, as text."""
    predicted = [cost for cost in costs if not isnan(cost.wall_s)]
    hours = sum(cost.gpu_hours for cost in predicted)
    hours_hi = sum(cost.wall_hi_s * cost.num_gpus for cost in predicted) / S_PER_HOUR
    energy_kwh = sum(cost.board_energy_kwh for cost in predicted)
    return f"{hours:.1f} GPU h (to {hours_hi:.1f}), at most {energy_kwh:.1f} kWh of GPU boards"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < S_PER_HOUR else f"{seconds / S_PER_HOUR:.1f} h"


def over_budget(costs: Sequence[RunCost], max_gpu_hours: float) -> str | None:
    """Return one line about launches that exceed the budget: sum, share of each study, remedy; None within it.

    Args:
        costs: Costs of runs; those that are done, simulated or on cpu do not count.
        max_gpu_hours: The budget. Unit: h.
    """
    costs = [cost for cost in costs if cost.is_ahead and not cost.is_simulated and cost.entry.planned.point.cluster.gpu]
    total_h = _budgeted_hours(costs)
    if total_h <= max_gpu_hours:
        return None
    studies = dict.fromkeys(study for cost in costs for study in cost.entry.studies)
    by_study = {study: [cost for cost in costs if study in cost.entry.studies] for study in studies}
    parts = [f"{study} {_budgeted_hours(part):,.1f} h in {len(part)}" for study, part in by_study.items()]
    shared = " (some are of several studies)" if any(len(cost.entry.studies) > 1 for cost in costs) else ""
    return (
        f"{counted(len(costs), 'launch is', 'launches are')} expected to take {total_h:,.1f} GPU h, max_gpu_hours is "
        f"{max_gpu_hours:g}: {', '.join(parts)}{shared}; name what is meant, such as --config "
        f"studies=[{next(iter(studies))}], or the budget, --config max_gpu_hours={math.ceil(total_h)}"
    )


def _budgeted_hours(costs: Sequence[RunCost]) -> float:
    """Return the GPU hours of launches; one without a prediction counts with its time limit. Unit: h."""
    limits_h = [cost.entry.planned.limits.time_limit_s * cost.num_gpus / S_PER_HOUR for cost in costs]
    return sum(
        limit_h if isnan(cost.gpu_hours) else cost.gpu_hours for cost, limit_h in zip(costs, limits_h, strict=True)
    )
