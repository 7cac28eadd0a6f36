"""Kernel seconds by class and kind of communication: a stacked bar per layout, a panel per model and cluster."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, concat

from triplepoint.effects import shares
from triplepoint.figures import drawing, labels, marks, stacks, style
from triplepoint.figures.parallelism_sweep import without_far

SOURCE = "figure 10"
"""Of the published study, with the seconds of one rank."""
NOTE = (
    "Bars: kernel times per step and rank, added up; lines with caps: lowest to highest rank. Numbers: share of "
    "communication."
)
_COMM = {"mean": "comm_share", "low": "comm_share_min", "high": "comm_share_max"}


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
    compared = concat([without_far(found).assign(place=stacks.place_of(found)) for found in groups])
    places = dict(zip(compared["run"], compared["place"], strict=True))
    page = stacks.new_page(rows, shares.answer_communication(tables["breakdown"], places), NOTE)
    for row, axes_of_row in zip(rows, page.axes, strict=True):
        axes_of_row[0].set_ylabel("kernel seconds per step\nand rank (s)")
        for found, axes in zip(row, axes_of_row, strict=False):
            _draw_panel(axes, found, numbers)
    known = numbers[numbers["sum_s"].notna() | numbers["published_s"].notna()]
    handles = stacks.legend_of(known["part"])
    page.legend([*handles, *([stacks.PUBLISHED] if numbers["published_s"].notna().any() else [])])
    return page.finish(), numbers


def _numbers(groups: list[DataFrame], tables: Mapping[str, DataFrame]) -> DataFrame:
    points = concat(groups, ignore_index=True)
    shown = ["group", "layout", "run", "status", "reason", "kernel_sum_s", "kernel_sum_min_s", "kernel_sum_max_s"]
    kernels = tables["kernels"]
    ours = shares.of_kernels(kernels[kernels["run"].isin(points["run"])])
    published = shares.published_parts(tables.get("published"), SOURCE)
    parts = ours.merge(published[published["run"].isin(points["run"])], on=["run", "part"], how="outer", sort=False)
    breakdown = tables["breakdown"]
    of_runs = shares.communication_shares(breakdown[breakdown["run"].isin(points["run"])]).rename(columns=_COMM)
    numbers = points[shown].merge(of_runs, left_on="run", right_index=True, how="left", sort=False)
    return numbers.merge(parts, on="run", how="left", sort=False)


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
            drawing.draw_interval(axes, middle, point["kernel_sum_min_s"], point["kernel_sum_max_s"], marks.BLACK)
            tops = float(point["kernel_sum_max_s"]), sum(ours.values()), sum(published.values())
            _write_share(axes, at if published else middle, np.nanmax(tops), of_run)
        if published:
            stacks.draw_stack(axes, at + 0.24, 0.26, published, limit, is_published=True)


def _write_share(axes: Axes, at: float, top: float, of_run: DataFrame) -> None:
    """Write above a bar what part of it is communication."""
    share = float(of_run["comm_share"].iloc[0])
    if share == share:
        axes.annotate(
            f"{100 * share:.0f} %", (at, top), (0, 2), textcoords="offset points", ha="center", va="bottom",
            fontsize=style.TEXT_PT, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.2},
        )  # fmt: skip
