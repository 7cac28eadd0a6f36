"""Bars in groups: a column of panels per model, a group per layout, a bar per GPU type, model size or task."""

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
from triplepoint.figures.parallelism_sweep import Quantity, share_y
from triplepoint.status import Status
from triplepoint.tables.schema import column_of

NOTE = (
    "Lines with caps: {intervals}. Right: mean change over layouts, with its 90 % t interval over layouts; a range "
    "where layouts disagree on the sign."
)
NEED = "needed_memory_bytes"
CALLED = {
    "tokens_per_s_per_gpu": "speed",
    "mfu": "MFU",
    "gpu_power_w": "power",
    "gpu_temp_c": "temperature",
    "gpu_energy_per_token_j": "energy per token",
    "sm_clock_busy_mhz": "clock while busy",
    NEED: "memory",
}
"""What changes of quantities are called."""
_NAMES = (
    "panel", "series", "layout", "model", "cluster", "gpu", "task", "num_gpus", "tp", "pp", "dp", "ep", "run", "repeat",
    "origin", "status", "reason",
)  # fmt: skip


def comparable(points: DataFrame) -> DataFrame:
    """Return the points of each group that differ in nothing but layout, with short names of layouts.

    Names leave data parallelism out, which follows from the number of GPUs, unless two layouts then had one name.
    """
    prepared = labels.prepare(points)
    chosen = concat(
        [labels.common_setting(members) for _, members in prepared.groupby(["group", "task"], sort=False)],
        ignore_index=True,
    )
    short = Series([_name(row) for _, row in chosen.iterrows()], chosen.index)
    is_unique = (chosen.assign(short=short).groupby(["group", "short"])["layout"].nunique() < 2).all()
    return chosen.assign(layout=short) if is_unique else chosen


def _name(row: Series) -> str:
    parts = [f"{degree.upper()}{int(row[degree])}" for degree in ("tp", "pp", "ep") if row[degree] > 1]
    sharded = ["FSDP"] if row["data_parallel_sharding"] == "optim_grads_params" else []
    return "·".join(parts + sharded) or "DP"


def draw_groups(
    answer: style.Answer,
    changes: Mapping[str, Change],
    points: DataFrame,
    quantities: Sequence[Quantity],
    shown: Mapping[str, marks.Mark],
    note: str = NOTE,
) -> tuple[style.Page, DataFrame]:
    """Return the page and the numbers it plots.

    Args:
        answer: Its title.
        changes: What stands at the right of each row, each change with the words before it; quantities are called as
            `CALLED` says.
        points: Points with columns `panel`, `series` and `layout`.
        quantities: Rows of panels; those that no point has are left out, but for the first.
        shown: How each series looks, in the order of bars.
        note: What bars and intervals are.
    """
    rows = [one for number, one in enumerate(quantities) if not number or points[one.column].notna().any()]
    columns = list(_NAMES)
    for one in rows:
        names = [one.column, *(column_of(one.column, end) for end in ("p10", "p90", "lo", "hi")), one.limit[0]]
        columns += [name for name in names if name in points and name not in columns]
    columns += [name for name in ("may_not_fit",) if name in points]
    numbers = points[columns].reset_index(drop=True)
    panels = [DataFrame(found) for _, found in numbers.groupby("panel", sort=False)]
    page = style.new_page(
        answer, points, len(rows), len(panels), style.PAGE if len(panels) > 1 else style.COLUMN,
        min(style.TALLEST, 1.8 + 1.05 * len(rows)), note, sharex="col",
        width_ratios=[max(found["layout"].nunique(), 2) for found in panels],
    )  # fmt: skip
    page.head([str(found["panel"].iloc[0]).partition(" on ")[::2] for found in panels])
    page.beside(
        ["\n".join(filter(None, (_said(words, change, one) for words, change in changes.items()))) for one in rows],
        titles.mean_of(max((change.num for change in changes.values()), default=0), "layout").replace(" of ", " of\n"),
    )
    for col, found in enumerate(panels):
        for row, quantity in enumerate(rows):
            _draw_panel(page.axes[row][col], found, quantity, shown, not row)
    for row, quantity in enumerate(rows):
        _draw_limits(page.axes[row], panels, quantity, shown)
        page.axes[row][0].set_ylabel(quantity.title.format(rank=labels.rank_word(points)))
    page.figure.align_ylabels(page.figure.axes)
    page.legend(_legend(numbers, shown))
    return page, numbers


def _said(words: str, change: Change, quantity: Quantity) -> str:
    """Return a change as it stands beside the row of a quantity; '' where none is known."""
    text = change.short(CALLED.get(quantity.column, ""))
    return f"{words}\n{text}" if words and text else text


def _draw_panel(
    axes: Axes, found: DataFrame, quantity: Quantity, shown: Mapping[str, marks.Mark], is_top: bool
) -> None:
    names = list(dict.fromkeys(found["layout"]))
    present = [series for series in shown if (found["series"] == series).any()]
    limit = drawing.limit_of(found[quantity.column] * quantity.scale) * 1.15
    slot = 0.84 / max(len(present), 1)
    for at, name in enumerate(names):
        for number, series in enumerate(present):
            rows = found[(found["layout"] == name) & (found["series"] == series)]
            middle = at + (number - (len(present) - 1) / 2) * slot
            done = rows[(rows["status"] == Status.OK) & rows[quantity.column].notna()]
            if is_top and done.empty and len(rows):
                drawing.write_status(axes, middle, rows)
            for index, (_, row) in enumerate(done.iterrows()):
                width = slot / len(done)
                place = middle + (index - (len(done) - 1) / 2) * width
                _draw_bar(axes, place, width * 0.94, row, quantity, shown[series], limit)
    drawing.name_bars(axes, names)
    axes.locator_params(axis="y", nbins=4)
    if not quantity.from_zero:
        axes.margins(y=0.15)
    values = found[quantity.column] * quantity.scale
    if values.isna().all():
        axes.set_yticks([])
    if (values > limit).any():
        high = found.loc[values <= limit].get(column_of(quantity.column, "hi"), values)
        axes.set_ylim(0, max(limit, float(np.nan_to_num(high.max())) * quantity.scale) * 1.05)


def _draw_limits(
    row: Sequence[Axes], panels: Sequence[DataFrame], quantity: Quantity, shown: Mapping[str, marks.Mark]
) -> None:
    """Draw limits, each named in the widest panel that has it, and give panels one range if one axis is to do for all.

    Where series have limits of their own, their names stand with them.
    """
    column, words = quantity.limit
    of_panels: list[dict[float, list[str]]] = []
    for found in panels:
        of_series: dict[float, list[str]] = {}
        for series, own in found.groupby("series", sort=False) if column in found else ():
            for value in sorted(own[column].dropna().unique()):
                of_series.setdefault(float(value), []).append(str(series))
        of_panels.append(of_series)
    widest_first = sorted(range(len(panels)), key=lambda col: -panels[col]["layout"].nunique())
    named: set[float] = set()
    for col in widest_first:
        for value, names in of_panels[col].items():
            whose = f" ({', '.join(shown[name].name for name in names)})" if len(of_panels[col]) > 1 else ""
            drawing.draw_limit(row[col], value, "" if value in named else words.format(value) + whose)
            named.add(value)
    if column or not quantity.from_zero:
        share_y(row)


def _draw_bar(
    axes: Axes, at: float, width: float, row: Series, quantity: Quantity, mark: marks.Mark, limit: float
) -> None:
    value = float(row[quantity.column]) * quantity.scale
    if quantity.from_zero:
        # Hollow where a column is drawn that decides whether the point fits, and does not.
        is_open = quantity.column == NEED and bool(row.get("may_not_fit"))
        axes.bar(at, value, width, **_look(mark, is_open))
    else:
        axes.plot([at], [value], mark.marker, color=mark.colour)
    ends = ("lo", "hi") if row["origin"] == "simulated" else ("p10", "p90")
    low, high = (float(row.get(column_of(quantity.column, end), np.nan)) * quantity.scale for end in ends)
    if not drawing.break_off(axes, at, value, limit, f"{value:.3g}"):
        drawing.draw_interval(axes, at, low, high, marks.BLACK if quantity.from_zero else mark.colour)


def _look(mark: marks.Mark, is_open: bool) -> dict[str, Any]:
    if is_open:
        return {"facecolor": "white", "hatch": mark.hatch, "edgecolor": mark.colour, "linewidth": 0.9}
    return {"color": mark.colour, "hatch": mark.hatch, "edgecolor": "white", "linewidth": 0}


def _legend(numbers: DataFrame, shown: Mapping[str, marks.Mark]) -> list[Artist]:
    found: list[Artist] = [
        Patch(facecolor=mark.colour, hatch=mark.hatch, edgecolor="white", linewidth=0, label=mark.name)
        for series, mark in shown.items()
        if (numbers["series"] == series).any()
    ]
    if "may_not_fit" in numbers and numbers["may_not_fit"].any():
        found.append(Patch(facecolor="white", edgecolor=marks.GREY, linewidth=0.9, label=labels.MAY_NOT_FIT))
    return found
