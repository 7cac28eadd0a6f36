"""Figure `kernel_breakdown`: kernel seconds by class and kind of communication, a stacked bar per layout."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, concat

from triplepoint.effects import shares
from triplepoint.figures import drawing, labels, marks, stacks, style
from triplepoint.figures.parallelism_sweep import without_far

SOURCE = "figure 10"
"""Figure of the published study with the kernel seconds of one rank."""
NOTE = (
    "Bars: kernel times per step and rank, added up; lines with caps: lowest to highest rank. Numbers: share of "
    "communication.{far}"
)
_COMM_COLUMNS = {"mean": "comm_share", "low": "comm_share_min", "high": "comm_share_max"}


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and part of its bar.

    In each panel only the layout differs, as in `parallelism_sweep`. The first repeat is drawn.

    Args:
        tables: `points`, `kernels`, `breakdown` and `published`.
    """
    prepared = labels.prepare(tables["points"])
    groups = [labels.choose(members) for _, members in prepared.groupby("group", sort=False)]
    groups = [group.drop_duplicates("layout").reset_index(drop=True) for group in groups]
    numbers = _numbers(groups, tables)
    rows = stacks.grid(groups)
    compared = concat([without_far(group).assign(place=stacks.place_of(group)) for group in groups])
    places = dict(zip(compared["run"], compared["place"], strict=True))
    left_out = sorted(
        {str(name) for group in groups for name in set(group["layout"]) - set(without_far(group)["layout"])}
    )
    far = f" Far slower, so not in the title: {', '.join(left_out)}." if left_out else ""
    page = stacks.new_page(rows, shares.answer_communication(tables["breakdown"], places), NOTE.format(far=far))
    for row, axes_of_row in zip(rows, page.axes, strict=True):
        axes_of_row[0].set_ylabel("kernel seconds per step\nand rank (s)")
        for group, axes in zip(row, axes_of_row, strict=False):
            _draw_panel(axes, group, numbers)
    known = numbers[numbers["sum_s"].notna() | numbers["published_s"].notna()]
    handles = stacks.legend_of(known["part"])
    page.legend([*handles, *([stacks.PUBLISHED] if numbers["published_s"].notna().any() else [])])
    return page.finish(), numbers


def _numbers(groups: list[DataFrame], tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return the plotted numbers: our seconds of each part, the share of communication, and published seconds."""
    points = concat(groups, ignore_index=True)
    shown = ["group", "layout", "run", "status", "reason", "kernel_sum_s", "kernel_sum_min_s", "kernel_sum_max_s"]
    kernels = tables["kernels"]
    ours = shares.sum_kernels(kernels[kernels["run"].isin(points["run"])])
    published = shares.published_parts(tables.get("published"), SOURCE)
    parts = ours.merge(published[published["run"].isin(points["run"])], on=["run", "part"], how="outer", sort=False)
    breakdown = tables["breakdown"]
    comm_shares = shares.communication_shares(breakdown[breakdown["run"].isin(points["run"])])
    comm_shares = comm_shares.rename(columns=_COMM_COLUMNS)
    numbers = points[shown].merge(comm_shares, left_on="run", right_index=True, how="left", sort=False)
    return numbers.merge(parts, on="run", how="left", sort=False)


def _draw_panel(axes: Axes, group: DataFrame, numbers: DataFrame) -> None:
    """Draw the bars of one group; a published bar is at the right of ours."""
    rows = numbers[numbers["group"] == group["group"].iloc[0]]
    totals = rows.groupby("run")[["sum_s", "published_s"]].sum().to_numpy().ravel()
    is_to_scale = group["kernel_sum_s"] <= stacks.limit_of(totals)
    limit = stacks.finish_axes(axes, list(group["layout"]), totals, group.loc[is_to_scale, "kernel_sum_max_s"].max())
    for at, (_, point) in enumerate(group.iterrows()):
        of_run = rows[rows["run"] == point["run"]]
        ours, published = (of_run.set_index("part")[column].dropna().to_dict() for column in ("sum_s", "published_s"))
        middle, width = (at - 0.17, 0.46) if published else (at, 0.66)
        if not ours:
            stacks.write_missing(axes, middle, point["status"])
        elif stacks.draw_stack(axes, middle, width, ours, limit):
            drawing.draw_interval(axes, middle, point["kernel_sum_min_s"], point["kernel_sum_max_s"], marks.BLACK)
            tops = float(point["kernel_sum_max_s"]), sum(ours.values()), sum(published.values())
            _write_share(axes, at if published else middle, np.nanmax(tops), of_run)
        if published:
            stacks.draw_stack(axes, at + 0.24, 0.26, published, limit, is_published=True)


def _write_share(axes: Axes, at: float, top: float, of_run: DataFrame) -> None:
    """Write the share of communication above a bar."""
    share = float(of_run["comm_share"].iloc[0])
    if not np.isnan(share):
        axes.annotate(
            f"{100 * share:.0f} %", (at, top), (0, 2), textcoords="offset points", ha="center", va="bottom",
            fontsize=style.TEXT_PT, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.2},
        )  # fmt: skip
