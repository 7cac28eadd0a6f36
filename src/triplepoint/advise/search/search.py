"""Search for the configuration to train with: feasible ones, the Pareto front, ties, and a few to measure."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from triplepoint.advise.search.candidate import Candidate, look
from triplepoint.advise.search.front import Bool, Few, few_to_measure, may_reach_front, pareto_front
from triplepoint.advise.search.limits import DRIFT, UNLIMITED, Limits
from triplepoint.advise.search.power_limits import (
    NO_LOWER_LIMITS,
    LowerLimits,
    check_power,
    follow_within,
    lower_limits,
)
from triplepoint.advise.search.space import Question, Row, groups_of
from triplepoint.config.catalogue import Catalogue
from triplepoint.errors import Problems, UserError
from triplepoint.plan_cost import START_S
from triplepoint.prices import UNPRICED, Prices
from triplepoint.processes import on_all_cores
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.layouts import recomputes_more
from triplepoint.simulate.predict.prediction import read_calibrations
from triplepoint.status import PredictionStatus
from triplepoint.units import S_PER_HOUR

_MANY, _MANY_GROUPS = 40, 8
"""Numbers of configurations, and of groups of configurations with the same degrees, from which worker processes pay;
four times as many as a process takes at a time."""
_AT_ONCE, _PROBED = 200, 100
"""If no near configuration keeps to the limits: number of slower ones simulated with heat at a time, fastest first, and
number of evenly spaced ones tried before. If none of the latter keeps to the limits, the search ends."""
_SURE = 0.9
"""Lowest probability of fitting in memory of the first configuration, as for intervals. Our choice."""
_MAX_DRAWN = 60
"""Number of configurations to choose from for a measurement: the fastest of those that may be the best."""

OBJECTIVES: Mapping[str, Callable[[Candidate], float]] = MappingProxyType(
    {
        "time": lambda one: one.prediction.step_time_s,
        "energy": lambda one: one.prediction.power.gpu_energy_per_token_j,
        "power": lambda one: one.node_power_peak_w,
        "temperature": lambda one: one.prediction.power.gpu_temp_max_c,
        "cost": lambda one: one.cost_per_mtoken,
    }
)
"""Quantities to minimise: step time (s), energy of GPUs per token (J), peak power of a node (W), temperature of the
hottest GPU (degC), and cost of a million tokens (currency), a sum of the first two."""
_FRONT_OBJECTIVES = ("time", "energy", "power", "temperature")


@dataclass(frozen=True)
class Chosen:
    """A configuration in the result.

    Attributes:
        candidate: The configuration.
        against_fastest: By objective, its quantity over that of the fastest, minus 1, and both ends of its 90 %
            interval; common errors of step times cancel, those of power and heat are assumed to be independent. NaN
            where power is not known.
        is_tied: Whether it is as fast as the fastest with a probability of at least 10 %.
        is_on_front: Whether no other one is as good in all objectives and better in one.
        may_be_best: Whether its interval includes the best, so that measuring it is useful.
        gpu_hours: GPU hours of a measurement. Unit: h.
    """

    candidate: Candidate
    against_fastest: Mapping[str, tuple[float, float, float]]
    is_tied: bool
    is_on_front: bool
    may_be_best: bool
    gpu_hours: float

    @property
    def slower(self) -> tuple[float, float, float]:
        """Step time over that of the fastest, minus 1, and both ends of its interval."""
        return self.against_fastest["time"]


@dataclass(frozen=True)
class Found:
    """Result of a search.

    Attributes:
        question: The question.
        objective: Key of the minimised quantity in `OBJECTIVES`.
        limits: Limits of configurations.
        counts: Number of configurations by outcome.
        chosen: Configurations within the limits, best first, but the first is the best that surely fits in memory.
        few: Rows of `chosen` to measure.
        nearest: If none is within the limits, the nearest configuration and its excess over each limit.
        broken_by_all: Limits that every configuration breaks.
        prices: Prices of the cost.
    """

    question: Question
    objective: str
    limits: Limits
    counts: Mapping[str, int]
    chosen: Sequence[Chosen] = ()
    few: Few = field(default_factory=lambda: Few([], math.nan, math.nan))
    nearest: tuple[Candidate, Mapping[str, float]] | None = None
    broken_by_all: Sequence[str] = ()
    prices: Prices = UNPRICED

    @property
    def has_limits(self) -> bool:
        """Whether anything but memory has a limit."""
        return self.limits != Limits(fits_probability=self.limits.fits_probability)

    @property
    def to_measure(self) -> list[Chosen]:
        """Configurations to measure."""
        return [self.chosen[row] for row in self.few.rows]


def search(
    question: Question,
    config: Path,
    objective: str = "time",
    limits: Limits = UNLIMITED,
    within: float = 0.25,
    most_measured: int = 6,
    prices: Prices = UNPRICED,
    say: Callable[[str], None] = lambda line: None,
) -> Found:
    """Find the best configuration, and those that may be the best.

    Time and memory of all configurations are predicted. Power and heat are predicted for those near the fastest, on a
    few nodes that represent the others; and for the first ones, with those to measure, on all nodes.

    Args:
        question: Model, cluster, batch and values of settings.
        config: Folder of the configuration.
        objective: Key of `OBJECTIVES`.
        limits: Limits of configurations.
        within: Largest slowdown against the fastest at which power and heat are predicted; slower configurations are
            tried only if no faster one is within the limits. Unit: 1.
        most_measured: Largest number of configurations to measure.
        prices: Prices of energy and GPU hours.
        say: Called with a line on progress.

    Raises:
        UserError: If the question is invalid, or no configuration can run.
    """
    groups = _checked_groups(question, config, objective, limits, prices)
    read_calibrations(config)
    looked = [
        replace(one, power_limit_w=limit_w)
        for one in _looked_at(groups, config, limits, say)
        for limit_w in question.power_limits_w or (None,)
    ]
    follow_all = partial(_followed, config=config, prices=prices, say=say)
    lower = lower_limits(question, config, limits)
    # The power of a rack needs all nodes.
    follow_first = partial(follow_all, with_few_nodes=math.isinf(limits.rack_power_kw), limits=limits, lower=lower)
    counts = Counter(str(one.prediction.status) for one in looked)
    timed = sorted((one for one in looked if not math.isnan(one.step_time_s)), key=lambda one: one.step_time_s)
    if not timed:
        return _infeasible(question, objective, limits, counts, looked)
    left = [one for one in timed if not limits.without_heat(one)]
    if not left:
        nearest = min(timed, key=lambda one: max(limits.without_heat(one).values()))
        return _infeasible(
            question, objective, limits, counts, follow_all([nearest], with_few_nodes=False),
            _broken_by_all([limits.without_heat(one) for one in timed]),
        )  # fmt: skip
    followed, left = _followed_near(left, timed[0].step_time_s * (1.0 + within) * DRIFT, follow_first, limits)
    if not followed:
        raise UserError("search: GPUs get too hot and shut down in all configurations; ease the cluster's conditions")
    kept = [one for one in followed if not limits.excesses(one)]
    if not kept:
        counts |= {"not followed": len(timed) - len(followed)}
        return _infeasible(
            question, objective, limits, counts, followed, _broken_by_all([limits.excesses(one) for one in followed])
        )
    counts |= {
        "within the limits": len(kept),
        "beyond a limit": len(timed) - len(left) - len(kept),
        "too slow to matter": len(left),
    }
    return replace(_choose(question, objective, limits, counts, kept, follow_all, config, most_measured), prices=prices)


def _checked_groups(
    question: Question, config: Path, objective: str, limits: Limits, prices: Prices
) -> Sequence[Sequence[Row]]:
    """Return the configurations of a question by their degrees; raise one `UserError` with all that is wrong."""
    catalogue = Catalogue(config)
    problems = Problems("search")
    if objective == "cost" and not prices.are_given:
        problems.add(UserError("search: cost has no prices; give --price-kwh, --price-gpu-hour or both"))
    groups = problems.call(groups_of, question, catalogue) or []
    has_racks = limits.rack_power_kw < math.inf
    if groups and has_racks and catalogue.cluster(question.cluster, "search").nodes_per_rack is None:
        line = (
            f"search: cluster {question.cluster} has no nodes_per_rack; set it, or use --max-node-power or --max-power"
        )
        problems.add(UserError(line))
    if groups:
        problems.call(check_power, question, limits, objective, catalogue, config)
    problems.refuse()
    return groups


def _followed_near(
    left: list[Candidate], reach_s: float, follow_all: Callable[[Sequence[Candidate]], list[Candidate]], limits: Limits
) -> tuple[list[Candidate], list[Candidate]]:
    """Return candidates with power and heat, and those that were not tried.

    Args:
        left: Candidates without power and heat, fastest first.
        reach_s: Step time up to which all are followed; slower ones only if no faster one keeps to the limits. Unit: s.
        follow_all: Returns candidates with power and heat.
        limits: Limits of configurations.
    """
    number = sum(one.step_time_s <= reach_s for one in left)
    followed, left = follow_all(left[:number]), left[number:]
    if left and all(limits.excesses(one) for one in followed):
        slower, left = _followed_slower(left, follow_all, limits)
        followed += slower
    return followed, left


def _followed_slower(
    left: list[Candidate], follow_all: Callable[[Sequence[Candidate]], list[Candidate]], limits: Limits
) -> tuple[list[Candidate], list[Candidate]]:
    """Return slower candidates with power and heat, until some keep to the limits, and those that were not tried.

    If none of a few evenly spaced ones keeps to the limits, the others are not tried.

    Args:
        left: Candidates without power and heat, fastest first.
        follow_all: Returns candidates with power and heat.
        limits: Limits of configurations.
    """
    probed = follow_all(left[:: -(-len(left) // _PROBED)])
    if all(limits.excesses(one) for one in probed):
        return probed, left
    followed: list[Candidate] = []
    while left and all(limits.excesses(one) for one in followed):
        near, left = left[:_AT_ONCE], left[_AT_ONCE:]
        followed += follow_all(near)
    return followed, left


def _looked_at(
    groups: Sequence[Sequence[Row]], config: Path, limits: Limits, say: Callable[[str], None]
) -> list[Candidate]:
    """Return the candidates of groups of rows with the same degrees, one for each point."""
    do = partial(look, config=config, least_fit=limits.fits_probability)
    total = sum(map(len, groups))
    ends = np.cumsum([len(group) for group in groups])
    found = do(groups[0])  # reads the tables, which worker processes then share
    for looked in on_all_cores(
        do,
        groups[1:],
        _MANY_GROUPS,
        lambda done: say(f"memory and time: {ends[done]} of {total} combinations of values"),
    ):
        found |= {point: one for point, one in looked.items() if point not in found}
    return list(found.values())


def _followed(
    candidates: Sequence[Candidate],
    with_few_nodes: bool,
    config: Path,
    prices: Prices,
    say: Callable[[str], None],
    many: int = _MANY,
    limits: Limits = UNLIMITED,
    lower: LowerLimits = NO_LOWER_LIMITS,
) -> list[Candidate]:
    """Return candidates with power and heat, without those whose GPUs would shut down; see `follow_within`."""
    do = partial(follow_within, config=config, with_few_nodes=with_few_nodes, prices=prices, limits=limits, lower=lower)
    found = on_all_cores(
        do, candidates, many, lambda done: say(f"power and heat: {done} of {len(candidates)} configurations")
    )
    return [one for one in found if one.prediction.status != PredictionStatus.INVALID]


def _broken_by_all(excesses: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the limits that every configuration breaks."""
    first, *others = excesses
    return [name for name in first if all(name in one for one in others)]


def _choose(
    question: Question,
    objective: str,
    limits: Limits,
    counts: Mapping[str, int],
    kept: Sequence[Candidate],
    follow_all: Callable[..., list[Candidate]],
    config: Path,
    most_measured: int,
) -> Found:
    """Return the result from the configurations within the limits."""
    calibration, value = read_calibrations(config)[0], OBJECTIVES[objective]
    if math.isnan(value(kept[0])):
        raise UserError(f"search: power of this GPU type is not known, and {objective} needs it; search for time")
    ordered = sorted(kept, key=value)
    # The first ones again, with the heat of all nodes.
    exact = follow_all(ordered[: 2 * most_measured], with_few_nodes=False, many=4)
    ordered = sorted([*(one for one in exact if not limits.excesses(one)), *ordered[2 * most_measured :]], key=value)
    sure = (place for place, one in enumerate(ordered) if one.fits_probability >= _SURE)
    ordered.insert(0, ordered.pop(next(sure, 0)))
    on_front = pareto_front(np.array([[OBJECTIVES[name](one) for name in _FRONT_OBJECTIVES] for one in ordered]))
    best = ordered[0]
    widths = [_width(best, one, objective, calibration) for one in ordered]
    logs = np.log([value(one) for one in ordered])
    may_be_best: Bool = may_reach_front(logs[:, None], logs[:1, None], np.array(widths)[:, None, None])
    places = np.flatnonzero(may_be_best)[:_MAX_DRAWN]
    among = [ordered[place] for place in places]
    pairs = np.array([[_width(one, other, objective, calibration) for other in among] for one in among])
    few = few_to_measure(logs[places], pairs, most_measured, choice=0)
    few = replace(few, rows=[int(places[row]) for row in few.rows])
    fastest = min(ordered, key=lambda one: one.step_time_s)
    chosen = [
        Chosen(
            one, {name: _against(fastest, one, name, calibration) for name in _FRONT_OBJECTIVES},
            _is_tied(fastest, one, calibration), bool(front), bool(may), gpu_hours_of(one),
        )
        for one, front, may in zip(ordered, on_front, may_be_best, strict=True)
    ]  # fmt: skip
    return Found(question, objective, limits, counts, chosen, few)


def _against(
    fastest: Candidate, one: Candidate, objective: str, calibration: Calibration
) -> tuple[float, float, float]:
    """Return a quantity over that of the fastest configuration, minus 1, and both ends of its 90 % interval."""
    more = math.log(OBJECTIVES[objective](one) / OBJECTIVES[objective](fastest))
    width = _width(fastest, one, objective, calibration)
    return math.expm1(more), math.expm1(more - width), math.expm1(more + width)


def _is_tied(fastest: Candidate, one: Candidate, calibration: Calibration) -> bool:
    """Return whether a configuration is as fast as the fastest with a probability of at least 10 %."""
    first, laid = fastest.prediction.laid, one.prediction.laid
    assert first is not None and laid is not None
    return one is fastest or calibration.is_tied(first, laid, math.log(one.step_time_s / fastest.step_time_s))


def _width(one: Candidate, other: Candidate, objective: str, calibration: Calibration) -> float:
    """Return the half-width of the 90 % interval of the log ratio of two configurations.

    For times, the fitted interval of pairs. Errors of power are assumed to be independent, which makes intervals wider
    than they are.
    """
    if one is other:
        return 0.0
    first, second = one.prediction.laid, other.prediction.laid
    assert first is not None and second is not None
    # A configuration that only recomputes more runs all kernels of the other, so it is surely slower.
    has_same_limit = one.power_limit_w == other.power_limit_w
    is_slower = has_same_limit and (recomputes_more(first.job, second.job) or recomputes_more(second.job, first.job))
    of_time = 0.0 if is_slower else calibration.layout_width(first, second)
    if objective == "time":
        return of_time
    if objective == "energy":
        return math.hypot(of_time, *(_half(each, "gpu_power_w") for each in (one, other)))
    if objective == "cost":
        return math.hypot(of_time, *(each.energy_cost_share * _half(each, "gpu_power_w") for each in (one, other)
                                     if each.energy_cost_share))  # fmt: skip
    name = "gpu_power_peak_w" if objective == "power" else "gpu_temp_max_c"
    return math.hypot(*(_half(each, name) for each in (one, other)))


def _half(one: Candidate, name: str) -> float:
    """Return the half-width of the 90 % interval of the log of a quantity of power or heat."""
    stem, _, unit = name.rpartition("_")
    low, high = (getattr(one.prediction.power, f"{stem}_{end}_{unit}") for end in ("lo", "hi"))
    return 0.5 * math.log(high / low)


def gpu_hours_of(one: Candidate) -> float:
    """Return the GPU hours of a launch of a configuration: start and all steps. Unit: h."""
    wall_s = START_S + len(one.point.steps.kinds) * one.step_time_s
    return wall_s * one.point.num_gpus / S_PER_HOUR


def _infeasible(
    question: Question,
    objective: str,
    limits: Limits,
    counts: Mapping[str, int],
    candidates: Sequence[Candidate],
    broken_by_all: Sequence[str] = (),
) -> Found:
    """Return the result if no configuration is within the limits: the nearest one, and the limits it breaks."""
    known = [one for one in candidates if not math.isnan(one.step_time_s)]
    if known:
        excess = [limits.excesses(one) for one in known]
        place = min(range(len(known)), key=lambda row: max(excess[row].values(), default=0.0))
        return Found(
            question, objective, limits, counts, nearest=(known[place], excess[place]), broken_by_all=broken_by_all
        )
    legal = [
        one
        for one in candidates
        if one.prediction.status != PredictionStatus.INVALID and not math.isnan(one.memory_gib)
    ]
    if not legal:
        ((reason, number), *_) = Counter(one.prediction.reason for one in candidates).most_common()
        raise UserError(f"search: none of {len(candidates)} configurations can run; {number} of them: {reason}")
    smallest = min(legal, key=lambda one: one.memory_gib)
    return Found(question, objective, limits, counts, nearest=(smallest, {"fits_probability": math.inf}))
