"""Effects in words: the sentence a figure has as its title, and the short texts of its other quantities."""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan
from typing import NamedTuple

from pandas import DataFrame

from triplepoint.effects import MANY, Effect, compare, digits, on_as_many_gpus, over_pairs, over_settings
from triplepoint.status import Status
from triplepoint.units import counted

Found = Mapping[tuple[Hashable, ...], Effect]
"""Effects by layout, as `pair_points` returns them."""
LAYOUT = "layout"
"""What changes and rankings go over, in the singular."""


class _Words(NamedTuple):
    """Predicates of a sentence on one quantity, {} for the size of its change: more of it, less, and as a factor."""

    more: str
    less: str
    times: str


_WORDS: Mapping[str, _Words] = {
    "speed": _Words("is {} faster", "is {} slower", "is {} as fast"),
    "step time": _Words("makes a step {} longer", "makes a step {} shorter", "makes a step {} as long"),
    "tokens per second": _Words(
        "generate {} more tokens per second", "generate {} fewer tokens per second",
        "generate {} as many tokens per second",
    ),
    "memory": _Words("needs {} more memory", "needs {} less memory", "needs {} as much memory"),
    "hottest GPU": _Words("makes the hottest GPU {} hotter", "makes the hottest GPU {} cooler", ""),
    "computation": _Words("adds {} of computation", "saves {} of computation", "takes {} as much computation"),
    "kernel time": _Words("takes {} more kernel time", "takes {} less kernel time", "takes {} as much kernel time"),
    "MFU": _Words("have {} higher MFU", "have {} lower MFU", "have {} as high an MFU"),
}  # fmt: skip
"""Quantities that can be the main one of a change; subjects of tokens per second and of MFU are plural."""


@dataclass(frozen=True)
class Change:
    """What one change does to some quantities, over all layouts that ran with and without it.

    Attributes:
        subject: What is changed to, such as 'LoRA'.
        base: What it is compared with, such as 'full training'; empty where that is its absence.
        found: Quantities and their effects by layout. The first whose layouts agree on its sign is the main one, of
            which the sentence is; the main one needs words here.
        is_paired: Whether effects are those of pairs: the interval of a mean is then theirs, and how layouts differ
            stands beside it.
    """

    subject: str
    base: str
    found: Mapping[str, Found]
    is_paired: bool = False

    @property
    def main(self) -> str:
        """The quantity of the sentence; empty where no layout ran both ways."""
        known = [name for name, found in self.found.items() if found and name in _WORDS]
        clear = [name for name in known if len(self.found[name]) > 1 and self._is_clear(name)]
        return next(iter(clear or known), "")

    @property
    def sentence(self) -> str:
        """What the change does to the main quantity, such as 'LoRA needs 55 % [46, 62] less memory than ...'."""
        subject = self.subject
        if not self.main:
            return f"no {LAYOUT} ran with {subject} and {f'with {self.base}' if self.base else 'without'}"
        effects, words = list(self.found[self.main].values()), _WORDS[self.main]
        than = {word: f" {word} {self.base}" if self.base else "" for word in ("than", "as")}
        if not self._is_clear(self.main):
            return f"{subject} {self._unclear(effects, words, than)}"
        mean = self.mean(self.main)
        among = _range(effects, mean) if self.is_paired else ""
        if len(effects) < 2:
            among = f" in {counted(1, LAYOUT)}"
        if mean.is_relative and mean.value >= MANY:
            return f"{subject} {words.times.format(mean.factor)}{than['as']}{among}"
        if mean.value == 0:
            return f"{subject} does not change {self.main}{among}"
        said = words.more.format(mean.text) if mean.value > 0 else words.less.format(mean.opposite.text)
        return f"{subject} {said}{than['than']}{among}"

    @property
    def num(self) -> int:
        """Layouts behind the quantity that has most."""
        return max((len(found) for found in self.found.values()), default=0)

    def mean(self, name: str) -> Effect:
        """Return the mean effect on a quantity, with an interval that is too narrow to show left out."""
        effects = list(self.found[name].values())
        if not self.is_paired or not self._is_clear(name):
            return over_settings(effects)
        mean = over_pairs(effects)
        return replace(mean, low=nan, high=nan) if len(set(_ends(mean))) == 1 else mean

    def short(self, name: str) -> str:
        """Return the effect on a quantity as it stands beside its panels: '+15.4 % [7.4, 24]'; '' where none is known.

        Where layouts disagree on the sign, it is their range, and how many rise and fall.
        """
        effects = list(self.found.get(name, {}).values())
        if not effects:
            return ""
        if self._is_clear(name):
            mean = self.mean(name)
            return signed(mean) + (_range(effects, None) if self.is_paired else "")
        least, most = min(effects, key=_value), max(effects, key=_value)
        num_up, num_down = _num_up_and_down(effects)
        if _sign(least) == _sign(most) == "0.0":
            return "no change"
        counts = f" ({num_up} up, {num_down} down)" if num_up and num_down else ""
        return f"{_sign(least)} to {_sign(most)} {least.unit}{counts}"

    @property
    def answer(self) -> "Statement | str":
        """The sentence with its effect and the other quantities; the sentence alone where no layout ran both ways."""
        if not self.main:
            return at_place("", self.sentence)
        others = [f"{name} {text}" for name in self.found if name != self.main and (text := self.short(name))]
        effect = self.mean(self.main)
        if isnan(effect.low):  # how far layouts differ is known then, if there are several
            effect = over_settings(list(self.found[self.main].values()))
        return Statement(self.sentence, self.subject, effect, LAYOUT, tuple(others))

    def _is_clear(self, name: str) -> bool:
        """Return whether layouts agree on the sign of a change, as far as the interval of their mean says."""
        effects = list(self.found[name].values())
        return (
            len(effects) < 2
            or not over_settings(effects).is_tie
            or (self.is_paired and all(one.value * effects[0].value > 0 for one in effects))
        )

    def _unclear(self, effects: Sequence[Effect], words: _Words, than: Mapping[str, str]) -> str:
        num_up, num_down = _num_up_and_down(effects)
        most, least = max(effects, key=_value), min(effects, key=_value).opposite
        up = f"{words.more.format(f'up to {most.size}')}{than['than']}"
        if most.is_relative and most.value >= MANY:
            up = f"{words.times.format(f'up to {digits(1 + most.value)} times')}{than['as']}"
        down = words.less.format(f"up to {least.size}")
        if num_up and num_down:
            down = down[down.index("up to") :]
            return f"{up} in {counted(num_up, LAYOUT)}, and {down} in {num_down}"
        num, layouts = num_up or num_down, counted(len(effects), LAYOUT)
        if not num:
            return f"does not change {self.main} in any of {layouts}"
        where = f"{num} of {layouts}" if num < len(effects) else f"both {LAYOUT}s" if num == 2 else f"all {layouts}"
        return f"{up if num_up else down + than['than']} in {where}"


class Statement(NamedTuple):
    """One sentence that a figure hands over to the report, which ranks it by its effect.

    Attributes:
        sentence: What was found, with its interval.
        about: The question it answers: findings take turns by it.
        effect: What the sentence is of.
        noun: What the effect is a mean over, in the singular; empty where it is none.
        others: Further quantities, short.
        origin: 'measured', 'simulated' or both.
    """

    sentence: str
    about: str
    effect: Effect
    noun: str = ""
    others: tuple[str, ...] = ()
    origin: str = ""


def write_statements(statements: Iterable[Statement], points: DataFrame) -> str:
    """Return statements as JSON, with where they hold in front if that is one cluster; '' of none.

    Args:
        statements: What a figure says.
        points: What is drawn.
    """
    clusters = sorted(set(points["cluster"].dropna())) if "cluster" in points else []
    place = clusters[0] if len(clusters) == 1 else ""
    origin = " + ".join(sorted(set(points["origin"].dropna())))
    told = [one._replace(sentence=at_place(place, one.sentence), origin=origin) for one in statements]
    return json.dumps([one._asdict() | {"effect": vars(one.effect)} for one in told]) if told else ""


def read_statements(text: str) -> list[Statement]:
    """Return what `write_statements` wrote."""
    return [
        Statement(**one | {"effect": Effect(**one["effect"]), "others": tuple(one["others"])})
        for one in json.loads(text or "[]")
    ]


def at_place(place: str, sentence: str) -> str:
    """Return a sentence with where it holds in front; without, begun with a capital letter unless by a name."""
    is_name = any(letter.isdigit() for letter in sentence.partition(" ")[0])
    return f"{place}: {sentence}" if place else sentence if is_name else sentence[0].upper() + sentence[1:]


def mean_of(num: int, noun: str) -> str:
    """Return what a number is over: 'mean of 13 layouts', or '1 layout'."""
    return f"mean of {counted(num, noun)}" if num > 1 else counted(num, noun)


def signed(effect: Effect) -> str:
    """Return an effect with its sign and interval: '+15.4 % [7.4, 24]', '-3.1 K [-5.2, -1.0]' or '×2.8 [1.8, 4.2]'."""
    if effect.is_relative and effect.value >= MANY:
        return f"×{effect.factor.replace(' times', '')}"
    return f"{_sign(effect)} {effect.unit}{effect.ends}"


@dataclass(frozen=True)
class Ranking:
    """Layouts by their step time.

    Attributes:
        best: The fastest; empty where none finished.
        leads: By how much it is faster than each of the others, the nearest first.
        num: Layouts that were tried.
    """

    best: str
    leads: Mapping[str, Effect] = field(default_factory=dict)
    num: int = 1

    @property
    def tied(self) -> list[str]:
        """Layouts that may be as fast as the best."""
        return [name for name, lead in self.leads.items() if lead.is_tie]

    @property
    def next(self) -> str:
        """The first that is behind for certain; where all are tied the last."""
        last = list(self.leads)[-1] if self.leads else ""
        return next((name for name, lead in self.leads.items() if not lead.is_tie), last)

    @property
    def lead(self) -> Effect | None:
        """How far the best is ahead of `next`; None where there is no other."""
        return self.leads.get(self.next)

    @property
    def is_clear(self) -> bool:
        """Whether some other is behind for certain."""
        return self.lead is not None and not self.lead.is_tie

    @property
    def sentence(self) -> str:
        """Which layout is fastest, and by how much."""
        if self.lead is None:
            if self.num == 1:
                return f"only one {LAYOUT} was run, {self.best}" if self.best else f"the only {LAYOUT} did not finish"
            return f"of {counted(self.num, LAYOUT)}, {f'only {self.best}' if self.best else 'none'} finished"
        lead = f"{self.lead.factor} as fast as" if self.lead.value >= MANY else f"{self.lead.text} faster than"
        said = f"{self.best} is {lead} {self.next}"
        if not self.is_clear:
            among = f"both {LAYOUT}s" if len(self.leads) == 1 else f"all {counted(1 + len(self.leads), LAYOUT)}"
            return f"{among} are tied: {said}"
        names = " and ".join(self.tied) if len(self.tied) < 3 else f"{len(self.tied)} others"
        return f"{said}, but tied with {names}" if self.tied else said

    @property
    def note(self) -> str:
        """Two short lines that stand below the name of a model: who is first, and by how much; '' of one layout."""
        if self.lead is None:
            return ""
        first = f"{1 + len(self.tied)} {LAYOUT}s tied" if self.tied else f"{self.best} first"
        return f"{first}\n{signed(self.lead)}"


def rank(points: DataFrame) -> Ranking:
    """Return how layouts rank by step time, those on as many GPUs as most.

    Args:
        points: Rows that may be compared, with column `layout`; rows that share one are repeats.
    """
    alike = on_as_many_gpus(points)
    done = alike[(alike["status"] == Status.OK) & alike["step_time_s"].notna()]
    groups = [(str(key), DataFrame(found)) for key, found in done.groupby("layout", sort=False)]
    groups.sort(key=lambda item: float(item[1]["step_time_s"].mean()))
    num = alike["layout"].nunique()
    if not groups:
        return Ranking("", {}, num)
    best, of_best = groups[0]
    return Ranking(best, {other: compare(of_best, found, "step_time_s") for other, found in groups[1:]}, num)


def _value(effect: Effect) -> float:
    return effect.value


def _sign(effect: Effect) -> str:
    number = digits(effect.value * effect.scale)
    return f"+{number}" if effect.value > 0 and float(number) else number


def _ends(effect: Effect) -> list[str]:
    """Return value and ends of the interval as they are written."""
    return [digits(value * effect.scale) for value in (effect.value, effect.low, effect.high)]


def _num_up_and_down(effects: Sequence[Effect]) -> tuple[int, int]:
    return sum(one.value > 0 for one in effects), sum(one.value < 0 for one in effects)


def _range(effects: Sequence[Effect], mean: Effect | None) -> str:
    """Return how layouts differ, in brackets: without the sign of a mean, which says it; '' of one layout."""
    if len(effects) < 2:
        return ""
    turned = [one.opposite if mean is not None and mean.value < 0 else one for one in effects]
    least, most = min(turned, key=_value), max(turned, key=_value)
    if mean is None:
        return f" ({_sign(least)} to {_sign(most)})"
    return f" ({least.size.split()[0]} to {most.size} in {counted(len(effects), LAYOUT)})"
