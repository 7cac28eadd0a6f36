"""Figure `inference_batch`: inference over batch size, a column of panels per model and prompt, a line per layout."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame, Series

from triplepoint import effects
from triplepoint.effects.equal_work import change_of_pairs
from triplepoint.effects.titles import Change
from triplepoint.figures import drawing, labels, marks, style
from triplepoint.figures.microbatch_power import legend_of_layouts
from triplepoint.figures.quantities import Quantity, interval_of, known
from triplepoint.status import Status
from triplepoint.tables.schema import column_of
from triplepoint.units import counted

QUANTITIES = (
    Quantity("tokens_per_s_per_gpu", "generated\n(token/s per {rank})"),
    Quantity("time_to_first_token_s", "to first\ntoken (s)"),
    Quantity("time_per_output_token_s", "per further\ntoken (ms)", scale=1e3),
    Quantity("gpu_power_w", "GPU power\n(W)", limit=("gpu_power_limit_w", "limit {:.0f} W"), from_zero=False),
    Quantity("gpu_energy_per_token_j", "energy (J per\ngenerated token)"),
)
"""Rows of panels. The axes that begin at zero are logarithmic here, since values span decades."""
_QUANTITY_NAMES = {
    "tokens_per_s_per_gpu": "tokens per second",
    "time_to_first_token_s": "time to the first token",
    "time_per_output_token_s": "time per further token",
    "gpu_power_w": "power",
    "gpu_energy_per_token_j": "energy per token",
}
NOTE = (
    "Lines with caps: {intervals}. Right: mean change over layouts, with its 90 % t interval over layouts; a range "
    "where layouts disagree on the sign."
)
_COLUMNS = [
    "panel", "line", "group", "layout", "tp", "is_sharded", "run", "repeat", "origin", "status", "reason",
    "global_batch_size", "prompt_tokens", "output_tokens", "num_gpus", "num_measured_steps", "power_absent",
]  # fmt: skip
_ENDS = ("p10", "p90", "lo", "hi")


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per point of inference.

    A line joins points that differ only in the number of sequences.
    """
    points = tables["points"]
    points = points[points["task"] == "inference"]
    if points.empty:
        page = style.new_page("No point of inference", tables["points"])
        drawing.write_reason(page.axes[0][0], "no point of inference")
        return page.finish(), DataFrame(columns=_COLUMNS)
    points = with_lines(labels.prepare(points))
    drawn = known(QUANTITIES, points)
    columns = [column_of(quantity.column, end) for quantity in drawn for end in ("", *_ENDS)]
    limits = [quantity.limit[0] for quantity in drawn if quantity.limit[0]]
    numbers = points[[*_COLUMNS, *(name for name in columns if name in points), *limits]]
    panels = [DataFrame(members) for _, members in numbers.groupby("panel", sort=False)]
    change = answer(points)
    page = style.new_page(
        change if isinstance(change, str) else change.answer, points, len(drawn), len(panels),
        style.PAGE if len(panels) > 1 else style.COLUMN, min(style.TALLEST, 2.0 + 1.05 * len(drawn)),
        NOTE, sharex="col",
    )  # fmt: skip
    page.head([str(members["panel"].iloc[0]).partition("\n")[::2] for members in panels])
    if isinstance(change, Change):
        page.beside([change.short(_QUANTITY_NAMES[quantity.column]) for quantity in drawn], _heading(change))
    handles: list[Artist] = []
    for col, members in enumerate(panels):
        for row, quantity in enumerate(drawn):
            handles += _draw_panel(page.axes[row][col], members, quantity, not col)
        page.axes[-1][col].set_xlabel("sequences together")
    for row, quantity in enumerate(drawn):
        page.axes[row][0].set_ylabel(quantity.title.format(rank=labels.rank_word(points)))
    page.figure.align_ylabels(page.figure.axes)
    # The degrees of tensor parallelism are a sufficient legend if they distinguish all lines of each panel.
    is_short = numbers.groupby(["panel", "is_sharded", "tp"])["line"].nunique().max() < 2
    page.legend(legend_of_layouts(numbers) if is_short else handles)
    return page.finish(), numbers


def with_lines(points: DataFrame) -> DataFrame:
    """Return prepared points with columns `panel` and `line`: the head of their panel and the name of their line."""
    points = points.assign(line=[_line_name(row, points) for _, row in points.iterrows()])
    has_places = points["group"].nunique() > points["model"].nunique()
    subject = points["group"].str.replace(" on ", "\non ") if has_places else points["model"]
    prompt = Series(
        [f"{int(row['prompt_tokens'])} tokens in, {int(row['output_tokens'])} out" for _, row in points.iterrows()],
        points.index,
    )
    num_sizes = points.groupby([subject, prompt])["num_gpus"].transform("nunique")
    gpus = [
        f", {counted(int(num_gpus), 'GPU')}" if num < 2 else ""
        for num_gpus, num in zip(points["num_gpus"], num_sizes, strict=True)
    ]
    return points.assign(panel=subject + "\n" + prompt + Series(gpus, points.index))


def _heading(change: Change) -> str:
    """Return the heading of the column of changes at the right of the page."""
    first, last = (words.partition(" ")[0].replace("one", "1") for words in (change.base, change.subject))
    return f"{last} against {first},\nmean of\n{counted(change.num, 'layout')}"


def answer(points: DataFrame) -> Change | str:
    """Return the effect of the most sequences against the fewest; a title if only one number of sequences finished.

    The most sequences are the largest number among those that most layouts ran with.
    """
    done = points[points["status"] == Status.OK]
    keys = ["group", "line", "prompt_tokens", "output_tokens"]
    sizes = labels.distinct_sizes(done["global_batch_size"])
    if len(sizes) < 2:
        return "No two numbers of sequences finished"
    first = sizes[0]
    ran = {
        size: len(effects.pair_points(done, "tokens_per_s_per_gpu", keys, "global_batch_size", first, size))
        for size in sizes[1:]
    }
    last = max(size for size, num in ran.items() if num == max(ran.values()))
    words = "one" if first == 1 else f"{first}", f"{last} sequences at once"
    return change_of_pairs(done, keys, "global_batch_size", (first, last), _QUANTITY_NAMES, words)


def _line_name(row: Series, points: DataFrame) -> str:
    """Return the name of the line of a point: its layout, and the settings that differ between points."""
    usual = {column for column in labels.SETTING if points[column].nunique() < 2}
    without = tuple({*labels.SIZES, "recompute", "overlap", "prompt_tokens", "output_tokens", *usual})
    return " ".join(filter(None, [row["layout"], labels.setting_text(row, without)]))


def _draw_panel(axes: Axes, numbers: DataFrame, quantity: Quantity, is_left: bool) -> list[Artist]:
    """Draw a line per layout over the number of sequences, and return the legend entries."""
    handles: list[Artist] = []
    for name, points in numbers.groupby("line", sort=False):
        points = DataFrame(points).sort_values("global_batch_size", kind="stable")
        mark = marks.of_layout(int(points["tp"].iloc[0]), bool(points["is_sharded"].iloc[0]))
        done = points[(points["status"] == Status.OK) & points[quantity.column].notna()]
        at = done["global_batch_size"].to_numpy(float)
        line: Literal[":", "-"] = ":" if points["is_sharded"].iloc[0] else "-"
        values = done[quantity.column].to_numpy(float) * quantity.scale
        axes.plot(at, values, color=mark.colour, marker=mark.marker, linestyle=line)
        for _, row in done.iterrows():
            low, high = interval_of(row, quantity.column, quantity.scale)
            drawing.draw_interval(axes, float(row["global_batch_size"]), low, high, mark.colour)
        handles.append(Line2D([], [], color=mark.colour, marker=mark.marker, linestyle=line, label=str(name)))
    axes.set_xscale("log", base=2)
    sizes = labels.distinct_sizes(numbers["global_batch_size"])
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    if numbers[quantity.column].notna().any():
        drawing.log_axis(axes) if quantity.from_zero else axes.locator_params(axis="y", nbins=4)
    else:
        drawing.write_absent(axes, numbers)
    limit = numbers[quantity.limit[0]].max() if quantity.limit[0] else np.nan
    drawing.draw_limit(axes, float(limit), quantity.limit[1].format(limit) if is_left else "")
    return handles
