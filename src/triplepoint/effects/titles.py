"""Effects in words, for titles and findings: which setting is best, and what one change does over many settings."""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from math import nan
from typing import Literal, NamedTuple

from pandas import DataFrame

from triplepoint.effects import ABOUT, MANY, Effect, compare, on_as_many_gpus, over_pairs, over_settings
from triplepoint.status import Status
from triplepoint.units import counted

Found = Mapping[tuple[Hashable, ...], Effect]
"""Effects by setting, as `pair_points` returns them."""

_WORDS: Mapping[str, tuple[str, Literal["time", "more", "less"]]] = {
    "step_time_s": ("faster", "time"),
    "tokens_per_s": ("faster", "more"),
    "tokens_per_s_per_gpu": ("faster", "more"),
    "job_gpu_samples_per_s_mj": ("more efficient", "more"),
    "gpu_energy_per_token_j": ("lower in energy per token", "less"),
    "gpu_power_w": ("lower in power", "less"),
    "gpu_power_peak_w": ("lower in peak power", "less"),
    "gpu_temp_c": ("cooler", "less"),
    "gpu_temp_max_c": ("cooler at its hottest GPU", "less"),
}
"""What the best is called by column, and whether that is less time (so a higher speed), more, or less of it."""


@dataclass(frozen=True)
class Change:
    """What one change does to some quantities, over all settings that ran with and without it.

    Attributes:
        words: Such as 'With LoRA instead of training all weights'.
        found: What each quantity is called, and its effects; those without any are left out.
        noun: What a setting is called, in the singular.
        aside: What the intervals leave out, where there are any.
        is_paired: Whether effects are those of pairs, see `summed_up`.
        more: Further quantities, that the report says and a title has no room for.
    """

    words: str
    found: Mapping[str, Found]
    noun: str = "layout"
    aside: str = ""
    is_paired: bool = False
    more: Mapping[str, Found] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The sentence that the figure has as its title."""
        return self._said(self.found)

    @property
    def sentence(self) -> str:
        """The same sentence with the further quantities."""
        return self._said({**self.found, **self.more})

    @property
    def means(self) -> list[Effect]:
        """The mean effect on each quantity of the title, with its interval; on further ones where that has none."""
        asked = self.found if any(self.found.values()) else self.more
        return [_mean(found, self.is_paired) for found in asked.values() if found]

    def _said(self, quantities: Mapping[str, Found]) -> str:
        known = {name: found for name, found in quantities.items() if found}
        if not known:
            return f"No {self.noun} ran both ways: {self.words}"
        effects = "; ".join(f"{name} {summed_up(found, self.noun, self.is_paired)}" for name, found in known.items())
        said = f"{self.words}, {effects}"
        if self.is_paired:
            return said + f" ({self.aside})" * bool(self.aside)
        over = max((len(found) for found in known.values() if _is_clear(found)), default=0)
        return f"{said} ({mean_of(over, self.noun)}{f'; {self.aside}' * bool(self.aside)})" if over else said


class Told(NamedTuple):
    """What a figure says of a change, as its file tells the report.

    Attributes:
        sentence: What the change does, with the quantities that the title has no room for.
        noun: What a setting is called, in the singular.
        origin: 'measured', 'simulated' or both.
        means: The mean effect on each quantity of the title, in its order: findings are ranked by what figures draw.
    """

    sentence: str
    noun: str
    origin: str
    means: list[Effect]


def write_changes(changes: Sequence[Change], points: DataFrame) -> str:
    """Return what a figure says of some changes as JSON; '' of none.

    Args:
        changes: What one change does each.
        points: What is drawn: on one cluster the sentence names it.
    """
    clusters = sorted(set(points["cluster"])) if "cluster" in points else []
    place = clusters[0] if len(clusters) == 1 else ""
    origin = " + ".join(sorted(set(points["origin"].dropna())))
    told = [
        (at_place(place, one.sentence), one.noun, origin, [astuple(mean) for mean in one.means])
        for one in changes
        if one.means
    ]
    return json.dumps(told) if told else ""


def read_changes(text: str) -> list[Told]:
    """Return what a figure says of changes, from what `write_changes` returned."""
    told = json.loads(text or "[]")
    return [Told(said, noun, origin, [Effect(*mean) for mean in means]) for said, noun, origin, means in told]


def error_unknown(points: DataFrame) -> str:
    """Return what the intervals of a change leave out that no public pair of measurements tells; '' if measured."""
    return "error of the model unknown" if (points["origin"] == "simulated").any() else ""


def at_place(place: str, sentence: str) -> str:
    """Return a sentence with where it holds in front; as it is where that is ''."""
    return f"{place}: {sentence[0].lower()}{sentence[1:]}" if place else sentence


def mean_of(num: int, noun: str) -> str:
    """Return what a number of a title is over: 'mean of 13 layouts', or '1 layout'."""
    return f"mean of {counted(num, noun)}" if num > 1 else counted(num, noun)


def summed_up(found: Found, noun: str = "layout", is_paired: bool = False) -> str:
    """Return what one change does to one quantity, as a verb.

    Where settings agree on its sign that is the mean effect with its t interval, 'falls by 21 % [10.4, 30]', else in
    how many it rises and in how many it falls, and by how much at most.

    Args:
        found: Effects by setting.
        noun: What a setting is called, in the singular.
        is_paired: Whether they are effects of pairs: the interval is then that of the pairs, and how settings differ
            stands beside it: 'falls by 21 % [20, 22] (9.2 to 30 % in 7 layouts)'.
    """
    if _is_of_pairs(found, is_paired):
        return _said_with_range(list(found.values()), noun)
    if _is_clear(found):
        return _said_mean(_mean(found, is_paired))
    most, least = (pick(found.values(), key=lambda effect: effect.value) for pick in (max, min))
    rises, falls = (sum(sign * effect.value > 0 for effect in found.values()) for sign in (1, -1))
    if rises and falls:
        return f"rises in {counted(rises, noun)} by {_at_most(most)} and falls in {falls} by {_at_most(least)}"
    if rises or falls:
        num = rises or falls
        all_of_them = f"both {noun}s" if num == 2 else f"all {counted(num, noun)}"
        where = all_of_them if num == len(found) else f"{num} of {counted(len(found), noun)}"
        return f"{'rises' if rises else 'falls'} in {where} by {_at_most(most if rises else least)}"
    return f"is the same in all {counted(len(found), noun)}"


def _at_most(effect: Effect) -> str:
    """Return the largest of some changes without its sign and interval: 'up to 3.5 %'."""
    return f"up to {(effect if effect.value > 0 else effect.opposite).size}"


def _is_clear(found: Found) -> bool:
    """Return whether settings agree on the sign of a change, as far as the interval of their mean says."""
    return len(found) < 2 or not over_settings(list(found.values())).is_tie


def _is_of_pairs(found: Found, is_paired: bool) -> bool:
    """Return whether the mean of a change is given with the interval of its pairs: where settings agree on its sign."""
    effects = list(found.values())
    return is_paired and (_is_clear(found) or all(one.value * effects[0].value > 0 for one in effects))


def _mean(found: Found, is_paired: bool) -> Effect:
    """Return the mean of a change: with its pairs' interval where the sentence gives that one, else over settings."""
    effects = list(found.values())
    return over_pairs(effects) if _is_of_pairs(found, is_paired) else over_settings(effects)


def _said_with_range(effects: Sequence[Effect], noun: str) -> str:
    mean = over_pairs(effects)
    if mean.ends == f" [{mean.size.split()[0]}, {mean.size.split()[0]}]":
        mean = replace(mean, low=nan, high=nan)  # too narrow to show
    if len(effects) < 2:
        return f"{_said_mean(mean)} in {counted(1, noun)}"
    turned = [effect if mean.value > 0 else effect.opposite for effect in effects]
    least, most = (pick(turned, key=lambda effect: effect.value) for pick in (min, max))
    return f"{_said_mean(mean)} ({least.size.split()[0]} to {most.size} in {counted(len(effects), noun)})"


def _said_mean(mean: Effect) -> str:
    if mean.value == 0:
        return "stays the same"
    if mean.is_relative and mean.value >= MANY:
        return f"is {mean.factor} as high"
    return f"rises by {mean.text}" if mean.value > 0 else f"falls by {mean.opposite.text}"


def answer_best(points: DataFrame, column: str = "step_time_s", name: str = "layout", noun: str = "layout") -> str:
    """Return which of some settings is best, by how much, and which are tied with it, as a title.

    Args:
        points: Rows that may be compared, with a column of names; those that did not finish are left out.
        column: A key of the quantities this module has words for.
        name: Column of the settings' names; rows that share one are repeats.
        noun: What a setting is called, in the singular.
    """
    alike = on_as_many_gpus(points)
    others = sorted(set(points[name].astype(str)) - set(alike[name].astype(str)))
    answer = _answer_best(alike, column, name, noun)
    if not others:
        return answer
    return f"{answer}; on another number of GPUs, so not compared: {', '.join(others)}"


def _answer_best(points: DataFrame, column: str, name: str, noun: str) -> str:
    best, leads = _leads(points, column, name)
    if not leads:
        num = points[name].nunique()
        if num == 1:
            return f"only one {noun} was run ({points[name].iloc[0]}){', and it did not finish' * (not best)}"
        return f"of {counted(num, noun)}, {f'only {best}' if best else 'none'} finished"
    word = _WORDS[column][0]
    tied = [other for other, lead in leads.items() if lead.is_tie]
    behind = [other for other in leads if other not in tied]
    if not behind:
        last = list(leads)[-1]
        listed = f"{best} and {last}" if len(leads) == 1 else f"all {counted(1 + len(leads), noun)}"
        return f"{listed} are tied: {_said(best, leads[last], word, last)}"
    said = _said(best, leads[behind[0]], word, behind[0])
    return f"{said}, but tied with {_listed(tied)}" if tied else said


def about_intervals(points: DataFrame, column: str = "step_time_s", name: str = "layout") -> str:
    """Return what the intervals in the answer of `answer_best` are over, for the note of a figure; '' without any."""
    leads = _leads(on_as_many_gpus(points), column, name)[1]
    bases = dict.fromkeys(lead.basis for lead in leads.values())
    return " or ".join(ABOUT[basis] for basis in bases)


def _leads(points: DataFrame, column: str, name: str) -> tuple[str, dict[str, Effect]]:
    """Return the best setting ('' if none finished), and by how much it leads each of the others, the nearest first."""
    kind = _WORDS[column][1]
    done = points[(points["status"] == Status.OK) & points[column].notna()]
    groups = [(str(key), DataFrame(found)) for key, found in done.groupby(name, sort=False)]
    groups.sort(key=lambda item: float(item[1][column].mean()), reverse=kind == "more")
    if not groups:
        return "", {}
    best, of_best = groups[0]
    return best, {other: _lead(compare(of_best, found, column), kind) for other, found in groups[1:]}


def _lead(change: Effect, kind: Literal["time", "more", "less"]) -> Effect:
    """Return by how much the first is better than the other, from the change to the other; positive where it is."""
    if kind == "time" or not change.is_relative:
        # What takes 10 % longer is beaten by 10 % in speed.
        return change
    turned = change.turned()
    if kind == "more":
        return turned
    return Effect(-turned.value, -turned.high, -turned.low, turned.basis, turned.num)


def _said(best: str, lead: Effect, word: str, other: str) -> str:
    if lead.is_relative and word == "faster" and lead.value >= MANY:
        return f"{best} is {lead.factor} as fast as {other}"
    return f"{best} is {lead.text} {word} than {other}"


def _listed(names: Sequence[str]) -> str:
    """Return up to two names, or how many others there are."""
    return " and ".join(names) if len(names) <= 2 else f"{len(names)} others"
