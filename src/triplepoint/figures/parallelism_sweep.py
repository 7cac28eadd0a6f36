"""Which layout is fastest, and what it costs in power, heat, clocks and energy: a column of panels per model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from pandas import DataFrame, Series, concat

from triplepoint.effects import Effect, far_slower, on_as_many_gpus
from triplepoint.effects.titles import Ranking, at_place, rank
from triplepoint.figures import drawing, labels, marks, style
from triplepoint.status import Status
from triplepoint.tables.schema import column_of
from triplepoint.units import counted

MOST_GROUPS = 6
"""Models and clusters on one page."""

NOTE = (
    "Bars: mean of all GPUs, or median step; lines with caps: {intervals}. Below a model: its fastest layout, and how "
    "much faster it is than the next that is not tied."
)


@dataclass(frozen=True)
class Quantity:
    """One row of panels: a column of `points`, and how it is drawn.

    Attributes:
        column: The quantity; its ends and its highest value are columns too.
        title: Label of its axis.
        highest: Column of the highest value of any GPU, drawn as a tick; none where there is no such thing.
        limit: Column of its limit, drawn as a line, and the words for it.
        scale: What values are multiplied by.
        from_zero: Whether its axis begins at zero: then it is drawn as bars, else as points.
    """

    column: str
    title: str
    highest: str = ""
    limit: tuple[str, str] = ("", "")
    scale: float = 1.0
    from_zero: bool = True


QUANTITIES = (
    Quantity("tokens_per_s_per_gpu", "token/s\nper {rank}"),
    Quantity("gpu_power_w", "GPU power\n(W)", "gpu_power_peak_w", ("gpu_power_limit_w", "power limit {:.0f} W")),
    Quantity(
        "gpu_temp_c", "GPU\n(°C)", "gpu_temp_max_c", ("gpu_throttle_temp_c", "throttled at {:.0f} °C"), 1.0, False
    ),
    Quantity("sm_clock_busy_mhz", "clock while\nbusy (GHz)", scale=1e-3, from_zero=False),
    Quantity("job_gpu_samples_per_s_mj", "efficiency\n(sample/(s MJ))"),
)

_NAMES = (
    "group", "setting", "layout", "tp", "is_sharded", "run", "repeat", "origin", "status", "reason", "gpu", "num_gpus",
    "num_measured_steps",
)  # fmt: skip


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per point.

    In each column only the layout differs: see `labels.common_setting` for which micro-batch size and recomputation.

    Args:
        tables: `points` and `published`.
    """
    prepared = labels.prepare(tables["points"])
    groups = [_on_other_gpus(labels.choose(members)) for _, members in prepared.groupby("group", sort=False)]
    groups, left_out = fitting(groups)
    chosen = concat(groups, ignore_index=True)
    chosen["is_sharded"] = chosen["data_parallel_sharding"] == "optim_grads_params"
    quantities = [one for one in QUANTITIES if one.column in _always(chosen)]
    numbers = _numbers(chosen, tables.get("published"), quantities)
    page = _page(chosen, groups, quantities, left_out)
    handles: list[Artist] = _limits(numbers, quantities)
    for col, (_, found) in enumerate(numbers.groupby("group", sort=False)):
        for row, quantity in enumerate(quantities):
            handles += draw_bars(page.axes[row][col], DataFrame(found), quantity, is_top=not row)
    for row, quantity in enumerate(quantities):
        page.axes[row][0].set_ylabel(quantity.title.format(rank=labels.rank_word(chosen)))
        # Quantities that are alike in all models can be read off one axis.
        if quantity.limit[0] or not quantity.from_zero:
            share_y(page.axes[row])
    page.figure.align_ylabels(page.figure.axes)
    page.legend(_legend(chosen) + handles)
    return page.finish(), numbers


def fitting(groups: Sequence[DataFrame]) -> tuple[list[DataFrame], str]:
    """Return the groups that have room on a page, those of `labels.STUDY` first, and a note on the rest."""
    is_own = [any(labels.STUDY in studies for studies in found["studies"]) for found in groups]
    first = sorted(range(len(groups)), key=lambda place: not is_own[place])[:MOST_GROUPS]
    rest = [found for place, found in enumerate(groups) if place not in first]
    names = ", ".join(str(found["group"].iloc[0]).removesuffix(", simulated") for found in rest)
    return [groups[place] for place in sorted(first)], f"No room for: {names}. " if rest else ""


def _on_other_gpus(points: DataFrame) -> DataFrame:
    """Return points of one group with labels that say the number of GPUs where it is not that of most."""
    is_alike = points.index.isin(on_as_many_gpus(points).index)
    one, many = ("process", "processes") if labels.rank_word(points) == "process" else ("GPU", "GPUs")
    return points.assign(
        layout=[
            layout if alike else f"{layout} {counted(num, one, many)}"
            for layout, num, alike in zip(points["layout"], points["num_gpus"], is_alike, strict=True)
        ]
    )


def without_far(points: DataFrame) -> DataFrame:
    """Return points of one training without the layouts that are far slower than the others."""
    return points[~points["layout"].isin(list(far_slower(points)))]


def title_of(group: str, points: DataFrame) -> str:
    """Return the name of a group's column: its model, and below it where there are several its cluster."""
    model, _, place = group.partition(" on ")
    return f"{model}\n{place.removesuffix(', simulated')}" if points["place"].nunique() > 1 else model


def _always(points: DataFrame) -> list[str]:
    """Return the columns worth a row of panels: those some point has a value of, and throughput."""
    return [one.column for one in QUANTITIES[:1]] + [
        one.column for one in QUANTITIES[1:] if points[one.column].notna().any()
    ]


def _page(points: DataFrame, groups: Sequence[DataFrame], quantities: Sequence[Quantity], left_out: str) -> style.Page:
    rankings = {
        title_of(str(found["group"].iloc[0]), points): rank(without_far(on_as_many_gpus(found))) for found in groups
    }
    layouts = [max(found["layout"].nunique(), 2) for found in groups]
    is_wide = len(groups) > 1 or max(layouts) > 8
    page = style.new_page(
        answer(rankings), points, len(quantities), len(groups), style.PAGE if is_wide else style.COLUMN,
        min(style.TALLEST, 1.7 + 1.05 * len(quantities)), left_out + NOTE, sharex="col", width_ratios=layouts,
    )  # fmt: skip
    heads = [(name.partition("\n"), ranking.note) for name, ranking in rankings.items()]
    page.head([(model, "\n".join(filter(None, [place, note]))) for (model, _, place), note in heads])
    return page


def answer(rankings: Mapping[str, Ranking]) -> str:
    """Return the clearest lead of a layout over the next that is not tied, as a title.

    Args:
        rankings: By model, and cluster where there are several.
    """
    known = {name: ranking for name, ranking in rankings.items() if ranking.lead is not None}
    clear = {name: _certain(ranking.lead) for name, ranking in known.items() if ranking.lead and ranking.is_clear}
    if not clear and len(known) > 1:
        return f"In none of {len(known)} cases is a layout faster than all others for certain"
    name = max(clear, key=lambda one: clear[one]) if clear else next(iter(known or rankings))
    return at_place(name.replace("\n", " on "), rankings[name].sentence)


def _certain(lead: Effect) -> float:
    """Return what of a lead is certain; nothing where its interval is not known."""
    return 0.0 if np.isnan(lead.low) else lead.low


def _numbers(points: DataFrame, published: DataFrame | None, quantities: Sequence[Quantity]) -> DataFrame:
    """Return what is plotted: names, quantities with their ends, highest values and limits, published values."""
    columns = list(_NAMES)
    for one in quantities:
        names = [one.column, *(column_of(one.column, end) for end in ("p10", "p90", "lo", "hi"))]
        columns += [name for name in (*names, one.highest, one.limit[0]) if name in points]
    numbers = points[columns].copy()
    for one in quantities:
        for column in filter(None, (one.column, one.highest)):
            values = published_of(published, points["run"], column)
            if values.notna().any():
                numbers[f"published_{column}"] = values
    return numbers


def published_of(published: DataFrame | None, runs: Series, column: str) -> Series:
    """Return the published number of a quantity for each of some runs, null where there is none."""
    if published is None:
        return Series(np.nan, runs.index)
    of_runs = published[(published["quantity"] == column) & published["node"].isna()].drop_duplicates("run")
    return runs.map(of_runs.set_index("run")["published"]).astype(float)


def draw_bars(axes: Axes, found: DataFrame, quantity: Quantity, is_top: bool) -> list[Artist]:
    """Draw one quantity of the layouts of one model, and return what of it needs a legend.

    Args:
        axes: The panel.
        found: Numbers of the model's points; repeats of a layout stand beside each other.
        quantity: What to draw.
        is_top: Whether to say what became of layouts without numbers.
    """
    names = list(dict.fromkeys(found["layout"]))
    limit = drawing.limit_of(found[quantity.column] * quantity.scale) * 1.15
    handles: list[Artist] = []
    for at, name in enumerate(names):
        rows = found[found["layout"] == name]
        done = rows[(rows["status"] == Status.OK) & rows[quantity.column].notna()]
        if done.empty and is_top:
            drawing.write_status(axes, at, rows)
        for number, (_, row) in enumerate(done.iterrows()):
            width = 0.72 / len(done)
            middle = at + (number - (len(done) - 1) / 2) * width
            handles += _draw_value(axes, middle, width, row, quantity, limit)
    drawing.name_bars(axes, names)
    axes.locator_params(axis="y", nbins=4)
    if quantity.from_zero:
        axes.set_ylim(0, min(axes.get_ylim()[1], limit * 1.05) if _is_broken(found, quantity, limit) else None)
    else:
        # Markers at the ends stay whole.
        axes.margins(y=0.1)
    if quantity.limit[0] in found and found[quantity.limit[0]].notna().any():
        drawing.draw_limit(axes, float(found[quantity.limit[0]].max()), "")
    return handles


def _limits(numbers: DataFrame, quantities: Sequence[Quantity]) -> list[Artist]:
    """Return what the legend shows of limits: in the panels there is no room for words."""
    known = [one for one in quantities if one.limit[0] in numbers and numbers[one.limit[0]].notna().any()]
    said = ", ".join(one.limit[1].format(float(numbers[one.limit[0]].max())) for one in known)
    return [drawing.limit_line(said)] if known else []


def _is_broken(found: DataFrame, quantity: Quantity, limit: float) -> bool:
    return bool((found[quantity.column] * quantity.scale > limit).any())


def _draw_value(axes: Axes, at: float, width: float, row: Series, quantity: Quantity, limit: float) -> list[Artist]:
    mark = marks.of_layout(int(row["tp"]), bool(row["is_sharded"]))
    value = float(row[quantity.column]) * quantity.scale
    ends = ("lo", "hi") if row["origin"] == "simulated" else ("p10", "p90")
    low, high = (float(row.get(column_of(quantity.column, end), np.nan)) * quantity.scale for end in ends)
    if quantity.from_zero:
        axes.bar(at, value, width, color=mark.colour, hatch=mark.hatch, edgecolor="white", linewidth=0)
        if not drawing.break_off(axes, at, value, limit, f"{value:.3g}") and value < 0.05 * limit:
            axes.text(at, value + 0.03 * limit, f"{value:.2g}", ha="center", va="bottom", fontsize=style.TEXT_PT)
            low = np.nan
    else:
        axes.plot([at], [value], mark.marker, color=mark.colour)
    drawing.draw_interval(axes, at, low, high, marks.BLACK if quantity.from_zero else mark.colour)
    handles: list[Artist] = []
    if quantity.highest and np.isfinite(row[quantity.highest]):
        axes.plot([at], [row[quantity.highest]], "^", color=marks.GREY, markersize=3)
    for column in filter(None, (quantity.column, quantity.highest)):
        published = float(row.get(f"published_{column}", np.nan)) * quantity.scale
        if np.isfinite(published):
            handles.append(drawing.draw_published(axes, [at], [published]))
    return handles


def share_y(row: Sequence[Axes]) -> None:
    """Give panels one range of values."""
    lows, highs = zip(*(axes.get_ylim() for axes in row), strict=True)
    for axes in row:
        axes.set_ylim(min(lows), max(highs))


def _legend(points: DataFrame) -> list[Artist]:
    how: dict[str, Any] = {"edgecolor": "white", "linewidth": 0}
    degrees = sorted({int(tp) for tp in points["tp"]})
    found: list[Artist] = [Patch(facecolor=marks.of_layout(tp, False).colour, label=f"TP{tp}", **how) for tp in degrees]
    if points["is_sharded"].any():
        found.append(Patch(facecolor=marks.GREY, hatch=marks.SHARDED_HATCH, label="FSDP", **how))
    if points["gpu_temp_max_c"].notna().any():
        found.append(Line2D([], [], color=marks.GREY, marker="^", linestyle="none", label="highest of any GPU"))
    return found
