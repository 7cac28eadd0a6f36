"""Figure `scale_up_vs_out`: parts of the difference between two clusters, and the cost of each factor on either."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series, isna

from triplepoint.effects import Effect
from triplepoint.effects.titles import Statement
from triplepoint.figures import drawing, marks, style

QUANTITY = "step_time_s"

ENERGY = "node_energy_j"
NOTE = (
    "Top: from the step on {first} to that on {second}; a bar begins where the one above it ends. Bottom: what either "
    "cluster loses to a factor alone. Lines with caps and brackets: 90 % interval; asterisk: it holds zero."
)
_HATCHED = ("interaction",)
_REST = "GPUs (type, number)"
"""Name of the part of the difference that no factor explains."""
_SHARES = ("share", "share_lo", "share_hi")


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure of a comparison and the numbers it plots, one row per model, side and part.

    Args:
        tables: `whatif`, with one comparison.
    """
    rows = tables["whatif"]
    numbers = rows[rows["quantity"] == QUANTITY].reset_index(drop=True)
    models = list(dict.fromkeys(numbers["model"]))
    differences = {model: _rows_of(numbers, model, "difference") for model in models}
    first, second = _clusters(numbers)
    page = style.new_page(
        answer(differences, first, second), _points(numbers), 2, len(models), style.PAGE, 4.9,
        NOTE.format(first=first, second=second), sharey="row", height_ratios=[10, 7],
    )  # fmt: skip
    page.head([(model, _note(_whole(differences[model]))) for model in models])
    for col, model in enumerate(models):
        upper, lower = page.axes[0][col], page.axes[1][col]
        _draw_difference(upper, differences[model], _rows_of(rows[rows["quantity"] == ENERGY], model, "difference"))
        _draw_costs(lower, [_rows_of(numbers, model, side) for side in ("from", "to")])
        upper.set_xlabel(f"change from {first} (%)")
        lower.set_xlabel("loss (% of own step)")
    page.legend([drawing.as_patch(_mark(name)._replace(name=f"makes {name} slower")) for name in (first, second)])
    return page.finish(), numbers[_COLUMNS]


_COLUMNS = [
    "comparison", "model", "case", "cluster", "side", "part", "factor", "value", "label", "base", "changed", "effect",
    "effect_lo", "effect_hi", "share", "share_lo", "share_hi", "note", "published_sign", "published", "origin",
]  # fmt: skip


def answer(differences: Mapping[str, DataFrame], first: str, second: str) -> Statement:
    """Return the title: the model with the largest certain difference in step time, and its largest part.

    Args:
        differences: Rows of side `difference` by model.
        first: Cluster to compare with.
        second: Cluster to compare.
    """
    effects = {model: _effect(_whole(rows)) for model, rows in differences.items()}
    certain = {model: abs(effect.value) for model, effect in effects.items() if not effect.is_tie} or effects
    model = max(certain, key=lambda name: abs(effects[name].value))
    effect = effects[model]
    relation = f"{effect.text} longer than" if effect.value > 0 else f"{effect.negated.text} shorter than"
    sentence = f"a step of {model} on {second} is {relation} on {first}{_largest_part(differences[model], effect)}"
    if effect.is_tie:
        sentence = f"a step of {model} on {second} is as long as on {first}, difference {effect.text}"
    others = tuple(f"{name} {_signed(other)}" for name, other in effects.items() if name != model)
    return Statement(sentence, "scale-up against scale-out", effect, "", others)


def _largest_part(rows: DataFrame, whole: Effect) -> str:
    """Return the largest part of a difference with its sign, as the end of a sentence; '' for a tie."""
    parts = rows[(rows["part"] != "whole") & (rows["share"] * whole.value > 0)]
    if whole.is_tie or parts.empty:
        return ""
    largest = parts.loc[[parts["share"].abs().idxmax()]]
    return f"; largest part: {_names(largest)[0]}"


def _whole(rows: DataFrame) -> "Series[Any]":
    """Return the row of the whole difference."""
    whole: Series[Any] = rows[rows["part"] == "whole"].iloc[0]
    return whole


def _effect(whole: "Series[Any]") -> Effect:
    """Return a difference as an effect."""
    value, low, high = (float(whole[name]) for name in _SHARES)
    return Effect(value, low, high, "model", 1)


def _note(whole: "Series[Any]") -> str:
    """Return the note below the name of a model: the difference, and the published direction if there is one."""
    sign = whole["published_sign"]
    published = "" if isna(sign) else f"\npublished: {'longer' if sign > 0 else 'shorter'}"
    return _signed(_effect(whole)) + published


def _signed(effect: Effect) -> str:
    """Return a signed difference in per cent, never as a factor, since parts add up."""
    return f"{'+' * (effect.value > 0)}{effect.text}"


def _names(rows: DataFrame) -> list[str]:
    """Return the names of parts."""
    return [_REST if part == "rest" else str(label) for part, label in zip(rows["part"], rows["label"], strict=True)]


def _rows_of(numbers: DataFrame, model: str, side: str) -> DataFrame:
    return numbers[(numbers["model"] == model) & (numbers["side"] == side)]


def _clusters(numbers: DataFrame) -> tuple[str, str]:
    """Return the clusters on side `from` and on side `to`."""
    first, second = (str(numbers.loc[numbers["side"] == side, "cluster"].iloc[0]) for side in ("from", "to"))
    return first, second


def _points(numbers: DataFrame) -> DataFrame:
    """Return the rows for the stamp and the provenance of the page."""
    cases = numbers[numbers["side"] != "difference"]
    return cases.assign(engine="simulated", torch_version=None, host=None)


def _mark(cluster: str) -> marks.Mark:
    """Return the mark of a cluster, that of its GPU type."""
    return next((mark for gpu, mark in marks.GPU_TYPES.items() if cluster.startswith(gpu)), marks.GPU_TYPES["cpu"])


def _draw_costs(axes: Axes, sides: Sequence[DataFrame]) -> None:
    """Draw the cost of each factor on both clusters, side by side."""
    factors = sides[0][sides[0]["part"] == "factor"]
    for number, side in enumerate(sides):
        rows = side[side["part"] == "factor"]
        for at, (_, row) in enumerate(rows.iterrows()):
            # The cost of a factor is the time that its change saves.
            y = at + (number - 0.5) * 0.38
            _bar(axes, y, 0.36, 0.0, {name: -row[name] for name in _SHARES}, str(row["cluster"]))
    _label(axes, list(factors["label"]))


def _draw_difference(axes: Axes, rows: DataFrame, energy: DataFrame) -> None:
    """Draw the parts of the difference end to end, each in the colour of the cluster that it makes slower.

    Below the whole difference is the difference in energy of a step, if it is known.
    """
    first, second = str(rows["cluster"].iloc[0]).split(" to ")
    reached = 0.0
    for at, (_, row) in enumerate(rows.iterrows()):
        is_part = row["part"] != "whole"
        cluster = second if row["share"] > 0 else first
        hatch = "//////" if row["part"] in _HATCHED else ""
        start = reached if is_part else 0.0
        _bar(axes, at, 0.62, start, {name: row[name] for name in _SHARES}, cluster, hatch, has_edge=not is_part)
        _write_number(axes, at, row)
        if is_part:
            reached += row["share"]
            axes.plot([100 * reached] * 2, [at, at + 1], color=marks.GREY, linewidth=0.5)
    named = _names(rows)
    for _, row in energy[(energy["part"] == "whole") & energy["share"].notna()].iterrows():
        ends = [100 * row[end] for end in ("share_lo", "share_hi")]
        axes.plot(ends, [len(named)] * 2, color=marks.GREY, linewidth=0.8, marker="|", markersize=3)
        axes.plot([100 * row["share"]], [len(named)], marker="D", color=marks.GREY)
        _write_number(axes, len(named), row)
        named.append("energy of nodes")
    _label(axes, named)
    low, high = axes.get_xlim()
    axes.set_xlim(low, high + 0.28 * (high - low))


def _write_number(axes: Axes, at: float, row: "Series[Any]") -> None:
    """Write a difference in per cent at the right of its row, with an asterisk if its interval contains zero."""
    place, star = axes.get_yaxis_transform(), "*" * bool(row["share_lo"] <= 0 <= row["share_hi"])
    text = f"{100 * row['share']:+.0f}{star}"
    axes.text(0.99, at, text, transform=place, ha="right", va="center", fontsize=style.TEXT_PT)


def _bar(
    axes: Axes, at: float, height: float, start: float, row: Mapping[str, float], cluster: str, hatch: str = "",
    has_edge: bool = False,
) -> None:  # fmt: skip
    """Draw one part as a bar from share `start`, with the interval of its end.

    Args:
        axes: The panel.
        at: Position on the y axis.
        height: Height of the bar.
        start: Share at which the bar begins.
        row: Share of the part and the ends of its interval.
        cluster: Cluster that gives the bar its colour.
        hatch: Hatch of the bar.
        has_edge: Whether the bar has a black edge.
    """
    mark, outline = _mark(cluster), marks.BLACK if has_edge else "white"
    axes.barh(
        at, 100 * row["share"], height, left=100 * start, color=mark.colour, hatch=hatch, edgecolor=outline,
        linewidth=0.8,
    )  # fmt: skip
    ends = [100 * (start + row[end]) for end in ("share_lo", "share_hi")]
    axes.plot(ends, [at, at], color=marks.BLACK, linewidth=0.8, marker="|", markersize=3, markeredgewidth=0.8)


def _label(axes: Axes, labels: Sequence[str]) -> None:
    """Label the rows of a panel, and prepare its axes."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.axvline(0, color=marks.BLACK, linewidth=0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.locator_params(axis="x", nbins=4)
