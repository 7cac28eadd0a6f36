"""Throughput of every layout, and what a step is spent on: one row per layout, one block per model and cluster."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, concat

from triplepoint.figures import labels, style
from triplepoint.figures.rows import Block, mark_slot, place_blocks, row_axes

TABLES = ("points",)

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
]  # fmt: skip


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per point or layout not run at its block's setting.

    In each block only the layout differs: see `labels.common_setting` for which micro-batch size and recomputation.
    """
    points = labels.prepare(tables["points"])
    chosen = {name: _with_gaps(members) for name, members in points.groupby("group", sort=False)}
    numbers = concat([_numbers(found) for found in chosen.values()], ignore_index=True)
    blocks = [
        Block(str(name), found["setting"].iloc[0], labels.slots(found, "layout"))
        for name, found in numbers.groupby("group", sort=False)
    ]
    canvas, places = place_blocks(blocks, points, list(_PARTS.values()))
    for place in places:
        _draw_throughput(row_axes(canvas, place, 0.0, 0.56), place.block)
        _draw_parts(row_axes(canvas, place, 0.62, 1.0), place.block)
    return canvas.figure, numbers[_PLOTTED]


def _with_gaps(members: DataFrame) -> DataFrame:
    """Return the comparable points of one group, with a row without status for each layout not run at that setting."""
    chosen = labels.common_setting(members)
    absent = members[~members["layout"].isin(chosen["layout"])].drop_duplicates("layout")
    gaps = absent[["group", "layout", "gpu", "num_gpus"]].assign(reason="not run at this setting")
    gaps = gaps.set_index(absent.index)
    setting = labels.setting_text(chosen.iloc[0])
    return concat([chosen, gaps]).sort_index().assign(setting=setting)


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
    )


def _draw_throughput(axes: Axes, block: Block) -> None:
    for number, (_, found) in enumerate(block.rows):
        done = found[found["status"] == "ok"]
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
    axes.set_xlim(0, axes.get_xlim()[1] if axes.lines else 1)
    axes.locator_params(axis="x", nbins=4)
    if not axes.lines:
        axes.set_xticks([])
    axes.set_xlabel(f"token/s per {labels.rank_word(block.rows[0][1])}", labelpad=1)


def _draw_parts(axes: Axes, block: Block) -> None:
    for number, (_, found) in enumerate(block.rows):
        done = found[found["status"] == "ok"]
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
