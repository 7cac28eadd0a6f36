"""Figure `parallelism_sweep`: speed, power, temperature, clock and energy of layouts, a column of panels per model."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame, Series, concat

from triplepoint.effects import Effect, far_slower, on_as_many_gpus
from triplepoint.effects.titles import Ranking, at_place, rank
from triplepoint.figures import drawing, labels, marks, style
from triplepoint.figures.quantities import Quantity, columns_of, interval_of, known, published_of, share_y
from triplepoint.status import Status
from triplepoint.units import counted

MOST_GROUPS = 6
"""Largest number of groups, one per model and cluster, on one page."""

NOTE = (
    "Bars: mean of all GPUs, or median step; lines with caps: {intervals}. Below a model: its fastest layout, and how "
    "much faster it is than the next that is not tied; where all are tied, than the slowest."
)


QUANTITIES = (
    Quantity("tokens_per_s_per_gpu", "token/s\nper {rank}"),
    Quantity("gpu_power_w", "GPU power\n(W)", "gpu_power_peak_w", ("gpu_power_limit_w", "power limit {:.0f} W")),
    Quantity(
        "gpu_temp_c", "GPU\n(°C)", "gpu_temp_max_c", ("gpu_throttle_temp_c", "throttled at {:.0f} °C"), 1.0, False
    ),
    Quantity("sm_clock_busy_mhz", "clock while\nbusy (GHz)", scale=1e-3, from_zero=False),
    Quantity("job_gpu_samples_per_s_mj", "efficiency\n(sample/(s MJ))"),
)

_COLUMNS = (
    "group", "setting", "layout", "tp", "is_sharded", "run", "repeat", "origin", "status", "reason", "gpu", "num_gpus",
    "num_measured_steps",
)  # fmt: skip


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per point.

    In each column of panels only the layout differs; `labels.choose` selects micro-batch size and recomputation.

    Args:
        tables: `points` and `published`.
    """
    prepared = labels.prepare(tables["points"])
    groups = [_with_num_gpus(labels.choose(members)) for _, members in prepared.groupby("group", sort=False)]
    groups, left_out = fitting_groups(groups)
    chosen = concat(groups, ignore_index=True)
    quantities = known(QUANTITIES, chosen)
    numbers = _numbers(chosen, tables.get("published"), quantities)
    page = _page(chosen, groups, quantities, left_out)
    handles: list[Artist] = _limits(numbers, quantities)
    for col, (_, members) in enumerate(numbers.groupby("group", sort=False)):
        for row, quantity in enumerate(quantities):
            handles += draw_bars(page.axes[row][col], DataFrame(members), quantity, is_top=not row)
    for row, quantity in enumerate(quantities):
        page.axes[row][0].set_ylabel(quantity.title.format(rank=labels.rank_word(chosen)))
        # Quantities of similar size in all models share one range.
        if quantity.limit[0] or not quantity.from_zero:
            share_y(page.axes[row])
    page.figure.align_ylabels(page.figure.axes)
    page.legend(_legend(chosen) + handles)
    return page.finish(), numbers


def fitting_groups(groups: Sequence[DataFrame]) -> tuple[list[DataFrame], str]:
    """Return the groups that fit on a page, those of `labels.STUDY` first, and a note on the others."""
    is_preferred = [any(labels.STUDY in studies for studies in group["studies"]) for group in groups]
    kept = sorted(range(len(groups)), key=lambda index: not is_preferred[index])[:MOST_GROUPS]
    others = [group for index, group in enumerate(groups) if index not in kept]
    names = ", ".join(str(group["group"].iloc[0]).removesuffix(", simulated") for group in others)
    return [groups[index] for index in sorted(kept)], f"No room for: {names}. " if others else ""


def _with_num_gpus(points: DataFrame) -> DataFrame:
    """Return the points of one group with the number of GPUs in labels, where it is not the most frequent one."""
    is_usual = points.index.isin(on_as_many_gpus(points).index)
    singular, plural = ("process", "processes") if labels.rank_word(points) == "process" else ("GPU", "GPUs")
    return points.assign(
        layout=[
            layout if usual else f"{layout} {counted(num, singular, plural)}"
            for layout, num, usual in zip(points["layout"], points["num_gpus"], is_usual, strict=True)
        ]
    )


def without_far(points: DataFrame) -> DataFrame:
    """Return the points of one training without the layouts that are far slower than all others."""
    return points[~points["layout"].isin(list(far_slower(points)))]


def title_of(group: str, points: DataFrame) -> str:
    """Return the title of the column of a group: its model, and its cluster if there are several."""
    model, _, place = group.partition(" on ")
    return f"{model}\n{place.removesuffix(', simulated')}" if points["place"].nunique() > 1 else model


def _page(points: DataFrame, groups: Sequence[DataFrame], quantities: Sequence[Quantity], left_out: str) -> style.Page:
    """Return the page with title and heads of columns.

    Args:
        points: All points that are drawn.
        groups: The same points by model and cluster.
        quantities: Rows of panels.
        left_out: Note on groups that are not drawn.
    """
    rankings = {
        title_of(str(group["group"].iloc[0]), points): rank(without_far(on_as_many_gpus(group))) for group in groups
    }
    layouts = [max(group["layout"].nunique(), 2) for group in groups]
    far = dict.fromkeys(name for group in groups for name in far_slower(on_as_many_gpus(group)))
    left_out += f"Far slower, so not ranked: {', '.join(far)}. " if far else ""
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
        rankings: Rankings by the titles of columns.
    """
    ranked = {name: ranking for name, ranking in rankings.items() if ranking.lead is not None}
    clear = {name: _least_lead(ranking.lead) for name, ranking in ranked.items() if ranking.lead and ranking.is_clear}
    if not clear and len(ranked) > 1:
        return f"In none of {len(ranked)} cases is a layout faster than all others for certain"
    name = max(clear, key=lambda title: clear[title]) if clear else next(iter(ranked or rankings))
    return at_place(name.replace("\n", " on "), rankings[name].sentence)


def _least_lead(lead: Effect) -> float:
    """Return the lower end of the interval of a lead; 0 if it is unknown."""
    return 0.0 if np.isnan(lead.low) else lead.low


def _numbers(points: DataFrame, published: DataFrame | None, quantities: Sequence[Quantity]) -> DataFrame:
    """Return the plotted numbers: names, quantities with intervals, highest values and limits, published values."""
    numbers = points[[*_COLUMNS, *columns_of(quantities, points)]].copy()
    for quantity in quantities:
        for column in filter(None, (quantity.column, quantity.highest)):
            values = published_of(published, points["run"], column)
            if values.notna().any():
                numbers[f"published_{column}"] = values
    return numbers


def draw_bars(axes: Axes, members: DataFrame, quantity: Quantity, is_top: bool) -> list[Artist]:
    """Draw one quantity of the layouts of one model, and return the legend entries of published values.

    Args:
        axes: The panel.
        members: Numbers of the points of the model; repeats of a layout are drawn next to each other.
        quantity: The quantity.
        is_top: Whether to write the status of layouts without numbers.
    """
    names = list(dict.fromkeys(members["layout"]))
    limit = drawing.highest_shown(members[quantity.column] * quantity.scale) * 1.15
    handles: list[Artist] = []
    for at, name in enumerate(names):
        rows = members[members["layout"] == name]
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
        axes.set_ylim(0, min(axes.get_ylim()[1], limit * 1.05) if _is_broken(members, quantity, limit) else None)
    else:
        axes.margins(y=0.1)  # leaves room for whole markers at the ends
    if quantity.limit[0] in members and members[quantity.limit[0]].notna().any():
        drawing.draw_limit(axes, float(members[quantity.limit[0]].max()), "")
    return handles


def _limits(numbers: DataFrame, quantities: Sequence[Quantity]) -> list[Artist]:
    """Return the legend entry of limits, which the panels have no room to name."""
    texts = [
        text.format(float(numbers[column].max()))
        for column, text in (quantity.limit for quantity in quantities)
        if column in numbers and numbers[column].notna().any()
    ]
    return [drawing.limit_line(", ".join(texts))] if texts else []


def _is_broken(members: DataFrame, quantity: Quantity, limit: float) -> bool:
    """Return whether a value is above the limit up to which values are drawn to scale."""
    return bool((members[quantity.column] * quantity.scale > limit).any())


def _draw_value(axes: Axes, at: float, width: float, row: Series, quantity: Quantity, limit: float) -> list[Artist]:
    """Draw one value with its interval, its highest GPU and published values; return the legend entries of the last."""
    mark = marks.of_layout(int(row["tp"]), bool(row["is_sharded"]))
    value = float(row[quantity.column]) * quantity.scale
    low, high = interval_of(row, quantity.column, quantity.scale)
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


def _legend(points: DataFrame) -> list[Artist]:
    """Return the legend entries of degrees of tensor parallelism, sharding and the highest GPU."""
    degrees = sorted({int(tp) for tp in points["tp"]})
    looks = [marks.of_layout(tp, is_sharded=False) for tp in degrees]
    if points["is_sharded"].any():
        looks.append(marks.Mark("FSDP", marks.GREY, marks.SHARDED_HATCH))
    handles: list[Artist] = [drawing.as_patch(mark) for mark in looks]
    if points["gpu_temp_max_c"].notna().any():
        handles.append(Line2D([], [], color=marks.GREY, marker="^", linestyle="none", label="highest of any GPU"))
    return handles
