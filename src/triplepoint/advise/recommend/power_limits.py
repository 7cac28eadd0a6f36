"""Power limits of single GPUs: GPUs that wait for slower ones need less power, or can leave it to them.

GPUs of one stage do the same work at the pace of the slowest. The higher clock of a faster one is useless: its limit
can be lowered until it is as fast as the slowest (goal `save`). If the present limits are below the highest that the
driver accepts, the power can raise the clock of the slowest instead (goal `move`), with power that the node has to
spare if there is some. Limits are tried by simulation.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np

from triplepoint.advise.recommend.passport import Learned
from triplepoint.advise.recommend.placement import Placement, Seat, Site, learned_cluster
from triplepoint.advise.recommend.placement_gain import Gain, gain_within
from triplepoint.config.cluster import ClusterConfig, place_of
from triplepoint.errors import UserError
from triplepoint.simulate.heat.nodes import power_of
from triplepoint.simulate.power.gpu import Float, Int64, leakage_w
from triplepoint.simulate.power.parameters import PowerConfig, read_power

Goal = Literal["save", "move"]
GOALS: tuple[Goal, ...] = get_args(Goal)

_TURNS = 3
"""Number of iterations; each changes the limits by the differences of clocks under the limits before."""
_SLACKS = (0.0, 0.004, 0.01)
"""Relative margin of the clocks of waiting GPUs over the slowest, because governors vary clocks. Our choice."""
_EXPONENT = 1.25
"""Relative change of power over relative change of clock in an iteration, for work at a given pace. Our choice."""
_MAX_LONGER = 1e-3
"""Largest relative increase of the step time for goal `save`: a fifth of the resolution of speeds. Our choice."""
_MIN_CHANGE_W: Mapping[Goal, float] = {"save": 5.0, "move": 1.0}
"""Smallest change of a limit; where the sum is kept, every watt counts. Our choice. Unit: W."""
_MAX_TRIMMED = 2e-4
"""Largest relative increase of the step time when power that no GPU needs is left over. Our choice."""
_LEAKAGE_TURNS = 3
"""Iterations of the estimate of leakage."""
_LEAKAGE_SHARES = (0.03, 0.5)
"""Range of leakage over power in an iteration, so that it does not divide by almost 0."""
_LEAST_LEAKAGE_CHANGE, _STEEPEST = 0.02, 4.0
"""Smallest change of the logarithm of leakage from which its effect on a clock is taken as simulated, and the most that
this is over the effect at a power limit. Our choice."""
_MAX_SIGMA = 3.0
"""Largest deviation of leakage that a clock may be attributed to, over its spread between parts. Our choice."""


class Drawn(NamedTuple):
    """A step and its power.

    Attributes:
        step_time_s: Length of the step. Unit: s.
        power_w: Mean power of all GPUs of the job together. Unit: W.
        temp_c: Mean temperature of the hottest GPU. Unit: degC.
        clock_spread: Highest mean clock of a GPU over the lowest of its stage.
    """

    step_time_s: float
    power_w: float
    temp_c: float
    clock_spread: float

    @property
    def energy_j(self) -> float:
        """Energy of a step. Unit: J."""
        return self.step_time_s * self.power_w


@dataclass(frozen=True, eq=False)
class Caps:
    """Power limits for single GPUs.

    Attributes:
        goal: `save`: less power in equal time; `move`: less time at equal power, or with the power to spare.
        limits_w: New limit of each GPU whose limit changes, in whole watts. Unit: W.
        present_w: Present limit of each GPU. Unit: W.
        before: Step under the present limits.
        after: Step under the new limits.
        spare_w: Power to spare in each node, by which the sum of its limits may rise. Unit: W.
        num_nodes: Number of nodes of the job.
    """

    goal: Goal
    limits_w: Mapping[Seat, int]
    present_w: Mapping[Seat, float]
    before: Drawn
    after: Drawn
    spare_w: float = 0.0
    num_nodes: int = 1

    @property
    def share(self) -> float:
        """Saved share of the energy or time of a step."""
        return saved(self.goal, self.before, self.after)

    @property
    def left_over_w(self) -> float:
        """Spare power that the limits of no node use. Unit: W."""
        added_w = dict.fromkeys((node for node, _ in self.limits_w), 0.0)
        for seat, limit_w in self.limits_w.items():
            added_w[seat[0]] += limit_w - self.present_w[seat]
        return self.spare_w - max(0.0, *added_w.values())

    @property
    def more_power_w(self) -> float:
        """Rise of the mean power of the GPUs of a node, in the mean over nodes. Unit: W."""
        return (self.after.power_w - self.before.power_w) / self.num_nodes


@dataclass(frozen=True)
class Limits:
    """Power limits of single GPUs and their gain: of energy for goal `save`, of time for `move`."""

    caps: Caps
    gain: Gain


def saved(goal: Goal, before: Drawn, after: Drawn) -> float:
    """Return the share of the energy (`save`) or of the time (`move`) of a step that is saved."""
    if goal == "save":
        return 1.0 - after.energy_j / before.energy_j
    return 1.0 - after.step_time_s / before.step_time_s


class _Run(NamedTuple):
    """A simulated step; arrays are of shape (num_nodes, num_devices).

    Attributes:
        drawn: The step and its power.
        clock_mhz: Mean clock. Unit: MHz.
        top_w: 95th percentile of power over control periods. Unit: W.
        mean_w: Mean power. Unit: W.
        stage: Pipeline stage; -1 for a device without a rank.
        leakage_w: Leakage of a typical part at this clock and temperature. Unit: W.
        limits_w: Power limit. Unit: W.
        power: Power parameters of the GPU type.
    """

    drawn: Drawn
    clock_mhz: Float
    top_w: Float
    mean_w: Float
    stage: Int64
    leakage_w: Float
    limits_w: Float
    power: PowerConfig


def check_spare(site: Site, spare_w: float) -> None:
    """Raise `UserError` if GPUs cannot use the power to spare in each node, in W, because no higher limit exists."""
    if not spare_w:
        return
    conditions, gpu = site.cluster.conditions, site.job().gpu
    present_w = power_of(conditions, gpu, site.config, site.cluster.name).power_limit.value
    most_w = read_power(gpu.name, site.config).power_limit.value
    limits_w = np.full((site.point.num_nodes, site.cluster.gpus_per_node), present_w)
    for name, limit_w in conditions.power_limits_w.items():
        if (place := place_of(name))[0] < len(limits_w):
            limits_w[place] = limit_w
    sum_w = float(limits_w.sum(axis=1).min())
    most_spare_w = limits_w.shape[1] * most_w - sum_w
    if most_spare_w <= 0.0:
        raise UserError(
            f"recommend: --spare-watts {spare_w:g}: no power limit below the {most_w:g} W that the driver takes is in "
            f"force on {site.cluster.name}, so GPUs have no use for more; leave it out, or state the limit as "
            "conditions.power_limit_w in the file of the cluster"
        )
    if spare_w > most_spare_w:
        raise UserError(
            f"recommend: --spare-watts {spare_w:g}: the power limits of a node add up to {sum_w:g} W, the driver takes "
            f"up to {limits_w.shape[1]} times {most_w:g} W; give at most {most_spare_w:g}"
        )


def find_limits(
    site: Site, learned: Learned | None, placement: Placement, spare_w: float = 0.0, goals: Sequence[Goal] = GOALS
) -> list[Limits]:
    """Return power limits of single GPUs that save energy in equal time, or time at equal power, with their gain.

    There are none without the clocks of this job, from which the leakage of GPUs is estimated. Hardware that costs time
    sets the pace and is to be repaired first, so the caller asks for none with it.

    Args:
        site: The job.
        learned: Passport of its slots. None: the cluster is as its file declares.
        placement: Placement under which the limits apply.
        spare_w: Power that each node has to spare besides its GPUs, for goal `move`. Unit: W.
        goals: What limits are for.

    Raises:
        PointError: If GPUs would shut down under its conditions.
    """
    is_known = learned is not None and all(slot.leakage is not None for slot in learned.passport.slots)
    if learned is None or learned.manifest is None or not is_known:
        return []
    limits = []
    for goal in goals:
        caps = find_caps(site, placement, goal, spare_w if goal == "move" else 0.0)
        if caps is not None:
            limits.append(Limits(caps, gain_within(caps.share, caps.share, caps.share)))
    return limits


def find_caps(site: Site, placement: Placement, goal: Goal, spare_w: float = 0.0) -> Caps | None:
    """Return limits of single GPUs that save energy in equal time, or time at equal power; None if there are none.

    Args:
        site: The job.
        placement: Placement of its stages.
        goal: `save` or `move`; `move` keeps the sum of the limits of each node, up to the power to spare.
        spare_w: Power to spare in each node, by which the sum of its limits may rise; only for `move`. Unit: W.

    Raises:
        PointError: If GPUs would shut down under its conditions.
    """
    first = last = _run(site, placement, site.cluster)
    present_w, least_w = first.limits_w, first.power.least_limit.value
    most_w = read_power(site.job().gpu.name, site.config).power_limit.value
    if np.any(present_w > most_w) or (goal == "move" and np.all(present_w == most_w)):
        return None
    best: tuple[dict[Seat, int], _Run] | None = None
    for slack in _SLACKS if goal == "save" else (0.0,):
        if best is not None:  # more slack saves less
            break
        # A limit above the power of a GPU has no effect, so the search starts from its power.
        limits_w = np.minimum(present_w, first.top_w) if goal == "save" else present_w
        last = first
        for _ in range(_TURNS):
            if goal == "save":
                limits_w = np.clip(_adjust(limits_w, last, _slowest(first) * (1.0 + slack)), least_w, present_w)
            else:
                mean_w = (present_w + spare_w / present_w.shape[1]).mean(axis=1, keepdims=True)
                limits_w = _equalise(limits_w, last, mean_w, (least_w, most_w))
            changed_w = _changed_limits(limits_w, first.stage >= 0, present_w, placement, _MIN_CHANGE_W[goal])
            if goal == "move":
                changed_w = _within_sum(changed_w, _by_seat(present_w, placement), spare_w)
            if not changed_w:
                break
            last = _run(site, placement, with_limits(site.cluster, changed_w))
            is_longer = last.drawn.step_time_s > first.drawn.step_time_s * (1.0 + _MAX_LONGER)
            reached = first.drawn if best is None else best[1].drawn
            is_better = saved(goal, first.drawn, last.drawn) > saved(goal, first.drawn, reached)
            if is_better and not (goal == "save" and is_longer):
                best = changed_w, last
    if best is None:
        return None
    changed_w, last = _without_surplus(site, placement, best, present_w, least_w) if spare_w else best
    return Caps(goal, changed_w, _by_seat(present_w, placement), first.drawn, last.drawn, spare_w, len(placement.nodes))


def _without_surplus(
    site: Site, placement: Placement, best: tuple[dict[Seat, int], _Run], present_w: Float, least_w: float
) -> tuple[dict[Seat, int], _Run]:
    """Return limits without power that only makes GPUs wait: the slowest has the highest limit, or no rank to wait for.

    Args:
        site: The job.
        placement: Placement of its stages.
        best: Changed limits, and the step under them.
        present_w: Present limits, in the shape of the clocks. Unit: W.
        least_w: Lowest limit. Unit: W.
    """
    longest_s = best[1].drawn.step_time_s * (1.0 + _MAX_TRIMMED)
    for slack in _SLACKS[1:]:
        for _ in range(_TURNS):
            _, last = best
            less_w = np.clip(_adjust(last.limits_w, last, _slowest(last) * (1.0 + slack)), least_w, last.limits_w)
            changed_w = _changed_limits(less_w, last.stage >= 0, present_w, placement, _MIN_CHANGE_W["move"])
            trimmed = _run(site, placement, with_limits(site.cluster, changed_w))
            if trimmed.drawn.step_time_s > longest_s or trimmed.drawn.power_w >= last.drawn.power_w:
                break
            best = changed_w, trimmed
    return best


def _slowest(run: _Run) -> Float:
    """Return the lowest mean clock in the stage of each device, in the shape of the clocks. Unit: MHz."""
    slowest = np.full(run.stage.shape, np.inf)
    for stage in np.unique(run.stage[run.stage >= 0]):
        slowest[run.stage == stage] = run.clock_mhz[run.stage == stage].min()
    return slowest


def _adjust(limits_w: Float, last: _Run, target_mhz: Float) -> Float:
    """Return lower limits for GPUs whose clock is above its target, and higher ones for those below."""
    return np.asarray(limits_w * (last.clock_mhz / target_mhz) ** -_EXPONENT)


def _equalise(limits_w: Float, last: _Run, mean_w: Float, range_w: tuple[float, float]) -> Float:
    """Return limits that reduce the differences of clocks in a stage, with the same sum for each node.

    Args:
        limits_w: Limits of the last step. Unit: W.
        last: The last step.
        mean_w: Mean of the new limits of each node, of shape (num_nodes, 1). Unit: W.
        range_w: Lowest and highest limit. Unit: W.
    """
    mean_mhz = np.ones(last.stage.shape)
    for stage in np.unique(last.stage[last.stage >= 0]):
        mean_mhz[last.stage == stage] = last.clock_mhz[last.stage == stage].mean()
    new_w = np.where(last.stage >= 0, _adjust(limits_w, last, mean_mhz), limits_w)
    for _ in range(_TURNS):  # power beyond the range of a GPU goes to the others of its node
        new_w = np.clip(new_w * (mean_w / new_w.mean(axis=1, keepdims=True)), *range_w)
    return new_w


def _changed_limits(
    limits_w: Float, is_used: np.ndarray, present_w: Float, placement: Placement, least_w: float
) -> dict[Seat, int]:
    """Return the limits of GPUs with ranks that differ from the present ones by at least `least_w`. Unit: W."""
    is_changed = _by_seat(is_used & (np.abs(limits_w - present_w) >= least_w), placement)
    return {seat: round(limit_w) for seat, limit_w in _by_seat(limits_w, placement).items() if is_changed[seat]}


def _by_seat(values: np.ndarray, placement: Placement) -> dict[Seat, float]:
    """Return values of shape (num_nodes, num_devices), in rank order of nodes, by seat."""
    return {(placement.nodes[place], device): float(value) for (place, device), value in np.ndenumerate(values)}


def _within_sum(changed_w: dict[Seat, int], present_w: Mapping[Seat, float], spare_w: float) -> dict[Seat, int]:
    """Return limits whose sum in each node is at most the present one and the power to spare: whole watts add up."""
    within_w = dict(changed_w)
    for node in {node for node, _ in within_w}:
        seats = [seat for seat in within_w if seat[0] == node]
        excess_w = sum(within_w[seat] - present_w[seat] for seat in seats) - spare_w
        for turn in range(math.ceil(excess_w)):
            within_w[seats[turn % len(seats)]] -= 1
    return within_w


def _run(site: Site, placement: Placement, cluster: ClusterConfig) -> _Run:
    """Simulate a step with heat."""
    warm, _ = site.warm(placement, cluster)
    trace, stage, power = warm.trace, warm.seats.stage, warm.machine.power
    mean_w, clock_mhz = trace.power_w.mean(axis=0), trace.clock_mhz.mean(axis=0)
    temp_c, used = trace.temp_c.mean(axis=0), stage >= 0
    clocks_of_stages = [clock_mhz[stage == number] for number in np.unique(stage[used])]
    spread = max(float(clocks.max() / clocks.min()) for clocks in clocks_of_stages)
    drawn = Drawn(warm.load.length_s, float(mean_w[used].sum()), float(temp_c[used].max()), spread)
    top_w, leaks_w = np.quantile(trace.power_w, 0.95, axis=0), leakage_w(power, clock_mhz, temp_c)
    limits_w = warm.machine.power_limit_w if warm.machine.power_limit_w.size else power.power_limit.value
    return _Run(drawn, clock_mhz, top_w, mean_w, stage, leaks_w, np.broadcast_to(limits_w, stage.shape), power)


def with_limits(cluster: ClusterConfig, limits_w: Mapping[Seat, float]) -> ClusterConfig:
    """Return a cluster with power limits of single GPUs in W."""
    by_name = {f"node{node}.gpu{device}": float(limit_w) for (node, device), limit_w in limits_w.items()}
    return cluster.model_copy(update={"conditions": cluster.conditions.with_limits(by_name)})


def with_leakage(site: Site, learned: Learned) -> tuple[Site, Learned]:
    """Return the job and its passport with leakage estimated from clocks; unchanged if a clock is unknown.

    Args:
        site: The job, under the placement of the run.
        learned: Passport of its slots.

    Raises:
        PointError: If GPUs would shut down under its conditions.
    """
    clocks = {(slot.node, slot.device): slot.clock_mhz for slot in learned.passport.slots}
    known = {seat: clock_mhz for seat, clock_mhz in clocks.items() if clock_mhz is not None}
    if len(known) < max(len(clocks), site.point.num_gpus):
        return site, learned
    leakage = leakage_of(site, known)
    slots = (slot.model_copy(update={"leakage": leakage[slot.node, slot.device]}) for slot in learned.passport.slots)
    learned = replace(learned, passport=learned.passport.model_copy(update={"slots": tuple(slots)}))
    # Faults that are not the passport's, such as slow GPUs, stay.
    conditions = site.cluster.conditions.model_copy(update={"leakage": learned_cluster(learned).conditions.leakage})
    return replace(site, cluster=site.cluster.model_copy(update={"conditions": conditions})), learned


def leakage_of(site: Site, clocks_mhz: Mapping[Seat, float]) -> dict[Seat, float]:
    """Return the leakage of GPUs, over that of a typical part, with which they have their measured clocks.

    Under a power limit, a GPU with less leakage has a higher clock. The spread of leakage between parts bounds it.

    Args:
        site: The job under the placement of the run.
        clocks_mhz: Mean clock of each GPU in steps. Unit: MHz.

    Raises:
        PointError: If GPUs would shut down under its conditions.
    """
    seats = list(clocks_mhz)
    cluster, factor, at = site.cluster, np.ones(len(seats)), tuple(np.transpose(seats))
    measured = np.array(list(clocks_mhz.values()))
    last_simulated, last_factor = np.full(len(seats), np.nan), factor
    for _ in range(_LEAKAGE_TURNS):
        run = _run(site, site.present, cluster)
        simulated = run.clock_mhz[at] / np.median(run.clock_mhz[at])
        deviation = np.log(measured / np.median(measured) / simulated)
        share = np.clip(factor * run.leakage_w[at] / run.mean_w[at], *_LEAKAGE_SHARES)
        slope = -share / (1.0 - share) / _EXPONENT
        # Where heat holds the clock, it falls by more: the last turn shows by how much.
        change = np.log(factor / last_factor)
        is_shown = np.abs(change) >= _LEAST_LEAKAGE_CHANGE
        shown = np.log(simulated / last_simulated)[is_shown] / change[is_shown]
        slope[is_shown] = np.clip(shown, _STEEPEST * slope[is_shown], slope[is_shown])
        last_simulated, last_factor = simulated, factor
        most = _MAX_SIGMA * run.power.leakage_spread.value
        factor = np.exp(np.clip(np.log(factor) + deviation / slope, -most, most))
        by_name = {f"node{node}.gpu{device}": float(value) for (node, device), value in zip(seats, factor, strict=True)}
        conditions = site.cluster.conditions.model_copy(update={"leakage": by_name})
        cluster = site.cluster.model_copy(update={"conditions": conditions})
    return dict(zip(seats, factor.tolist(), strict=True))
