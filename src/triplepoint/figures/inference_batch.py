"""Inference over the number of sequences that start together: throughput, time to the first token, energy per token."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from triplepoint.figures import labels, style
from triplepoint.figures.canvas import HEAD_IN, MARGIN_IN, Canvas

TABLES = ("points",)

_PANELS = {
    "tokens_per_s": "tokens made (token/s)",
    "time_to_first_token_s": "time to first token (s)",
    "gpu_energy_per_token_j": "GPU energy (J/token made)",
}
_PLOTTED = [
    "group", "layout", "run", "repeat", "origin", "status", "reason", "global_batch_size", "prompt_tokens",
    "output_tokens", "num_measured_steps", "tokens_per_s", "time_to_first_token_s", "time_to_first_token_p10_s",
    "time_to_first_token_p90_s", "time_per_output_token_s", "gpu_energy_per_token_j", "power_absent",
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
    points = labels.prepare(points)
    keys = ["group", "layout", "precision", "prompt_tokens", "output_tokens"]
    lines = {_name(found.iloc[0]): found for _, found in points.groupby(keys, sort=False)}
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


def _name(row: Series) -> str:
    asked = f"{int(row['prompt_tokens'])} tokens read, {int(row['output_tokens'])} made"
    return f"{row['group']}, {row['layout']}, {row['precision']}, {asked}"


def _draw_panel(axes: Axes, column: str, label: str, lines: dict[str, DataFrame]) -> None:
    for number, (name, found) in enumerate(lines.items()):
        done = found[found["status"] == "ok"].dropna(subset=[column]).sort_values("global_batch_size")
        axes.plot(
            done["global_batch_size"], done[column].astype(float), label=name, markersize=3, linewidth=0.9,
            color=style.LINES[number % len(style.LINES)], marker=style.MARKERS[number % len(style.MARKERS)],
        )  # fmt: skip
    sizes = sorted({size for found in lines.values() for size in labels.batches(found["global_batch_size"])})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("sequences together", labelpad=1)
    axes.set_ylabel(label, labelpad=2)
    values = [value for found in lines.values() for value in found[column].dropna()]
    if not values:
        absent = [reason for found in lines.values() for reason in found["power_absent"].dropna()]
        text = absent[0] if absent and column.startswith("gpu_energy") else "not measured"
        axes.text(
            0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=style.SMALL_PT, wrap=True
        )
        axes.set_yticks([])
        return
    axes.set_ylim(0, 1.08 * max(values))
