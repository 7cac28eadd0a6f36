"""Throughput of every layout, what a step is spent on, and its power, heat, clocks and energy.

One row per layout, one block per model and cluster.
"""

from collections.abc import Mapping
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series, concat

from triplepoint.figures import labels, style
from triplepoint.figures.rows import Block, mark_slot, place_blocks, row_axes
from triplepoint.figures.scales import ENDS, fit_ticks, scale
from triplepoint.status import Status

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
    "tokens_per_s_per_gpu_model_lo", "tokens_per_s_per_gpu_model_hi",
    "compute_share", "exposed_comm_share", "exposed_memory_share", "idle_share",
    "power_w", "power_w_p10", "power_w_p90", "power_w_model_lo", "power_w_model_hi", "power_w_max", "power_absent",
    "temp_c", "temp_c_p10", "temp_c_p90", "temp_c_max", "clock_ghz", "clock_ghz_p10", "clock_ghz_p90",
    "energy_per_token_j", "energy_per_token_j_model_lo", "energy_per_token_j_model_hi",
]  # fmt: skip


_ABOUT_TICKS = "; power and temperature: mean of a GPU, | highest of any"


class _Quantity(NamedTuple):
    """One panel beside throughput: column (with `_p10`, `_p90`, `_model_lo`, `_model_hi`, `_max`) and looks."""

    column: str
    title: str
    colour: str
    place: tuple[float, float]
    from_zero: bool


_QUANTITIES = (
    _Quantity("power_w", "GPU power (W)", style.VERMILION, (0.475, 0.60), from_zero=True),
    _Quantity("temp_c", "GPU °C", style.PURPLE, (0.625, 0.74), from_zero=False),
    _Quantity("clock_ghz", "clock (GHz)", style.GREEN, (0.765, 0.87), from_zero=False),
    _Quantity("energy_per_token_j", "J/token", style.ORANGE, (0.895, 1.0), from_zero=True),
)


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per point or layout not run at its block's setting.

    In each block only the layout differs: see `labels.common_setting` for which micro-batch size and recomputation. Of
    `STUDY` all layouts are drawn; one that it tries at another setting alone says which.
    """
    points = labels.prepare(tables["points"])
    chosen = {name: _with_gaps(members) for name, members in points.groupby("group", sort=False)}
    numbers = concat([_numbers(found) for found in chosen.values()], ignore_index=True)
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
    return canvas.figure, numbers[_PLOTTED]


def _has_ticks(found: DataFrame) -> bool:
    return bool(found[["power_w_max", "temp_c_max"]].notna().any(axis=None))


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


def _numbers(found: DataFrame) -> DataFrame:
    """Return plotted columns; times turn into throughput, so the 90th percentile of one is the 10th of the other."""
    tokens_per_gpu = found["tokens_per_s_per_gpu"] * found["step_time_s"]
    parts = found[list(_PARTS)].astype(float)
    shares = parts.div(parts.sum(axis=1, min_count=1), axis=0).rename(columns=lambda name: name[:-2] + "_share")
    return found.assign(
        tokens_per_s_per_gpu_p10=tokens_per_gpu / found["step_time_p90_s"],
        tokens_per_s_per_gpu_p90=tokens_per_gpu / found["step_time_p10_s"],
        tokens_per_s_per_gpu_model_lo=tokens_per_gpu / found["step_time_hi_s"],
        tokens_per_s_per_gpu_model_hi=tokens_per_gpu / found["step_time_lo_s"],
        **{str(name): shares[name] for name in shares},
        **_heat(found, tokens_per_gpu),
    )


def _heat(found: DataFrame, tokens_per_gpu: Series) -> dict[str, Series]:
    """Return power of one GPU, temperature, clock and energy, each with what is known of its spread."""
    of_one = 1 / found["num_gpus"]
    columns = {
        f"power_w{end}": found[name] * of_one
        for end, name in (
            ("", "gpu_power_w"), ("_p10", "gpu_power_p10_w"), ("_p90", "gpu_power_p90_w"),
            ("_model_lo", "gpu_power_lo_w"), ("_model_hi", "gpu_power_hi_w"),
        )
    }  # fmt: skip
    columns |= {f"temp_c{end}": found[f"gpu_temp{end}_c"] for end in ("", "_p10", "_p90", "_max")}
    columns |= {f"clock_ghz{end}": found[f"sm_clock{end}_mhz"] / 1000 for end in ("", "_p10", "_p90")}
    columns |= {"power_w_max": found["gpu_power_peak_w"], "energy_per_token_j": found["gpu_energy_per_token_j"]}
    # Power and time are known apart from each other; both at their end is more than 90 %.
    for end, time in (("lo", "step_time_lo_s"), ("hi", "step_time_hi_s")):
        columns[f"energy_per_token_j_model_{end}"] = columns[f"power_w_model_{end}"] * found[time] / tokens_per_gpu
    return columns


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
            known = [row["tokens_per_s_per_gpu_model_lo"], row["tokens_per_s_per_gpu_model_hi"]]
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
    for number, (_, found) in enumerate(block.rows):
        done = found[(found["status"] == Status.OK) & found[column].notna()]
        if done.empty:
            mark_slot(axes, number, "" if (found["status"] != Status.OK).any() else style.absent(found))
        step = 0.5 / max(len(done), 1)
        for index, (_, row) in enumerate(done.iterrows()):
            y = number + (index - (len(done) - 1) / 2) * step
            if f"{column}_p10" in row:
                ends = [row[f"{column}_p10"], row[f"{column}_p90"]]
                axes.plot(ends, [y, y], color=colour, linewidth=1.6, alpha=0.45, solid_capstyle="butt")
            if f"{column}_model_lo" in row:
                known = [row[f"{column}_model_lo"], row[f"{column}_model_hi"]]
                axes.plot(known, [y, y], color=colour, linewidth=0.7, linestyle=":")
            if f"{column}_max" in row:
                axes.plot([row[f"{column}_max"]], [y], "|", color=style.BLACK, markersize=4)
            axes.plot([row[column]], [y], "o", color=colour, markersize=3, markeredgewidth=0)
    if quantity.from_zero or not axes.lines:
        _scale_x(axes, block, column, 2)
    else:
        low, high = axes.get_xlim()
        # Clocks that differ by a step of 15 MHz are as good as the same.
        axes.set_xlim(min(low, high - 0.1), high + 0.03 * max(high - low, 0.1))
        fit_ticks(axes, "x", 5)
    axes.set_xlabel(quantity.title, labelpad=1)


def _scale_x(axes: Axes, block: Block, column: str, nbins: int) -> None:
    """Scale the axis of a quantity that begins at zero; without ticks where nothing is drawn."""
    if not axes.lines:
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        return
    done = concat([found[found["status"] == Status.OK] for _, found in block.rows])
    ends = [column + end for end in ENDS if column + end in done]
    scale(axes, "x", done[ends].to_numpy(float).ravel(), nbins)
