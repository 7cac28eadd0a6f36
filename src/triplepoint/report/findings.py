"""Findings: what the runs of a report show, each a sentence worked out from its tables with interval and figure."""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pandas import DataFrame

from triplepoint.effects import ABOUT, FAR, Effect, compare, far_slower, on_as_many_gpus, over_settings, pair_points
from triplepoint.effects.titles import answer_best
from triplepoint.figures import FigureSpec, labels
from triplepoint.report.runs import page_name
from triplepoint.status import Status
from triplepoint.tables.results import POINTS
from triplepoint.tables.schema import column_of
from triplepoint.units import counted
from triplepoint.verdicts.runs import IDENTITY

Row = Mapping[str, Any]

MOST = 30
"""Findings there are, the largest ones. Our choice: more are no longer read."""
FIRST = 10
"""Those that are open when the page is: the rest is a click away."""
_OF_LAYOUTS = ("parallelism_sweep", "lora", "mi250_vs_nvidia", "inference_batch")
"""Figures that compare layouts, each of its own studies."""
_COOLING = "cooling"
_LAYOUTS = "layouts"
"""The question which layout is best."""
_ALIKE = "alike"
"""Column with all of a point that a change leaves as it is."""
_UNKNOWN = ", which is not known: no public measurement of steps differs in this alone"
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
        question: What it answers: findings take turns by it.
        figure: Identifier of the figure that shows it; empty where none does.
        runs: Pages of the runs it is of, with their names.
    """

    sentence: str
    effect: Effect
    basis: str
    question: str = ""
    figure: str = ""
    runs: tuple[tuple[str, str], ...] = ()

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out no effect."""
        return not self.effect.is_tie

    @property
    def size(self) -> float:
        """What findings are ranked by."""
        return _size(self.effect)

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


def _size(effect: Effect) -> float:
    """Return the magnitude of the logarithm of a ratio, of kelvin a tenth for ten."""
    return abs(math.log1p(effect.value)) if effect.is_relative else abs(effect.value) / 10 * _HOT_K


def find(points: Sequence[Row], figures: Sequence[FigureSpec], pages: str) -> list[Finding]:
    """Return what was found: the first finding of each question, the next of each, and so on; unclear ones last.

    Questions take turns: otherwise layouts, which differ most, would fill the list.

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
        *_coolings(frame, figures),
        *_clusters(frame, pages),
        *_heat(frame, pages),
    ]
    found = _in_turns(found)
    modules = {figure.name for figure in figures}
    named = [one if one.figure in modules else one._replace(figure="") for one in found]
    named = [one._replace(sentence=one.sentence.replace(" %", "\u00a0%").replace(" K", "\u00a0K")) for one in named]
    return named[:MOST]


def _in_turns(found: list[Finding]) -> list[Finding]:
    """Return findings in turns of their questions, the largest certain ones of each first; what may be none is last."""

    def rank(one: Finding) -> tuple[bool, bool, float]:
        # The steps of one launch do not show how launches differ: as good as no interval.
        return not one.is_clear, one.track is None or one.effect.basis == "steps", -one.size

    turns: dict[tuple[bool, str], int] = {}
    placed = []
    for one in sorted(found, key=rank):
        turn = turns[one.is_clear, one.question] = turns.get((one.is_clear, one.question), -1) + 1
        placed.append((not one.is_clear, turn, one))
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
    """Yield the fastest layout of each model on each cluster, at the setting tried with most layouts.

    Outliers are compared with nothing: last comes one finding of them all.
    """
    outliers: dict[str, list[tuple[float, Any]]] = {}
    for (_, origin), members in frame.groupby(["subject", "origin"], sort=False):
        alike = on_as_many_gpus(labels.common_setting(members))
        alike = alike.assign(layout=labels.without_shared(labels.layout_labels(alike)))
        slow = far_slower(alike)
        for name, factor in slow.items():
            outliers.setdefault(str(origin), []).append((factor, alike[alike["layout"] == name].iloc[0]))
        chosen = alike[~alike["layout"].isin(list(slow))]
        figure = _figure_of(alike, figures)
        if chosen["layout"].nunique() > 1 and figure is not None:
            yield _best_layout(chosen, figure, pages)
    for origin, of_origin in outliers.items():
        yield _outliers(of_origin, origin, figures, pages)


def _best_layout(alike: DataFrame, figure: str, pages: str) -> Finding:
    """Return which of some layouts of one training is fastest, and by how much."""
    groups = {str(name): rows for name, rows in alike.groupby("layout", sort=False)}
    ordered = sorted(groups, key=lambda name: float(groups[name]["step_time_s"].mean()))
    leads = [compare(groups[ordered[0]], groups[name], "step_time_s") for name in ordered[1:]]
    # The first that is clearly behind, as the sentence has it; where all are tied the last.
    behind = next((number for number, lead in enumerate(leads) if not lead.is_tie), len(leads) - 1)
    lead, last = leads[behind], leads[-1]
    sentence = f"{alike['subject'].iloc[0]}: {answer_best(alike)}"
    if behind + 1 < len(leads):
        slower = f"{1 + last.value:.1f} times as long" if last.value > 1 else f"{last.text} longer"
        sentence += f"; the slowest, {ordered[-1]}, takes {slower}"
    basis = f"{len(ordered)} layouts, {alike['origin'].iloc[0]}, {labels.setting_text(alike.iloc[0])}"
    runs = tuple(_page(groups[name].iloc[0], pages) for name in (ordered[0], ordered[behind + 1]))
    return Finding(f"{sentence}.", lead, f"{basis}; interval {ABOUT[lead.basis]}", _LAYOUTS, figure, runs)


def _outliers(found: Sequence[tuple[float, Any]], origin: str, figures: Sequence[FigureSpec], pages: str) -> Finding:
    """Return what layouts that are far slower than the best have in common: their names, and how much slower they are.

    Args:
        found: How many times as long as the best one of its training each takes, and its row.
        origin: Whether they were measured or simulated.
        figures: Figures of the report.
        pages: Folder of the pages of runs.
    """
    least, (most, worst) = min(factor for factor, _ in found), max(found, key=lambda one: one[0])
    layouts = sorted({str(row["layout"]) for _, row in found})
    named = " and ".join(layouts) if len(layouts) < 3 else f"{counted(len(layouts), 'layout')}, such as {layouts[0]},"
    factors = f"{least:.0f} to {most:.0f}" if round(least) < round(most) else f"{most:.0f}"
    take = "takes" if len(layouts) < 2 else "take"
    trainings = counted(len({(row["subject"], origin) for _, row in found}), "training")
    effect = Effect(most - 1, math.nan, math.nan, "none", len(found))
    return Finding(
        f"{named} {take} {factors} times as long as the best layout, in {trainings}.",
        effect,
        f"{origin}, {FAR:.0f} times as slow as any other, so left out of other findings; interval {ABOUT['none']}",
        _LAYOUTS,
        _figure_of(DataFrame([worst]), figures) or "",
        (_page(worst, pages),),
    )


def _figure_of(members: DataFrame, figures: Sequence[FigureSpec]) -> str | None:
    """Return the figure of layouts that draws some runs, '' where no figure does, None where those ask other things."""
    studies = set().union(*_studies_of(members))
    drawn = {figure.name for figure in figures if studies & set(figure.studies)}
    return next((name for name in _OF_LAYOUTS if name in drawn), None if drawn else "")


def _studies_of(members: DataFrame) -> list[set[str]]:
    """Return the studies of each run."""
    return [set(names.split(", ") if isinstance(names, str) else names) for names in members["studies"]]


def _changes(frame: DataFrame) -> Iterator[Finding]:
    """Yield what recomputation, overlap and sharding change, over all pairs of runs that differ in nothing else."""
    for change in _known_changes(frame):
        slim = _slim(frame, change.column)
        for origin, members in slim.groupby("origin", sort=False):
            places = sorted(set(members["place"]))
            words = change.words if len(places) > 1 else f"{places[0]}: {_lowered(change.words)}"
            pair = change.column, change.first, change.other
            yield from _over_pairs(words, members, pair, str(origin), change.module)


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
        words = f"{subject}: micro-batch {sizes[-1]} instead of {sizes[0]}"
        pair = "micro_batch_size", sizes[0], sizes[-1]
        yield from _over_pairs(words, members, pair, str(origin), "microbatch_power")


def _coolings(frame: DataFrame, figures: Sequence[FigureSpec]) -> Iterator[Finding]:
    """Yield what the coolest of the clusters of figure `cooling` changes against the warmest."""
    studies = {study for figure in figures if figure.name == _COOLING for study in figure.studies}
    drawn = frame[[bool(studies & of_run) for of_run in _studies_of(frame)]]
    for origin, members in _slim(drawn, "cluster").groupby("origin", sort=False):
        known = members[members["gpu_temp_max_c"].notna()]
        order = known.groupby("cluster")["gpu_temp_max_c"].mean().sort_values(kind="stable").index
        if len(order) > 1:
            words = f"The cooling of {order[0]} instead of {order[-1]}"
            yield from _over_pairs(words, members, ("cluster", order[-1], order[0]), str(origin), _COOLING)


def _over_pairs(
    words: str, members: DataFrame, pair: tuple[str, Hashable, Hashable], origin: str, module: str
) -> Iterator[Finding]:
    """Yield the mean effects of a change over pairs as one finding, the largest first; of a single pair its own.

    Args:
        words: What is changed.
        members: Slim rows of runs of one origin.
        pair: The column that changes, its value before and afterwards.
        origin: Whether they were measured or simulated.
        module: The figure that shows it.
    """
    found = {one: list(pair_points(members, one.column, [_ALIKE], *pair).values()) for one in _QUANTITIES}
    found = {one: effects for one, effects in found.items() if effects}
    if not found:
        return
    means = {one: over_settings(effects) if len(effects) > 1 else effects[0] for one, effects in found.items()}
    means = dict(sorted(means.items(), key=lambda item: (item[1].is_tie, -_size(item[1]))))
    clear = [_said(one, effect) for one, effect in means.items() if not effect.is_tie]
    ties = [one.noun for one, effect in means.items() if effect.is_tie]
    unclear = [f"shows no clear change of {_listed(ties, 'or')}"] if ties else []
    first = next(iter(means))
    effect, num = means[first], len(found[first])
    pairs = f"{num} pairs of runs" if num > 1 else "one pair of runs"
    basis = f"{pairs} that differ in nothing else, {origin}; interval {ABOUT[effect.basis]}"
    if origin == "simulated" and effect.basis == "settings":
        basis += ", without the error of the model" + _UNKNOWN * (module == "optimization_sweep")
    yield Finding(f"{words} {_listed([*clear, *unclear], 'and')}.", effect, basis, module, module)


def _said(quantity: _Quantity, effect: Effect) -> str:
    """Return a clear effect as a verb."""
    return quantity.more.format(effect.text) if effect.value > 0 else quantity.less.format(effect.opposite.text)


def _listed(texts: Sequence[str], word: str) -> str:
    """Return texts as one, with a word before the last."""
    return f" {word} ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


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
        yield Finding(
            sentence, effect, basis, "clusters", "", tuple(_page(best[place].iloc[0], pages) for place in (first, last))
        )


def _heat(frame: DataFrame, pages: str) -> Iterator[Finding]:
    """Yield the run that lost most time to heat, and the one that lost most to the power limit."""
    for origin, members in frame.groupby("origin", sort=False):
        for column, cause in (("lost_to_heat_fraction", "Heat"), ("lost_to_power_limit_fraction", "The power limit")):
            known = members[members[column].notna() & (members[column] > 0)]
            if len(known):
                row = known.iloc[int(known[column].argmax())]
                value, middle = float(row[column]), float(known[column].median())
                effect = Effect(value, math.nan, math.nan, "none", len(known))
                runs = counted(len(known), "run")
                sentence = (
                    f"{cause} costs most in {_name(row)} on {row['cluster']}, {value * 100:.1f} % of its step; "
                    f"{middle * 100:.1f} % in the median of {runs} that it holds back."
                )
                basis = f"{origin}, of clocks below the highest; interval {ABOUT['none']}"
                yield Finding(sentence, effect, basis, cause, "throttling", (_page(row, pages),))


def _lowered(words: str) -> str:
    """Return words as they stand inside a sentence."""
    return words[0].lower() + words[1:]


def _name(row: Any) -> str:
    return f"{row['model']} {row['layout']}"


def _page(row: Any, pages: str) -> tuple[str, str]:
    return f"{pages}/{page_name(row['run'])}.html", _name(row)
