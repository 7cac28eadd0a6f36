"""Findings: what the runs of a report show, each a headline with its interval, further quantities and its figure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pandas import DataFrame

from triplepoint.effects import ABOUT, FAR, Effect, compare, far_slower, on_as_many_gpus
from triplepoint.effects.titles import Statement, mean_of, rank, signed
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
_COSTS = {"gpu_power_w": "power", "gpu_temp_max_c": "hottest GPU", "gpu_energy_per_token_j": "energy per token"}
"""What the fastest layout costs against the next, and what it is called."""
_TRACK = 0.6
"""Natural logarithm of a ratio at the ends of the bars: -45 and +82 %. Larger effects are cut off there."""
_HOT_K = 0.1
"""Change of the logarithm that 10 K count for where effects are ranked. Our choice: kelvin and per cent share one
list."""


class Finding(NamedTuple):
    """One finding of the report.

    Attributes:
        headline: What was found, with its interval.
        effect: How large it is.
        basis: What it is found in, and what its interval is over.
        question: What it answers: findings take turns by it.
        others: Further quantities, short.
        figure: Identifier of the figure that shows it; empty where none does.
        runs: Pages of the runs it is of, with their names.
        is_aside: Whether it is of another task than training all weights.
    """

    headline: str
    effect: Effect
    basis: str
    question: str = ""
    others: tuple[str, ...] = ()
    figure: str = ""
    runs: tuple[tuple[str, str], ...] = ()
    is_aside: bool = False

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
    points: Sequence[Row],
    figures: Mapping[str, FigureSpec],
    pages: str,
    statements: Mapping[str, Sequence[Statement]],
) -> list[Finding]:
    """Return what was found: the first finding of each question, the next of each, and so on; unclear ones last.

    Questions take turns: otherwise layouts, which differ most, would fill the list.

    Args:
        points: Rows of table `points`.
        figures: Figures of the report by their identifiers in it.
        pages: Folder of the pages of runs, as links from the front page begin.
        statements: What figures hand over, by the same identifiers.
    """
    if not any(point["status"] == Status.OK for point in points):
        return []
    frame = _prepared(points)
    done = frame[frame["status"] == Status.OK]
    found = [
        *_best_layouts(frame, figures, pages),
        *_of_figures(statements, figures),
        *_clusters(done, pages),
        *_heat(done, pages),
    ]
    return _in_turns([one._replace(headline=_whole(one.headline)) for one in found])[:MOST]


def _whole(text: str) -> str:
    """Return text in which no line ends between a number and its unit."""
    return text.replace(" %", "\u00a0%").replace(" K", "\u00a0K")


def _in_turns(found: list[Finding]) -> list[Finding]:
    """Return findings in turns of their questions, the largest certain ones of each first; what may be none is last.

    Questions on other tasks than training all weights end each turn.
    """

    def key(one: Finding) -> tuple[bool, bool, float]:
        # The steps of one launch do not show how launches differ: as good as no interval.
        return not one.is_clear, one.track is None or one.effect.basis == "steps", -one.size

    turns: dict[tuple[bool, str], int] = {}
    placed = []
    for one in sorted(found, key=key):
        turn = turns[one.is_clear, one.question] = turns.get((one.is_clear, one.question), -1) + 1
        placed.append((not one.is_clear, turn, one.is_aside, one))
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
    ranking = rank(alike)
    assert ranking.lead is not None
    rows = {str(name): found.iloc[0] for name, found in alike.groupby("layout", sort=False)}
    last, slowest = list(ranking.leads.items())[-1]
    longer = f"{1 + slowest.value:.1f} times as long" if slowest.value > 1 else f"{slowest.text} longer"
    others = [f"slowest {last}, {longer}"] if last != ranking.next else []
    behind, best = (alike[alike["layout"] == name] for name in (ranking.next, ranking.best))
    others += [
        f"{name} {signed(compare(behind, best, column))}"
        for column, name in _COSTS.items()
        if behind[column].notna().all() and best[column].notna().all()
    ]
    basis = f"{len(rows)} layouts, {alike['origin'].iloc[0]}, {labels.setting_text(alike.iloc[0])}"
    return Finding(
        f"{str(alike['subject'].iloc[0]).removesuffix(', simulated')}: {ranking.sentence}",
        ranking.lead,
        f"{basis}; interval {ABOUT[ranking.lead.basis]}",
        f"{_LAYOUTS}, {alike['task'].iloc[0]}",
        tuple(others),
        figure,
        tuple(_page(rows[name], pages) for name in (ranking.best, ranking.next)),
        _is_aside(alike),
    )


def _is_aside(members: DataFrame) -> bool:
    return bool((members["task"] != "pretrain").all())


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
        f"{named} {take} {factors} times as long as the best layout, in {trainings}",
        effect,
        f"{origin}, {FAR:.0f} times as slow as any other, so left out of other findings; interval {ABOUT['none']}",
        f"{_LAYOUTS}, pretrain",
        figure=_figure_of(DataFrame([worst]), figures) or "",
        runs=(_page(worst, pages),),
    )


def _figure_of(members: DataFrame, figures: Mapping[str, FigureSpec]) -> str | None:
    """Return the figure of layouts that draws some runs, '' where no figure does, None where those ask other things."""
    studies = set().union(*members["studies"])
    drawn = {spec.name: name for name, spec in figures.items() if studies & set(spec.studies)}
    return next((drawn[name] for name in _OF_LAYOUTS if name in drawn), None if drawn else "")


def _of_figures(statements: Mapping[str, Sequence[Statement]], figures: Mapping[str, FigureSpec]) -> Iterator[Finding]:
    """Yield what figures say, with their brackets."""
    for figure, said in statements.items():
        for one in said:
            over = f"{mean_of(one.effect.num, one.noun)}, " if one.noun else ""
            about = ABOUT["none" if math.isnan(one.effect.low) else one.effect.basis]
            basis = f"{over}{one.origin}; interval {about}"
            if "simulated" in one.origin and one.effect.basis == "settings":
                basis += ", without the error of the model"
            is_aside = not figures[figure].is_of_pretraining
            yield Finding(one.sentence, one.effect, basis, one.about, one.others, figure, (), is_aside)


def _clusters(frame: DataFrame, pages: str) -> Iterator[Finding]:
    """Yield which cluster trains a model with least energy per token, each at its best layout."""
    column = "gpu_energy_per_token_j"
    for (model, task, origin), members in frame[frame[column].notna()].groupby(["model", "task", "origin"], sort=False):
        best = {str(place): rows.loc[[rows[column].idxmin()]] for place, rows in members.groupby("place", sort=False)}
        if len(best) < 2:
            continue
        first, *_, last = sorted(best, key=lambda place: float(best[place][column].iloc[0]))
        effect = compare(best[first], best[last], column)
        names = [place.removesuffix(", simulated") for place in (last, first)]
        subject = f"{model}, {task}" if _is_aside(members) else str(model)
        headline = f"{subject}: {names[0]} takes {effect.text} more GPU energy per token than {names[1]}"
        basis = f"each cluster at its best layout and setting, {origin}; interval {ABOUT[effect.basis]}"
        runs = tuple(_page(best[place].iloc[0], pages) for place in (last, first))
        yield Finding(headline, effect, basis, f"clusters, {task}", (), "", runs, _is_aside(members))


def _heat(frame: DataFrame, pages: str) -> Iterator[Finding]:
    """Yield the run that lost most time to heat, and that which lost most to the power limit; no figure draws these."""
    for origin, members in frame.groupby("origin", sort=False):
        for column, cause in (("lost_to_heat_fraction", "heat"), ("lost_to_power_limit_fraction", "the power limit")):
            known = members[members[column].notna() & (members[column] > 0)]
            if len(known):
                row = known.iloc[int(known[column].argmax())]
                value, middle = float(row[column]), float(known[column].median())
                effect = Effect(value, math.nan, math.nan, "none", len(known))
                headline = f"{_name(row)} on {row['cluster']} loses {value * 100:.1f} % of its step to {cause}"
                others = (f"median of {counted(len(known), 'run')} that lose to it {middle * 100:.1f} %",)
                basis = f"{origin}, the most of all runs, of clocks below the highest; interval {ABOUT['none']}"
                yield Finding(headline, effect, basis, cause, others, "", (_page(row, pages),))


def _name(row: Any) -> str:
    return f"{row['model']} {row['layout']}"


def _page(row: Any, pages: str) -> tuple[str, str]:
    return f"{pages}/{page_name(row['run'])}.html", _name(row)
