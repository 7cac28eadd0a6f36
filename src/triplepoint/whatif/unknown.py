"""Uncertainties of a predicted case, as changes of the case; those that two cases share cancel.

Each is moved by the half-width of its 90 % interval, one at a time; the changes of a result add up in squares.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from triplepoint.metrics import Z90
from triplepoint.prices import Prices
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.heat.nodes import power_of
from triplepoint.simulate.predict.prediction import Prediction
from triplepoint.whatif.case import Case, quantities
from triplepoint.whatif.changes import with_inlet, with_power_limit


@dataclass(frozen=True)
class Unknown:
    """One uncertainty.

    Attributes:
        kind: computing, network, scale_up, power or inlet.
        of: GPU type, kind of link or cluster; cases with the same one share the uncertainty.
        width: Half-width of the 90 % interval: in log; for `inlet` in K.
    """

    kind: str
    of: str
    width: float

    @property
    def name(self) -> str:
        """Name, equal for all cases that share the uncertainty."""
        return f"{self.kind} {self.of}".strip()

    def simulate(self, case: Case, config: Path, prices: Prices) -> dict[str, float]:
        """Return the quantities of a case with the uncertainty moved by its width."""
        if self.kind == "power":
            return _with_more_power(case, self.width, config, prices)
        moved = _moved(self, case, config)
        return quantities(moved, moved.predict(config), prices)


def unknowns_of(case: Case, prediction: Prediction, config: Path) -> list[Unknown]:
    """Return the uncertainties of a predicted case from its calibrations."""
    widths = [Unknown("computing", "", _width(prediction.step_time_s, prediction.step_time_hi_s))]
    for level in case.job.fabric.levels:
        kind, width = "network" if level.is_network else "scale_up", Z90 * load_link(level.kind, config).sigma
        if not any(unknown.kind == kind for unknown in widths):
            widths.append(Unknown(kind, level.kind, width))
    power = prediction.power
    widths.append(Unknown("power", case.job.gpu.name, _width(power.gpu_power_peak_lo_w, power.gpu_power_peak_w)))
    if not math.isnan(power.gpu_power_w):
        widths.append(Unknown("inlet", case.cluster.name, Z90 * case.cluster.conditions.inlet_sigma_k))
    return [unknown for unknown in widths if unknown.width > 0]


def _width(low: float, high: float) -> float:
    """Return the log ratio of the ends of an interval; 0 without one."""
    return math.log(high / low) if low > 0 and high > low else 0.0


def _moved(unknown: Unknown, case: Case, config: Path) -> Case:
    """Return a case with an uncertainty other than that of power moved by its width."""
    if unknown.kind == "inlet":
        conditions = case.cluster.conditions
        return with_inlet(case, min(conditions.inlet_temp_c + unknown.width, 60.0), config)
    slower = math.exp(-unknown.width)
    if unknown.kind == "computing":
        return _computing_at(case, slower)
    return case.with_job(fabric=case.job.fabric.faster(unknown.kind == "network", slower))


def _computing_at(case: Case, speed: float) -> Case:
    """Return the case with a factor on the speed of all GPUs, in addition to that of slow ones."""
    per_node, slow = case.cluster.gpus_per_node, case.cluster.slow_gpus
    names = [f"node{rank // per_node}.gpu{rank % per_node}" for rank in range(case.job.num_gpus)]
    speeds = slow | {name: slow.get(name, 1.0) * speed for name in names}
    return replace(case, cluster=case.cluster.model_copy(update={"slow_gpus": speeds}))


def _with_more_power(case: Case, width: float, config: Path, prices: Prices) -> dict[str, float]:
    """Return the quantities of a case whose GPUs draw more power for the same work, less if their limit is the lowest.

    Clocks are those under a limit that is lower by the same factor; power and temperature rise are multiplied by it.
    """
    conditions = case.cluster.conditions
    power = power_of(conditions, case.job.gpu, config)
    limit_w, factor = power.power_limit.value, math.exp(width)
    if limit_w / factor < power.least_limit.value:
        factor = 1.0 / factor
    is_limited = conditions.power_limit_w is None or math.isfinite(conditions.power_limit_w)
    moved = with_power_limit(case, limit_w / factor, config) if is_limited else case
    prediction = moved.predict(config)
    drawn = prediction.power
    more_w = (factor - 1.0) * drawn.gpu_power_w
    in_node = min(case.cluster.gpus_per_node, case.job.num_gpus) / case.job.gpu.gpus_per_package
    inlet_c = conditions.inlet_temp_c
    hotter = replace(
        drawn,
        gpu_power_w=drawn.gpu_power_w + more_w,
        node_power_w=drawn.node_power_w + more_w * in_node,
        gpu_temp_max_c=inlet_c + (drawn.gpu_temp_max_c - inlet_c) * factor,
    )
    return quantities(case, replace(prediction, power=hotter), prices)
