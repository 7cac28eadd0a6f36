"""Predicted cost of a plan before it is launched: what exists, and time, GPU hours and energy of every run."""

import json
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
from triplepoint.processes import on_all_cores
from triplepoint.simulate.predict.point import MANY_POINTS, predict_if_configured
from triplepoint.simulate.predict.prediction import Prediction
from triplepoint.status import RESULTS, PredictionStatus, Status
from triplepoint.units import KILO, S_PER_HOUR

HEADINGS = ("have", "step s", "GiB", "GPU h", "kWh")

State = Literal["done", "failed", "missing"]

STATES: tuple[State, ...] = ("done", "failed", "missing")
START_S = 120.0
"""Wall time of a launch besides its steps: processes, communicators, weights, traces. Assumed, not measured."""

LEGEND = f"""\
expected: step time and memory are simulated, of each engine's software, in brackets with every run at
    the upper end of its 90 % interval; {START_S:.0f} s of start-up a launch are assumed. Steps are at the clocks that
    constants were fitted at; `triplepoint predict` has them at those that power and heat leave
kWh: GPU boards at their power limit for the expected time, an upper bound of theirs; hosts and cooling are not in it"""

_UNPRICED = frozenset(
    {"steps", "trace_ranks", "telemetry_period_s", "repeat", "seed", "corpus", "tokenizer", "contents"}
)
"""Fields of a point that the simulated time of a step does not depend on."""


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
    """Return the upper end of the interval, the time itself where there is none, as of inference."""
    return prediction.step_time_s if math.isnan(prediction.step_time_hi_s) else prediction.step_time_hi_s


def _wall_s(prediction: Prediction, num_steps: int, step_s: float, limit_s: float) -> float:
    if prediction.status == PredictionStatus.OOM:
        return min(START_S, limit_s)
    if math.isnan(step_s):
        return math.nan
    return min(START_S + num_steps * step_s, limit_s)


def cells(cost: RunCost) -> tuple[str, ...]:
    """Return what stands under `HEADINGS` for one run."""
    prediction, state = cost.prediction, cost.existing.state
    have = cost.existing.status if state == "done" else state
    numbers = (prediction.step_time_s, prediction.memory_gib, cost.gpu_hours, cost.board_energy_kwh)
    shown = ["-" if isnan(number) else f"{number:.3g}" if number < 100 else f"{number:.0f}" for number in numbers]
    return (f"{have} (done)" if state == "done" else have, *shown)


def note(cost: RunCost) -> str | None:
    """Return what is to be said of one run: that it will not fit, or not end; None if nothing."""
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
    """Return what exists and what lies ahead, a block for each cluster and engine, and in all."""
    blocks: dict[str, list[RunCost]] = {}
    for cost in costs:
        point = cost.entry.planned.point
        blocks.setdefault(f"{point.cluster.name}, {point.engine}", []).append(cost)
    lines = [line for title, block in blocks.items() for line in _block(title, block)]
    launches = [cost for cost in costs if cost.is_ahead and not cost.is_simulated]
    if any(not isnan(cost.wall_s) for cost in launches):
        lines.append(f"in all: {_num(launches, 'launch', 'launches')} ahead, {_amounts(launches)}")
    if any(not isnan(cost.wall_s) for cost in costs if cost.is_ahead):
        lines.append(LEGEND)
    return "\n".join(lines)


def _block(title: str, costs: Sequence[RunCost]) -> list[str]:
    states = Counter(cost.existing.state for cost in costs)
    have = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    lines = [f"{title}: {_num(costs, 'run')}: {have}"]
    ahead = [cost for cost in costs if cost.is_ahead]
    priced = [cost for cost in ahead if not isnan(cost.wall_s)]
    if ahead and costs[0].is_simulated:
        lines.append(f"  ahead: {_num(ahead, 'simulation')}, no GPU hours")
        if priced:
            lines.append(f"  launched they would take {_wall(priced)}, {_amounts(priced)}")
    elif ahead:
        lines.append(f"  ahead: {_num(ahead, 'launch', 'launches')}, {_job_sizes(ahead)}")
        if priced:
            lines.append(f"  expected: {_wall(priced)}, {_amounts(priced)}")
        lines += _unpriced([cost for cost in ahead if isnan(cost.wall_s)], costs)
    for word, chosen in _warnings(ahead):
        lines.append(f"  {word}: {len(chosen)}: {', '.join(cost.entry.run for cost in chosen[:3])}{_more(chosen)}")
    return lines


def _warnings(ahead: Sequence[RunCost]) -> list[tuple[str, list[RunCost]]]:
    found = [
        ("predicted out of memory", [cost for cost in ahead if cost.prediction.status == PredictionStatus.OOM]),
        (
            "predicted to time out",
            [it for it in ahead if it.is_cut_short and it.prediction.status != PredictionStatus.OOM],
        ),
        ("may run out of memory", [cost for cost in ahead if cost.prediction.status == PredictionStatus.UNDECIDED]),
    ]
    return [(word, chosen) for word, chosen in found if chosen]


def _more(chosen: Sequence[RunCost]) -> str:
    return f" and {len(chosen) - 3} more" if len(chosen) > 3 else ""


def _job_sizes(costs: Sequence[RunCost]) -> str:
    """Return how many jobs of how many nodes they are, such as `40 jobs of 4 nodes, 2 of 1`."""
    sizes = Counter(cost.entry.planned.point.num_nodes for cost in costs)
    return "jobs of " + ", ".join(
        f"{size} {'node' if size == 1 else 'nodes'}: {number}" for size, number in sorted(sizes.items())
    )


def _unpriced(costs: Sequence[RunCost], others: Sequence[RunCost]) -> list[str]:
    """Return a line on runs without a prediction: what they took here before, or at most."""
    if not costs:
        return []
    why = costs[0].prediction.reason
    typical_s = typical_duration_s(cost.existing for cost in others)
    if typical_s is not None:
        each = f"about {_time(typical_s * len(costs))} if each takes {_time(typical_s)} as those launched before"
    else:
        each = f"at most {_time(sum(cost.entry.planned.limits.time_limit_s for cost in costs))} by their time limits"
    return [f"  not predicted: {len(costs)} ({why}); {each}"]


def _wall(costs: Sequence[RunCost]) -> str:
    """Return the wall time of some runs when they have the cluster to themselves, as many at once as it holds."""
    expected = [max(_shared(costs, "wall_s"), max(cost.wall_s for cost in costs))]
    expected.append(max(_shared(costs, "wall_hi_s"), max(cost.wall_hi_s for cost in costs)))
    return f"{_time(expected[0])} wall with the cluster to itself (to {_time(expected[1])})"


def _shared(costs: Sequence[RunCost], name: str) -> float:
    return sum(float(getattr(cost, name)) / cost.num_at_once for cost in costs)


def _amounts(costs: Sequence[RunCost]) -> str:
    """Return GPU hours and energy of those runs that are predicted and have GPUs."""
    priced = [cost for cost in costs if not isnan(cost.wall_s)]
    hours = sum(cost.gpu_hours for cost in priced)
    most = sum(cost.wall_hi_s * cost.num_gpus for cost in priced) / S_PER_HOUR
    energy_kwh = sum(cost.board_energy_kwh for cost in priced)
    return f"{hours:.1f} GPU h (to {most:.1f}), at most {energy_kwh:.1f} kWh of GPU boards"


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < S_PER_HOUR else f"{seconds / S_PER_HOUR:.1f} h"


def _num(items: Sequence[object], one: str, many: str | None = None) -> str:
    return f"{len(items)} {one if len(items) == 1 else many or one + 's'}"
