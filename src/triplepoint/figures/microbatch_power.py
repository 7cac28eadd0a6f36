"""Throughput, power, heat, clocks, energy and utilisation over the micro-batch size: a column per model and cluster."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame, concat

from triplepoint.figures import labels, style
from triplepoint.figures.scales import STATISTICS, scale
from triplepoint.figures.style import HEAD_IN, MARGIN_IN, Canvas, shortened, wrapped
from triplepoint.status import RESULTS, Status
from triplepoint.tables.schema import column_of


@dataclass(frozen=True)
class Panel:
    """One quantity of `numbers_of`, with its spread and the model's interval.

    `is_power`: why power is missing is its reason; `of_gpu`: only GPUs have it; `from_zero`: its axis begins there.
    """

    title: str
    column: str
    is_power: bool = False
    of_gpu: bool = False
    from_zero: bool = True


PANELS = (
    Panel("throughput (token/s per {rank})", "tokens_per_s_per_gpu"),
    Panel("{source} power{per} (W)", "power_w", is_power=True),
    Panel("highest power of any {device} (W)", "power_peak_w", is_power=True, of_gpu=True),
    Panel("GPU temperature (°C), ^ highest", "gpu_temp_c", of_gpu=True, from_zero=False),
    Panel("GPU clock (GHz)", "sm_clock_ghz", of_gpu=True, from_zero=False),
    Panel("{source} energy per token ({prefix}J)", "energy_per_token_j", is_power=True),
    Panel("{processor} utilisation (%)", "utilisation_percent"),
)

PLOTTED = [
    "group", "setting", "layout", "micro_batch_size", "run", "repeat", "origin", "status", "reason", "num_gpus",
    "tokens_per_s_per_gpu", "tokens_per_s_per_gpu_p10", "tokens_per_s_per_gpu_p90",
    "tokens_per_s_per_gpu_lo", "tokens_per_s_per_gpu_hi",
    "power_w", "power_p10_w", "power_p90_w", "power_lo_w", "power_hi_w",
    "power_peak_w", "power_peak_of", "power_of",
    "gpu_temp_c", "gpu_temp_p10_c", "gpu_temp_p90_c", "gpu_temp_max_c",
    "sm_clock_ghz", "sm_clock_p10_ghz", "sm_clock_p90_ghz",
    "energy_per_token_j", "energy_per_token_lo_j", "energy_per_token_hi_j", "power_absent",
    "utilisation_percent", "utilisation_p10_percent", "utilisation_p90_percent", "utilisation_of",
]  # fmt: skip


def swept(numbers: DataFrame) -> DataFrame:
    """Return the layouts that were tried at several micro-batch sizes; all of them if none was."""
    is_swept = numbers.groupby(["group", "layout"])["micro_batch_size"].transform("nunique") > 1
    return numbers[is_swept].reset_index(drop=True) if is_swept.any() else numbers


def numbers_of(found: DataFrame) -> DataFrame:
    """Return one group's plotted columns: GPU power where the group has GPUs, host power on cpu."""
    has_gpu = bool(found["gpu"].notna().any())
    source = "gpu" if has_gpu else "host"
    processor = "gpu" if found["gpu_utilisation"].notna().any() else "cpu"
    # Sensors of packages say nothing of one GPU, but a model does.
    is_shared = bool(found["gpu_power_peak_w"].isna().all() and found["package_power_peak_w"].notna().any())
    columns = {}
    for end in ("", "p10", "p90"):
        columns[column_of("utilisation_percent", end)] = found[column_of(f"{processor}_utilisation", end)] * 100
        columns[column_of("sm_clock_ghz", end)] = found[column_of("sm_clock_mhz", end)] / 1000
        power = "gpu_power_w" if has_gpu else "job_host_power_w"
        columns[column_of("power_w", end)] = found[column_of(power, end)]
    for end in ("lo", "hi"):
        columns[f"power_{end}_w"] = found[f"gpu_power_{end}_w"]
        columns[f"energy_per_token_{end}_j"] = found[f"gpu_energy_per_token_{end}_j"]
    return found.assign(
        setting=labels.setting_text(found.iloc[0], without=("micro_batch_size",)),
        energy_per_token_j=found[f"{source}_energy_per_token_j"],
        power_peak_w=found["package_power_peak_w"] if is_shared else found["gpu_power_peak_w"],
        power_peak_of="package" if is_shared else "GPU",
        power_of="GPU" if has_gpu else "host",
        utilisation_of=processor.upper(),
        **columns,
    )


TABLES = ("points",)

_MAX_COLUMNS = 4
_PANEL_IN, _ABSENT_IN = 0.85, 0.42
"""Height of a panel, and of one that only says why it is empty. Unit: inch."""
_TITLE_IN, _LINE_IN, _LETTER_IN, _LEGEND_IN = 0.17, 0.105, 0.12, 0.125
_AXIS_IN = 0.32
"""Micro-batch sizes and their label. Unit: inch."""
_LETTERS = {status: status.label[0].upper() for status in RESULTS if status != Status.OK}


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per point.

    In each column only layout and micro-batch size differ: see `labels.common_setting`.
    """
    points = labels.prepare(tables["points"])
    chosen = [
        labels.common_setting(members, free=("micro_batch_size",)) for _, members in points.groupby("group", sort=False)
    ]
    numbers = swept(concat([numbers_of(found) for found in chosen], ignore_index=True))
    columns = [found for _, found in numbers.groupby("group", sort=False)]
    rows = [columns[at : at + _MAX_COLUMNS] for at in range(0, len(columns), _MAX_COLUMNS)]
    width_in = style.COLUMN_WIDTH_IN if len(columns) == 1 else style.PAGE_WIDTH_IN
    column_in = (width_in - MARGIN_IN) / min(len(columns), _MAX_COLUMNS)
    strips = [max(_num_failing(found) for found in row) for row in rows]
    heights = [
        max(_height_in(found, column_in) for found in row) + _strip_in(strip)
        for row, strip in zip(rows, strips, strict=True)
    ]
    failing = set(numbers["status"]) & set(_LETTERS)
    canvas = Canvas.make(width_in, HEAD_IN + sum(heights) + (_LEGEND_IN if failing else 0) + MARGIN_IN)
    canvas.stamp(points[points["run"].isin(numbers["run"])])
    for number, row in enumerate(rows):
        for index, found in enumerate(row):
            left_in = MARGIN_IN + index * column_in
            _draw_column(canvas, found, (left_in, HEAD_IN + sum(heights[:number]), column_in), strips[number])
    legend = "   ".join(f"{_LETTERS[status]} {style.word(status)}" for status in _LETTERS if status in failing)
    canvas.text(MARGIN_IN, canvas.height_in - MARGIN_IN, legend, va="bottom", fontsize=style.SMALL_PT, weight="bold")
    return canvas.figure, numbers[PLOTTED]


def _num_failing(found: DataFrame) -> int:
    return int(found.loc[found["status"] != Status.OK, "layout"].nunique())


def _panels(found: DataFrame) -> list[Panel]:
    """Return what is drawn of a group: without GPUs there is less."""
    return [panel for panel in PANELS if found["power_of"].iloc[0] == "GPU" or not panel.of_gpu]


def _absent(found: DataFrame, panel: Panel) -> str | None:
    """Return why a whole panel is empty, or None if something is drawn in it."""
    if found[panel.column].notna().any():
        return None
    reasons = list(found["power_absent"].dropna().unique()) if panel.is_power else []
    if (found["status"] != Status.OK).all():
        return "no run of this column finished"
    return f"{style.absent(found)}: {reasons[0]}" if reasons else style.absent(found)


def _subtitle(found: DataFrame, width_in: float) -> list[str]:
    return wrapped(f"{found['place'].iloc[0]}: {found['setting'].iloc[0]}", width_in - 0.08, style.SMALL_PT)


def _height_in(found: DataFrame, width_in: float) -> float:
    panels = sum(_ABSENT_IN if _absent(found, panel) else _PANEL_IN for panel in _panels(found))
    titles = len(_panels(found)) * _TITLE_IN + _TITLE_IN + _LINE_IN * len(_subtitle(found, width_in))
    return float(titles + panels + _AXIS_IN + found["layout"].nunique() * _LEGEND_IN + 0.08)


def _strip_in(num_rows: int) -> float:
    """Return the height of the strip of points that gave no numbers. Unit: inch."""
    return _TITLE_IN + num_rows * _LETTER_IN if num_rows else 0.0


def _draw_column(canvas: Canvas, found: DataFrame, place: tuple[float, float, float], strip: int) -> None:
    """Draw all panels of one group.

    Args:
        canvas: The page.
        found: Points of the group.
        place: Left, top and width. Unit: inch.
        strip: Rows kept for points that gave no numbers, the same in all columns next to this one.
    """
    left_in, top_in, width_in = place
    title = shortened(str(found["model"].iloc[0]), width_in - 0.06, style.TEXT_PT + 0.8)
    canvas.text(left_in, top_in, title, weight="bold")
    top_in += _TITLE_IN - 0.03
    for line in _subtitle(found, width_in):
        canvas.text(left_in, top_in, line, fontsize=style.SMALL_PT, color=style.GREY)
        top_in += _LINE_IN
    axes_left_in, axes_in = left_in + 0.34, width_in - 0.34 - 0.1
    sizes = labels.batches(found["micro_batch_size"])
    if strip:
        canvas.text(left_in, top_in + 0.05, "gave no numbers", fontsize=style.SMALL_PT, color=style.GREY)
        top_in += _TITLE_IN
        _draw_letters(canvas.axes(axes_left_in, top_in, axes_in, strip * _LETTER_IN), found, sizes, strip)
        top_in += strip * _LETTER_IN
    axes = None
    for panel in _panels(found):
        reason = _absent(found, panel)
        height_in = _ABSENT_IN if reason else _PANEL_IN
        canvas.text(left_in, top_in + 0.05, _title(panel, found), fontsize=style.SMALL_PT + 0.5)
        top_in += _TITLE_IN
        axes = canvas.axes(axes_left_in, top_in, axes_in, height_in)
        if reason:
            _say(axes, wrapped(reason, axes_in - 0.1, style.SMALL_PT))
        else:
            _draw_lines(axes, found, panel, sizes)
        _scale_x(axes, sizes)
        top_in += height_in
    assert axes is not None, "there are panels"
    axes.set_xticklabels([str(size) for size in sizes])
    axes.set_xlabel("micro-batch size", labelpad=1)
    _draw_legend(canvas, found, left_in, top_in + _AXIS_IN)


def _title(panel: Panel, found: DataFrame) -> str:
    return panel.title.format(
        rank=labels.rank_word(found),
        source=found["power_of"].iloc[0],
        per=", mean over GPUs" if found["power_of"].iloc[0] == "GPU" else "",
        processor=found["utilisation_of"].iloc[0],
        device=found["power_peak_of"].iloc[0],
        prefix="m" if _in_millijoule(found) else "",
    )


def _in_millijoule(found: DataFrame) -> bool:
    return bool(found["energy_per_token_j"].max() < 1)


def _looks(found: DataFrame) -> dict[str, tuple[str, str, float]]:
    """Return colour, marker and sideways shift of each layout; the shift keeps bars of spread apart."""
    names = list(dict.fromkeys(found["layout"]))
    return {
        name: (
            style.LINES[index % len(style.LINES)],
            style.MARKERS[index % len(style.MARKERS)],
            (index - (len(names) - 1) / 2) * min(0.09, 0.5 / len(names)),
        )
        for index, name in enumerate(names)
    }


def _draw_lines(axes: Axes, found: DataFrame, panel: Panel, sizes: list[int]) -> None:
    factor = 1000 if panel.column == "energy_per_token_j" and _in_millijoule(found) else 1
    for name, (colour, marker, shift) in _looks(found).items():
        own = found[(found["layout"] == name) & (found["status"] == Status.OK)]
        at = np.array([sizes.index(int(size)) for size in own["micro_batch_size"]], dtype=float) + shift
        values = own[panel.column].to_numpy(float) * factor
        low, high, model_low, model_high, highest = (column_of(panel.column, end) for end in STATISTICS[1:6])
        if low in own:
            axes.vlines(at, own[low], own[high], color=colour, linewidth=1.2, alpha=0.5)
        if model_low in own:
            # Thin and dotted: what a model is known to is no spread of measurements.
            lows, highs = own[model_low] * factor, own[model_high] * factor
            axes.vlines(at, lows, highs, color=colour, linewidth=0.7, linestyle=":")
        if highest in own:
            axes.plot(at, own[highest], "^", color=colour, markersize=2, markeredgewidth=0, alpha=0.7)
        is_first = (~own["micro_batch_size"].duplicated()).to_numpy()
        line = np.full(len(sizes), np.nan)
        line[np.round(at[is_first]).astype(int)] = values[is_first]
        axes.plot(np.arange(len(sizes)) + shift, line, color=colour, marker=marker, markersize=3, markeredgewidth=0)
        axes.plot(at[~is_first], values[~is_first], marker, color=colour, markersize=3, markerfacecolor="white")
    if panel.column == "utilisation_percent":
        axes.set_ylim(0, 105)
    elif panel.from_zero:
        _scale_y(axes, found, panel, factor)
    if not panel.from_zero or panel.column == "utilisation_percent":
        axes.locator_params(axis="y", nbins=4)
    axes.grid(axis="y")


def _scale_y(axes: Axes, found: DataFrame, panel: Panel, factor: float) -> None:
    """Scale the axis of a quantity that begins at zero."""
    ends = [column_of(panel.column, end) for end in STATISTICS[:6] if column_of(panel.column, end) in found]
    values = found.loc[found["status"] == Status.OK, ends].to_numpy(float).ravel() * factor
    axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
    scale(axes, "y", values, 4)


def _draw_letters(axes: Axes, found: DataFrame, sizes: list[int], num_rows: int) -> None:
    failing = found[found["status"] != Status.OK]
    looks = _looks(found)
    for number, name in enumerate(dict.fromkeys(failing["layout"])):
        own = failing[failing["layout"] == name].drop_duplicates("micro_batch_size")
        for size, status in zip(own["micro_batch_size"], own["status"], strict=True):
            axes.text(
                sizes.index(int(size)), number, _LETTERS[status], color=looks[name][0], weight="bold",
                ha="center", va="center", fontsize=style.SMALL_PT,
            )  # fmt: skip
    axes.set_ylim(num_rows - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_facecolor(style.FAINT)
    axes.spines[:].set_visible(False)
    _scale_x(axes, sizes)
    axes.tick_params(bottom=False)


def _scale_x(axes: Axes, sizes: list[int]) -> None:
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_xticks(range(len(sizes)), labels=[""] * len(sizes))


def _say(axes: Axes, lines: list[str]) -> None:
    axes.set_facecolor(style.FAINT)
    axes.set_yticks([])
    text = "\n".join(lines[:3])
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=style.SMALL_PT)


def _draw_legend(canvas: Canvas, found: DataFrame, left_in: float, top_in: float) -> None:
    for number, (name, (colour, marker, _)) in enumerate(_looks(found).items()):
        middle_in = top_in + (number + 0.5) * _LEGEND_IN
        y = 1 - middle_in / canvas.height_in
        x = [(left_in + at) / canvas.width_in for at in (0.02, 0.13, 0.24)]
        whole_figure = canvas.figure.transFigure
        line = Line2D(x, [y] * 3, color=colour, marker=marker, markersize=3, markevery=[1], transform=whole_figure)
        canvas.figure.add_artist(line)
        canvas.text(left_in + 0.29, middle_in, name, va="center", fontsize=style.SMALL_PT)
