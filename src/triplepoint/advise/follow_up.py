"""A study that verifies an advice: A as it is, B as advised, in pairs, in an order drawn at random."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from triplepoint.advise.caps import Caps, Seat
from triplepoint.advise.gain import Gain
from triplepoint.advise.placement import Placement
from triplepoint.advise.recommend import Advice
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import run_id
from triplepoint.config.point import Point
from triplepoint.config.study import Settings, Study, expand
from triplepoint.errors import UserError
from triplepoint.metrics import t_quantile
from triplepoint.plan import points_of
from triplepoint.simulate.power.gpu import Float

Kind = Literal["placement", "move", "save"]

_LEAST_PAIRS, _MOST_PAIRS = 3, 50
_UNKNOWN_SPREAD = 0.01
"""Standard deviation of the steps of runs, relative, where no run was measured. Our choice."""
_FALSE_ALARM, _POWER = 0.05, 0.8
"""Chance to find a gain that is not there, and to find the promised one. Usual choices."""
_SEED = 1234


@dataclass(frozen=True, eq=False)
class FollowUp:
    """Runs that verify an advice.

    Attributes:
        kind: What is verified: time of a placement, time (`move`) or energy (`save`) under power limits.
        gain: What was promised.
        spread: Relative standard deviation of steps that the number of pairs is reckoned with.
        first: Runs as it is (A), by pair.
        other: Runs as advised (B), by pair.
        order: All of them in the order to launch them.
        text: The study, as YAML.
    """

    kind: Kind
    gain: Gain
    spread: float
    first: tuple[str, ...]
    other: tuple[str, ...]
    order: tuple[str, ...]
    text: str


def accepted(advice: Advice) -> tuple[Kind, Gain] | None:
    """Return what of an advice is verified, and what it promises: the placement, or else limits; None where nothing."""
    if advice.gain is not None and advice.gain.is_accepted:
        return "placement", advice.gain
    found = {one.caps.goal: one.gain for one in advice.accepted_limits}
    return next(((goal, found[goal]) for goal in ("move", "save") if goal in found), None)


def spread_of(measured_s: Float) -> float:
    """Return the relative standard deviation of steps: as if all steps of a run were off together."""
    if len(measured_s) < _LEAST_PAIRS:
        return _UNKNOWN_SPREAD
    return max(float(np.std(measured_s, ddof=1) / np.mean(measured_s)), 1e-4)


def num_pairs(gain: float, spread: float) -> int:
    """Return how many pairs tell a gain from none: one-sided, 5 % false alarms, found in 80 % of cases.

    Args:
        gain: Share that is saved.
        spread: Relative standard deviation of one run.

    Raises:
        UserError: If it takes too many.

    Source:
        Paired t-test, sample size by iteration over the degrees of freedom (Zar, Biostatistical Analysis, 5th ed.,
        section 7.6).
    """
    for number in range(_LEAST_PAIRS, _MOST_PAIRS + 1):
        needed = t_quantile(number - 1, 1.0 - _FALSE_ALARM) + t_quantile(number - 1, _POWER)
        if number >= 2.0 * (spread / gain) ** 2 * needed**2:
            return number
    raise UserError(
        f"recommend: --study: a gain of {gain:.2%} at a spread of {spread:.2%} takes over {_MOST_PAIRS} pairs of runs; "
        "measure more steps a run, or leave it"
    )


def follow_up(advice: Advice, name: str, config: Path) -> FollowUp:
    """Return the runs that verify an advice.

    Args:
        advice: The advice; something in it is accepted.
        name: Of the study.
        config: Folder of the configuration.

    Raises:
        UserError: If nothing is accepted, the gain takes too many runs, or the job is none that a study can state.
    """
    chosen = accepted(advice)
    if chosen is None:
        raise UserError("recommend: --study: nothing is recommended, so there is nothing to verify; leave it out")
    kind, gain = chosen
    spread = spread_of(advice.measured_s)
    number, site = num_pairs(gain.share, spread), advice.site
    fixed = settings_of_study(site.point) | _same_parts(site.point)
    sides = [_as_it_is(advice, kind), _as_advised(advice, kind)]
    sweeps: list[dict[str, Any]] = [{"set": {"repeats": number} | side} for side in sides]
    about = f"Follow-up of `triplepoint recommend {advice.name}`: A as it is, B as advised, in {number} pairs."
    content = {"description": about, "defaults": fixed, "sweeps": sweeps}
    runs = runs_of(content, site.point.cluster.name, config, name)
    first, other = runs[:number], runs[number:]
    order = in_order(first, other)
    lines = [f"# {place:3} {'A' if run in first else 'B'} {run}" for place, run in enumerate(order, 1)]
    head = [
        "# Written by `triplepoint recommend --study`. Launch the runs one by one in this order. Ranks take the hosts",
        "# in the order of the study. Set power limits by hand before each run: a launch under others ends at once.",
        *lines,
    ]
    body = yaml.safe_dump(content, sort_keys=False, width=1000, default_flow_style=None)
    return FollowUp(kind, gain, spread, first, other, order, "\n".join([*head, body]))


def _as_it_is(advice: Advice, kind: Kind) -> dict[str, Any]:
    """Return what a study says of the job as it is: hosts, and of GPUs whose limit is to change the one in force."""
    side: dict[str, Any] = {"hosts": _hosts(advice, advice.present)}
    if kind != "placement":
        caps = _caps(advice, kind)
        side["gpu_power_limits_w"] = _limits(advice, dict.fromkeys(caps.limits_w, round(caps.present_w)))
    return side


def _as_advised(advice: Advice, kind: Kind) -> dict[str, Any]:
    """Return what a study says of the job as advised: hosts and layers of stages, or power limits."""
    if kind != "placement" or advice.proposed is None:
        limits = _limits(advice, _caps(advice, kind).limits_w)
        return {"hosts": _hosts(advice, advice.present), "gpu_power_limits_w": limits}
    side: dict[str, Any] = {"hosts": _hosts(advice, advice.proposed)}
    if advice.proposed.layers and advice.proposed.layers != advice.present.layers:
        side |= {"pipeline_layers": list(advice.proposed.layers), "pipeline_ends": []}
    if advice.proposed.micro_batch_size:
        side["micro_batch_size"] = advice.proposed.micro_batch_size
    return side


def _caps(advice: Advice, kind: Kind) -> Caps:
    return next(one.caps for one in advice.accepted_limits if one.caps.goal == kind)


def _limits(advice: Advice, limits_w: Mapping[Seat, int]) -> list[str]:
    named = _names(advice)
    return sorted(f"{named[node]}.gpu{device}:{limit_w}" for (node, device), limit_w in limits_w.items())


def _hosts(advice: Advice, placement: Placement) -> list[str]:
    named = _names(advice)
    return [named[node] for node in placement.nodes]


def _names(advice: Advice) -> Mapping[int, str]:
    """Return the names of the nodes of a job in a study: those of a simulated cluster have their numbers."""
    point = advice.site.point
    if point.engine != "simulated":
        return advice.hosts
    return dict(enumerate(point.hosts or (f"node{node}" for node in range(point.num_nodes))))


def _same_parts(point: Point) -> dict[str, int]:
    """Return the setting that gives all simulated runs of a study the GPUs of this one."""
    return {"parts_of_repeat": point.parts_of_repeat or point.repeat} if point.engine == "simulated" else {}


def in_order(first: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """Return the runs of pairs one pair after the other; which of a pair comes first is drawn."""
    draws = np.random.default_rng(_SEED).permutation(np.arange(len(first)) % 2)
    pairs = zip(first, other, draws, strict=True)
    return tuple(run for one, two, is_turned in pairs for run in ((two, one) if is_turned else (one, two)))


def settings_of_study(point: Point) -> dict[str, Any]:
    """Return the settings under which a study has a point, those at their default left out."""
    parts: list[Mapping[str, Any]] = [dict(point.layout), dict(point), dict(point.inference or ())]
    values: dict[str, Any] = {f"lora_{name}": value for name, value in point.lora or ()}
    for part in parts:
        values |= {name: value for name, value in part.items() if name in Settings.model_fields}
    values |= {"model": point.model.name, "cluster": point.cluster.name}
    values["trace_ranks"] = "all" if point.trace_ranks == "all" else "roles"
    fields = Settings.model_fields
    kept = {name: value for name, value in values.items() if value is not None and value != fields[name].default}
    kept = Settings.model_validate({"global_batch_size": point.global_batch_size} | kept).model_dump(
        mode="json", include=set(kept) - {"dp", "repeat", "hosts", "gpu_power_limits_w"}
    )
    return {"model": kept.pop("model"), "cluster": kept.pop("cluster"), **kept}


def runs_of(content: Mapping[str, Any], cluster: str, config: Path, name: str) -> tuple[str, ...]:
    """Return the runs of a study, in its order.

    Raises:
        UserError: If it cannot be read as a study of valid points.
    """
    catalogue, where = Catalogue(config), Path(f"{name}.yaml")
    found = []
    for settings in expand(Study.model_validate(content), where):
        found += [run_id(point) for point in points_of(settings, catalogue, where)]
    return tuple(found)
