"""Clocks of pipeline stages: plans on the frontier of step time and energy, verified by simulation."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from triplepoint.advise.frontier.interval import Change, ChangeInterval, intervals_of, simulate_locked
from triplepoint.advise.frontier.passes import Site
from triplepoint.advise.frontier.plan import SHARINGS, Frontier, Plan
from triplepoint.advise.frontier.solve import Float, Sharing
from triplepoint.config.cluster import ClusterConfig
from triplepoint.errors import UserError
from triplepoint.simulate.heat.nodes import node_power_of
from triplepoint.simulate.job import Job
from triplepoint.simulate.power.node import rack_power_w
from triplepoint.simulate.predict.power import nodes_power_w, predict_power
from triplepoint.text import percent
from triplepoint.units import KILO

USUAL_SLOWDOWN = 0.01
"""Default slowdown of a step, as in Perseus. Unit: 1."""
SLOWDOWNS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
"""Slowdowns of points on the frontier. Longer steps cost more energy again on all known GPUs."""
HELD = 0.01
"""Share of the step lost to the power limit from which the limit counts as effective."""
_MAX_TURNS = 6
"""Simulations of a plan; after each, the target time is corrected by the simulated step time."""
_MAX_UNUSED, _SLOWDOWN_RESOLUTION, _SAME = 3e-4, 0.01, 1e-4
"""Share of the allowed time that the simulated step may leave unused, resolution of the least slowdown for a budget,
and relative difference of step times that count as equal. Unit: 1."""
_MAX_EXCESS_OF_ONE_CLOCK = 1.05
"""Largest ratio of the energies of one clock for all stages and a clock for each, both as the sum of passes, at which
the former is simulated too: its simulated energy is closer to the sum. Measured: 1.02 where it saved more."""
LEAST_SAVED = 0.001
"""Share of the energy below which a plan saves nothing worth setting clocks for. Our choice."""
_WORDS = {
    "node_w": "a node draws", "rack_w": "a rack draws", "hall_w": "all nodes draw", "gpu_temp_c": "the hottest die has",
}  # fmt: skip


@dataclass(frozen=True)
class Budget:
    """Limits of a plan; None: no limit. Power is the mean over a step, at the plug.

    Attributes:
        node_w: Power of the node that draws most. Unit: W.
        rack_w: Power of the rack that draws most. Unit: W.
        hall_w: Power of all nodes of the job. Unit: W.
        gpu_temp_c: Highest temperature of the hottest die. Unit: degC.
    """

    node_w: float | None = None
    rack_w: float | None = None
    hall_w: float | None = None
    gpu_temp_c: float | None = None

    @property
    def is_given(self) -> bool:
        """Whether there is any limit."""
        return self != Budget()


@dataclass(frozen=True, eq=False)
class Outcome:
    """A simulated step with given clocks.

    Attributes:
        step_s: Step time. Unit: s.
        gpu_energy_j: Energy of all GPUs. Unit: J.
        node_w: Mean power at the plug of the node that draws most. Unit: W.
        rack_w: Mean power at the plug of the rack that draws most; None if racks are unknown. Unit: W.
        hall_w: Mean power at the plug of all nodes. Unit: W.
        gpu_temp_c: Highest temperature of the hottest die. Unit: degC.
        throttle_fraction: Share of GPU time in which limits keep clocks below those set. Unit: 1.
        lost_to_power_limit_fraction: Share of the step lost to the power limit. Unit: 1.
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
    """Recommended clocks of a job.

    Attributes:
        name: Name of the run or point.
        site: The job on its cluster.
        bubble_fraction: Share of the step in which ranks wait for other stages, mean over ranks. Unit: 1.
        present: Present step, under the governor.
        slowdown: Allowed relative increase of the step time. Unit: 1.
        chosen: Plan of least energy for the step time of `plan`, by sharing of clocks; without sharings that are too
            slow.
        plan: A clock for each stage, or one for all, with a simulated step within the slowdown.
        verified: Simulated step of the plan.
        steady: Simulated step at the highest clock of each stage that the power limit never lowers; None if the limit
            has no effect at present.
        frontier: Plans for other step times.
        cap_w: Power of a GPU in the heaviest pass of each stage at its clock. Unit: W.
        intervals: 90 % intervals of changes against the present step: of the simulated step of the plan as `plan`, of
            the highest steady clocks as `steady` where the limit has an effect, and of plans by sharing of clocks.
        budget: Limits of the plan.
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
    intervals: Mapping[str, ChangeInterval]
    budget: Budget = Budget()

    @property
    def keeps_budget_now(self) -> bool:
        """Whether there is a budget, and the present step keeps it."""
        return self.budget.is_given and not _broken(self.present, self.budget)

    @property
    def is_needed(self) -> bool:
        """Whether there is a budget that the present step does not keep."""
        return self.budget.is_given and not self.keeps_budget_now

    @property
    def saves(self) -> bool:
        """Whether the plan saves energy worth setting clocks for, by the simulated step."""
        return self.change.saved > LEAST_SAVED

    @property
    def is_useful(self) -> bool:
        """Whether the plan is needed for a budget, or saves energy and the whole 90 % interval of that is positive."""
        return self.is_needed or (self.saves and self.intervals["plan"].saved.lo > 0.0)

    @property
    def change(self) -> Change:
        """Change by the plan, by the simulated step."""
        return change_between(self.present, self.verified)

    def energy_j(self, plan: Plan) -> float:
        """Return the energy of all GPUs in a step of a plan, as a simulation would have it. Unit: J.

        The sum over passes is corrected by the ratio of simulated to summed energy of the plan that was simulated.
        """
        return plan.gpu_energy_j * self.verified.gpu_energy_j / self.plan.gpu_energy_j

    def saved(self, plan: Plan) -> float:
        """Return the share of the energy of the present step that a plan saves, see `energy_j`. Unit: 1."""
        return 1.0 - self.energy_j(plan) / self.present.gpu_energy_j

    @cached_property
    def points(self) -> list[Plan]:
        """Plans on the frontier, for each sharing of clocks."""
        return _points(self.frontier, self.present.step_s)

    @property
    def is_held(self) -> bool:
        """Whether the power limit lowers the clocks of the present step."""
        return self.present.lost_to_power_limit_fraction > HELD

    @property
    def stage_clocks_mhz(self) -> list[int]:
        """Clock of each stage in the plan. Unit: MHz."""
        return [round(float(mhz)) for mhz in self.plan.clock_mhz[:, 0]]


def advise(
    name: str, job: Job, cluster: ClusterConfig, config: Path, slowdown: float | None = None, budget: Budget = Budget()
) -> FrontierAnswer:
    """Return the frontier of a job, and the plan on it.

    Args:
        name: Name of the run or point.
        job: The job.
        cluster: Its cluster.
        config: Folder of the configuration.
        slowdown: Allowed relative increase of the step time. None: 1 %, or the least that keeps the budget if the
            present step does not. Unit: 1.
        budget: Limits of power and temperature.

    Raises:
        PointError: If it has no pipeline, the clocks of its GPUs are unknown, or they would shut down.
        UserError: If no clocks keep the budget, or none within the slowdown.
    """
    if budget.rack_w is not None and cluster.nodes_per_rack is None:
        raise UserError(f"cluster {cluster.name} has no nodes_per_rack; set it, or use --max-node-power or --max-power")
    site = Site.of(job, cluster, config)
    present, frontier = outcome_of(site), Frontier(site)
    is_held = present.lost_to_power_limit_fraction > HELD
    steady = simulate_plan(site, frontier.steady) if is_held else None
    if slowdown is None and not _broken(present, budget):
        # Under the power limit even the highest steady clocks may be slower than the present ones, which vary.
        slowdown = max(USUAL_SLOWDOWN, steady.step_s / present.step_s - 1.0 if steady else 0.0)
    if slowdown is None:
        slowdown, stage_plan, verified = _least_slowdown(frontier, present, budget)
    else:
        stage_plan, verified = _verified(frontier, present, slowdown)
        if broken := _broken(verified, budget):
            least = _least_slowdown(frontier, present, budget)[0]
            raise UserError(f"{broken} with steps {percent(slowdown)} longer; use --slowdown {_upwards(least)}")
    # As long as the simulated plan by the sum over passes, so that all are of one step time by one account.
    chosen = _with_plan(_chosen(frontier, stage_plan.step_s), stage_plan)
    bubble = site.warm.load.ran.timeline.bubble_fraction
    answer = FrontierAnswer(
        name, site, bubble, present, slowdown, MappingProxyType(chosen), stage_plan, verified, steady, frontier,
        frontier.heaviest_w(stage_plan), {}, budget,
    )  # fmt: skip
    return replace(answer, intervals=_intervals(answer))


def _intervals(answer: FrontierAnswer) -> dict[str, ChangeInterval]:
    """Return the 90 % intervals of an answer without them."""
    present = answer.present
    others: dict[str, Plan] = {str(sharing): plan for sharing, plan in answer.chosen.items()}
    nominal = {name: Change(answer.saved(plan), plan.step_s / present.step_s - 1.0) for name, plan in others.items()}
    nominal["plan"] = answer.change
    if answer.steady is not None:
        others["steady"] = answer.frontier.steady
        nominal["steady"] = change_between(present, answer.steady)
    return intervals_of(answer.site, answer.plan, nominal, others)


def _chosen(frontier: Frontier, step_s: float) -> dict[Sharing, Plan]:
    """Return the plans of least energy for a step time, by sharing of clocks; without sharings that are too slow."""
    chosen: dict[Sharing, Plan] = {}
    if (even := frontier.even(step_s)) is not None:
        chosen["job"] = even
    for sharing in SHARINGS:
        if (frontier.steady if sharing == "stage" else frontier.fastest).step_s <= step_s:
            chosen[sharing] = frontier.plan(sharing, step_s)
    return chosen


def _with_plan(chosen: Mapping[Sharing, Plan], plan: Plan) -> dict[Sharing, Plan]:
    """Return plans with the simulated one among them; a finer sharing never takes more energy than a coarser one."""
    found: dict[Sharing, Plan] = {}
    best: Plan | None = None
    for sharing in ("job", *SHARINGS):
        own = plan if sharing == plan.sharing else chosen.get(sharing)
        if own is None:
            continue
        best = own if best is None or own.gpu_energy_j <= best.gpu_energy_j else replace(best, sharing=sharing)
        found[sharing] = best
    return found


def change_between(present: Outcome, other: Outcome) -> Change:
    """Return the change from the present step to another one."""
    return Change(1.0 - other.gpu_energy_j / present.gpu_energy_j, other.step_s / present.step_s - 1.0)


def simulate_plan(site: Site, plan: Plan) -> Outcome:
    """Simulate a step with the lowest clock of each stage in a plan."""
    return outcome_of(replace(site, warm=simulate_locked(site, plan)))


def outcome_of(site: Site) -> Outcome:
    """Return time, energy, power and heat of a simulated step."""
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
    """Return the plan of least energy whose simulated step is within a slowdown, and that step.

    It has a clock for each stage, or one for all if that saves more.

    Raises:
        UserError: If no clocks within the power limit are that fast.
    """
    limit_s = present.step_s * (1.0 + slowdown)

    def of_stages(step_s: float) -> Plan:
        return frontier.steady if step_s <= frontier.steady.step_s else frontier.plan("stage", step_s)

    simulated, even = _simulated(frontier.site, of_stages, limit_s), frontier.even(limit_s)
    if even is not None and even.gpu_energy_j < _MAX_EXCESS_OF_ONE_CLOCK * of_stages(limit_s).gpu_energy_j:
        simulated += _simulated(frontier.site, frontier.even, limit_s)
    is_fast = [pair for pair in simulated if pair[1].step_s <= limit_s * (1.0 + _SAME)]
    if not is_fast:
        simulated.append((frontier.steady, simulate_plan(frontier.site, frontier.steady)))
        is_fast = [pair for pair in simulated if pair[1].step_s <= limit_s * (1.0 + _SAME)]
    if not is_fast:
        least = min(outcome.step_s for _, outcome in simulated) / present.step_s - 1.0
        raise UserError(
            f"steps are {percent(least, 2)} longer at the highest steady clocks under the power limit; "
            f"use --slowdown {_upwards(least)}"
        )
    return min(is_fast, key=lambda pair: pair[1].gpu_energy_j)


def _simulated(site: Site, plan_for: Callable[[float], Plan | None], limit_s: float) -> list[tuple[Plan, Outcome]]:
    """Return plans with their simulated steps, which approach a step time.

    A simulated step differs from the sum of its passes, so the target of the plan is corrected after each simulation.

    Args:
        site: The job.
        plan_for: Returns the plan for a step time as the sum of passes; None if there is none.
        limit_s: Simulated step time to approach. Unit: s.
    """
    target_s, plans = limit_s, list[tuple[Plan, Outcome]]()
    for _ in range(_MAX_TURNS):
        plan = plan_for(target_s)
        if plan is None or any((plan.clock_mhz == known.clock_mhz).all() for known, _ in plans):
            break
        plans.append((plan, simulate_plan(site, plan)))
        left_s = limit_s - plans[-1][1].step_s
        if 0.0 <= left_s < _MAX_UNUSED * limit_s:
            break
        target_s += left_s
    return plans


def _least_slowdown(frontier: Frontier, present: Outcome, budget: Budget) -> tuple[float, Plan, Outcome]:
    """Return the least slowdown that keeps a budget, with a resolution of 1 %, its plan and its simulated step.

    Raises:
        UserError: If none keeps it.
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
        raise UserError(f"{broken}, even with steps {percent(SLOWDOWNS[-1], 0)} longer; raise the budget")
    while best[0] - low > _SLOWDOWN_RESOLUTION:
        middle = (best[0] + low) / 2
        plan, verified = _verified(frontier, present, middle)
        if _broken(verified, budget):
            low = middle
        else:
            best = middle, plan, verified
    return best


def _broken(outcome: Outcome, budget: Budget) -> str:
    """Return words on the first limit of a budget that a step exceeds; empty if it keeps all."""
    for name, most in asdict(budget).items():
        value = getattr(outcome, name)
        if most is not None and value is not None and value > most:
            scale, unit = (1.0, "degC") if name.endswith("_c") else (KILO, "kW")
            return f"{_WORDS[name]} {value / scale:.4g} {unit}, more than the budget of {most / scale:.4g} {unit}"
    return ""


def _upwards(share: float) -> str:
    """Return a share in percent, rounded up to a tenth, so that an option with this value allows it."""
    return f"{math.ceil(share * 1000.0) / 10.0:g}"


def _points(frontier: Frontier, present_s: float) -> list[Plan]:
    """Return the plans on the frontier for each sharing of clocks, without those that save nothing."""
    points: list[Plan] = []
    for sharing in SHARINGS:
        begin = frontier.steady if sharing == "stage" else frontier.fastest
        limits = (begin.step_s * (1.0 + _MAX_UNUSED), *(present_s * (1.0 + slowdown) for slowdown in SLOWDOWNS))
        plans = [frontier.plan(sharing, limit) for limit in sorted(limits) if limit >= begin.step_s]
        least_j = math.inf
        for plan in plans:
            if plan.gpu_energy_j < least_j:
                points.append(plan)
                least_j = plan.gpu_energy_j
    return points
