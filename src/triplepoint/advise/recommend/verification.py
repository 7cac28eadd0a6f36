"""Study that verifies an advice: pairs of runs before (A) and after (B, C) each change, in random order."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml

from triplepoint.advise.recommend.advice import Advice
from triplepoint.advise.recommend.placement import Placement, Seat
from triplepoint.advise.recommend.placement_gain import Gain
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.plan import run_id
from triplepoint.config.point import Point
from triplepoint.config.study import Study, expand, settings_of_study
from triplepoint.errors import UserError
from triplepoint.metrics import t_quantile
from triplepoint.plan import points_of
from triplepoint.simulate.power.gpu import Float
from triplepoint.text import percent

Kind = Literal["placement", "move", "save"]

_MIN_PAIRS, _MAX_PAIRS = 3, 50
_DEFAULT_SPREAD = 0.01
"""Relative standard deviation of step times between runs, if no run was measured. Our choice."""
_FALSE_ALARM, _POWER = 0.05, 0.8
"""Probability of finding a gain that does not exist, and of finding the promised one. Usual choices."""
_SEED = 1234
_ARMS = "ABC"
"""Letters of the arms of the study: the job before and after each change."""


class Pairs(NamedTuple):
    """Runs that verify one promise.

    Attributes:
        first: Run before the change, of each pair.
        other: Run after the change, of each pair.
    """

    first: tuple[str, ...]
    other: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class FollowUp:
    """Runs that verify an advice.

    Attributes:
        pairs: Pairs of runs by kind of promise.
        spread: Relative standard deviation of step times, from which the number of pairs follows.
        order: All runs in the order of launches.
        text: The study as YAML.
        left_out: Why power limits are not verified; empty if they are, or if there are none.
    """

    pairs: Mapping[Kind, Pairs]
    spread: float
    order: tuple[str, ...]
    text: str
    left_out: str = ""


def accepted(advice: Advice) -> dict[Kind, Gain]:
    """Return the promised gains: of the placement, then of power limits under it, where time goes before energy."""
    gains: dict[Kind, Gain] = {}
    if advice.gain is not None and advice.gain.is_accepted:
        gains["placement"] = advice.gain
    limits = {each.caps.goal: each.gain for each in advice.accepted_limits}
    return gains | next(({goal: limits[goal]} for goal in ("move", "save") if goal in limits), {})


def spare_of(advice: Advice, kind: Kind) -> float:
    """Return the power to spare in each node that a promised gain uses; 0 without any. Unit: W."""
    return next((each.caps.spare_w for each in advice.accepted_limits if each.caps.goal == kind), 0.0)


def spread_of(measured_s: Float) -> float:
    """Return the relative standard deviation of steps, used as that of runs: an upper bound for independent steps."""
    if len(measured_s) < _MIN_PAIRS:
        return _DEFAULT_SPREAD
    return max(float(np.std(measured_s, ddof=1) / np.mean(measured_s)), 1e-4)


def num_pairs(gain: float, spread: float) -> int:
    """Return the number of pairs that detect a gain: one-sided test, 5 % false alarms, 80 % power.

    Args:
        gain: Share that is saved.
        spread: Relative standard deviation of one run.

    Raises:
        UserError: If more than 50 pairs are needed.

    Source:
        Paired t-test, sample size by iteration over the degrees of freedom (Zar, Biostatistical Analysis, 5th ed.,
        section 7.6).
    """
    for number in range(_MIN_PAIRS, _MAX_PAIRS + 1):
        needed = t_quantile(number - 1, 1.0 - _FALSE_ALARM) + t_quantile(number - 1, _POWER)
        if number >= 2.0 * (spread / gain) ** 2 * needed**2:
            return number
    raise UserError(
        f"recommend: --study: a gain of {percent(gain, 2)} at a spread of {percent(spread, 2)} takes over "
        f"{_MAX_PAIRS} pairs of runs; "
        "measure more steps a run, or leave it"
    )


def follow_up(advice: Advice, name: str, config: Path) -> FollowUp:
    """Return the runs that verify an advice.

    Args:
        advice: The advice, with an accepted gain.
        name: Name of the study.
        config: Folder of the configuration.

    Raises:
        UserError: If no gain is accepted, its verification takes too many runs, or a study cannot describe the job.
    """
    promised, spread = accepted(advice), spread_of(advice.measured_s)
    if not promised:
        raise UserError("recommend: --study: nothing is recommended, so there is nothing to verify; leave it out")
    numbers, left_out = _numbers(promised, spread)
    kinds, site = list(numbers), advice.site
    # Each arm is compared with the arms before and after it, and needs runs for both.
    settings_of_arms = _settings_of_arms(advice, kinds)
    repeats = [max(numbers[kind] for kind in kinds[max(arm - 1, 0) : arm + 1]) for arm in range(len(settings_of_arms))]
    sweeps = [{"set": {"repeats": count} | settings} for count, settings in zip(repeats, settings_of_arms, strict=True)]
    fixed = settings_of_study(site.point) | _same_parts(site.point)
    spare_w = spare_of(advice, kinds[-1])
    spare = f" ({spare_w:g} W to spare a node)" if spare_w else ""
    words = {"placement": "with the placement advised", "move": f"with the power limits advised{spare}"}
    descriptions = ["as it is", *(words.get(kind, words["move"]) for kind in kinds)]
    arms = ", ".join(f"{letter} {what}" for letter, what in zip(_ARMS, descriptions, strict=False))
    about = f"Follow-up of `triplepoint recommend {advice.name}`: {arms}, in {max(numbers.values())} pairs."
    content = {"description": about, "defaults": fixed, "sweeps": sweeps}
    all_runs = iter(runs_of(content, site.point.cluster.name, config, name))
    runs = [tuple(itertools.islice(all_runs, count)) for count in repeats]
    pairs = {kind: Pairs(runs[arm][: numbers[kind]], runs[arm + 1][: numbers[kind]]) for arm, kind in enumerate(kinds)}
    order = in_order(*runs)
    letters = {run: letter for letter, of_arm in zip(_ARMS, runs, strict=False) for run in of_arm}
    lines = [f"# {position:3} {letters[run]} {run}" for position, run in enumerate(order, 1)]
    head = [
        "# Written by `triplepoint recommend --study`. Launch the runs one by one in this order. Ranks take the hosts",
        "# in the order of the study. Set power limits by hand before each run: a launch under others ends at once.",
        *lines,
    ]
    body = yaml.safe_dump(content, sort_keys=False, width=1000, default_flow_style=None)
    return FollowUp(pairs, spread, order, "\n".join([*head, body]), left_out)


def _numbers(promised: Mapping[Kind, Gain], spread: float) -> tuple[dict[Kind, int], str]:
    """Return the number of pairs for each promise, and why the second is left out if it needs too many."""
    numbers: dict[Kind, int] = {}
    for kind, gain in promised.items():
        try:
            numbers[kind] = num_pairs(gain.share, spread)
        except UserError as error:
            if not numbers:
                raise
            return numbers, str(error)
    return numbers, ""


def _settings_of_arms(advice: Advice, kinds: Sequence[Kind]) -> list[dict[str, Any]]:
    """Return the settings of the present job, then with the placement, then with the power limits, as far as promised.

    Arms before the change of limits state the present limits, because those of the run before would stay otherwise.
    """
    arms: list[dict[str, Any]] = [{"hosts": _hosts(advice, advice.present)}]
    if kinds[0] == "placement":
        arms.append(_placement_settings(advice))
    if kinds[-1] != "placement":
        caps = next(limits.caps for limits in advice.accepted_limits if limits.caps.goal == kinds[-1])
        present_w = {seat: round(caps.present_w[seat]) for seat in caps.limits_w}
        arms = [arm | {"gpu_power_limits_w": _limits(advice, present_w)} for arm in arms]
        arms.append(arms[-1] | {"gpu_power_limits_w": _limits(advice, caps.limits_w)})
    return arms


def _placement_settings(advice: Advice) -> dict[str, Any]:
    """Return the settings of the proposed placement: hosts, layers of stages and micro-batch."""
    assert advice.proposed is not None
    settings: dict[str, Any] = {"hosts": _hosts(advice, advice.proposed)}
    if advice.proposed.layers and advice.proposed.layers != advice.present.layers:
        settings |= {"pipeline_layers": list(advice.proposed.layers), "pipeline_ends": []}
    if advice.proposed.micro_batch_size:
        settings["micro_batch_size"] = advice.proposed.micro_batch_size
    return settings


def _limits(advice: Advice, limits_w: Mapping[Seat, int]) -> list[str]:
    """Return power limits as in setting `gpu_power_limits_w`."""
    names = _names(advice)
    return sorted(f"{names[node]}.gpu{device}:{limit_w}" for (node, device), limit_w in limits_w.items())


def _hosts(advice: Advice, placement: Placement) -> list[str]:
    names = _names(advice)
    return [names[node] for node in placement.nodes]


def _names(advice: Advice) -> Mapping[int, str]:
    """Return the names of the nodes of a job in a study; nodes of a simulated cluster have numbers."""
    point = advice.site.point
    if point.engine != "simulated":
        return advice.hosts
    return dict(enumerate(point.hosts or (f"node{node}" for node in range(point.num_nodes))))


def _same_parts(point: Point) -> dict[str, int]:
    """Return the setting with which all simulated runs of a study have the GPU parts of this one."""
    return {"parts_of_repeat": point.parts_of_repeat or point.repeat} if point.engine == "simulated" else {}


def in_order(*arms: tuple[str, ...]) -> tuple[str, ...]:
    """Return all runs in rounds of one run of each arm; the first arm of a round is random, each equally often."""
    num_rounds = max(map(len, arms))
    firsts = np.random.default_rng(_SEED).permutation(np.arange(num_rounds) % len(arms)).tolist()
    return tuple(
        arm[index] for index, first in enumerate(firsts) for arm in arms[first:] + arms[:first] if index < len(arm)
    )


def runs_of(content: Mapping[str, Any], cluster: str, config: Path, name: str) -> tuple[str, ...]:
    """Return the runs of a study, in its order.

    Raises:
        UserError: If its settings are invalid.
    """
    catalogue, where = Catalogue(config), Path(f"{name}.yaml")
    runs = []
    for settings in expand(Study.model_validate(content), where):
        runs += [run_id(point) for point in points_of(settings, catalogue, where)]
    return tuple(runs)
