"""Inference over the sequences that start together: throughput, time to the first and further tokens, energy."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series, concat

from triplepoint.figures import labels
from triplepoint.figures import old_page as style
from triplepoint.figures.old_page import HEAD_IN, MARGIN_IN, Canvas
from triplepoint.figures.scales import scale
from triplepoint.status import Status
from triplepoint.tables.schema import column_of

_PANELS = {
    "tokens_per_s": "tokens made (token/s)",
    "time_to_first_token_s": "time to first token (s)",
    "time_per_output_token_s": "time per further token (s)",
    "gpu_energy_per_token_j": "GPU energy (J/token made)",
}
"""Columns of `points`, each with its spread over steps and the model's interval."""

_ENDS = ("p10", "p90", "lo", "hi")
_PLOTTED = [
    "group", "layout", "run", "repeat", "origin", "status", "reason", "global_batch_size", "prompt_tokens",
    "output_tokens", "num_measured_steps",
    *(column_of(column, end) for column in _PANELS for end in ("", *_ENDS)), "power_absent",
]  # fmt: skip
_PANEL_IN, _LEFT_IN, _BOTTOM_IN, _LEGEND_LINE_IN = 1.35, 0.55, 0.42, 0.13


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per point of inference.

    A line joins points that differ in nothing but the number of sequences.
    """
    points = tables["points"]
    points = points[points["task"] == "inference"]
    if points.empty:
        canvas = Canvas.make(style.COLUMN_WIDTH_IN, 0.8)
        canvas.stamp(tables["points"])
        canvas.text(style.COLUMN_WIDTH_IN / 2, 0.5, "no point of inference", ha="center", va="center")
        return canvas.figure, DataFrame(columns=_PLOTTED)
    points = with_lines(labels.prepare(points))
    lines = {str(name): DataFrame(found) for name, found in points.groupby("line", sort=False)}
    canvas = Canvas.make(
        style.PAGE_WIDTH_IN, HEAD_IN + _PANEL_IN + _BOTTOM_IN + _LEGEND_LINE_IN * len(lines) + MARGIN_IN
    )
    canvas.stamp(points)
    width_in = (style.PAGE_WIDTH_IN - MARGIN_IN) / len(_PANELS)
    for number, (column, label) in enumerate(_PANELS.items()):
        axes = canvas.axes(number * width_in + _LEFT_IN, HEAD_IN + 0.05, width_in - _LEFT_IN - 0.08, _PANEL_IN)
        _draw_panel(axes, column, label, lines)
    canvas.figure.legend(
        *canvas.figure.axes[0].get_legend_handles_labels(), loc="lower center", borderpad=0, labelspacing=0.3,
        bbox_to_anchor=(0.5, MARGIN_IN / canvas.height_in), fontsize=style.SMALL_PT,
    )  # fmt: skip
    return canvas.figure, points[_PLOTTED]


def with_lines(points: DataFrame) -> DataFrame:
    """Return points with the line each is on."""
    return points.assign(line=[_name(row, points) for _, row in points.iterrows()])


def _name(row: Series, points: DataFrame) -> str:
    """Return the name of the line a point is on: all it is but for its batch, and the precision always."""
    asked = f"{int(row['prompt_tokens'])} tokens read, {int(row['output_tokens'])} made"
    usual = {column for column in labels.SETTING if points[column].nunique() < 2} - {"precision"}
    without = tuple({*labels.SIZES, "recompute", "overlap", *usual})
    return f"{row['group']}, {row['layout']}, {labels.setting_text(row, without)}, {asked}"


def _draw_panel(axes: Axes, column: str, label: str, lines: dict[str, DataFrame]) -> None:
    for number, (name, found) in enumerate(lines.items()):
        done = found[found["status"] == Status.OK].dropna(subset=[column]).sort_values("global_batch_size")
        at, colour = done["global_batch_size"], style.LINES[number % len(style.LINES)]
        low, high, model_low, model_high = (done[column_of(column, end)] for end in _ENDS)
        axes.vlines(at, low, high, color=colour, linewidth=1.6, alpha=0.45)
        # Thin and dotted: what a model is known to is no spread of measurements.
        axes.vlines(at, model_low, model_high, color=colour, linewidth=0.7, linestyle=":")
        axes.plot(
            at, done[column].astype(float), label=name, markersize=3, linewidth=0.9, color=colour,
            marker=style.MARKERS[number % len(style.MARKERS)],
        )  # fmt: skip
    sizes = sorted({size for found in lines.values() for size in labels.batches(found["global_batch_size"])})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("sequences together", labelpad=1)
    axes.set_ylabel(label, labelpad=2)
    ends = [column_of(column, end) for end in ("", *_ENDS)]
    done = concat([found[found["status"] == Status.OK] for found in lines.values()])
    values = done[ends].to_numpy(float).ravel()
    if not np.isfinite(values).any():
        absent = list(done["power_absent"].dropna())
        text = absent[0] if absent and column == "gpu_energy_per_token_j" else style.absent(done)
        axes.text(
            0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=style.SMALL_PT, wrap=True
        )
        axes.set_yticks([])
        return
    scale(axes, "y", values, 4)
