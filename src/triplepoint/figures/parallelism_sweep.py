"""Throughput of every layout, what a step is spent on, and its power, heat, clocks and energy.

One row per layout, one block per model and cluster.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, concat

from triplepoint.figures import labels, style
from triplepoint.figures.rows import Block, mark_slot, place_blocks, row_axes
from triplepoint.figures.scales import STATISTICS, fit_ticks, scale
from triplepoint.status import Status
from triplepoint.tables.schema import column_of

TABLES = ("points",)

STUDY = "parallelism"
"""Its points are drawn where it is in the selection: other studies try the same layouts at plainer settings."""

_PARTS = {
    "compute_s": ("computation", style.BLUE, ""),
    "exposed_comm_s": ("exposed communication", style.VERMILION, "//////"),
    "exposed_memory_s": ("exposed copies", style.YELLOW, ""),
    "idle_s": ("idle", style.FAINT, ""),
}
"""Parts of a profiled step in the order they are stacked: label, colour, hatch."""

_PLOTTED = [
    "group", "setting", "layout", "run", "repeat", "origin", "status", "reason", "gpu", "num_gpus",
    "num_measured_steps",
    "tokens_per_s_per_gpu", "tokens_per_s_per_gpu_p10", "tokens_per_s_per_gpu_p90",
    "tokens_per_s_per_gpu_lo", "tokens_per_s_per_gpu_hi",
    "compute_share", "exposed_comm_share", "exposed_memory_share", "idle_share",
    "gpu_power_w", "gpu_power_p10_w", "gpu_power_p90_w", "gpu_power_lo_w", "gpu_power_hi_w", "gpu_power_peak_w",
    "power_absent", "gpu_temp_c", "gpu_temp_p10_c", "gpu_temp_p90_c", "gpu_temp_max_c",
    "sm_clock_ghz", "sm_clock_p10_ghz", "sm_clock_p90_ghz",
    "gpu_energy_per_token_j", "gpu_energy_per_token_lo_j", "gpu_energy_per_token_hi_j",
]  # fmt: skip


_ABOUT_TICKS = "; power and temperature: mean of a GPU, | highest of any"


class _Quantity(NamedTuple):
    """One panel next to throughput: column, which stands for those of its statistics, and looks."""

    column: str
    title: str
    colour: str
    place: tuple[float, float]
    from_zero: bool


_QUANTITIES = (
    _Quantity("gpu_power_w", "GPU power (W)", style.VERMILION, (0.475, 0.60), from_zero=True),
    _Quantity("gpu_temp_c", "GPU °C", style.PURPLE, (0.625, 0.74), from_zero=False),
    _Quantity("sm_clock_ghz", "clock (GHz)", style.GREEN, (0.765, 0.87), from_zero=False),
    _Quantity("gpu_energy_per_token_j", "J/token", style.ORANGE, (0.895, 1.0), from_zero=True),
)


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per point or layout not run at its block's setting.

    In each block only the layout differs: see `labels.common_setting` for which micro-batch size and recomputation. Of
    `STUDY` all layouts are drawn; one that it tries at another setting alone says which.
    """
    points = labels.prepare(tables["points"])
    chosen = {name: _with_gaps(members) for name, members in points.groupby("group", sort=False)}
    numbers = concat([_with_clock(found) for found in chosen.values()], ignore_index=True)[_PLOTTED]
    blocks = [
        Block(str(name), f"{found['setting'].iloc[0]}{_ABOUT_TICKS * _has_ticks(found)}", labels.slots(found, "layout"))
        for name, found in numbers.groupby("group", sort=False)
    ]
    drawn = points[points["run"].isin(numbers["run"])]
    canvas, places = place_blocks(blocks, drawn, list(_PARTS.values()), is_wide=True)
    for place in places:
        _draw_throughput(row_axes(canvas, place, 0.0, 0.25), place.block)
        _draw_parts(row_axes(canvas, place, 0.285, 0.44), place.block)
        for quantity in _QUANTITIES:
            _draw_quantity(row_axes(canvas, place, *quantity.place), place.block, quantity)
    return canvas.figure, numbers


def _has_ticks(found: DataFrame) -> bool:
    return bool(found[["gpu_power_peak_w", "gpu_temp_max_c"]].notna().any(axis=None))


def _with_gaps(members: DataFrame) -> DataFrame:
    """Return the comparable points of one group, with a row without status for each layout not run at that setting."""
    own = members[[STUDY in studies for studies in members["studies"]]]
    chosen = labels.common_setting(members if own.empty else own)
    others = own[~own["layout"].isin(chosen["layout"])]
    absent = members[~members["layout"].isin([*chosen["layout"], *others["layout"]])].drop_duplicates("layout")
    gaps = absent[["group", "layout", "gpu", "num_gpus"]].assign(reason="not run at this setting")
    gaps = gaps.set_index(absent.index)
    elsewhere = [labels.common_setting(found) for _, found in others.groupby("layout", sort=False)]
    named = [found.assign(layout=labels.layout_at(found.iloc[0], chosen.iloc[0])) for found in elsewhere]
    setting = labels.setting_text(chosen.iloc[0])
    return concat([chosen, *named, gaps]).sort_index().assign(setting=setting)


def _with_clock(found: DataFrame) -> DataFrame:
    """Return points with their clocks in GHz."""
    ends = ("", "p10", "p90")
    clocks = {column_of("sm_clock_ghz", end): found[column_of("sm_clock_mhz", end)] / 1000 for end in ends}
    return found.assign(**clocks)


def _draw_throughput(axes: Axes, block: Block) -> None:
    for number, (_, found) in enumerate(block.rows):
        done = found[found["status"] == Status.OK]
        if done.empty:
            status = found["status"].iloc[0]
            mark_slot(axes, number, style.word(status if isinstance(status, str) else None))
        step = 0.5 / max(len(done), 1)
        for index, (_, row) in enumerate(done.iterrows()):
            y = number + (index - (len(done) - 1) / 2) * step
            low, high = row["tokens_per_s_per_gpu_p10"], row["tokens_per_s_per_gpu_p90"]
            axes.plot([low, high], [y, y], color=style.BLUE, linewidth=1.6, alpha=0.45, solid_capstyle="butt")
            # Thin and dotted: what a model is known to is no spread of measurements. Nothing where there is none.
            known = [row["tokens_per_s_per_gpu_lo"], row["tokens_per_s_per_gpu_hi"]]
            axes.plot(known, [y, y], color=style.BLUE, linewidth=0.7, linestyle=":")
            axes.plot([row["tokens_per_s_per_gpu"]], [y], "o", color=style.BLUE, markersize=3, markeredgewidth=0)
    _scale_x(axes, block, "tokens_per_s_per_gpu", 4)
    axes.set_xlabel(f"token/s per {labels.rank_word(block.rows[0][1])}", labelpad=1)


def _draw_parts(axes: Axes, block: Block) -> None:
    for number, (_, found) in enumerate(block.rows):
        done = found[found["status"] == Status.OK]
        traced = done.dropna(subset=["compute_share"])
        if traced.empty:
            mark_slot(axes, number, "" if done.empty else "no trace")
            continue
        left = 0.0
        for column, (_, colour, hatch) in _PARTS.items():
            share = 100 * float(traced.iloc[0][f"{column[:-2]}_share"])
            axes.barh(number, share, 0.62, left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.3)
            left += share
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 50, 100])
    axes.set_xlabel("profiled step (%)", labelpad=1)


def _draw_quantity(axes: Axes, block: Block, quantity: _Quantity) -> None:
    column, colour = quantity.column, quantity.colour
    low, high, model_low, model_high, *highest = (column_of(column, end) for end in STATISTICS[1:])
    for number, (_, found) in enumerate(block.rows):
        done = found[(found["status"] == Status.OK) & found[column].notna()]
        if done.empty:
            mark_slot(axes, number, "" if (found["status"] != Status.OK).any() else style.absent(found))
        step = 0.5 / max(len(done), 1)
        for index, (_, row) in enumerate(done.iterrows()):
            y = number + (index - (len(done) - 1) / 2) * step
            if low in row:
                axes.plot([row[low], row[high]], [y, y], color=colour, linewidth=1.6, alpha=0.45, solid_capstyle="butt")
            if model_low in row:
                axes.plot([row[model_low], row[model_high]], [y, y], color=colour, linewidth=0.7, linestyle=":")
            for name in highest:
                axes.plot([row.get(name, math.nan)], [y], "|", color=style.BLACK, markersize=4)
            axes.plot([row[column]], [y], "o", color=colour, markersize=3, markeredgewidth=0)
    if quantity.from_zero or not axes.lines:
        _scale_x(axes, block, column, 2)
    else:
        left, right = axes.get_xlim()
        # Clocks that differ by a step of 15 MHz are as good as the same.
        axes.set_xlim(min(left, right - 0.1), right + 0.03 * max(right - left, 0.1))
        fit_ticks(axes, "x", 5)
    axes.set_xlabel(quantity.title, labelpad=1)


def _scale_x(axes: Axes, block: Block, column: str, nbins: int) -> None:
    """Scale the axis of a quantity that begins at zero; without ticks where nothing is drawn."""
    if not axes.lines:
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        return
    done = concat([found[found["status"] == Status.OK] for _, found in block.rows])
    ends = [column_of(column, end) for end in STATISTICS if column_of(column, end) in done]
    scale(axes, "x", done[ends].to_numpy(float).ravel(), nbins)
