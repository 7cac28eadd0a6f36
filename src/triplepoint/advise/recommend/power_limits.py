"""Power limits of single GPUs: cooler GPUs that wait for hotter ones give power away, or hand it to them.

Parts of one stage do the same work and go at the pace of the slowest. The clock of a faster one is wasted: its limit
can be lowered until it is as fast as the slowest (`save`). Where the limits in force are below the highest that the
driver takes, the watts can raise the slowest instead (`move`). Limits are tried by the simulator itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from triplepoint.advise.recommend.placement import Placement, Site
from triplepoint.config.cluster import ClusterConfig
from triplepoint.simulate.power.gpu import Float, Int64, leakage_w
from triplepoint.simulate.power.parameters import PowerConfig, read_power

Goal = Literal["save", "move"]
GOALS: tuple[Goal, ...] = get_args(Goal)
Seat = tuple[int, int]

_TURNS = 3
"""Limits that are tried in turn, each by how far clocks are apart under the one before."""
_SLACKS = (0.0, 0.004, 0.01)
"""By how much clocks of waiting GPUs stay above the slowest: governors move clocks all the time. Our choice."""
_EXPONENT = 1.25
"""Change of power over change of clock, both relative, by which a turn reckons: work at a given pace. Our choice."""
_LONGER = 1e-3
"""Share by which a step may become longer where power is saved: a fifth of the resolution of speeds. Our choice."""
_LEAST_CHANGE_W = 5.0
"""Limits that change by less are left. Our choice. Unit: W."""
_LEAKAGE_TURNS = 3
_LEAKAGE_SHARES = (0.03, 0.5)
"""Least and most leakage over power by which a turn reckons: it must not divide by next to nothing."""
_MOST_SIGMA = 3.0
"""Standard deviations of leakage from part to part beyond which a clock is not put down to leakage. Our choice."""


class Drawn(NamedTuple):
    """A step and what it draws.

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
        goal: `save`: less power in equal time; `move`: less time at equal power.
        limits_w: Limit by (node of the run, device), of GPUs whose limit changes; whole watts. Unit: W.
        present_w: Limit in force of all GPUs. Unit: W.
        before: The step under the limits in force.
        after: Under these.
    """

    goal: Goal
    limits_w: Mapping[Seat, int]
    present_w: float
    before: Drawn
    after: Drawn

    @property
    def share(self) -> float:
        """Energy of a step that is saved, or time, over that before."""
        return saved(self.goal, self.before, self.after)


def saved(goal: Goal, before: Drawn, after: Drawn) -> float:
    """Return the share of the energy (`save`) or of the time (`move`) of a step that is saved."""
    if goal == "save":
        return 1.0 - after.energy_j / before.energy_j
    return 1.0 - after.step_time_s / before.step_time_s


class _Run(NamedTuple):
    """A step of every device; arrays of shape (num_nodes, num_devices), devices without a rank left out by `is_used`.

    Attributes:
        drawn: Of all.
        clock_mhz: Mean clock. Unit: MHz.
        top_w: Power that a control period passes in one of twenty. Unit: W.
        mean_w: Mean power. Unit: W.
        stage: Pipeline stage, -1 without a rank.
        leakage_w: Leakage of a usual part at this clock and temperature. Unit: W.
        power: Of the GPU type, under the limit in force.
    """

    drawn: Drawn
    clock_mhz: Float
    top_w: Float
    mean_w: Float
    stage: Int64
    leakage_w: Float
    power: PowerConfig


def find_caps(site: Site, placement: Placement, goal: Goal) -> Caps | None:
    """Return limits of single GPUs that save power in equal time, or time at equal power; None where none do.

    Args:
        site: The job.
        placement: Where its stages are.
        goal: What is saved. `move` keeps the sum of the limits of every node.

    Raises:
        PointError: If GPUs cannot work under its conditions.
    """
    first = last = _run(site, placement, site.cluster)
    present_w, least_w = first.power.power_limit.value, first.power.least_limit.value
    most_w = read_power(site.job().gpu.name, site.config).power_limit.value
    if present_w > most_w or (goal == "move" and present_w == most_w):
        return None
    best: tuple[dict[Seat, int], Drawn] | None = None
    for slack in _SLACKS if goal == "save" else (0.0,):
        if best is not None:  # more slack saves less
            break
        # Below its limit a GPU is not held by it: limits are lowered from what it really draws.
        limits_w = np.minimum(present_w, first.top_w) if goal == "save" else np.full(first.top_w.shape, present_w)
        last = first
        for _ in range(_TURNS):
            if goal == "save":
                limits_w = np.clip(_lowered(limits_w, last, _slowest(first) * (1.0 + slack)), least_w, present_w)
            else:
                limits_w = _moved(limits_w, last, present_w, (least_w, most_w))
            named = _named(limits_w, first.stage >= 0, present_w, placement)
            if not named:
                break
            last = _run(site, placement, with_limits(site.cluster, named))
            is_longer = last.drawn.step_time_s > first.drawn.step_time_s * (1.0 + _LONGER)
            reached = first.drawn if best is None else best[1]
            is_better = saved(goal, first.drawn, last.drawn) > saved(goal, first.drawn, reached)
            if is_better and not (goal == "save" and is_longer):
                best = named, last.drawn
    return Caps(goal, best[0], present_w, first.drawn, best[1]) if best else None


def _slowest(run: _Run) -> Float:
    """Return the lowest mean clock in the stage of every device; of the shape of clocks. Unit: MHz."""
    found = np.full(run.stage.shape, np.inf)
    for stage in np.unique(run.stage[run.stage >= 0]):
        found[run.stage == stage] = run.clock_mhz[run.stage == stage].min()
    return found


def _lowered(limits_w: Float, last: _Run, aim_mhz: Float) -> Float:
    """Return lower limits for GPUs whose clock is above the aim, higher ones for those below it."""
    return np.asarray(limits_w * (last.clock_mhz / aim_mhz) ** -_EXPONENT)


def _moved(limits_w: Float, last: _Run, present_w: float, ends_w: tuple[float, float]) -> Float:
    """Return limits that bring clocks of a stage together, with the same sum for every node."""
    mean_mhz = np.ones(last.stage.shape)
    for stage in np.unique(last.stage[last.stage >= 0]):
        mean_mhz[last.stage == stage] = last.clock_mhz[last.stage == stage].mean()
    moved = np.where(last.stage >= 0, _lowered(limits_w, last, mean_mhz), limits_w)
    for _ in range(_TURNS):  # What one GPU cannot take goes to the others of its node.
        moved = np.clip(moved * (present_w / moved.mean(axis=1, keepdims=True)), *ends_w)
    return moved


def _named(limits_w: Float, is_used: np.ndarray, present_w: float, placement: Placement) -> dict[Seat, int]:
    """Return limits by (node of the run, device), of those that change."""
    changed = is_used & (np.abs(limits_w - present_w) >= _LEAST_CHANGE_W)
    return {
        (placement.nodes[place], device): round(float(limits_w[place, device]))
        for place, device in np.argwhere(changed).tolist()
    }


def _run(site: Site, placement: Placement, cluster: ClusterConfig) -> _Run:
    warm, _ = site.warm(placement, cluster)
    trace, stage, power = warm.trace, warm.seats.stage, warm.machine.power
    mean_w, clock_mhz = trace.power_w.mean(axis=0), trace.clock_mhz.mean(axis=0)
    temp_c, used = trace.temp_c.mean(axis=0), stage >= 0
    spread = max(float(own.max() / own.min()) for own in (clock_mhz[stage == one] for one in np.unique(stage[used])))
    drawn = Drawn(warm.load.length_s, float(mean_w[used].sum()), float(temp_c[used].max()), spread)
    top_w, leaks_w = np.quantile(trace.power_w, 0.95, axis=0), leakage_w(power, clock_mhz, temp_c)
    return _Run(drawn, clock_mhz, top_w, mean_w, stage, leaks_w, power)


def with_limits(cluster: ClusterConfig, limits_w: Mapping[Seat, float]) -> ClusterConfig:
    """Return a cluster whose single GPUs have these power limits, by (node, device)."""
    named = {f"node{node}.gpu{device}": float(own) for (node, device), own in limits_w.items()}
    return cluster.model_copy(update={"conditions": cluster.conditions.with_limits(named)})


def leakage_of(site: Site, clocks_mhz: Mapping[Seat, float]) -> dict[Seat, float]:
    """Return the leakage of GPUs over that of a usual part at which they show the clocks that telemetry has.

    Under a power limit a GPU that leaks less clocks higher. Leakage as parts of the type have it is a prior.

    Args:
        site: The job where it ran.
        clocks_mhz: Mean clock in steps, by (node of the run, device). Unit: MHz.

    Raises:
        PointError: If GPUs cannot work under its conditions.
    """
    seats = list(clocks_mhz)
    cluster, factor, at = site.cluster, np.ones(len(seats)), tuple(np.transpose(seats))
    shown = np.array(list(clocks_mhz.values()))
    for _ in range(_LEAKAGE_TURNS):
        run = _run(site, site.present, cluster)
        ours = run.clock_mhz[at]
        off = np.log((shown / np.median(shown)) / (ours / np.median(ours)))
        leaks = np.clip(factor * run.leakage_w[at] / run.mean_w[at], *_LEAKAGE_SHARES)
        most = _MOST_SIGMA * run.power.leakage_spread.value
        factor = np.exp(np.clip(np.log(factor) - _EXPONENT * (1.0 - leaks) / leaks * off, -most, most))
        named = {f"node{node}.gpu{device}": float(own) for (node, device), own in zip(seats, factor, strict=True)}
        conditions = site.cluster.conditions.model_copy(update={"leakage": named})
        cluster = site.cluster.model_copy(update={"conditions": conditions})
    return dict(zip(seats, factor.tolist(), strict=True))
