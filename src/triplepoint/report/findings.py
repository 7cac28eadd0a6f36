"""Findings of a report: headlines with their intervals, ranked by effect, with further quantities and their figure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pandas import DataFrame

from triplepoint.effects import ABOUT_BASIS, FAR_SLOWER, Effect, compare, far_slower, on_as_many_gpus
from triplepoint.effects.titles import Statement, mean_of, rank, signed
from triplepoint.figures import FigureSpec, labels
from triplepoint.report.runs import page_name
from triplepoint.status import Status
from triplepoint.tables.results import POINTS
from triplepoint.units import counted

Row = Mapping[str, Any]

MOST = 30
"""Largest number of findings. Our choice."""
FIRST = 10
"""Number of findings that are visible when the page opens."""
_LAYOUT_FIGURES = ("parallelism_sweep", "lora", "mi250_vs_nvidia", "inference_batch")
"""Figures that compare layouts, each for other studies."""
_LAYOUTS = "layouts"
"""Question of the findings on the best layout."""
_COSTS = {"gpu_power_w": "power", "gpu_temp_max_c": "hottest GPU", "gpu_energy_per_token_j": "energy per token"}
"""Quantities for which the fastest layout is compared with the next, and their names."""
_TRACK = 0.6
"""Natural logarithm of a ratio at the ends of the scale of bars: -45 and +82 %. Larger effects are cut off."""
_MIN_WIDTH = 2.0
"""Width of the bar of a narrower interval, or of one beyond the scale, so that it is visible. Unit: per cent of the
scale."""
_LOG_RATIO_OF_10_K = 0.1
"""Logarithm of a ratio that 10 K are equivalent to in the ranking of effects. Our choice."""


class Finding(NamedTuple):
    """One finding of the report.

    Attributes:
        headline: Sentence with the result and its interval.
        effect: Effect that findings are ranked by.
        basis: Runs behind the finding, and the basis of its interval.
        question: Question that it answers; findings on different questions alternate.
        others: Short texts of further quantities.
        figure: Identifier of the figure that shows it; '' for none.
        runs: Page and name of each run that it is on.
        is_aside: Whether it is on another task than training of all weights.
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
        """Whether the interval excludes zero."""
        return not self.effect.is_tie

    @property
    def size(self) -> float:
        """Magnitude that findings are ranked by."""
        return _size(self.effect)

    @property
    def track(self) -> tuple[float, float, float] | None:
        """Start and length of the bar of the interval, and place of the value. Unit: per cent of the scale."""
        if math.isnan(self.effect.low):
            return None
        low, value, high = (self._place(end) for end in (self.effect.low, self.effect.value, self.effect.high))
        width = max(high - low, _MIN_WIDTH)
        return min(low, 100.0 - width), round(width, 2), value

    @property
    def beyond(self) -> str:
        """Arrow to an effect beyond the ends of the scale; '' for an effect within."""
        change = self._change(self.effect.value)
        return "" if abs(change) <= _TRACK else "▸" if change > 0 else "◂"

    def _change(self, end: float) -> float:
        return math.log1p(end) if self.effect.is_relative else end / 10 * _LOG_RATIO_OF_10_K

    def _place(self, end: float) -> float:
        return round(50 + 50 * min(max(self._change(end) / _TRACK, -1.0), 1.0), 2)


def _size(effect: Effect) -> float:
    """Return the magnitude of an effect as the logarithm of a ratio; kelvin are converted."""
    return abs(math.log1p(effect.value)) if effect.is_relative else abs(effect.value) / 10 * _LOG_RATIO_OF_10_K


def find(
    points: Sequence[Row],
    figures: Mapping[str, FigureSpec],
    pages: str,
    statements: Mapping[str, Sequence[Statement]],
) -> list[Finding]:
    """Return the findings of a report in their order.

    Questions alternate, since otherwise findings on layouts, which differ most, would fill the list. Findings whose
    interval contains zero are last.

    Args:
        points: Rows of table `points`.
        figures: Figures of the report by identifier.
        pages: Folder of the pages of runs, relative to the front page.
        statements: Statements of figures by identifier.
    """
    if not any(point["status"] == Status.OK for point in points):
        return []
    frame = _prepared(points)
    done = frame[frame["status"] == Status.OK]
    findings = [
        *_best_layouts(frame, figures, pages),
        *_of_figures(statements, figures),
        *_clusters(done, pages),
        *_heat(done, pages),
    ]
    return _alternated([finding._replace(headline=_unbreakable(finding.headline)) for finding in findings])[:MOST]


def _unbreakable(text: str) -> str:
    """Return text with no-break spaces between a number and its unit."""
    return text.replace(" %", "\u00a0%").replace(" K", "\u00a0K")


def _alternated(findings: list[Finding]) -> list[Finding]:
    """Return findings in rounds with one of each question, the largest with an interval first.

    In each round findings on other tasks than training of all weights come last. Findings whose interval contains zero
    follow all others.
    """

    def key(finding: Finding) -> tuple[bool, bool, float]:
        # An interval over the steps of one launch counts as none, since it does not show how launches differ.
        has_none = finding.track is None or finding.effect.basis == "steps"
        return not finding.is_clear, has_none, -finding.size

    rounds: dict[tuple[bool, str], int] = {}
    placed = []
    for finding in sorted(findings, key=key):
        group = finding.is_clear, finding.question
        rounds[group] = rounds.get(group, -1) + 1
        placed.append((not finding.is_clear, rounds[group], finding.is_aside, finding))
    return [finding for *_, finding in sorted(placed, key=lambda entry: entry[:3])]


def _prepared(points: Sequence[Row]) -> DataFrame:
    """Return prepared points, with column `subject`: the group, and the task if it is inference."""
    frame = labels.prepare(pa.Table.from_pylist(list(points), schema=POINTS.schema()).to_pandas())
    task = frame["task"].map(lambda task: f", {task}" if task == "inference" else "")
    return frame.assign(subject=frame["group"] + task)


def _best_layouts(frame: DataFrame, figures: Mapping[str, FigureSpec], pages: str) -> Iterator[Finding]:
    """Yield a finding on the fastest layout of each model on each cluster, at the setting with most layouts.

    Layouts that are far slower are left out. One last finding is on all of them.
    """
    outliers: dict[str, list[tuple[float, Any]]] = {}
    for (_, origin), members in frame.groupby(["subject", "origin"], sort=False):
        comparable = on_as_many_gpus(labels.choose(members))
        outlier_factors = far_slower(comparable)
        comparable = comparable[comparable["status"] == Status.OK]
        for name, factor in outlier_factors.items():
            outliers.setdefault(str(origin), []).append((factor, comparable[comparable["layout"] == name].iloc[0]))
        chosen = comparable[~comparable["layout"].isin(list(outlier_factors))]
        figure = _figure_of(comparable, figures)
        if chosen["layout"].nunique() > 1 and figure is not None:
            yield _best_layout(chosen, figure, pages)
    for origin, of_origin in outliers.items():
        yield _outliers(of_origin, origin, figures, pages)


def _best_layout(comparable: DataFrame, figure: str, pages: str) -> Finding:
    """Return the finding on the fastest layout.

    Args:
        comparable: Comparable points of one training, of at least two layouts.
        figure: Identifier of the figure that shows them; '' for none.
        pages: Folder of the pages of runs.
    """
    ranking = rank(comparable)
    assert ranking.lead is not None
    rows = {str(name): repeats.iloc[0] for name, repeats in comparable.groupby("layout", sort=False)}
    last, slowest = list(ranking.leads.items())[-1]
    longer = f"{1 + slowest.value:.1f} times as long" if slowest.value > 1 else f"{slowest.text} longer"
    others = [f"slowest {last}, {longer}"] if last != ranking.next else []
    behind, best = (comparable[comparable["layout"] == name] for name in (ranking.next, ranking.best))
    others += [
        f"{name} {signed(compare(behind, best, column))}"
        for column, name in _COSTS.items()
        if behind[column].notna().all() and best[column].notna().all()
    ]
    basis = f"{len(rows)} layouts, {comparable['origin'].iloc[0]}, {labels.setting_text(comparable.iloc[0])}"
    return Finding(
        f"{str(comparable['subject'].iloc[0]).removesuffix(', simulated')}: {ranking.sentence}",
        ranking.lead,
        f"{basis}; interval {ABOUT_BASIS[ranking.lead.basis]}",
        f"{_LAYOUTS}, {comparable['task'].iloc[0]}",
        tuple(others),
        figure,
        tuple(_page(rows[name], pages) for name in (ranking.best, ranking.next)),
        _is_aside(comparable),
    )


def _is_aside(members: DataFrame) -> bool:
    """Return whether all points are of another task than training of all weights."""
    return bool((members["task"] != "pretrain").all())


def _outliers(
    outliers: Sequence[tuple[float, Any]], origin: str, figures: Mapping[str, FigureSpec], pages: str
) -> Finding:
    """Return the finding on all layouts that are far slower than the best of their training.

    Args:
        outliers: Step time over that of the best layout, and row of each layout.
        origin: 'measured' or 'simulated'.
        figures: Figures of the report.
        pages: Folder of the pages of runs.
    """
    least, (most, worst) = min(factor for factor, _ in outliers), max(outliers, key=lambda outlier: outlier[0])
    layouts = sorted({str(row["layout"]) for _, row in outliers})
    named = " and ".join(layouts) if len(layouts) < 3 else f"{counted(len(layouts), 'layout')}, such as {layouts[0]},"
    factors = f"{least:.0f} to {most:.0f}" if round(least) < round(most) else f"{most:.0f}"
    take = "takes" if len(layouts) < 2 else "take"
    trainings = counted(len({(row["subject"], origin) for _, row in outliers}), "training")
    effect = Effect(most - 1, math.nan, math.nan, "none", len(outliers))
    reason = f"{FAR_SLOWER:.0f} times as slow as any other, so left out of other findings"
    return Finding(
        f"{named} {take} {factors} times as long as the best layout, in {trainings}",
        effect,
        f"{origin}, {reason}; interval {ABOUT_BASIS['none']}",
        f"{_LAYOUTS}, pretrain",
        figure=_figure_of(DataFrame([worst]), figures) or "",
        runs=(_page(worst, pages),),
    )


def _figure_of(members: DataFrame, figures: Mapping[str, FigureSpec]) -> str | None:
    """Return the figure that compares the layouts of some runs.

    Returns:
        Its identifier; '' if no figure draws the runs; None if only figures on other questions draw them.
    """
    studies = set().union(*members["studies"])
    drawn = {spec.name: name for name, spec in figures.items() if studies & set(spec.studies)}
    return next((drawn[name] for name in _LAYOUT_FIGURES if name in drawn), None if drawn else "")


def _of_figures(statements: Mapping[str, Sequence[Statement]], figures: Mapping[str, FigureSpec]) -> Iterator[Finding]:
    """Yield a finding for each statement of a figure."""
    for figure, of_figure in statements.items():
        for statement in of_figure:
            effect = statement.effect
            over = f"{mean_of(effect.num, statement.noun)}, " if statement.noun else ""
            interval = ABOUT_BASIS["none" if math.isnan(effect.low) else effect.basis]
            basis = f"{over}{statement.origin}; interval {interval}"
            if "simulated" in statement.origin and effect.basis == "settings":
                basis += ", without the error of the model"
            is_aside = not figures[figure].is_of_pretraining
            yield Finding(statement.sentence, effect, basis, statement.question, statement.others, figure, (), is_aside)


def _clusters(frame: DataFrame, pages: str) -> Iterator[Finding]:
    """Yield a finding for each model and task on the clusters with the most and the least energy per token.

    Each cluster counts with its best layout and setting.
    """
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
        basis = f"each cluster at its best layout and setting, {origin}; interval {ABOUT_BASIS[effect.basis]}"
        runs = tuple(_page(best[place].iloc[0], pages) for place in (last, first))
        yield Finding(headline, effect, basis, f"clusters, {task}", (), "", runs, _is_aside(members))


def _heat(frame: DataFrame, pages: str) -> Iterator[Finding]:
    """Yield findings on the run that lost most time to heat and the run that lost most to the power limit."""
    for origin, members in frame.groupby("origin", sort=False):
        for column, cause in (("lost_to_heat_fraction", "heat"), ("lost_to_power_limit_fraction", "the power limit")):
            known = members[members[column].notna() & (members[column] > 0)]
            if len(known):
                row = known.iloc[int(known[column].argmax())]
                value, middle = float(row[column]), float(known[column].median())
                effect = Effect(value, math.nan, math.nan, "none", len(known))
                headline = f"{_name(row)} on {row['cluster']} loses {value * 100:.1f} % of its step to {cause}"
                others = (f"median of {counted(len(known), 'run')} that lose to it {middle * 100:.1f} %",)
                basis = f"{origin}, the most of all runs, of clocks below the highest; interval {ABOUT_BASIS['none']}"
                yield Finding(headline, effect, basis, cause, others, "", (_page(row, pages),))


def _name(row: Any) -> str:
    return f"{row['model']} {row['layout']}"


def _page(row: Any, pages: str) -> tuple[str, str]:
    """Return the link to the page of a run, and its name."""
    return f"{pages}/{page_name(row['run'])}.html", _name(row)
