"""Frontier of time and energy of a training with a pipeline: clocks of its stages, verified by simulation."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from triplepoint.advise.frontier.passes import Site
from triplepoint.advise.frontier.plan import SHARINGS, Frontier, Plan
from triplepoint.advise.frontier.solve import Float, Sharing
from triplepoint.config.cluster import ClusterConfig
from triplepoint.errors import UserError
from triplepoint.simulate.heat.nodes import node_power_of
from triplepoint.simulate.job import Job
from triplepoint.simulate.power.node import rack_power_w
from triplepoint.simulate.predict.power import nodes_power_w, predict_power

USUAL_SLOWDOWN = 0.01
"""How much longer a step may take where nothing is said, the question Perseus asks. Unit: 1."""
SLOWDOWNS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
"""Of the frontier: longer steps cost energy again on all GPUs known."""
HELD = 0.01
"""Share of the step that the power limit costs from which on it is said to hold."""
_MOST_TURNS = 6
"""Times a plan is simulated, with the time it may take corrected by what its simulated step takes."""
_NEAR, _FINE, _SAME = 3e-4, 0.01, 1e-4
"""How far the simulated step may stay below what is allowed, how near the least slowdown to a budget is found, and by
how much steps are longer that count as equally long. Unit: 1."""
_MAY_SAVE_MORE = 1.05
"""Energy of one clock for all over that of a clock for each stage, passes added up, up to which it is simulated too:
its steps come nearer to what passes add up to. Measured: 1.02 where it saved more."""
_WORDS = {
    "node_w": "a node draws", "rack_w": "a rack draws", "hall_w": "all nodes draw", "gpu_temp_c": "the hottest die has",
}  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """What a plan has to keep to; None where nothing is asked. Power is the mean over a step, at the plug.

    Attributes:
        node_w: Of the node that draws most. Unit: W.
        rack_w: Of the rack that draws most. Unit: W.
        hall_w: Of all nodes of the job. Unit: W.
        gpu_temp_c: Highest temperature of the hottest die. Unit: degC.
    """

    node_w: float | None = None
    rack_w: float | None = None
    hall_w: float | None = None
    gpu_temp_c: float | None = None

    @property
    def is_given(self) -> bool:
        """Whether anything is asked."""
        return self != Budget()


@dataclass(frozen=True, eq=False)
class Outcome:
    """A step, simulated with clocks in place.

    Attributes:
        step_s: Length. Unit: s.
        gpu_energy_j: Of all GPUs. Unit: J.
        node_w: Mean of the node that draws most, at the plug. Unit: W.
        rack_w: The same of the rack; None where a cluster does not say which nodes share one. Unit: W.
        hall_w: The same of all nodes. Unit: W.
        gpu_temp_c: Highest temperature of the hottest die. Unit: degC.
        throttle_fraction: Share of GPU time in which limits hold clocks below those set. Unit: 1.
        lost_to_power_limit_fraction: Share of the step that the power limit costs. Unit: 1.
    """

    step_s: float
    gpu_energy_j: float
    node_w: float
    rack_w: float | None
    hall_w: float
    gpu_temp_c: float
    throttle_fraction: float
    lost_to_power_limit_fraction: float


@dataclass(frozen=True, eq=False)
class FrontierAnswer:
    """What the clocks of a job should be.

    Attributes:
        name: Of the run or point.
        site: The job where it runs.
        bubble_fraction: Of the step, waiting for other stages, mean over ranks. Unit: 1.
        present: The step as it is, under the governor.
        slowdown: By how much a step may take longer. Unit: 1.
        chosen: Plan of least energy for that, by what shares a clock; without those that cannot be as fast.
        plan: A clock for each stage, or one for all, whose simulated step keeps to that.
        verified: The plan, simulated.
        steady: Highest clock of each stage at which the power limit holds nothing, simulated; None where it holds
            nothing anyway.
        frontier: Plans for other lengths of a step.
        cap_w: Power of a GPU in the heaviest pass of every stage at its clock. Unit: W.
    """

    name: str
    site: Site
    bubble_fraction: float
    present: Outcome
    slowdown: float
    chosen: Mapping[Sharing, Plan]
    plan: Plan
    verified: Outcome
    steady: Outcome | None
    frontier: Frontier
    cap_w: Float

    @cached_property
    def points(self) -> list[Plan]:
        """The frontier by what shares a clock."""
        return _points(self.frontier, self.present.step_s)

    @property
    def is_held(self) -> bool:
        """Whether the power limit holds the clocks of the step as it is."""
        return self.present.lost_to_power_limit_fraction > HELD

    @property
    def stage_clocks_mhz(self) -> list[int]:
        """Clock of every stage. Unit: MHz."""
        return [round(float(mhz)) for mhz in self.plan.clock_mhz[:, 0]]


def advise(
    name: str, job: Job, cluster: ClusterConfig, config: Path, slowdown: float | None = None, budget: Budget = Budget()
) -> FrontierAnswer:
    """Return the frontier of a job, and the plan on it.

    Args:
        name: Of the run or point.
        job: The job.
        cluster: Where it runs.
        config: Folder of the configuration.
        slowdown: By how much a step may take longer; None: 1 %, or as little as the budget asks. Unit: 1.
        budget: What power and heat have to keep to.

    Raises:
        PointError: If it has no pipeline, or clocks of its GPUs are not known.
        UserError: If no clocks keep to the budget, or not in that time.
    """
    if budget.rack_w is not None and cluster.nodes_per_rack is None:
        raise UserError(f"cluster {cluster.name} has no nodes_per_rack; set it, or use a budget of the node or hall")
    site = Site.of(job, cluster, config)
    present, frontier = outcome_of(site), Frontier(site)
    is_held = present.lost_to_power_limit_fraction > HELD
    steady = simulate_plan(site, frontier.steady) if is_held else None
    if slowdown is None and not budget.is_given:
        # Where even the highest steady clocks are slower than clocks that swing, those are what there is.
        slowdown = max(USUAL_SLOWDOWN, steady.step_s / present.step_s - 1.0 if steady else 0.0)
    if slowdown is None:
        slowdown, stage_plan, verified = _least_slowdown(frontier, present, budget)
    else:
        stage_plan, verified = _verified(frontier, present, slowdown)
        if broken := _broken(verified, budget):
            least = _least_slowdown(frontier, present, budget)[0]
            raise UserError(f"{broken} with steps {slowdown:.1%} longer; use --slowdown {_upwards(least)}")
    step_s = present.step_s * (1.0 + slowdown)
    chosen = _chosen(frontier, step_s)
    bubble = site.warm.load.ran.timeline.bubble_fraction
    return FrontierAnswer(
        name, site, bubble, present, slowdown, MappingProxyType(chosen), stage_plan, verified, steady, frontier,
        frontier.heaviest_w(stage_plan),
    )  # fmt: skip


def _chosen(frontier: Frontier, step_s: float) -> dict[Sharing, Plan]:
    """Return the plans of least energy for a step so long, by what shares a clock; without those never so fast."""
    chosen: dict[Sharing, Plan] = {}
    if (even := frontier.even(step_s)) is not None:
        chosen["job"] = even
    for sharing in SHARINGS:
        if (frontier.steady if sharing == "stage" else frontier.fastest).step_s <= step_s:
            chosen[sharing] = frontier.plan(sharing, step_s)
    return chosen


def simulate_plan(site: Site, plan: Plan) -> Outcome:
    """Return a step with a clock for each stage, simulated."""
    return outcome_of(replace(site, warm=site.simulate(dict(enumerate(plan.clock_mhz.min(axis=1).tolist())))))


def outcome_of(site: Site) -> Outcome:
    """Return what a simulated step takes."""
    warm, job, size = site.warm, site.job, site.cluster.nodes_per_rack
    nodes_w = nodes_power_w(warm, node_power_of(job.gpu, site.config)).mean(axis=0)
    numbers = range(len(nodes_w))
    racks_w = rack_power_w(nodes_w, [numbers[low : low + size] for low in numbers[::size]]) if size else None
    power = predict_power(warm, (math.nan, math.nan), site.config)
    return Outcome(
        warm.load.length_s,
        power.gpu_power_w * job.num_gpus * warm.load.length_s,
        float(nodes_w.max()),
        None if racks_w is None else float(racks_w.max()),
        float(nodes_w.sum()),
        power.gpu_temp_max_c,
        power.throttle_fraction,
        power.lost_to_power_limit_fraction,
    )


def _verified(frontier: Frontier, present: Outcome, slowdown: float) -> tuple[Plan, Outcome]:
    """Return the plan of least energy whose simulated step is at most so much longer, and that step.

    It has a clock for each stage, or one for all where that saves more.

    Raises:
        UserError: If no clocks within the power limit are that fast.
    """
    limit_s = present.step_s * (1.0 + slowdown)

    def of_stages(step_s: float) -> Plan:
        return frontier.steady if step_s <= frontier.steady.step_s else frontier.plan("stage", step_s)

    found, even = _simulated(frontier.site, of_stages, limit_s), frontier.even(limit_s)
    if even is not None and even.gpu_energy_j < _MAY_SAVE_MORE * of_stages(limit_s).gpu_energy_j:
        found += _simulated(frontier.site, frontier.even, limit_s)
    is_fast = [pair for pair in found if pair[1].step_s <= limit_s * (1.0 + _SAME)]
    if not is_fast:
        found.append((frontier.steady, simulate_plan(frontier.site, frontier.steady)))
        is_fast = [pair for pair in found if pair[1].step_s <= limit_s * (1.0 + _SAME)]
    if not is_fast:
        least = min(outcome.step_s for _, outcome in found) / present.step_s - 1.0
        raise UserError(
            f"steps are {least:.2%} longer at the highest steady clocks under the power limit; "
            f"use --slowdown {_upwards(least)}"
        )
    return min(is_fast, key=lambda pair: pair[1].gpu_energy_j)


def _simulated(site: Site, plan_for: Callable[[float], Plan | None], limit_s: float) -> list[tuple[Plan, Outcome]]:
    """Return plans with their simulated steps, ever nearer to a length: they differ from what passes add up to.

    Args:
        site: The job.
        plan_for: Returns the plan for a length of a step as passes add up, None where there is none.
        limit_s: Length of a simulated step. Unit: s.
    """
    target_s, found = limit_s, list[tuple[Plan, Outcome]]()
    for _ in range(_MOST_TURNS):
        plan = plan_for(target_s)
        if plan is None or any((plan.clock_mhz == known.clock_mhz).all() for known, _ in found):
            break
        found.append((plan, simulate_plan(site, plan)))
        left_s = limit_s - found[-1][1].step_s
        if 0.0 <= left_s < _NEAR * limit_s:
            break
        target_s += left_s
    return found


def _least_slowdown(frontier: Frontier, present: Outcome, budget: Budget) -> tuple[float, Plan, Outcome]:
    """Return the least slowdown that keeps to a budget, to within a hundredth, with its plan.

    Raises:
        UserError: If none does.
    """
    begin = max(simulate_plan(frontier.site, frontier.steady).step_s / present.step_s - 1.0, 0.0)
    best: tuple[float, Plan, Outcome] | None = None
    broken, low = "", begin
    for slowdown in (begin, *(begin + each for each in SLOWDOWNS[1:])):
        plan, verified = _verified(frontier, present, slowdown)
        if not (broken := _broken(verified, budget)):
            best = slowdown, plan, verified
            break
        low = slowdown
    if best is None:
        raise UserError(f"{broken}, even with steps {SLOWDOWNS[-1]:.0%} longer; raise the budget")
    while best[0] - low > _FINE:
        middle = (best[0] + low) / 2
        plan, verified = _verified(frontier, present, middle)
        if _broken(verified, budget):
            low = middle
        else:
            best = middle, plan, verified
    return best


def _broken(outcome: Outcome, budget: Budget) -> str:
    """Return the first line of a budget that a step does not keep to, in words; empty if it keeps to all."""
    for name, most in asdict(budget).items():
        found = getattr(outcome, name)
        if most is not None and found is not None and found > most:
            unit = "degC" if name.endswith("_c") else "W"
            return f"{_WORDS[name]} {found:.0f} {unit}, more than the budget of {most:.0f} {unit}"
    return ""


def _upwards(share: float) -> str:
    """Return a share as percent, rounded up: what it allows is allowed."""
    return f"{math.ceil(share * 1000.0) / 10.0:g}"


def _points(frontier: Frontier, present_s: float) -> list[Plan]:
    """Return the frontier by what shares a clock, up to where a longer step saves nothing."""
    found: list[Plan] = []
    for sharing in SHARINGS:
        begin = frontier.steady if sharing == "stage" else frontier.fastest
        limits = (begin.step_s * (1.0 + _NEAR), *(present_s * (1.0 + slowdown) for slowdown in SLOWDOWNS))
        plans = [frontier.plan(sharing, limit) for limit in sorted(limits) if limit >= begin.step_s]
        least_j = math.inf
        for plan in plans:
            if plan.gpu_energy_j < least_j:
                found.append(plan)
                least_j = plan.gpu_energy_j
    return found
