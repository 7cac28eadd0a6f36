"""Grouped bars: one column of panels per model, one group per layout, one bar per GPU type, model size or task."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from pandas import DataFrame, Series, concat

from triplepoint.effects import titles
from triplepoint.effects.titles import Change
from triplepoint.figures import drawing, labels, marks, style
from triplepoint.figures.quantities import Quantity, columns_of, interval_of, known, share_y
from triplepoint.status import Status
from triplepoint.tables.schema import column_of

NOTE = (
    "Lines with caps: {intervals}. Right: mean change over layouts, with its 90 % t interval over layouts; a range "
    "where layouts disagree on the sign."
)
NEED = "needed_memory_bytes"
NAMES = {
    "tokens_per_s_per_gpu": "speed",
    "mfu": "MFU",
    "gpu_power_w": "power",
    "gpu_temp_c": "temperature",
    "gpu_energy_per_token_j": "energy per token",
    "sm_clock_busy_mhz": "clock while busy",
    NEED: "memory",
}
"""Names of quantities in texts on their changes, by column."""
_COLUMNS = (
    "panel", "series", "layout", "model", "cluster", "gpu", "task", "num_gpus", "tp", "pp", "dp", "ep", "run", "repeat",
    "origin", "status", "reason",
)  # fmt: skip


def comparable(points: DataFrame) -> DataFrame:
    """Return the points of each group and task that differ only in layout, with short labels of layouts.

    Short labels leave out data parallelism, which follows from the number of GPUs. If two layouts would get the same
    label, all keep their full labels.
    """
    prepared = labels.prepare(points)
    chosen = concat(
        [labels.common_setting(members) for _, members in prepared.groupby(["group", "task"], sort=False)],
        ignore_index=True,
    )
    short = Series([_short_label(row) for _, row in chosen.iterrows()], chosen.index)
    is_unique = (chosen.assign(short=short).groupby(["group", "short"])["layout"].nunique() < 2).all()
    return chosen.assign(layout=short) if is_unique else chosen


def _short_label(row: Series) -> str:
    """Return the label of a layout without its degree of data parallelism."""
    parts = [f"{degree.upper()}{int(row[degree])}" for degree in ("tp", "pp", "ep") if row[degree] > 1]
    sharded = ["FSDP"] if row["is_sharded"] else []
    return "·".join(parts + sharded) or "DP"


def draw_groups(
    answer: style.Answer,
    changes: Mapping[str, Change],
    points: DataFrame,
    quantities: Sequence[Quantity],
    looks: Mapping[str, marks.Mark],
    note: str = NOTE,
) -> tuple[style.Page, DataFrame]:
    """Return the page and the numbers it plots.

    Args:
        answer: Title of the page.
        changes: Changes that are written at the right of each row, by the words before them. Names of quantities are
            those in `NAMES`.
        points: Points with columns `panel`, `series` and `layout`.
        quantities: Rows of panels; those without values are left out, except the first.
        looks: Mark of each series, in the order of bars.
        note: Note of the page.
    """
    rows = known(quantities, points)
    columns = list(dict.fromkeys([*_COLUMNS, *columns_of(rows, points)]))
    columns += [name for name in ("may_not_fit",) if name in points]
    numbers = points[columns].reset_index(drop=True)
    panels = [DataFrame(members) for _, members in numbers.groupby("panel", sort=False)]
    page = style.new_page(
        answer, points, len(rows), len(panels), style.PAGE if len(panels) > 1 else style.COLUMN,
        min(style.TALLEST, 1.8 + 1.05 * len(rows)), note, sharex="col",
        width_ratios=[max(members["layout"].nunique(), 2) for members in panels],
    )  # fmt: skip
    page.head([str(members["panel"].iloc[0]).partition(" on ")[::2] for members in panels])
    num_layouts = max((change.num for change in changes.values()), default=0)
    page.beside(
        [_change_texts(changes, quantity) for quantity in rows],
        titles.mean_of(num_layouts, "layout").replace(" of ", " of\n"),
    )
    for col, members in enumerate(panels):
        for row, quantity in enumerate(rows):
            _draw_panel(page.axes[row][col], members, quantity, looks, not row)
    for row, quantity in enumerate(rows):
        _draw_limits(page.axes[row], panels, quantity, looks)
        page.axes[row][0].set_ylabel(quantity.title.format(rank=labels.rank_word(points)))
    page.figure.align_ylabels(page.figure.axes)
    page.legend(_legend(numbers, looks))
    return page, numbers


def _change_texts(changes: Mapping[str, Change], quantity: Quantity) -> str:
    """Return the lines at the right of the row of a quantity: each known change below its words."""
    texts = {words: change.short(NAMES.get(quantity.column, "")) for words, change in changes.items()}
    return "\n".join(f"{words}\n{text}" if words else text for words, text in texts.items() if text)


def _draw_panel(
    axes: Axes, members: DataFrame, quantity: Quantity, looks: Mapping[str, marks.Mark], is_top: bool
) -> None:
    """Draw one quantity of the points of one panel; in the top row also why bars are missing."""
    names = list(dict.fromkeys(members["layout"]))
    present = [series for series in looks if (members["series"] == series).any()]
    limit = drawing.highest_shown(members[quantity.column] * quantity.scale) * 1.15
    slot = 0.84 / max(len(present), 1)
    for place, name in enumerate(names):
        for number, series in enumerate(present):
            rows = members[(members["layout"] == name) & (members["series"] == series)]
            middle = place + (number - (len(present) - 1) / 2) * slot
            done = rows[(rows["status"] == Status.OK) & rows[quantity.column].notna()]
            if is_top and done.empty and len(rows):
                drawing.write_status(axes, middle, rows)
            for index, (_, row) in enumerate(done.iterrows()):
                width = slot / len(done)
                x = middle + (index - (len(done) - 1) / 2) * width
                _draw_bar(axes, x, width * 0.94, row, quantity, looks[series], limit)
    drawing.name_bars(axes, names)
    axes.locator_params(axis="y", nbins=4)
    if not quantity.from_zero:
        axes.margins(y=0.15)
    values = members[quantity.column] * quantity.scale
    if values.isna().all():
        axes.set_yticks([])
    if (values > limit).any():
        high = members.loc[values <= limit].get(column_of(quantity.column, "hi"), values)
        axes.set_ylim(0, max(limit, float(np.nan_to_num(high.max())) * quantity.scale) * 1.05)


def _draw_limits(
    row: Sequence[Axes], panels: Sequence[DataFrame], quantity: Quantity, looks: Mapping[str, marks.Mark]
) -> None:
    """Draw the limits of a row of panels, and give the panels a common range if the quantity has a limit.

    Each limit is named in the widest panel that has it. If the series of a panel differ in their limits, the text
    includes the names of the series.
    """
    column, words = quantity.limit
    series_by_limit: list[dict[float, list[str]]] = []  # one entry per panel
    for members in panels:
        limits: dict[float, list[str]] = {}
        for series, rows in members.groupby("series", sort=False) if column in members else ():
            for value in sorted(rows[column].dropna().unique()):
                limits.setdefault(float(value), []).append(str(series))
        series_by_limit.append(limits)
    widest_first = sorted(range(len(panels)), key=lambda col: -panels[col]["layout"].nunique())
    named: set[float] = set()
    for col in widest_first:
        for value, names in series_by_limit[col].items():
            series_text = f" ({', '.join(looks[name].name for name in names)})" if len(series_by_limit[col]) > 1 else ""
            drawing.draw_limit(row[col], value, "" if value in named else words.format(value) + series_text)
            named.add(value)
    if column or not quantity.from_zero:
        share_y(row)


def _draw_bar(
    axes: Axes, at: float, width: float, row: Series, quantity: Quantity, mark: marks.Mark, limit: float
) -> None:
    """Draw one value as a bar, or as a point if the axis does not begin at zero, with its interval."""
    value = float(row[quantity.column]) * quantity.scale
    if quantity.from_zero:
        # A hollow bar of memory marks a point that may not fit.
        is_hollow = quantity.column == NEED and bool(row.get("may_not_fit"))
        axes.bar(at, value, width, **_look(mark, is_hollow))
    else:
        axes.plot([at], [value], mark.marker, color=mark.colour)
    low, high = interval_of(row, quantity.column, quantity.scale)
    if not drawing.break_off(axes, at, value, limit, f"{value:.3g}"):
        drawing.draw_interval(axes, at, low, high, marks.BLACK if quantity.from_zero else mark.colour)


def _look(mark: marks.Mark, is_hollow: bool) -> dict[str, Any]:
    """Return the properties of a bar."""
    if is_hollow:
        return {"facecolor": "white", "hatch": mark.hatch, "edgecolor": mark.colour, "linewidth": 0.9}
    return {"color": mark.colour, "hatch": mark.hatch, "edgecolor": "white", "linewidth": 0}


def _legend(numbers: DataFrame, looks: Mapping[str, marks.Mark]) -> list[Artist]:
    """Return the legend entries of the series that occur."""
    handles: list[Artist] = [
        drawing.as_patch(mark) for series, mark in looks.items() if (numbers["series"] == series).any()
    ]
    if "may_not_fit" in numbers and numbers["may_not_fit"].any():
        handles.append(Patch(facecolor="white", edgecolor=marks.GREY, linewidth=0.9, label=labels.MAY_NOT_FIT))
    return handles
