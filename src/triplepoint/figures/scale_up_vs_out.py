"""Why scale-up is faster or slower than scale-out: what each factor costs either, and makes of the difference."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pandas import DataFrame, Series

from triplepoint.effects import Effect
from triplepoint.effects.titles import Statement
from triplepoint.figures import marks, style

QUANTITY = "step_time_s"

ENERGY = "node_energy_j"
NOTE = (
    "Top: from the step on {first} to that on {second}; a bar begins where the one above it ends. Bottom: what either "
    "cluster loses to a factor alone. Lines with caps and brackets: 90 % interval; asterisk: it holds zero."
)
_HATCHED = ("interaction",)
_REST = "GPUs (type, number)"
"""What the difference is called that no factor explains."""
_SHARES = ("share", "share_lo", "share_hi")


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure of a comparison and the numbers it plots, one row per part of either side and model.

    Args:
        tables: `whatif`, with one comparison.
    """
    rows = tables["whatif"]
    numbers = rows[rows["quantity"] == QUANTITY].reset_index(drop=True)
    models = list(dict.fromkeys(numbers["model"]))
    differences = {model: _of(numbers, model, "difference") for model in models}
    first, second = _clusters(numbers)
    page = style.new_page(
        answer(differences, first, second), _points(numbers), 2, len(models), style.PAGE, 4.9,
        NOTE.format(first=first, second=second), sharey="row", height_ratios=[10, 7],
    )  # fmt: skip
    page.head([(model, _note(_whole(differences[model]))) for model in models])
    for col, model in enumerate(models):
        top, bottom = page.axes[0][col], page.axes[1][col]
        _draw_difference(top, differences[model], _of(rows[rows["quantity"] == ENERGY], model, "difference"))
        _draw_costs(bottom, [_of(numbers, model, side) for side in ("from", "to")])
        top.set_xlabel(f"change from {first} (%)")
        bottom.set_xlabel("loss (% of own step)")
    page.legend([_patch(cluster, name) for cluster, name in ((first, first), (second, second))])
    return page.finish(), numbers[_COLUMNS]


_COLUMNS = [
    "comparison", "model", "case", "cluster", "side", "part", "factor", "value", "label", "base", "changed", "effect",
    "effect_lo", "effect_hi", "share", "share_lo", "share_hi", "note", "published_sign", "published", "origin",
]  # fmt: skip


def answer(differences: Mapping[str, DataFrame], first: str, second: str) -> Statement:
    """Return for which models a step is longer, and by how much most, with the part that makes most of it.

    Args:
        differences: Rows of the difference by model.
        first: Cluster that is compared with.
        second: Cluster that is compared.
    """
    effects = {model: _effect(_whole(rows)) for model, rows in differences.items()}
    certain = {model: abs(effect.value) for model, effect in effects.items() if not effect.is_tie} or effects
    model = max(certain, key=lambda one: abs(effects[one].value))
    effect = effects[model]
    said = f"{effect.text} longer than" if effect.value > 0 else f"{effect.opposite.text} shorter than"
    sentence = f"a step of {model} on {second} is {said} on {first}{_maker(differences[model], effect)}"
    if effect.is_tie:
        sentence = f"a step of {model} on {second} is as long as on {first}, difference {effect.text}"
    others = tuple(f"{name} {_signed(one)}" for name, one in effects.items() if name != model)
    return Statement(sentence, "scale-up against scale-out", effect, "", others)


def _maker(rows: DataFrame, whole: Effect) -> str:
    """Return which part makes most of a difference, as the end of a sentence."""
    parts = rows[(rows["part"] != "whole") & (rows["share"] * whole.value > 0)]
    if whole.is_tie or parts.empty:
        return ""
    most = parts.loc[[parts["share"].abs().idxmax()]]
    return f"; largest part: {_names(most)[0]}"


def _whole(rows: DataFrame) -> "Series[Any]":
    found: Series[Any] = rows[rows["part"] == "whole"].iloc[0]
    return found


def _effect(whole: "Series[Any]") -> Effect:
    value, low, high = (float(whole[name]) for name in _SHARES)
    return Effect(value, low, high, "model", 1)


def _note(whole: "Series[Any]") -> str:
    """Return what stands below a model: the difference, and what was published of it, where that is known."""
    sign = whole["published_sign"]
    published = "" if sign != sign else f"\npublished: {'longer' if sign > 0 else 'shorter'}"
    return _signed(_effect(whole)) + published


def _signed(effect: Effect) -> str:
    """Return a difference as its parts are written, which add up: never as a factor."""
    return f"{'+' * (effect.value > 0)}{effect.text}"


def _names(rows: DataFrame) -> list[str]:
    """Return what parts are called."""
    return [_REST if part == "rest" else str(label) for part, label in zip(rows["part"], rows["label"], strict=True)]


def _of(numbers: DataFrame, model: str, side: str) -> DataFrame:
    return numbers[(numbers["model"] == model) & (numbers["side"] == side)]


def _clusters(numbers: DataFrame) -> tuple[str, str]:
    first, second = (str(numbers.loc[numbers["side"] == side, "cluster"].iloc[0]) for side in ("from", "to"))
    return first, second


def _points(numbers: DataFrame) -> DataFrame:
    """Return what stamp and provenance are made from."""
    cases = numbers[numbers["side"] != "difference"]
    return cases.assign(engine="simulated", torch_version=None, host=None)


def _mark(cluster: str) -> marks.Mark:
    """Return how a cluster looks: as its GPU type."""
    return next((mark for gpu, mark in marks.GPU_TYPES.items() if cluster.startswith(gpu)), marks.GPU_TYPES["cpu"])


def _patch(cluster: str, name: str) -> Patch:
    mark = _mark(cluster)
    return Patch(facecolor=mark.colour, hatch=mark.hatch, edgecolor="white", linewidth=0, label=f"makes {name} slower")


def _draw_costs(axes: Axes, sides: Sequence[DataFrame]) -> None:
    """Draw what each factor costs either cluster, side by side."""
    factors = sides[0][sides[0]["part"] == "factor"]
    for number, side in enumerate(sides):
        rows = side[side["part"] == "factor"]
        for at, (_, row) in enumerate(rows.iterrows()):
            # What changing a factor saves is what it costs.
            place = at + (number - 0.5) * 0.38
            _bar(axes, place, 0.36, 0.0, {name: -row[name] for name in _SHARES}, str(row["cluster"]))
    _label(axes, list(factors["label"]))


def _draw_difference(axes: Axes, rows: DataFrame, energy: DataFrame) -> None:
    """Draw the parts of the difference one after another, in the colour of the cluster that each makes slower.

    Below their sum stands the difference in energy of a step, where it is known.
    """
    first, second = str(rows["cluster"].iloc[0]).split(" to ")
    reached = 0.0
    for at, (_, row) in enumerate(rows.iterrows()):
        is_part = row["part"] != "whole"
        cluster = second if row["share"] > 0 else first
        hatch = "//////" if row["part"] in _HATCHED else ""
        start = reached if is_part else 0.0
        _bar(axes, at, 0.62, start, {name: row[name] for name in _SHARES}, cluster, hatch, "" if is_part else "edge")
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
    place, star = axes.get_yaxis_transform(), "*" * bool(row["share_lo"] <= 0 <= row["share_hi"])
    text = f"{100 * row['share']:+.0f}{star}"
    axes.text(0.99, at, text, transform=place, ha="right", va="center", fontsize=style.TEXT_PT)


def _bar(
    axes: Axes, at: float, height: float, start: float, row: Mapping[str, float], cluster: str, hatch: str = "",
    edge: str = "",
) -> None:  # fmt: skip
    """Draw one part from where it starts, and the interval of its end; all are shares."""
    mark, outline = _mark(cluster), marks.BLACK if edge else "white"
    axes.barh(
        at, 100 * row["share"], height, left=100 * start, color=mark.colour, hatch=hatch, edgecolor=outline,
        linewidth=0.8,
    )  # fmt: skip
    ends = [100 * (start + row[end]) for end in ("share_lo", "share_hi")]
    axes.plot(ends, [at, at], color=marks.BLACK, linewidth=0.8, marker="|", markersize=3, markeredgewidth=0.8)


def _label(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.axvline(0, color=marks.BLACK, linewidth=0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.locator_params(axis="x", nbins=4)
