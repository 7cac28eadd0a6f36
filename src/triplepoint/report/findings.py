"""Findings: what the runs of a report show, each a sentence worked out from its tables with interval and figure."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pandas import DataFrame

from triplepoint.effects import ABOUT, FAR, Effect, compare, far_slower, on_as_many_gpus, titles
from triplepoint.effects.titles import Told, answer_best
from triplepoint.figures import FigureSpec, labels
from triplepoint.report.runs import page_name
from triplepoint.status import Status
from triplepoint.tables.results import POINTS
from triplepoint.units import counted

Row = Mapping[str, Any]

MOST = 30
"""Findings there are, the largest ones. Our choice: more are no longer read."""
FIRST = 10
"""Those that are open when the page is: the rest is a click away."""
_OF_LAYOUTS = ("parallelism_sweep", "lora", "mi250_vs_nvidia", "inference_batch")
"""Figures that compare layouts, each of its own studies."""
_LAYOUTS = "layouts"
"""The question which layout is best."""
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


def _size(effect: Effect) -> float:
    """Return the magnitude of the logarithm of a ratio, of kelvin a tenth for ten."""
    return abs(math.log1p(effect.value)) if effect.is_relative else abs(effect.value) / 10 * _HOT_K


def find(
    points: Sequence[Row], figures: Mapping[str, FigureSpec], pages: str, changes: Mapping[str, Sequence[Told]]
) -> list[Finding]:
    """Return what was found: the first finding of each question, the next of each, and so on; unclear ones last.

    Questions take turns: otherwise layouts, which differ most, would fill the list. What is trained comes before what
    serves prompts: training is what the tool is about.

    Args:
        points: Rows of table `points`.
        figures: Figures of the report by their identifiers in it.
        pages: Folder of the pages of runs, as links from the front page begin.
        changes: What figures say of changes, by the same identifiers.
    """
    if not any(point["status"] == Status.OK for point in points):
        return []
    frame = _prepared(points)
    done = frame[frame["status"] == Status.OK]
    found = [
        *_best_layouts(frame, figures, pages),
        *_changes(changes, figures),
        *_clusters(done, pages),
        *_heat(done, pages),
    ]
    found = [one._replace(sentence=one.sentence.replace(" %", "\u00a0%").replace(" K", "\u00a0K")) for one in found]
    served = set().union(*done.loc[done["task"] == "inference", "studies"])
    trained = set().union(*done.loc[done["task"] != "inference", "studies"])
    of_serving = {
        name for name, spec in figures.items() if set(spec.studies) & served and not set(spec.studies) & trained
    }
    return _in_turns(found, of_serving)[:MOST]


def _in_turns(found: list[Finding], last: Collection[str]) -> list[Finding]:
    """Return findings in turns of their questions, the largest certain ones of each first; what may be none is last.

    Args:
        found: Findings.
        last: Figures whose findings end each turn.
    """

    def rank(one: Finding) -> tuple[bool, bool, float]:
        # The steps of one launch do not show how launches differ: as good as no interval.
        return not one.is_clear, one.track is None or one.effect.basis == "steps", -one.size

    turns: dict[tuple[bool, str], int] = {}
    placed = []
    for one in sorted(found, key=rank):
        turn = turns[one.is_clear, one.question] = turns.get((one.is_clear, one.question), -1) + 1
        placed.append((not one.is_clear, turn, one.figure in last, one))
    return [one for *_, one in sorted(placed, key=lambda entry: entry[:3])]


def _prepared(points: Sequence[Row]) -> DataFrame:
    """Return runs with layout, place and subject in words."""
    frame = labels.prepare(pa.Table.from_pylist(list(points), schema=POINTS.schema()).to_pandas())
    # What is trained with adapters or serves prompts is no match of what is trained whole.
    served = frame["task"].map(lambda task: f", {task}" if task == "inference" else "")
    return frame.assign(subject=frame["group"] + served)


def _best_layouts(frame: DataFrame, figures: Mapping[str, FigureSpec], pages: str) -> Iterator[Finding]:
    """Yield the fastest layout of each model on each cluster, at the setting tried with most layouts.

    Outliers are compared with nothing: last comes one finding of them all.
    """
    outliers: dict[str, list[tuple[float, Any]]] = {}
    for (_, origin), members in frame.groupby(["subject", "origin"], sort=False):
        alike = on_as_many_gpus(labels.choose(members))
        slow = far_slower(alike)
        alike = alike[alike["status"] == Status.OK]
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


def _outliers(
    found: Sequence[tuple[float, Any]], origin: str, figures: Mapping[str, FigureSpec], pages: str
) -> Finding:
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


def _figure_of(members: DataFrame, figures: Mapping[str, FigureSpec]) -> str | None:
    """Return the figure of layouts that draws some runs, '' where no figure does, None where those ask other things."""
    studies = set().union(*members["studies"])
    drawn = {spec.name: name for name, spec in figures.items() if studies & set(spec.studies)}
    return next((drawn[name] for name in _OF_LAYOUTS if name in drawn), None if drawn else "")


def _changes(changes: Mapping[str, Sequence[Told]], figures: Mapping[str, FigureSpec]) -> Iterator[Finding]:
    """Yield what figures say of changes, with their brackets: each is ranked by its largest clear effect."""
    for figure, told in changes.items():
        for one in told:
            effect = min(one.means, key=lambda mean: (mean.is_tie, math.isnan(mean.low), -_size(mean)))
            about = "none" if math.isnan(effect.low) else effect.basis
            basis = f"{titles.mean_of(effect.num, one.noun)}, {one.origin}; interval {ABOUT[about]}"
            if "simulated" in one.origin and about == "settings":
                basis += ", without the error of the model"
            yield Finding(f"{one.sentence}.", effect, basis, figures[figure].name, figure)


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
    """Yield the run that lost most time to heat, and that which lost most to the power limit; no figure draws these."""
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
                yield Finding(sentence, effect, basis, cause, "", (_page(row, pages),))


def _name(row: Any) -> str:
    return f"{row['model']} {row['layout']}"


def _page(row: Any, pages: str) -> tuple[str, str]:
    return f"{pages}/{page_name(row['run'])}.html", _name(row)
