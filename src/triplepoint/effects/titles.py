"""Effects as text: titles of figures, short texts of further quantities, and rankings of layouts."""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan
from typing import NamedTuple

from pandas import DataFrame

from triplepoint.effects import FACTOR_FROM, Effect, compare, digits, on_as_many_gpus, over_pairs, over_settings
from triplepoint.status import Status
from triplepoint.units import counted

EffectsByLayout = Mapping[tuple[Hashable, ...], Effect]
"""Effects by layout, as `pair_points` returns them."""
LAYOUT = "layout"
"""Noun of what changes and rankings go over."""


class _Words(NamedTuple):
    """Predicates of a sentence on one quantity: for an increase, a decrease and a factor. {} is the size."""

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
"""Predicates by main quantity of a change. Tokens per second and MFU need a plural subject."""


@dataclass(frozen=True)
class Change:
    """Effect of one change on several quantities, over all layouts that ran with and without it.

    Attributes:
        subject: Name of the state after the change, such as 'LoRA'.
        base: Name of the state before the change, such as 'full training'; '' if it is the absence of `subject`.
        effects: Effects by layout for each quantity. The sentence is on the main quantity: the first of those in
            `_WORDS` whose layouts agree on the sign of the effect.
        is_paired: Whether each effect comes from paired values and has an interval. The interval of a mean then comes
            from those intervals, and texts add the range over layouts.
    """

    subject: str
    base: str
    effects: Mapping[str, EffectsByLayout]
    is_paired: bool = False

    @property
    def main(self) -> str:
        """Quantity of the sentence; '' if no layout ran with and without the change."""
        known = [name for name, by_layout in self.effects.items() if by_layout and name in _WORDS]
        clear = [name for name in known if len(self.effects[name]) > 1 and self._is_clear(name)]
        return next(iter(clear or known), "")

    @property
    def sentence(self) -> str:
        """Sentence on the main quantity, such as 'LoRA needs 55 % [46, 62] less memory than ...'."""
        subject = self.subject
        if not self.main:
            return f"no {LAYOUT} ran with {subject} and {f'with {self.base}' if self.base else 'without'}"
        effects, words = list(self.effects[self.main].values()), _WORDS[self.main]
        than = {word: f" {word} {self.base}" if self.base else "" for word in ("than", "as")}
        if not self._is_clear(self.main):
            return f"{subject} {self._unclear(effects, words, than)}"
        mean = self.mean(self.main)
        among = _range(effects, mean) if self.is_paired else ""
        if len(effects) < 2:
            among = f" in {counted(1, LAYOUT)}"
        if mean.is_relative and mean.value >= FACTOR_FROM:
            return f"{subject} {words.times.format(mean.factor)}{than['as']}{among}"
        if mean.value == 0:
            return f"{subject} does not change {self.main}{among}"
        predicate = words.more.format(mean.text) if mean.value > 0 else words.less.format(mean.negated.text)
        doubt = ", which may be no change" if mean.is_tie else ""
        return f"{subject} {predicate}{than['than']}{among}{doubt}"

    @property
    def num(self) -> int:
        """Number of layouts of the quantity with the most."""
        return max(map(len, self.effects.values()), default=0)

    def mean(self, name: str) -> Effect:
        """Return the mean effect on a quantity over layouts; without its interval if that rounds to the mean itself."""
        effects = list(self.effects[name].values())
        if not self.is_paired or not self._is_clear(name):
            return over_settings(effects)
        mean = over_pairs(effects)
        return replace(mean, low=nan, high=nan) if len(set(_ends(mean))) == 1 else mean

    def short(self, name: str) -> str:
        """Return the short text of the effect on a quantity, such as '+15.4 % [7, 24]'; '' if it is unknown.

        If layouts disagree on the sign, the text is the range over layouts and the numbers of rises and falls.
        """
        effects = list(self.effects.get(name, {}).values())
        if not effects:
            return ""
        if self._is_clear(name):
            mean = self.mean(name)
            return signed(mean) + (_range(effects, None) if self.is_paired else "")
        least, most = min(effects, key=_value), max(effects, key=_value)
        num_up, num_down = _num_up_and_down(effects)
        if _signed_number(least) == _signed_number(most) == "0.0":
            return "no change"
        counts = f" ({num_up} up, {num_down} down)" if num_up and num_down else ""
        return f"{_signed_number(least)} to {_signed_number(most)} {least.unit}{counts}"

    @property
    def answer(self) -> "Statement | str":
        """The sentence with its effect and the other quantities; the sentence alone if there is no main quantity."""
        if not self.main:
            return at_place("", self.sentence)
        others = [f"{name} {text}" for name in self.effects if name != self.main and (text := self.short(name))]
        effect = self.mean(self.main)
        if isnan(effect.low):  # several layouts still give an interval from their spread
            effect = over_settings(list(self.effects[self.main].values()))
        return Statement(self.sentence, self.subject, effect, LAYOUT, tuple(others))

    def _is_clear(self, name: str) -> bool:
        """Return whether layouts agree on the sign of a change: the interval of their mean excludes zero.

        Paired effects also agree if all of them have the same sign.
        """
        effects = list(self.effects[name].values())
        return (
            len(effects) < 2
            or not over_settings(effects).is_tie
            or (self.is_paired and all(effect.value * effects[0].value > 0 for effect in effects))
        )

    def _unclear(self, effects: Sequence[Effect], words: _Words, than: Mapping[str, str]) -> str:
        """Return the predicate for a change on whose sign layouts disagree: largest rise and fall, and their numbers.

        Args:
            effects: Effects on the main quantity, one per layout.
            words: Predicates of the main quantity.
            than: Ends of a sentence with 'than' and with 'as'.
        """
        num_up, num_down = _num_up_and_down(effects)
        most, least = max(effects, key=_value), min(effects, key=_value).negated
        up = f"{words.more.format(f'up to {most.size}')}{than['than']}"
        if most.is_relative and most.value >= FACTOR_FROM:
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
    """A sentence of a figure that the report lists as a finding.

    Attributes:
        sentence: The result with its interval.
        question: Question that the sentence answers. The report alternates between questions.
        effect: Effect in the sentence; the report ranks findings by it.
        noun: What the effect is a mean over, in the singular; '' if it is no mean.
        others: Short texts of further quantities.
        origin: 'measured', 'simulated' or both.
    """

    sentence: str
    question: str
    effect: Effect
    noun: str = ""
    others: tuple[str, ...] = ()
    origin: str = ""


def write_statements(statements: Iterable[Statement], points: DataFrame) -> str:
    """Return statements as JSON; '' if there are none. Points on a single cluster put its name before the sentences.

    Args:
        statements: Statements of a figure.
        points: Points that the figure draws.
    """
    clusters = sorted(set(points["cluster"].dropna())) if "cluster" in points else []
    place = clusters[0] if len(clusters) == 1 else ""
    origin = " + ".join(sorted(set(points["origin"].dropna())))
    placed = [line._replace(sentence=at_place(place, line.sentence), origin=origin) for line in statements]
    return json.dumps([line._asdict() | {"effect": vars(line.effect)} for line in placed]) if placed else ""


def read_statements(text: str) -> list[Statement]:
    """Return the statements in a text of `write_statements`."""
    return [
        Statement(**fields | {"effect": Effect(**fields["effect"]), "others": tuple(fields["others"])})
        for fields in json.loads(text or "[]")
    ]


def at_place(place: str, sentence: str) -> str:
    """Return 'place: sentence'; without a place the sentence with a capital letter, unless it begins with a name."""
    is_name = any(letter.isdigit() for letter in sentence.partition(" ")[0])
    return f"{place}: {sentence}" if place else sentence if is_name else sentence[0].upper() + sentence[1:]


def mean_of(num: int, noun: str) -> str:
    """Return 'mean of 13 layouts', or '1 layout'."""
    return f"mean of {counted(num, noun)}" if num > 1 else counted(num, noun)


def signed(effect: Effect) -> str:
    """Return an effect with its sign and interval: '+15.4 % [7, 24]', '-3.1 K [-5.2, -1.0]' or '×2.8 [1.8, 4.2]'."""
    if effect.is_relative and effect.value >= FACTOR_FROM:
        return f"×{effect.factor.replace(' times', '')}"
    return f"{_signed_number(effect)} {effect.unit}{effect.ends}"


@dataclass(frozen=True)
class Ranking:
    """Layouts ranked by step time.

    Attributes:
        best: The fastest layout; '' if none finished.
        leads: By how much the best is faster than each of the others, in their order.
        num: Number of layouts that were run, finished or not.
    """

    best: str
    leads: Mapping[str, Effect] = field(default_factory=dict)
    num: int = 1

    @property
    def tied(self) -> list[str]:
        """Layouts whose difference from the best is within the interval."""
        return [name for name, lead in self.leads.items() if lead.is_tie]

    @property
    def next(self) -> str:
        """The fastest layout that is not tied with the best; the last if all are tied."""
        last = list(self.leads)[-1] if self.leads else ""
        return next((name for name, lead in self.leads.items() if not lead.is_tie), last)

    @property
    def lead(self) -> Effect | None:
        """By how much the best is faster than `next`; None if there is no other layout."""
        return self.leads.get(self.next)

    @property
    def is_clear(self) -> bool:
        """Whether some layout is not tied with the best."""
        return self.lead is not None and not self.lead.is_tie

    @property
    def sentence(self) -> str:
        """Sentence: the fastest layout, and its lead on `next`."""
        if self.lead is None:
            if self.num == 1:
                return f"only one {LAYOUT} was run, {self.best}" if self.best else f"the only {LAYOUT} did not finish"
            return f"of {counted(self.num, LAYOUT)}, {f'only {self.best}' if self.best else 'none'} finished"
        lead = f"{self.lead.factor} as fast as" if self.lead.value >= FACTOR_FROM else f"{self.lead.text} faster than"
        sentence = f"{self.best} is {lead} {self.next}"
        if not self.is_clear:
            among = f"both {LAYOUT}s" if len(self.leads) == 1 else f"all {counted(1 + len(self.leads), LAYOUT)}"
            return f"{among} are tied: {sentence}"
        names = " and ".join(self.tied) if len(self.tied) < 3 else f"{len(self.tied)} others"
        return f"{sentence}, but tied with {names}" if self.tied else sentence

    @property
    def note(self) -> str:
        """Two short lines for the head of a column: the fastest layout and its lead; '' for one layout."""
        if self.lead is None:
            return ""
        if not self.is_clear:
            if len(self.leads) == 1:
                return f"{self.best} first, tied\n{signed(self.lead)}"
            return f"{self.best} first, all {1 + len(self.leads)} tied\n{signed(self.lead)} on slowest"
        tied = f", tied with {counted(len(self.tied), 'other')}" if self.tied else ""
        return f"{self.best} first{tied}\n{signed(self.lead)}"


def rank(points: DataFrame) -> Ranking:
    """Return the ranking by step time of the layouts on the most frequent number of GPUs.

    Args:
        points: Comparable rows of table `points`, with column `layout`; rows with the same layout are repeats.
    """
    comparable = on_as_many_gpus(points)
    done = comparable[(comparable["status"] == Status.OK) & comparable["step_time_s"].notna()]
    groups = [(str(key), DataFrame(rows)) for key, rows in done.groupby("layout", sort=False)]
    groups.sort(key=lambda item: float(item[1]["step_time_s"].mean()))
    num = comparable["layout"].nunique()
    if not groups:
        return Ranking("", {}, num)
    best, best_rows = groups[0]
    return Ranking(best, {other: compare(best_rows, rows, "step_time_s") for other, rows in groups[1:]}, num)


def _value(effect: Effect) -> float:
    return effect.value


def _signed_number(effect: Effect) -> str:
    """Return the rounded change without its unit, with a plus sign if it is positive."""
    number = digits(effect.value * effect.scale)
    return f"+{number}" if effect.value > 0 and float(number) else number


def _ends(effect: Effect) -> list[str]:
    """Return the change and the ends of its interval as rounded numbers."""
    return [digits(value * effect.scale) for value in (effect.value, effect.low, effect.high)]


def _num_up_and_down(effects: Sequence[Effect]) -> tuple[int, int]:
    return sum(effect.value > 0 for effect in effects), sum(effect.value < 0 for effect in effects)


def _range(effects: Sequence[Effect], mean: Effect | None) -> str:
    """Return the range over layouts in brackets; '' for one layout.

    Args:
        effects: One effect per layout.
        mean: Mean effect of a sentence such as '5 % less': its range has no signs. None: the range has signs.
    """
    if len(effects) < 2:
        return ""
    shown = [effect.negated if mean is not None and mean.value < 0 else effect for effect in effects]
    least, most = min(shown, key=_value), max(shown, key=_value)
    if mean is None:
        return f" ({_signed_number(least)} to {_signed_number(most)})"
    return f" ({least.size.split()[0]} to {most.size} in {counted(len(effects), LAYOUT)})"
