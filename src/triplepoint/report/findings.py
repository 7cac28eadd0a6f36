"""Findings: what the runs of a report show, each a sentence worked out from its tables with interval and figure."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pandas import DataFrame

from triplepoint.effects import ABOUT, Effect, compare, on_as_many_gpus, over_settings, pair_points
from triplepoint.effects.titles import answer_best
from triplepoint.figures import FigureSpec, labels
from triplepoint.report.runs import page_name
from triplepoint.status import Status
from triplepoint.tables.results import POINTS
from triplepoint.tables.schema import column_of
from triplepoint.verdicts.runs import IDENTITY

Row = Mapping[str, Any]

MOST = 30
"""Findings there are, the largest ones. Our choice: more are no longer read."""
FIRST = 10
"""Those that are open when the page is: the rest is a click away."""
_OF_LAYOUTS = ("parallelism_sweep", "lora", "mi250_vs_nvidia", "inference_batch")
"""Figures that compare layouts, each of its own studies."""
_ALIKE = "alike"
"""Column with all of a point that a change leaves as it is."""
_UNKNOWN = ", which is not known: no public measurement differs in this alone"
_TRACK = 0.6
"""Natural logarithm of a ratio at the ends of the bars: -45 and +82 %. Larger effects are cut off there."""
_HOT_K = 0.1
"""Change of the logarithm that 10 K count for where effects are ranked. Our choice: kelvin and per cent share one
list."""


class Finding(NamedTuple):
    """One sentence of the report.

    Attributes:
        sentence: What was found.
        effect: How large it is.
        basis: What it is found in, and what its interval is over.
        figure: Identifier of the figure that shows it; empty where none does.
        runs: Pages of the runs it is of, with their names.
    """

    sentence: str
    effect: Effect
    basis: str
    figure: str = ""
    runs: tuple[tuple[str, str], ...] = ()

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out no effect."""
        return not self.effect.is_tie

    @property
    def size(self) -> float:
        """What findings are ranked by: the magnitude of the logarithm of a ratio, of kelvin a tenth for ten."""
        value = self.effect.value
        return abs(math.log1p(value)) if self.effect.is_relative else abs(value) / 10 * _HOT_K

    @property
    def track(self) -> tuple[float, float, float] | None:
        """Return start and length of the interval's bar and place of its value, in per cent of the scale."""
        if math.isnan(self.effect.low):
            return None
        low, value, high = (self._place(end) for end in (self.effect.low, self.effect.value, self.effect.high))
        return low, round(high - low, 2), value

    @property
    def beyond(self) -> str:
        """The arrow to an effect beyond the ends of the scale; '' for one within."""
        change = self._change(self.effect.value)
        return "" if abs(change) <= _TRACK else "▸" if change > 0 else "◂"

    def _change(self, end: float) -> float:
        return math.log1p(end) if self.effect.is_relative else end / 10 * _HOT_K

    def _place(self, end: float) -> float:
        return round(50 + 50 * min(max(self._change(end) / _TRACK, -1.0), 1.0), 2)


class _Change(NamedTuple):
    """A setting whose effect is looked for: what it is before and afterwards."""

    column: str
    first: Hashable
    other: Hashable
    words: str
    module: str


class _Quantity(NamedTuple):
    """A quantity that is looked at: what it is called, and how the sentence speaks of more and of less of it."""

    column: str
    noun: str
    more: str
    less: str


_QUANTITIES = (
    _Quantity("step_time_s", "step time", "makes steps {} longer", "makes steps {} shorter"),
    _Quantity("gpu_power_w", "power", "draws {} more power", "draws {} less power"),
    _Quantity(
        "gpu_energy_per_token_j", "energy per token", "takes {} more energy per token", "takes {} less energy per token"
    ),
    _Quantity(
        "gpu_temp_max_c",
        "the highest temperature",
        "makes the hottest GPU {} hotter",
        "makes the hottest GPU {} cooler",
    ),
    _Quantity("peak_memory_bytes", "memory", "needs {} more memory", "needs {} less memory"),
)


def find(points: Sequence[Row], figures: Sequence[FigureSpec], pages: str) -> list[Finding]:
    """Return what was found: the largest effect of each question, the next of each, and so on; unclear ones last.

    A question is that of a figure: otherwise layouts, which differ most, would fill the list.

    Args:
        points: Rows of table `points`.
        figures: Figures of the report.
        pages: Folder of the pages of runs, as links from the front page begin.
    """
    done = [point for point in points if point["status"] == Status.OK]
    if not done:
        return []
    frame = _prepared(done)
    found = [
        *_best_layouts(frame, figures, pages),
        *_changes(frame),
        *_micro_batches(frame),
        *_clusters(frame, pages),
        *_heat(frame, pages),
    ]
    found = _in_turns(found)
    modules = {figure.name for figure in figures}
    named = [one if one.figure in modules else one._replace(figure="") for one in found]
    named = [one._replace(sentence=one.sentence.replace(" %", "\u00a0%").replace(" K", "\u00a0K")) for one in named]
    return named[:MOST]


def _in_turns(found: list[Finding]) -> list[Finding]:
    """Return findings by certainty, then in turns of their questions, each the largest first."""

    def certainty(one: Finding) -> tuple[bool, bool]:
        # The steps of one launch do not show how launches differ: as good as no interval.
        return not one.is_clear, one.track is None or one.effect.basis == "steps"

    turns: dict[tuple[str, tuple[bool, bool]], int] = {}
    placed = []
    for one in sorted(found, key=lambda one: -one.size):
        turn = turns[one.figure, certainty(one)] = turns.get((one.figure, certainty(one)), -1) + 1
        placed.append((certainty(one), turn, one))
    return [one for *_, one in sorted(placed, key=lambda entry: entry[:2])]


def _prepared(points: Sequence[Row]) -> DataFrame:
    """Return finished runs with layout and place in words; lists become texts, so that they can be grouped by."""
    frame = labels.prepare(pa.Table.from_pylist(list(points), schema=POINTS.schema()).to_pandas())
    # What is trained with adapters or serves prompts is no match of what is trained whole.
    served = frame["task"].map(lambda task: f", {task}" if task == "inference" else "")
    frame["subject"] = frame["group"] + served
    for column in IDENTITY:
        if frame[column].dtype == object:
            frame[column] = [
                ", ".join(value) if isinstance(value, tuple | np.ndarray) else value for value in frame[column]
            ]
    return frame


def _slim(frame: DataFrame, changed: str) -> DataFrame:
    """Return the columns that pairs of runs need, and as a text all that says which point a run is but for a change."""
    identity = [name for name in (*IDENTITY, "variant", "origin") if name != changed]
    kept = [changed, "subject", "place", "origin", "status", "repeat", "num_measured_steps", "step_time_layout_sigma"]
    for quantity in _QUANTITIES:
        ends = (column_of(quantity.column, end) for end in ("lo", "hi", "p10", "p90"))
        kept += [name for name in (quantity.column, *ends) if name in frame]
    alike = [repr(values) for values in frame[identity].itertuples(index=False, name=None)]
    return frame[kept].assign(**{_ALIKE: alike})


def _best_layouts(frame: DataFrame, figures: Sequence[FigureSpec], pages: str) -> Iterator[Finding]:
    """Yield the fastest layout of each model on each cluster, at the setting tried with most layouts."""
    for (subject, origin), members in frame.groupby(["subject", "origin"], sort=False):
        alike = on_as_many_gpus(labels.common_setting(members))
        groups = {str(name): rows for name, rows in alike.groupby("layout", sort=False)}
        if len(groups) < 2:
            continue
        ordered = sorted(groups, key=lambda name: float(groups[name]["step_time_s"].mean()))
        leads = [compare(groups[ordered[0]], groups[name], "step_time_s") for name in ordered[1:]]
        # The first that is clearly behind, as the sentence has it; where all are tied the last.
        behind = next((number for number, lead in enumerate(leads) if not lead.is_tie), len(leads) - 1)
        lead, last = leads[behind], leads[-1]
        sentence = f"{subject}: {answer_best(alike)}"
        if behind + 1 < len(leads):
            slower = f"{1 + last.value:.1f} times as long" if last.value > 1 else f"{last.text} longer"
            sentence += f"; the slowest, {ordered[-1]}, takes {slower}"
        basis = f"{len(ordered)} layouts, {origin}, {labels.setting_text(alike.iloc[0])}; interval {ABOUT[lead.basis]}"
        runs = tuple(_page(groups[name].iloc[0], pages) for name in (ordered[0], ordered[behind + 1]))
        yield Finding(sentence + ".", lead, basis, _figure_of(alike, figures), runs)


def _figure_of(members: DataFrame, figures: Sequence[FigureSpec]) -> str:
    """Return the figure of layouts that draws some runs; '' where none does."""
    listed = (names.split(", ") if isinstance(names, str) else names for names in members["studies"])
    studies = {study for names in listed for study in names}
    drawn = {figure.name for figure in figures if studies & set(figure.studies)}
    return next((name for name in _OF_LAYOUTS if name in drawn), "")


def _changes(frame: DataFrame) -> Iterator[Finding]:
    """Yield what recomputation, overlap and sharding change, over all pairs of runs that differ in nothing else."""
    for change in _known_changes(frame):
        slim = _slim(frame, change.column)
        for quantity in _QUANTITIES:
            for origin, members in slim.groupby("origin", sort=False):
                pairs = pair_points(members, quantity.column, [_ALIKE], change.column, change.first, change.other)
                if pairs:
                    places = sorted(set(members["place"]))
                    words = change.words if len(places) > 1 else f"{places[0]}: {_lowered(change.words)}"
                    yield _over_pairs(words, quantity, list(pairs.values()), str(origin), change.module)


def _known_changes(frame: DataFrame) -> Iterator[_Change]:
    """Yield the changes of which runs have both sides."""
    for name, word in (("full", "Full recomputation"), ("selective", "Selective recomputation")):
        if {"none", name} <= set(frame["recompute"]):
            yield _Change("recompute", "none", name, word, "optimization_sweep")
    overlaps = sorted(value for value in set(frame["overlap"]) if value)
    for value in overlaps if "" in set(frame["overlap"]) else ():
        yield _Change("overlap", "", value, f"Overlap of communication ({value})", "optimization_sweep")


def _micro_batches(frame: DataFrame) -> Iterator[Finding]:
    """Yield what the largest micro-batch changes against the smallest, over layouts that ran with both."""
    slim = _slim(frame, "micro_batch_size")
    for (subject, origin), members in slim.groupby(["subject", "origin"], sort=False):
        sizes = sorted(set(members["micro_batch_size"]))
        if len(sizes) < 2:
            continue
        for quantity in _QUANTITIES:
            pairs = pair_points(members, quantity.column, [_ALIKE], "micro_batch_size", sizes[0], sizes[-1])
            if pairs:
                words = f"{subject}: micro-batch {sizes[-1]} instead of {sizes[0]}"
                yield _over_pairs(words, quantity, list(pairs.values()), str(origin), "microbatch_power")


def _over_pairs(words: str, quantity: _Quantity, effects: Sequence[Effect], origin: str, module: str) -> Finding:
    """Return the mean effect of a change over pairs; of a single pair its own."""
    effect = over_settings(effects) if len(effects) > 1 else effects[0]
    if effect.is_tie:
        verb = f"shows no clear change of {quantity.noun}: {effect.text}"
    elif effect.value > 0:
        verb = quantity.more.format(effect.text)
    else:
        verb = quantity.less.format(_magnitude(effect).text)
    pairs = f"{len(effects)} pairs of runs" if len(effects) > 1 else "one pair of runs"
    basis = f"{pairs} that differ in nothing else, {origin}; interval {ABOUT[effect.basis]}"
    if origin == "simulated" and effect.basis == "settings":
        basis += ", without the error of the model" + _UNKNOWN * (module == "optimization_sweep")
    return Finding(f"{words} {verb}.", effect, basis, module)


def _magnitude(effect: Effect) -> Effect:
    """Return a decrease as a positive number with its interval."""
    return Effect(-effect.value, -effect.high, -effect.low, effect.basis, effect.num, effect.is_relative)


def _clusters(frame: DataFrame, pages: str) -> Iterator[Finding]:
    """Yield which cluster trains a model with least energy per token, each at its best layout."""
    column = "gpu_energy_per_token_j"
    for (model, task, origin), members in frame[frame[column].notna()].groupby(["model", "task", "origin"], sort=False):
        best = {str(place): rows.loc[[rows[column].idxmin()]] for place, rows in members.groupby("place", sort=False)}
        if len(best) < 2:
            continue
        first, *_, last = sorted(best, key=lambda place: float(best[place][column].iloc[0]))
        effect = compare(best[first], best[last], column)
        layouts = [f"{best[place]['layout'].iloc[0]} on {place}" for place in (last, first)]
        sentence = f"{model}, {task}: {layouts[0]} takes {effect.text} more GPU energy per token than {layouts[1]}."
        basis = f"each cluster at its best layout and setting, {origin}; interval {ABOUT[effect.basis]}"
        yield Finding(sentence, effect, basis, "", tuple(_page(best[place].iloc[0], pages) for place in (first, last)))


def _heat(frame: DataFrame, pages: str) -> Iterator[Finding]:
    """Yield the run of each cluster that lost most time to heat, and the one that lost most to the power limit."""
    for place, members in frame.groupby("place", sort=False):
        for column, cause in (("lost_to_heat_fraction", "heat"), ("lost_to_power_limit_fraction", "the power limit")):
            known = members[members[column].notna() & (members[column] > 0)]
            if len(known):
                row = known.iloc[int(known[column].argmax())]
                value, middle = float(row[column]), float(known[column].median())
                effect = Effect(value, math.nan, math.nan, "none", len(known))
                sentence = (
                    f"{place}: {cause} costs {_name(row)} {value * 100:.1f} % of its step, {middle * 100:.1f} % in the "
                    f"median of {len(known)} runs that it holds back."
                )
                basis = f"{row['origin']}, of clocks below the highest; interval {ABOUT['none']}"
                yield Finding(sentence, effect, basis, "throttling", (_page(row, pages),))


def _lowered(words: str) -> str:
    """Return words as they stand inside a sentence."""
    return words[0].lower() + words[1:]


def _name(row: Any) -> str:
    return f"{row['model']} {row['layout']}"


def _page(row: Any, pages: str) -> tuple[str, str]:
    return f"{pages}/{page_name(row['run'])}.html", _name(row)
