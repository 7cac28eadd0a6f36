"""Kernel seconds by class and kind of communication: a stacked bar per layout, a panel per model and cluster."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series, concat

from triplepoint.effects import shares, titles
from triplepoint.figures import labels, marks, stacks, style
from triplepoint.figures.parallelism_sweep import leave_out_far

SOURCE = "figure 10"
"""Of the published study, with the seconds of one rank."""
NOTE = (
    "Bars: sum of kernel times per step and rank, mean over traced ranks; line: lowest to highest rank, no spread over "
    "steps. Kernels that run at once both count, so a bar is no step."
)


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and part of its bar.

    In each panel only the layout differs, as in `parallelism_sweep`; of repeats the first is drawn.

    Args:
        tables: `points`, `kernels`, `breakdown` and `published`.
    """
    prepared = labels.prepare(tables["points"])
    groups = [labels.choose(members) for _, members in prepared.groupby("group", sort=False)]
    groups = [found.drop_duplicates("layout").reset_index(drop=True) for found in groups]
    numbers = _numbers(groups, tables)
    rows = stacks.grid(groups)
    places = [f"{found['model'].iloc[0]} on {stacks.place_of(found)}" for found in groups]
    compared, about_far = leave_out_far(groups, places)
    note = NOTE + stacks.about_breaks(numbers, ("sum_s", "published_s")) + about_far
    page = stacks.new_page(rows, "\n".join(_answers(compared, tables["breakdown"])), note)
    for row, axes_of_row in zip(rows, page.axes, strict=True):
        axes_of_row[0].set_ylabel("kernel seconds per step\nand rank (s)")
        for found, axes in zip(row, axes_of_row, strict=False):
            _draw_panel(axes, found, numbers)
    known = numbers[numbers["sum_s"].notna() | numbers["published_s"].notna()]
    handles = stacks.legend_of(known["part"])
    page.legend([*handles, *([stacks.PUBLISHED] if numbers["published_s"].notna().any() else [])])
    return page.finish(), numbers


def _answers(groups: list[DataFrame], breakdown: DataFrame) -> list[str]:
    """Return an answer per cluster."""
    points = concat(groups, ignore_index=True)
    answers = []
    for _, found in points.groupby("place", sort=False):
        models = found["model"].nunique()
        names = {
            str(run): f"{model} {layout}" if models > 1 else str(layout)
            for run, model, layout in zip(found["run"], found["model"], _called(found["layout"]), strict=True)
        }
        where = stacks.place_of(found) if points["place"].nunique() > 1 else ""
        answers.append(titles.at_place(where, shares.answer_communication(breakdown, names)))
    return answers


def _called(layouts: Series) -> Series:
    """Return layouts as a sentence calls them."""
    return layouts.replace(labels.UNKNOWN_LAYOUT, "a run of unknown layout")


def _numbers(groups: list[DataFrame], tables: Mapping[str, DataFrame]) -> DataFrame:
    points = concat(groups, ignore_index=True)
    shown = ["group", "layout", "run", "status", "reason", "kernel_sum_s", "kernel_sum_min_s", "kernel_sum_max_s"]
    kernels = tables["kernels"]
    ours = shares.of_kernels(kernels[kernels["run"].isin(points["run"])])
    published = shares.published_parts(tables.get("published"), SOURCE)
    parts = ours.merge(published[published["run"].isin(points["run"])], on=["run", "part"], how="outer", sort=False)
    return points[shown].merge(parts, on="run", how="left", sort=False)


def _draw_panel(axes: Axes, found: DataFrame, numbers: DataFrame) -> None:
    """Draw the bars of one group, published ones to the right of ours."""
    own = numbers[numbers["group"] == found["group"].iloc[0]]
    totals = own.groupby("run")[["sum_s", "published_s"]].sum().to_numpy().ravel()
    whole = found["kernel_sum_s"] <= stacks.limit_of(totals)
    limit = stacks.finish_axes(axes, list(found["layout"]), totals, found.loc[whole, "kernel_sum_max_s"].max())
    for at, (_, point) in enumerate(found.iterrows()):
        of_run = own[own["run"] == point["run"]]
        ours, published = (of_run.set_index("part")[column].dropna().to_dict() for column in ("sum_s", "published_s"))
        middle, width = (at - 0.17, 0.46) if published else (at, 0.66)
        if not ours:
            stacks.say_why_empty(axes, middle, point["status"], "no trace")
        elif stacks.draw_stack(axes, middle, width, ours, limit):
            style.draw_interval(axes, middle, point["kernel_sum_min_s"], point["kernel_sum_max_s"], marks.BLACK)
        if published:
            stacks.draw_stack(axes, at + 0.24, 0.26, published, limit, is_published=True)
