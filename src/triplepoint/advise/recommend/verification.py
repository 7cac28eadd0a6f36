"""A study that verifies an advice: A as it is, B and C as advised, in pairs, in an order drawn at random."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml

from triplepoint.advise.recommend.advice import Advice
from triplepoint.advise.recommend.placement import Placement
from triplepoint.advise.recommend.placement_gain import Gain
from triplepoint.advise.recommend.power_limits import Seat
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import run_id
from triplepoint.config.point import Point
from triplepoint.config.study import Study, expand, settings_of_study
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
_ARMS = "ABC"


class Pairs(NamedTuple):
    """Runs that verify one promise: those without what it is of, and those with it, by pair."""

    first: tuple[str, ...]
    other: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class FollowUp:
    """Runs that verify an advice.

    Attributes:
        pairs: Of each promise, by its kind.
        spread: Relative standard deviation of steps that the number of pairs is reckoned with.
        order: All runs in the order to launch them.
        text: The study, as YAML.
        left_out: Why power limits are not verified with the placement; empty where they are, or there are none.
    """

    pairs: Mapping[Kind, Pairs]
    spread: float
    order: tuple[str, ...]
    text: str
    left_out: str = ""


def accepted(advice: Advice) -> dict[Kind, Gain]:
    """Return what an advice promises: of a placement, then of power limits under it; of these time before energy."""
    found: dict[Kind, Gain] = {}
    if advice.gain is not None and advice.gain.is_accepted:
        found["placement"] = advice.gain
    limits = {one.caps.goal: one.gain for one in advice.accepted_limits}
    return found | next(({goal: limits[goal]} for goal in ("move", "save") if goal in limits), {})


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
    promised, spread = accepted(advice), spread_of(advice.measured_s)
    if not promised:
        raise UserError("recommend: --study: nothing is recommended, so there is nothing to verify; leave it out")
    number, left_out = _numbers(promised, spread)
    kinds, site = list(number), advice.site
    # A side for each thing that is changed after another, each repeated for the promises before and after it.
    sides = _sides(advice, kinds)
    repeats = [max(number[kind] for kind in kinds[max(place - 1, 0) : place + 1]) for place in range(len(sides))]
    sweeps = [{"set": {"repeats": many} | side} for many, side in zip(repeats, sides, strict=True)]
    fixed = settings_of_study(site.point) | _same_parts(site.point)
    words = {"placement": "with the placement advised", "move": "with the power limits advised"}
    meant = ["as it is", *(words.get(kind, words["move"]) for kind in kinds)]
    arms = ", ".join(f"{letter} {what}" for letter, what in zip(_ARMS, meant, strict=False))
    about = f"Follow-up of `triplepoint recommend {advice.name}`: {arms}, in {max(number.values())} pairs."
    content = {"description": about, "defaults": fixed, "sweeps": sweeps}
    every = iter(runs_of(content, site.point.cluster.name, config, name))
    runs = [tuple(itertools.islice(every, many)) for many in repeats]
    pairs = {
        kind: Pairs(runs[place][: number[kind]], runs[place + 1][: number[kind]]) for place, kind in enumerate(kinds)
    }
    order = in_order(*runs)
    letters = {run: letter for letter, own in zip(_ARMS, runs, strict=False) for run in own}
    lines = [f"# {place:3} {letters[run]} {run}" for place, run in enumerate(order, 1)]
    head = [
        "# Written by `triplepoint recommend --study`. Launch the runs one by one in this order. Ranks take the hosts",
        "# in the order of the study. Set power limits by hand before each run: a launch under others ends at once.",
        *lines,
    ]
    body = yaml.safe_dump(content, sort_keys=False, width=1000, default_flow_style=None)
    return FollowUp(pairs, spread, order, "\n".join([*head, body]), left_out)


def _numbers(promised: Mapping[Kind, Gain], spread: float) -> tuple[dict[Kind, int], str]:
    """Return how many pairs verify each promise, and why the second is left out where it takes too many."""
    number: dict[Kind, int] = {}
    for kind, gain in promised.items():
        try:
            number[kind] = num_pairs(gain.share, spread)
        except UserError as error:
            if not number:
                raise
            return number, str(error)
    return number, ""


def _sides(advice: Advice, kinds: Sequence[Kind]) -> list[dict[str, Any]]:
    """Return what a study says of the job as it is, then with each promise kept: placement first, then limits.

    Of GPUs whose limit is to change, sides before that have the one in force: else that of the run before would stay.
    """
    sides: list[dict[str, Any]] = [{"hosts": _hosts(advice, advice.present)}]
    if kinds[0] == "placement":
        sides.append(_as_placed(advice))
    if kinds[-1] != "placement":
        caps = next(one.caps for one in advice.accepted_limits if one.caps.goal == kinds[-1])
        in_force = dict.fromkeys(caps.limits_w, round(caps.present_w))
        sides = [side | {"gpu_power_limits_w": _limits(advice, in_force)} for side in sides]
        sides.append(sides[-1] | {"gpu_power_limits_w": _limits(advice, caps.limits_w)})
    return sides


def _as_placed(advice: Advice) -> dict[str, Any]:
    """Return what a study says of the placement that is advised: hosts, layers of stages and micro-batch."""
    assert advice.proposed is not None
    side: dict[str, Any] = {"hosts": _hosts(advice, advice.proposed)}
    if advice.proposed.layers and advice.proposed.layers != advice.present.layers:
        side |= {"pipeline_layers": list(advice.proposed.layers), "pipeline_ends": []}
    if advice.proposed.micro_batch_size:
        side["micro_batch_size"] = advice.proposed.micro_batch_size
    return side


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


def in_order(*arms: tuple[str, ...]) -> tuple[str, ...]:
    """Return one run of each arm after the other, over and over; which comes first is drawn, each as often."""
    number = max(map(len, arms))
    draws = np.random.default_rng(_SEED).permutation(np.arange(number) % len(arms)).tolist()
    return tuple(arm[place] for place, by in enumerate(draws) for arm in arms[by:] + arms[:by] if place < len(arm))


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
