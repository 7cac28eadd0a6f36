"""Figure `microbatch_network`: use of NVLink, PCIe and InfiniBand over micro-batch size, a line per layout."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from pandas import DataFrame, concat

from triplepoint.effects import links
from triplepoint.figures import drawing, labels, style
from triplepoint.figures.microbatch_power import (
    draw_panel,
    heading,
    legend_of_layouts,
    swept,
    without_far,
    write_statuses,
)  # fmt: skip
from triplepoint.figures.quantities import Quantity, share_y

NOTE = (
    "Use of the busier direction: mean of all GPUs, for InfiniBand of all nodes. Bands: least to most used GPU or "
    "node. Right: the highest of these, and the mean change over layouts with its 90 % t interval."
)
_FULL = "full"
"""Column with the limit of a link: 100 %."""
_NEAR = 0.4
"""Use of a link by some GPU or node, 0-1, from which its limit is drawn."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per point.

    In each column of panels only layout and micro-batch size differ, as in `microbatch_power`.

    Args:
        tables: `points` and `traffic`.
    """
    groups = [
        labels.common_setting(members, free=("micro_batch_size",))
        for _, members in labels.prepare(tables["points"]).groupby("group", sort=False)
    ]
    chosen = swept(concat(groups, ignore_index=True))
    chosen["layout"] = chosen.groupby("group", sort=False)["layout"].transform(labels.without_shared)
    shares = links.shares(tables["traffic"])
    points = chosen.merge(shares, left_on="run", right_index=True, how="left", sort=False).assign(**{_FULL: 100.0})
    columns = {link: links.share_column(link) for link in links.NAMES}
    counted = [link for link, column in columns.items() if column in points and points[column].notna().any()]
    quantities = [_quantity(link, points) for link in counted]
    numbers = _numbers(points, quantities)
    return _draw(points, numbers, quantities), numbers


def _draw(points: DataFrame, numbers: DataFrame, quantities: list[Quantity]) -> Figure:
    """Return the figure: a row of panels per link, a column per group."""
    groups = [DataFrame(members) for _, members in numbers.groupby("group", sort=False)]
    rows = max(len(quantities), 1)
    compared = without_far(points)
    page = style.new_page(
        links.answer(compared), points, rows, len(groups), style.PAGE if len(groups) > 1 else style.COLUMN,
        1.8 + 1.25 * rows, NOTE, sharex="col",
    )  # fmt: skip
    page.head([(str(group["group"].iloc[0]).split(" on ")[0], "") for group in groups])
    highest, change = links.highest(compared), links.changes(compared)
    texts = []
    for quantity in quantities:
        link = quantity.column.removesuffix("_share")
        most = f"at most {100 * highest[link]:.0f} %" if link in highest else ""
        texts.append("\n".join(filter(None, [most, change.short(link) if change else ""])))
    page.beside(texts, heading(change) if change else "")
    for col, group in enumerate(groups):
        for row, quantity in enumerate(quantities):
            draw_panel(page.axes[row][col], group, quantity, is_first=not col)
        page.axes[-1][col].set_xlabel("micro-batch size")
    for row, quantity in enumerate(quantities):
        page.axes[row][0].set_ylabel(quantity.title)
        share_y(page.axes[row])
        for axes in page.axes[row]:
            axes.set_ylim(bottom=0)
    for axes, group in zip(page.axes[0], groups if quantities else [], strict=False):
        write_statuses(axes, group, quantities[0])
    if not quantities:
        for axes in page.all_axes:
            drawing.write_reason(axes, "no traffic was counted")
    page.figure.align_ylabels(page.figure.axes)
    page.legend(legend_of_layouts(numbers))
    return page.finish()


def _quantity(link: str, points: DataFrame) -> Quantity:
    """Return the row of panels of a link, with its limit if some GPU or node comes near to it."""
    name = links.share_column(link)
    is_near = points[f"{name}_max"].max() > _NEAR
    return Quantity(
        name,
        f"{links.NAMES[link]}\n(% of capacity)",
        limit=(_FULL, "full") if is_near else ("", ""),
        scale=100,
        from_zero=False,
    )


def _numbers(points: DataFrame, quantities: list[Quantity]) -> DataFrame:
    """Return the plotted numbers; lowest and highest use are named like intervals, as `draw_panel` expects."""
    names = [
        "group", "layout", "tp", "pp", "is_sharded", "micro_batch_size", "run", "repeat", "origin", "status", "reason",
        _FULL,
    ]  # fmt: skip
    numbers = points[names].copy()
    for quantity in quantities:
        share = quantity.column
        numbers[share] = points[share]
        for end in ("lo", "p10"):
            numbers[f"{share}_{end}"] = points[f"{share}_min"]
        for end in ("hi", "p90"):
            numbers[f"{share}_{end}"] = points[f"{share}_max"]
    return numbers
