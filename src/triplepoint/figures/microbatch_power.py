"""Figure `microbatch_power`: speed, power, temperature and clock over micro-batch size, a line per layout."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame, concat

from triplepoint.effects import far_slower, pair_points, titles
from triplepoint.effects.equal_work import change_of_pairs
from triplepoint.effects.titles import Change
from triplepoint.figures import drawing, labels, marks, style
from triplepoint.figures.quantities import Quantity, columns_of, known, published_of, share_y
from triplepoint.status import Status
from triplepoint.tables.schema import column_of

QUANTITIES = (
    Quantity("tokens_per_s_per_gpu", "token/s\nper {rank}"),
    Quantity("gpu_power_w", "GPU power\n(W)", limit=("gpu_power_limit_w", "power limit {:.0f} W"), from_zero=False),
    Quantity("gpu_power_peak_w", "peak power\n(W)", limit=("gpu_power_limit_w", ""), from_zero=False),
    Quantity("gpu_temp_c", "GPU\n(°C)", limit=("gpu_throttle_temp_c", "throttled at {:.0f} °C"), from_zero=False),
    Quantity("sm_clock_mhz", "mean clock\n(GHz)", scale=1e-3, from_zero=False),
    Quantity("gpu_energy_per_token_j", "energy\n(J/token)"),
)
HOST_QUANTITIES = (
    QUANTITIES[0],
    Quantity("job_host_power_w", "host power\n(W)"),
    Quantity("cpu_utilisation", "CPU use\n(%)", scale=100),
)
"""Quantities of points without GPUs."""

_NAMES = {
    "tokens_per_s_per_gpu": "speed",
    "gpu_power_w": "power",
    "gpu_power_peak_w": "peak power",
    "gpu_temp_c": "temperature",
    "gpu_temp_max_c": "hottest GPU",
    "sm_clock_mhz": "clock",
    "gpu_energy_per_token_j": "energy per token",
    "peak_memory_bytes": "memory",
}
"""Names of quantities in texts on their changes, by column; the first is the one of the title."""
_HOST_NAMES = {
    "tokens_per_s_per_gpu": "speed",
    "job_host_power_w": "host power",
    "cpu_utilisation": "CPU use",
    "peak_memory_bytes": "memory",
}
"""Like `_NAMES`, for points without GPUs."""
_COLUMNS = (
    "group", "setting", "layout", "tp", "pp", "is_sharded", "micro_batch_size", "run", "repeat", "origin", "status",
    "reason", "num_gpus",
)  # fmt: skip
NOTE = (
    "Bands: {intervals}. Right: mean change over layouts, with its 90 % t interval over layouts; a range where layouts "
    "disagree on the sign."
)


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per point.

    In each column of panels only layout and micro-batch size differ. Layouts that ran at one size are left out if
    others ran at several.

    Args:
        tables: `points` and `published`.
    """
    prepared = labels.prepare(tables["points"])
    chosen = swept(
        concat(
            [
                labels.common_setting(members, free=("micro_batch_size",)).assign(
                    setting=lambda points: labels.setting_text(points.iloc[0], without=("micro_batch_size",))
                )
                for _, members in prepared.groupby("group", sort=False)
            ],
            ignore_index=True,
        )
    )
    quantities = known(HOST_QUANTITIES if (chosen["device_type"] == "cpu").all() else QUANTITIES, chosen)
    numbers = _numbers(chosen, tables.get("published"), quantities)
    groups = [DataFrame(members) for _, members in numbers.groupby("group", sort=False)]
    change = answer(without_far(chosen))
    page = style.new_page(
        change if isinstance(change, str) else change.answer, chosen, len(quantities), len(groups),
        style.PAGE if len(groups) > 1 else style.COLUMN, min(style.TALLEST, 1.9 + 1.05 * len(quantities)),
        NOTE, sharex="col",
    )  # fmt: skip
    if isinstance(change, Change):
        names = _quantity_names(chosen)
        page.beside([change.short(names.get(quantity.column, "")) for quantity in quantities], heading(change))
    handles: list[Artist] = []
    page.head([(str(group["group"].iloc[0]).split(" on ")[0], "") for group in groups])
    for col, group in enumerate(groups):
        for row, quantity in enumerate(quantities):
            handles += draw_panel(page.axes[row][col], group, quantity, is_first=not col)
        page.axes[-1][col].set_xlabel("micro-batch size")
    for row, quantity in enumerate(quantities):
        page.axes[row][0].set_ylabel(quantity.title.format(rank=labels.rank_word(chosen)))
        if quantity.limit[0] or not quantity.from_zero:
            share_y(page.axes[row])
    for axes, group in zip(page.axes[0], groups, strict=True):
        write_statuses(axes, group, quantities[0])
    page.figure.align_ylabels(page.figure.axes)
    page.legend(legend_of_layouts(numbers) + handles)
    return page.finish(), numbers


def swept(points: DataFrame) -> DataFrame:
    """Return the points of layouts that ran at several micro-batch sizes; all points if there is no such layout."""
    is_swept = points.groupby(["group", "layout"])["micro_batch_size"].transform("nunique") > 1
    return points[is_swept].reset_index(drop=True) if is_swept.any() else points


def without_far(points: DataFrame) -> DataFrame:
    """Return points without layouts that are far slower than all others of their group at the smallest micro-batch."""
    kept = []
    for _, members in points.groupby("group", sort=False):
        smallest = members[members["micro_batch_size"] == members["micro_batch_size"].min()]
        kept.append(members[~members["layout"].isin(list(far_slower(smallest)))])
    return concat(kept)


def answer(points: DataFrame) -> Change | str:
    """Return the effect of a large micro-batch against the smallest; a title if only one size finished.

    The large one is the largest that at least half as many layouts ran with as with any other.
    """
    done = points[points["status"] == Status.OK]
    sizes = labels.distinct_sizes(done["micro_batch_size"])
    if len(sizes) < 2:
        return "No two micro-batch sizes finished"
    first = sizes[0]
    keys, setting = ["group", "layout"], "micro_batch_size"
    ran = {size: len(pair_points(done, "tokens_per_s_per_gpu", keys, setting, first, size)) for size in sizes[1:]}
    last = max(size for size, num in ran.items() if 2 * num >= max(ran.values()))
    words = f"micro-batch {first}", f"micro-batch {last}"
    return change_of_pairs(done, keys, setting, (first, last), _quantity_names(points), words)


def _quantity_names(points: DataFrame) -> Mapping[str, str]:
    """Return the names of the quantities whose changes are computed, by column."""
    return _HOST_NAMES if (points["device_type"] == "cpu").all() else _NAMES


def heading(change: Change) -> str:
    """Return the heading of the column of changes at the right of the page."""
    sizes = " against ".join(words.removeprefix("micro-batch ") for words in (change.subject, change.base))
    return f"{sizes},\n" + titles.mean_of(change.num, titles.LAYOUT).replace(" of ", " of\n")


def _numbers(points: DataFrame, published: DataFrame | None, quantities: Sequence[Quantity]) -> DataFrame:
    """Return the plotted numbers: names, quantities in texts, quantities in panels, and published values."""
    drawn = {quantity.column for quantity in quantities}
    in_texts = [
        name for name in _quantity_names(points) if name in points and name not in drawn and points[name].notna().any()
    ]
    numbers = points[list(dict.fromkeys([*_COLUMNS, *in_texts, *columns_of(quantities, points)]))].copy()
    for quantity in quantities:
        values = published_of(published, points["run"], quantity.column)
        if values.notna().any():
            numbers[f"published_{quantity.column}"] = values
    return numbers


def draw_panel(axes: Axes, numbers: DataFrame, quantity: Quantity, is_first: bool) -> list[Artist]:
    """Draw a line per layout over micro-batch size, and return the legend entries of published values.

    Args:
        axes: The panel.
        numbers: Numbers of one model.
        quantity: The quantity.
        is_first: Whether the panel is the first of its row, which names the limit.
    """
    sizes = labels.distinct_sizes(numbers["micro_batch_size"])
    handles: list[Artist] = []
    for line, positions in _lines(numbers):
        handles += _draw_line(axes, line, quantity, positions)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.locator_params(axis="y", nbins=4)
    if quantity.from_zero:
        highest = drawing.highest_shown(numbers[quantity.column] * quantity.scale)
        _break_off(axes, numbers, quantity, highest)
        axes.set_ylim(0, 1.6 * highest if (numbers[quantity.column] * quantity.scale > highest).any() else None)
    if quantity.limit[0] in numbers and numbers[quantity.limit[0]].notna().any():
        value = float(numbers[quantity.limit[0]].max())
        drawing.draw_limit(axes, value, quantity.limit[1].format(value) if is_first else "")
    return handles


def _draw_line(axes: Axes, points: DataFrame, quantity: Quantity, positions: np.ndarray) -> list[Artist]:
    """Draw the line and the band of one layout, and return the legend entries of published values.

    Args:
        axes: The panel.
        points: Points of the layout in the order of micro-batch sizes.
        quantity: The quantity.
        positions: Position of each point on the x axis. Shape (num_points,).
    """
    mark = marks.of_layout(int(points["tp"].iloc[0]), bool(points["is_sharded"].iloc[0]))
    values = points[quantity.column].to_numpy(float) * quantity.scale
    is_done = (points["status"] == Status.OK).to_numpy()
    axes.plot(
        positions[is_done], values[is_done], marker=mark.marker, color=mark.colour,
        linestyle=":" if points["is_sharded"].iloc[0] else "-",
    )  # fmt: skip
    ends = ("lo", "hi") if (points["origin"] == "simulated").all() else ("p10", "p90")
    low, high = (_end(points, quantity, end)[is_done] for end in ends)
    axes.fill_between(positions[is_done], low, high, color=mark.colour, alpha=0.12, linewidth=0)
    published = points.get(f"published_{quantity.column}")
    if published is None or published.isna().all():
        return []
    drawn = drawing.draw_published(axes, list(positions), list(published.to_numpy(float) * quantity.scale))
    drawn.set_color(mark.colour)  # type: ignore[attr-defined]
    return [Line2D([], [], color=marks.BLACK, marker="D", markerfacecolor="none", linestyle="none", label="published")]


def _lines(numbers: DataFrame) -> Iterator[tuple[DataFrame, np.ndarray]]:
    """Yield the points of each layout in the order of micro-batch sizes, and their positions on the x axis."""
    sizes = labels.distinct_sizes(numbers["micro_batch_size"])
    names = list(dict.fromkeys(numbers["layout"]))
    shift = 0.4 / max(len(names), 1)
    for number, name in enumerate(names):
        points = numbers[(numbers["layout"] == name)].sort_values("micro_batch_size", kind="stable")
        offset = (number - (len(names) - 1) / 2) * shift
        yield points, np.array([sizes.index(int(size)) + offset for size in points["micro_batch_size"]])


def write_statuses(axes: Axes, numbers: DataFrame, quantity: Quantity) -> None:
    """Write the status of points without numbers at the bottom of a panel, or at the top if a line is in the way.

    Args:
        axes: The panel, in which the quantity is drawn already.
        numbers: Numbers of one model.
        quantity: The quantity of the panel.
    """
    low, high = axes.get_ylim()
    heights = (numbers[quantity.column] * quantity.scale - low) / (high - low)
    for line, places in _lines(numbers):
        colour = marks.of_layout(int(line["tp"].iloc[0]), bool(line["is_sharded"].iloc[0])).colour
        for place, size, status in zip(places, line["micro_batch_size"], line["status"], strict=True):
            if status == Status.OK:
                continue
            lines = heights[(numbers["micro_batch_size"] == size) & (numbers["status"] == Status.OK)]
            is_high = bool((lines < _TEXT).any() and not (lines > 1 - _TEXT).any())
            axes.text(
                place, 0.97 if is_high else 0.03, style.status_text(status), transform=axes.get_xaxis_transform(),
                color=colour, ha="center", va="top" if is_high else "bottom", rotation=90, fontsize=style.TEXT_PT,
            )  # fmt: skip


_TEXT = 0.4
"""Share of the height of a panel that the text of a status may take."""


def _break_off(axes: Axes, numbers: DataFrame, quantity: Quantity, limit: float) -> None:
    """Mark the values above `limit` at the top of the panel."""
    sizes = labels.distinct_sizes(numbers["micro_batch_size"])
    for _, row in numbers[numbers["status"] == Status.OK].iterrows():
        value = float(row[quantity.column]) * quantity.scale
        drawing.break_off(axes, sizes.index(int(row["micro_batch_size"])), value, limit, f"{value:.2g}")


def _end(points: DataFrame, quantity: Quantity, end: str) -> np.ndarray:
    """Return one end of the intervals of a quantity, NaN where there is none. Shape (num_points,)."""
    column = column_of(quantity.column, end)
    return points[column].to_numpy(float) * quantity.scale if column in points else np.full(len(points), np.nan)


def legend_of_layouts(numbers: DataFrame) -> list[Artist]:
    """Return the legend entries of lines, by degree of tensor parallelism and sharding."""
    keys = sorted({(bool(row["is_sharded"]), int(row["tp"])) for _, row in numbers.iterrows()})
    return [
        drawing.as_line(
            marks.of_layout(tp, is_sharded)._replace(name=f"TP{tp} FSDP" if is_sharded else f"TP{tp}"),
            linestyle=":" if is_sharded else "-",
        )
        for is_sharded, tp in keys
    ]
