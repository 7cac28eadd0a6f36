"""Power limits of GPUs: which to try for a power budget, and the highest that keeps to it."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from triplepoint.advise.search.candidate import Candidate, Cold, refused
from triplepoint.advise.search.limits import LIMIT_WORDS, NEED_POWER, POWER_BUDGETS, Limits
from triplepoint.advise.search.space import POWER_LIMIT, Question
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import PointError, UserError
from triplepoint.prices import Prices
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.nodes import is_known, machine_of, node_power_of
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.node import TRAINING_SHARE, node_power_w
from triplepoint.simulate.power.parameters import read_power
from triplepoint.units import KILO

_STEP_W = 50
"""Power limits tried for a budget are multiples of this. Our choice. Unit: W."""
_SUSTAINED_SHARE = 0.25
"""Share of a step, that of the highest power, whose mean in the first estimate is a lower bound of the peak.

That mean rises smoothly with the power limit; peaks do not. Measured: in 80 layouts of Llama 3 70B and Mixtral 8x22B on
512 H100 and 14 on 32 H200, each at 11 limits, the peak of a node and that of the job are 1.004 to 1.29 times that.
"""


@dataclass(frozen=True)
class LowerLimits:
    """Power limits of GPUs to try for a power budget, below that of the cluster.

    Attributes:
        limits_w: The limits, ascending; empty: none to try. Unit: W.
        node_w: Power of a node at the plug whose GPUs all draw their limit; same length. Unit: W.
        nodes_per_rack: Nodes of a rack; 1 where that is not known.
    """

    limits_w: Sequence[float] = ()
    node_w: Sequence[float] = ()
    nodes_per_rack: int = 1

    def guess(self, num_nodes: int, limits: Limits) -> int:
        """Return the place of the lowest limit at which nodes may break a budget; the number of limits if none does.

        Args:
            num_nodes: Nodes of the job.
            limits: Limits of configurations.
        """
        budgets_kw = limits.node_power_kw, limits.rack_power_kw / self.nodes_per_rack, limits.power_kw / num_nodes
        return bisect_right(self.node_w, KILO * min(budgets_kw))


NO_LOWER_LIMITS = LowerLimits()


def lower_limits(question: Question, config: Path, limits: Limits) -> LowerLimits:
    """Return the power limits of GPUs to try for a power budget; none without one, or if their power is not known."""
    if question.power_limits_w or not limits.has_power:
        return NO_LOWER_LIMITS
    catalogue = Catalogue(config)
    cluster = catalogue.cluster(question.cluster, "search")
    gpu = catalogue.gpu_of(cluster)
    if not gpu or not is_known(gpu, config):
        return NO_LOWER_LIMITS
    machine, plug_w = _one_node(cluster, gpu, config)
    first = math.ceil(machine.power.least_limit.value / _STEP_W) * _STEP_W
    most_w = min(machine.power.power_limit.value, read_power(gpu.name, config).power_limit.value + 1.0)
    limits_w = [float(limit_w) for limit_w in range(first, math.ceil(most_w), _STEP_W)]
    node_w = [plug_w(np.full(machine.shape, limit_w), TRAINING_SHARE) for limit_w in limits_w]
    return LowerLimits(limits_w, node_w, cluster.nodes_per_rack or 1)


def _one_node(cluster: ClusterConfig, gpu: GpuConfig, config: Path) -> tuple[Machine, Callable[[Float, float], float]]:
    """Return a node of a cluster, and its power at the plug in W as a function of that of GPUs, and of load of CPUs."""
    machine = machine_of(cluster.conditions, gpu, (1, cluster.gpus_per_node), cluster.name, config)
    node = node_power_of(gpu, config)

    def plug_w(gpus_w: Float, cpu_share: float) -> float:
        return float(node_power_w(node, gpus_w, machine.under_load(gpus_w).fan_flow, cluster.num_nics, cpu_share)[0])

    return machine, plug_w


def follow_within(
    candidate: Candidate, config: Path, with_few_nodes: bool, prices: Prices, limits: Limits, lower: LowerLimits
) -> Candidate:
    """Return a candidate with power and heat, at the highest power limit of GPUs that keeps to a power budget.

    Args:
        candidate: A candidate that fits in memory.
        config: Folder of the configuration.
        with_few_nodes: Whether a few nodes may represent the others, see `simulate.heat.alike`.
        prices: Prices for the cost; none: no cost.
        limits: Limits of configurations.
        lower: Power limits below the present one.
    """
    limits_w = [*lower.limits_w, candidate.power_limit_w]
    try:
        cold = Cold.of(candidate, config, with_few_nodes)
        if not cold.job.is_warmed(cold.cluster):
            return cold.follow(candidate.power_limit_w, None, prices)
        warm_up = cache(cold.warm_up)
        # With faults the first estimate, which has none, says little.
        has_faults = cold.cluster.conditions != cold.cluster.conditions.without_faults

        def is_surely_over(place: int) -> bool:
            if has_faults:
                return False
            sustained = cold.with_peaks(candidate, warm_up(limits_w[place]).first, _SUSTAINED_SHARE)
            return limits.power_excess(sustained) > 0.0

        def is_over(place: int) -> bool:
            try:
                return limits.power_excess(cold.with_peaks(candidate, warm_up(limits_w[place]).steady)) > 0.0
            except PointError:
                return True  # too hot

        guess = lower.guess(candidate.num_nodes, limits)
        limit_w = limits_w[highest_within(len(limits_w), guess, is_surely_over, is_over)]
        return cold.follow(limit_w, warm_up(limit_w), prices)
    except PointError as error:
        return refused(candidate, str(error))


def highest_within(
    number: int, guess: int, is_surely_over: Callable[[int], bool], is_over: Callable[[int], bool]
) -> int:
    """Return the highest of ascending power limits that keeps to a budget; 0, the lowest, if no other does.

    Peaks do not always fall with the limit, so all limits above the result are known to exceed the budget.

    Args:
        number: Number of limits.
        guess: About the lowest that exceeds the budget.
        is_surely_over: Says cheaply of a limit whether it and all above it exceed the budget, see `_SUSTAINED_SHARE`.
        is_over: Says of a limit whether it exceeds the budget.
    """
    place = min(guess, number - 1)
    while place < number - 1 and not is_surely_over(place):
        place += 1
    while place and (is_surely_over(place) or is_over(place)):
        place -= 1
    return place


def check_power(question: Question, limits: Limits, objective: str, catalogue: Catalogue, config: Path) -> None:
    """Check that power and heat of the GPUs are known where they are needed, power budgets, and power limits.

    Args:
        question: The question, of a cluster that is known.
        limits: Limits of configurations.
        objective: What is minimised.
        catalogue: Clusters and GPU types.
        config: Folder of the configuration.
    """
    cluster = catalogue.cluster(question.cluster, "search")
    gpu = catalogue.gpu_of(cluster)
    if not gpu or not is_known(gpu, config):
        options = [LIMIT_WORDS[name][2] for name in NEED_POWER if getattr(limits, name) < math.inf]
        options += [f"--for {objective}"] * (objective in ("energy", "power", "temperature"))
        options += [f"--set {POWER_LIMIT}"] * bool(question.power_limits_w)
        if options:
            raise UserError(
                f"search: power and heat of the GPUs of {cluster.name} are not known; leave {' and '.join(options)} out"
            )
        return
    if limits.has_power:
        machine, plug_w = _one_node(cluster, gpu, config)
        rest_kw = plug_w(machine.idle_w, 0.0) / KILO
        for name in POWER_BUDGETS:
            if (budget_kw := getattr(limits, name)) < rest_kw:
                raise UserError(
                    f"search: {LIMIT_WORDS[name][2]} {budget_kw:g}: expected more than the {rest_kw:.2f} kW that a "
                    f"node of {cluster.name} draws at rest"
                )
    power = read_power(gpu.name, config)
    least_w, most_w = power.least_limit.value, power.power_limit.value
    for value in question.power_limits_w:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least_w <= value <= most_w:
            raise UserError(
                f"search: --set {POWER_LIMIT}: found {value!r}, expected watts from {least_w:g} to {most_w:g}, "
                f"which the driver of {gpu.name} takes"
            )
