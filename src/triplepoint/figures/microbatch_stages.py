"""Kernel seconds of pipeline stages in their order: a panel per layout, a row per model and micro-batch size."""

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
from triplepoint.figures.parallelism_sweep import published_of
from triplepoint.status import Status

SOURCE = "figure 3"
"""Of the published study, with the seconds of stages; those of figure 10 are of one rank."""
MOST_LAYOUTS, MOST_SIZES, MOST_ROWS = 6, 5, 6
NOTE = (
    "A bar is a pipeline stage: its kernel times of a step, added up; communication includes waiting. Below a layout: "
    "how much longer its busiest stage computes than its least busy one. Brackets: 90 % t interval over layouts."
)
_BAND: dict[str, Any] = {"facecolor": "none", "edgecolor": marks.BLACK, "linewidth": 0.7, "linestyle": "--"}
_BAND_NAME = "published: least to largest total of a stage"


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run, stage and part of its bar.

    Drawn are the models and clusters with pipelines: of one all micro-batch sizes, of several the smallest and the
    largest; of layouts the six deepest, of repeats the first.

    Args:
        tables: `points`, `breakdown` and `published`.
    """
    groups = _chosen(tables["points"])
    points = concat(groups, ignore_index=True)
    breakdown = tables["breakdown"]
    parts = shares.of_stages(breakdown[breakdown["run"].isin(points["run"])])
    shown = ["group", "layout", "pp", "micro_batch_size", "run", "status", "reason"]
    numbers = points[shown].merge(parts[["run", "stage", "part", "busy_s"]], on="run", how="left", sort=False)
    published = tables.get("published")
    of_stages = None if published is None else published[published["source"] == SOURCE]
    for column in ("kernel_sum_min_s", "kernel_sum_max_s"):
        numbers[f"published_{column}"] = published_of(of_stages, numbers["run"], column)
    page = _page(groups, numbers)
    page.legend(_legend(numbers))
    return page.finish(), numbers


def _chosen(points: DataFrame) -> list[DataFrame]:
    """Return the points of each group, as many groups as have room; all where none has a pipeline."""
    groups = [
        swept(labels.common_setting(members, free=("micro_batch_size",)))
        for _, members in labels.prepare(points).groupby("group", sort=False)
    ]
    deep = [found[found["pp"] > 1] for found in groups if (found["pp"] > 1).any()] or groups
    most = sorted(deep, key=lambda found: int(found["pp"].sum()), reverse=True)[: MOST_ROWS // 2]
    kept = [found for found in deep if any(found is one for one in most)]
    return [_of_group(found, len(kept) > 1) for found in kept]


def _of_group(found: DataFrame, ends_alone: bool) -> DataFrame:
    deepest = found.sort_values("pp", kind="stable").drop_duplicates("layout")["layout"].tolist()[-MOST_LAYOUTS:]
    sizes = labels.batches(found["micro_batch_size"])
    sizes = [sizes[0], sizes[-1]] if ends_alone else sizes[:MOST_SIZES]
    kept = found[found["layout"].isin(deepest) & found["micro_batch_size"].isin(sizes)]
    order = kept.assign(depth=[-deepest.index(name) for name in kept["layout"]])
    ordered = order.sort_values(["micro_batch_size", "depth"], kind="stable").drop(columns="depth")
    named = ordered.assign(layout=labels.without_shared(ordered["layout"]))
    return named.drop_duplicates(["layout", "micro_batch_size"]).reset_index(drop=True)


def _page(groups: list[DataFrame], numbers: DataFrame) -> style.Page:
    rows = [(found, size) for found in groups for size in labels.batches(found["micro_batch_size"])]
    layouts = [_layouts(found) for found in groups]
    cols = max(len(names) for names in layouts)
    widths = [max(max(list(names.values())[col], 8) for names in layouts if col < len(names)) for col in range(cols)]
    page = style.new_page(
        _answer(groups, numbers), concat(groups, ignore_index=True), len(rows), cols,
        style.PAGE if sum(widths) > 12 or cols > 3 else style.COLUMN, min(style.TALLEST, 2.1 + 1.08 * len(rows)), NOTE,
        sharey="row", width_ratios=widths,
    )  # fmt: skip
    for number, ((found, size), axes_of_row) in enumerate(zip(rows, page.axes, strict=True)):
        name = f"{found['group'].iloc[0].partition(' on ')[0]}\n" * (len(groups) > 1)
        axes_of_row[0].set_ylabel(f"{name}micro-batch {size}\nkernel time (s)")
        own = numbers[(numbers["group"] == found["group"].iloc[0]) & (numbers["micro_batch_size"] == size)]
        names = _layouts(found)
        for axes, (layout, depth) in zip(axes_of_row, names.items(), strict=False):
            _draw_panel(axes, own[own["layout"] == layout], depth)
        if size == found["micro_batch_size"].min():
            spreads = shares.spread_of_stages(_totals(own))
            notes = {str(layout): f"+{100 * spread:.0f} %" for layout, spread in spreads.items()}
            page.head([(layout, notes.get(layout, "")) for layout in names], number)
        for axes in axes_of_row[len(names) :]:
            axes.set_axis_off()
    for found in groups:
        own = [axes[0] for (of, _), axes in zip(rows, page.axes, strict=True) if of is found]
        _share_y(own, numbers[numbers["group"] == found["group"].iloc[0]])
    for axes in page.axes[-1]:
        axes.set_xlabel("stage")
    return page


def _layouts(found: DataFrame) -> dict[str, int]:
    """Return the layouts of a group with their number of stages, the deepest first."""
    return {str(name): int(own["pp"].iloc[0]) for name, own in found.groupby("layout", sort=False)}


def _totals(numbers: DataFrame) -> DataFrame:
    """Return seconds of computation and of all kernels of each layout, micro-batch size and stage."""
    known = numbers[numbers["busy_s"].notna()]
    known = known.assign(compute_s=known["busy_s"].where(~known["part"].map(shares.is_communication), 0.0))
    by = ["layout", "micro_batch_size", "run", "stage"]
    return known.groupby(by, sort=False).agg(compute_s=("compute_s", "sum"), total_s=("busy_s", "sum")).reset_index()


def _answer(groups: list[DataFrame], numbers: DataFrame) -> list[str]:
    """Return an answer per cluster, over all its models."""
    points = concat(groups, ignore_index=True)
    answers = []
    for _, found in points.groupby("place", sort=False):
        own = numbers[numbers["run"].isin(found["run"])]
        own = own.assign(layout=own["group"] + " " + own["layout"])
        change = shares.change_of_stages(_totals(own))
        where = stacks.place_of(found) if points["place"].nunique() > 1 else ""
        answers.append(at_place(where, change.sentence if change else _without_change(own)))
    return answers


def _without_change(own: DataFrame) -> str:
    """Return how far stages are apart, where one micro-batch size was traced alone."""
    spreads = shares.spread_of_stages(_totals(own))
    if spreads.empty:
        return "no run was traced"
    return f"the busiest stage computes up to {100 * spreads.max():.0f} % longer than the least busy one"


def _share_y(rows: list[Axes], own: DataFrame) -> None:
    """Give the rows of a group one range of seconds."""
    limit = stacks.limit_of(own.groupby(["run", "stage"])["busy_s"].sum())
    for axes in rows:
        axes.set_ylim(0, 1.08 * max(limit, own["published_kernel_sum_max_s"].fillna(0).max()))


def _draw_panel(axes: Axes, own: DataFrame, num_stages: int) -> None:
    """Draw the stages of one run, and the range of published ones."""
    axes.set_xlim(-0.6, num_stages - 0.4)
    axes.set_xticks(sorted({0, num_stages - 1} | set(range(0, num_stages, 8 if num_stages > 16 else 4))))
    if own.empty or own["busy_s"].isna().all():
        status = None if own.empty else own["status"].iloc[0]
        text = "no trace" if status == Status.OK else style.word(status)
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=marks.GREY)
        return
    for stage, found in own.groupby("stage", sort=True):
        seconds = dict(zip(found["part"], found["busy_s"], strict=True))
        stacks.draw_stack(axes, float(str(stage)), 0.8, seconds)
    low, high = own["published_kernel_sum_min_s"].iloc[0], own["published_kernel_sum_max_s"].iloc[0]
    if high > 0:
        axes.axhspan(low, high, **_BAND)


def _legend(numbers: DataFrame) -> list[Artist]:
    found = stacks.legend_of(numbers.loc[numbers["busy_s"].notna(), "part"])
    if numbers["published_kernel_sum_max_s"].notna().any():
        found.append(Patch(label=_BAND_NAME, **_BAND))
    return found
