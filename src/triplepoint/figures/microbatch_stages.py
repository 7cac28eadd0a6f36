"""Figure `microbatch_stages`: kernel seconds of pipeline stages, a panel per layout and micro-batch size."""

from collections.abc import Mapping
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pandas import DataFrame, concat

from triplepoint.effects import shares
from triplepoint.effects.titles import at_place
from triplepoint.figures import labels, marks, stacks, style
from triplepoint.figures.microbatch_power import swept
from triplepoint.figures.quantities import published_of
from triplepoint.status import Status

SOURCE = "figure 3"
"""Figure of the published study with the kernel seconds of stages; figure 10 has those of one rank."""
MOST_LAYOUTS, MOST_SIZES, MOST_ROWS = 6, 5, 6
"""Largest numbers of layouts of a group, of micro-batch sizes of a single group, and of rows of panels."""
NOTE = (
    "A bar is a pipeline stage: its kernel times of a step, added up; communication includes waiting. Below a layout: "
    "how much longer its busiest stage computes than its least busy one. Brackets: 90 % t interval over layouts."
)
_BAND: dict[str, Any] = {"facecolor": "none", "edgecolor": marks.BLACK, "linewidth": 0.7, "linestyle": "--"}
_BAND_NAME = "published: least to largest total of a stage"


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run, stage and part of its bar.

    The figure draws groups with pipelines. A single group has all its micro-batch sizes, of several groups each has the
    smallest and the largest. The deepest layouts and the first repeats are drawn.

    Args:
        tables: `points`, `breakdown` and `published`.
    """
    groups = _chosen(tables["points"])
    points = concat(groups, ignore_index=True)
    breakdown = tables["breakdown"]
    parts = shares.mean_over_ranks(breakdown[breakdown["run"].isin(points["run"])])
    shown = ["group", "layout", "pp", "micro_batch_size", "run", "status", "reason"]
    numbers = points[shown].merge(parts[["run", "stage", "part", "busy_s"]], on="run", how="left", sort=False)
    published = tables.get("published")
    published_stages = None if published is None else published[published["source"] == SOURCE]
    for column in ("kernel_sum_min_s", "kernel_sum_max_s"):
        numbers[f"published_{column}"] = published_of(published_stages, numbers["run"], column)
    page = _page(groups, numbers)
    page.legend(_legend(numbers))
    return page.finish(), numbers


def _chosen(points: DataFrame) -> list[DataFrame]:
    """Return the points of the groups that are drawn: those with the deepest pipelines, as many as have room."""
    groups = [
        swept(labels.common_setting(members, free=("micro_batch_size",)))
        for _, members in labels.prepare(points).groupby("group", sort=False)
    ]
    pipelined = [group[group["pp"] > 1] for group in groups if (group["pp"] > 1).any()] or groups
    deepest_first = sorted(range(len(pipelined)), key=lambda index: -int(pipelined[index]["pp"].sum()))
    kept = [pipelined[index] for index in sorted(deepest_first[: MOST_ROWS // 2])]
    return [_points_to_draw(group, len(kept) > 1) for group in kept]


def _points_to_draw(group: DataFrame, only_ends: bool) -> DataFrame:
    """Return the points of a group that are drawn, by micro-batch size and with the deepest layout first.

    Args:
        group: Points of the group.
        only_ends: Whether to draw only the smallest and the largest micro-batch size.
    """
    deepest = group.sort_values("pp", kind="stable").drop_duplicates("layout")["layout"].tolist()[-MOST_LAYOUTS:]
    sizes = labels.distinct_sizes(group["micro_batch_size"])
    sizes = [sizes[0], sizes[-1]] if only_ends else sizes[:MOST_SIZES]
    kept = group[group["layout"].isin(deepest) & group["micro_batch_size"].isin(sizes)]
    order = kept.assign(depth=[-deepest.index(name) for name in kept["layout"]])
    ordered = order.sort_values(["micro_batch_size", "depth"], kind="stable").drop(columns="depth")
    named = ordered.assign(layout=labels.without_shared(ordered["layout"]))
    return named.drop_duplicates(["layout", "micro_batch_size"]).reset_index(drop=True)


def _page(groups: list[DataFrame], numbers: DataFrame) -> style.Page:
    """Return the page with all panels: a row per group and micro-batch size, a column per layout."""
    rows = [(group, size) for group in groups for size in labels.distinct_sizes(group["micro_batch_size"])]
    layouts = [_layouts(group) for group in groups]
    cols = max(map(len, layouts))
    depths = [list(stages.values()) for stages in layouts]
    widths = [max(max(of_group[col], 8) for of_group in depths if col < len(of_group)) for col in range(cols)]
    page = style.new_page(
        _answer(groups, numbers), concat(groups, ignore_index=True), len(rows), cols,
        style.PAGE if sum(widths) > 12 or cols > 3 else style.COLUMN, min(style.TALLEST, 2.1 + 1.08 * len(rows)), NOTE,
        sharey="row", width_ratios=widths,
    )  # fmt: skip
    for number, ((group, size), axes_of_row) in enumerate(zip(rows, page.axes, strict=True)):
        name = f"{group['group'].iloc[0].partition(' on ')[0]}\n" * (len(groups) > 1)
        axes_of_row[0].set_ylabel(f"{name}micro-batch {size}\nkernel time (s)")
        rows_of_size = numbers[(numbers["group"] == group["group"].iloc[0]) & (numbers["micro_batch_size"] == size)]
        layouts_of_group = _layouts(group)
        for axes, (layout, depth) in zip(axes_of_row, layouts_of_group.items(), strict=False):
            _draw_panel(axes, rows_of_size[rows_of_size["layout"] == layout], depth)
        if size == group["micro_batch_size"].min():
            spreads = shares.spread_of_stages(_totals(rows_of_size))
            notes = {str(layout): f"+{100 * spread:.0f} %" for layout, spread in spreads.items()}
            page.head([(layout, notes.get(layout, "")) for layout in layouts_of_group], number)
        for axes in axes_of_row[len(layouts_of_group) :]:
            axes.set_axis_off()
    for group in groups:
        first_panels = [axes[0] for (of_row, _), axes in zip(rows, page.axes, strict=True) if of_row is group]
        _share_y(first_panels, numbers[numbers["group"] == group["group"].iloc[0]])
    for axes in page.axes[-1]:
        axes.set_xlabel("stage")
    return page


def _layouts(group: DataFrame) -> dict[str, int]:
    """Return the number of stages of each layout of a group, the deepest first."""
    return {str(name): int(members["pp"].iloc[0]) for name, members in group.groupby("layout", sort=False)}


def _totals(numbers: DataFrame) -> DataFrame:
    """Return seconds of computation and of all kernels by layout, micro-batch size and stage."""
    known = numbers[numbers["busy_s"].notna()]
    known = known.assign(compute_s=known["busy_s"].where(~known["part"].map(shares.is_communication), 0.0))
    by = ["layout", "micro_batch_size", "run", "stage"]
    return known.groupby(by, sort=False).agg(compute_s=("compute_s", "sum"), total_s=("busy_s", "sum")).reset_index()


def _answer(groups: list[DataFrame], numbers: DataFrame) -> list[str]:
    """Return a line of the title per cluster, over all its models."""
    points = concat(groups, ignore_index=True)
    answers = []
    for _, members in points.groupby("place", sort=False):
        rows = numbers[numbers["run"].isin(members["run"])]
        rows = rows.assign(layout=rows["group"] + " " + rows["layout"])
        change = shares.change_of_stages(_totals(rows))
        where = stacks.place_of(members) if points["place"].nunique() > 1 else ""
        answers.append(at_place(where, change.sentence if change else _without_change(rows)))
    return answers


def _without_change(numbers: DataFrame) -> str:
    """Return a sentence on the spread of stages, for points with a single micro-batch size."""
    spreads = shares.spread_of_stages(_totals(numbers))
    if spreads.empty:
        return "no run was traced"
    return f"the busiest stage computes up to {100 * spreads.max():.0f} % longer than the least busy one"


def _share_y(panels: list[Axes], numbers: DataFrame) -> None:
    """Give the rows of panels of a group one range of seconds."""
    limit = stacks.limit_of(numbers.groupby(["run", "stage"])["busy_s"].sum())
    for axes in panels:
        axes.set_ylim(0, 1.08 * max(limit, numbers["published_kernel_sum_max_s"].fillna(0).max()))


def _draw_panel(axes: Axes, numbers: DataFrame, num_stages: int) -> None:
    """Draw the stages of one run, and the range of published totals."""
    axes.set_xlim(-0.6, num_stages - 0.4)
    axes.set_xticks(sorted({0, num_stages - 1} | set(range(0, num_stages, 8 if num_stages > 16 else 4))))
    if numbers.empty or numbers["busy_s"].isna().all():
        status = None if numbers.empty else numbers["status"].iloc[0]
        text = "no trace" if status == Status.OK else style.status_text(status)
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=marks.GREY)
        return
    for stage, parts in numbers.groupby("stage", sort=True):
        seconds = dict(zip(parts["part"], parts["busy_s"], strict=True))
        stacks.draw_stack(axes, float(str(stage)), 0.8, seconds)
    low, high = numbers["published_kernel_sum_min_s"].iloc[0], numbers["published_kernel_sum_max_s"].iloc[0]
    if high > 0:
        axes.axhspan(low, high, **_BAND)


def _legend(numbers: DataFrame) -> list[Artist]:
    handles = stacks.legend_of(numbers.loc[numbers["busy_s"].notna(), "part"])
    if numbers["published_kernel_sum_max_s"].notna().any():
        handles.append(Patch(label=_BAND_NAME, **_BAND))
    return handles
