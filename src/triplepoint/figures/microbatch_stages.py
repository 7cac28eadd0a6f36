"""Kernel seconds of pipeline stages in their order: a column of panels per layout, a row per micro-batch size."""

from collections.abc import Mapping
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pandas import DataFrame

from triplepoint.effects import shares
from triplepoint.figures import labels, marks, stacks, style
from triplepoint.figures.microbatch_power import swept
from triplepoint.figures.parallelism_sweep import published_of
from triplepoint.status import Status

SOURCE = "figure 3"
"""Of the published study, with the seconds of stages; those of figure 10 are of one rank."""
MOST_LAYOUTS, MOST_SIZES = 6, 5
NOTE = (
    "A bar per pipeline stage, from the first: sum of kernel times per step, mean over the stage's traced ranks; "
    "receiving includes waiting. Interval of the title: 90 % t interval over layouts, or how many rise and fall."
)
_BAND: dict[str, Any] = {"facecolor": "none", "edgecolor": marks.BLACK, "linewidth": 0.7, "linestyle": "--"}
_BAND_NAME = "published: least to largest total of a stage"


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run, stage and part of its bar.

    Of several models and clusters the one with most stages is drawn, and of its layouts the six deepest; of repeats the
    first.

    Args:
        tables: `points`, `breakdown` and `published`.
    """
    points = _chosen(tables["points"])
    breakdown = tables["breakdown"]
    parts = shares.of_stages(breakdown[breakdown["run"].isin(points["run"])])
    shown = ["group", "layout", "pp", "micro_batch_size", "run", "status", "reason"]
    numbers = points[shown].merge(parts[["run", "stage", "part", "busy_s"]], on="run", how="left", sort=False)
    published = tables.get("published")
    of_stages = None if published is None else published[published["source"] == SOURCE]
    for column in ("kernel_sum_min_s", "kernel_sum_max_s"):
        numbers[f"published_{column}"] = published_of(of_stages, numbers["run"], column)
    page = _page(points, numbers)
    page.legend(_legend(numbers))
    return page.finish(), numbers


def _chosen(points: DataFrame) -> DataFrame:
    groups = [
        swept(labels.common_setting(members, free=("micro_batch_size",)))
        for _, members in labels.prepare(points).groupby("group", sort=False)
    ]
    found = max(groups, key=lambda group: int(group["pp"].sum()))
    if (found["pp"] > 1).any():
        found = found[found["pp"] > 1]
    deepest = found.sort_values("pp", kind="stable").drop_duplicates("layout")["layout"].tolist()[-MOST_LAYOUTS:]
    sizes = labels.batches(found["micro_batch_size"])[:MOST_SIZES]
    kept = found[found["layout"].isin(deepest) & found["micro_batch_size"].isin(sizes)]
    order = kept.assign(depth=[deepest.index(name) for name in kept["layout"]])
    ordered = order.sort_values(["micro_batch_size", "depth"], kind="stable").drop(columns="depth")
    named = ordered.assign(layout=labels.without_shared(ordered["layout"]))
    return named.drop_duplicates(["layout", "micro_batch_size"]).reset_index(drop=True)


def _page(points: DataFrame, numbers: DataFrame) -> style.Page:
    sizes, layouts = labels.batches(points["micro_batch_size"]), list(dict.fromkeys(points["layout"]))
    known = numbers[numbers["busy_s"].notna()]
    known = known.assign(compute_s=known["busy_s"].where(~known["part"].map(shares.is_communication), 0.0))
    by = ["layout", "micro_batch_size", "run", "stage"]
    totals = known.groupby(by, sort=False).agg(compute_s=("compute_s", "sum"), total_s=("busy_s", "sum")).reset_index()
    answer = shares.answer_stages(totals)
    depths = [int(points.loc[points["layout"] == name, "pp"].iloc[0]) for name in layouts]
    page = style.new_page(
        f"{stacks.title_of(points)}: {answer}", points, len(sizes), len(layouts),
        style.PAGE if sum(depths) > 12 or len(layouts) > 3 else style.COLUMN,
        min(style.TALLEST, 2.2 + 1.1 * len(sizes)), NOTE, sharey=True, width_ratios=[max(depth, 6) for depth in depths],
    )  # fmt: skip
    for row, size in enumerate(sizes):
        page.axes[row][0].set_ylabel(f"micro-batch {size}\nkernel time (s)")
        for col, layout in enumerate(layouts):
            own = numbers[(numbers["micro_batch_size"] == size) & (numbers["layout"] == layout)]
            _draw_panel(page.axes[row][col], own, depths[col])
    for axes, layout in zip(page.axes[0], layouts, strict=True):
        axes.set_title(layout)
    for axes in page.axes[-1]:
        axes.set_xlabel("stage")
    limit = stacks.limit_of(totals["total_s"])
    page.axes[0][0].set_ylim(0, 1.08 * max(limit, numbers["published_kernel_sum_max_s"].fillna(0).max()))
    return page


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
