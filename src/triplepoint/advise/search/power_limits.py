"""Power limits of GPUs: which to try for a power budget, and the highest that keeps to it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from triplepoint.advise.search.candidate import Candidate, follow
from triplepoint.advise.search.limits import POWER_BUDGETS, Limits
from triplepoint.advise.search.space import POWER_LIMIT, Question
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError
from triplepoint.prices import Prices
from triplepoint.simulate.heat.nodes import is_known, power_of
from triplepoint.simulate.power.parameters import read_power
from triplepoint.status import PredictionStatus

_STEP_W = 50
"""Power limits tried for a budget are multiples of this. Our choice. Unit: W."""


def lower_limits(question: Question, config: Path, limits: Limits) -> Sequence[float]:
    """Return the power limits of GPUs to try for a power budget, ascending; none without one. Unit: W."""
    if question.power_limits_w or not limits.has_power:
        return ()
    catalogue = Catalogue(config)
    cluster = catalogue.cluster(question.cluster, "search")
    return () if cluster.gpu is None else _limits_below(cluster, catalogue.gpu(cluster.gpu), config)


def _limits_below(cluster: ClusterConfig, gpu: GpuConfig, config: Path) -> list[float]:
    """Return the power limits of a GPU to try for a power budget: below that of the cluster, ascending. Unit: W.

    Empty if the power of this GPU type is not known.
    """
    if not is_known(gpu, config):
        return []
    power = power_of(cluster.conditions, gpu, config)
    first = math.ceil(power.least_limit.value / _STEP_W) * _STEP_W
    most_w = min(power.power_limit.value, read_power(gpu.name, config).power_limit.value + 1.0)
    return [float(limit_w) for limit_w in range(first, math.ceil(most_w), _STEP_W)]


def follow_within(
    candidate: Candidate, config: Path, with_few_nodes: bool, prices: Prices, limits: Limits, lower_w: Sequence[float]
) -> Candidate:
    """Return a candidate with power and heat, at the highest power limit of GPUs that keeps to a power budget.

    Args:
        candidate: As `follow`.
        config: As `follow`.
        with_few_nodes: As `follow`.
        prices: As `follow`.
        limits: Limits of configurations.
        lower_w: Power limits below the present one, ascending. Unit: W.
    """

    def at(limit_w: float | None) -> Candidate:
        return follow(replace(candidate, power_limit_w=limit_w), config, with_few_nodes, prices)

    def is_over(one: Candidate) -> bool:
        return any(name in limits.excesses(one) for name in POWER_BUDGETS)

    best = at(candidate.power_limit_w)
    if not lower_w or best.prediction.status == PredictionStatus.INVALID or not is_over(best):
        return best
    excess = max(factor for name, factor in limits.excesses(best).items() if name in POWER_BUDGETS)
    # Peak power falls more slowly than the limit, since not all power is that of GPUs, and not always: from above.
    start_w = (lower_w[-1] + _STEP_W) / excess + _STEP_W
    for limit_w in reversed([one for one in lower_w if one < start_w] or lower_w[:1]):
        best = at(limit_w)
        if not is_over(best):
            break
    return best


def check_power_limits(question: Question, catalogue: Catalogue, config: Path) -> None:
    """Check that the GPUs of a cluster take the power limits to search over."""
    cluster = catalogue.cluster(question.cluster, "search")
    gpu = cluster.gpu and catalogue.gpu(cluster.gpu)
    if not gpu or not is_known(gpu, config):
        raise UserError(f"search: --set {POWER_LIMIT}: power of the GPUs of {cluster.name} is not known; leave it out")
    power = read_power(gpu.name, config)
    least_w, most_w = power.least_limit.value, power.power_limit.value
    for value in question.power_limits_w:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least_w <= value <= most_w:
            raise UserError(
                f"search: --set {POWER_LIMIT}: found {value!r}, expected watts from {least_w:g} to {most_w:g}, "
                f"which the driver of {gpu.name} takes"
            )
