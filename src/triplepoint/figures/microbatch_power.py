"""What a larger micro-batch does to speed, power, heat and clocks: a column of panels per model, a line per layout."""

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
from triplepoint.figures.parallelism_sweep import Quantity, published_of, share_y
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
"""What there is of points without GPUs."""

_ANSWERED = {
    "tokens_per_s_per_gpu": "speed",
    "gpu_power_w": "power",
    "gpu_power_peak_w": "peak power",
    "gpu_temp_c": "temperature",
    "gpu_temp_max_c": "hottest GPU",
    "sm_clock_mhz": "clock",
    "gpu_energy_per_token_j": "energy per token",
    "peak_memory_bytes": "memory",
}
"""Columns, and what their changes are called; the first is that of the title."""
_ANSWERED_OF_HOSTS = {
    "tokens_per_s_per_gpu": "speed",
    "job_host_power_w": "host power",
    "cpu_utilisation": "CPU use",
    "peak_memory_bytes": "memory",
}
"""The same of points without GPUs."""
_NAMES = (
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

    In each column only layout and micro-batch size differ: see `labels.common_setting`. Layouts that were tried at one
    size alone are left out where others were tried at several.

    Args:
        tables: `points` and `published`.
    """
    prepared = labels.prepare(tables["points"])
    chosen = swept(
        concat(
            [
                labels.common_setting(members, free=("micro_batch_size",)).assign(
                    setting=lambda found: labels.setting_text(found.iloc[0], without=("micro_batch_size",))
                )
                for _, members in prepared.groupby("group", sort=False)
            ],
            ignore_index=True,
        )
    )
    chosen["is_sharded"] = chosen["data_parallel_sharding"] == "optim_grads_params"
    found = HOST_QUANTITIES if (chosen["device_type"] == "cpu").all() else QUANTITIES
    quantities = [one for number, one in enumerate(found) if not number or chosen[one.column].notna().any()]
    numbers = _numbers(chosen, tables.get("published"), quantities)
    groups = [DataFrame(found) for _, found in numbers.groupby("group", sort=False)]
    change = answer(without_far(chosen))
    page = style.new_page(
        change if isinstance(change, str) else change.answer, chosen, len(quantities), len(groups),
        style.PAGE if len(groups) > 1 else style.COLUMN, min(style.TALLEST, 1.9 + 1.05 * len(quantities)),
        NOTE, sharex="col",
    )  # fmt: skip
    if isinstance(change, Change):
        page.beside([change.short(_asked(chosen).get(one.column, "")) for one in quantities], heading(change))
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
    """Return the layouts that were tried at several micro-batch sizes; all of them if none was."""
    is_swept = points.groupby(["group", "layout"])["micro_batch_size"].transform("nunique") > 1
    return points[is_swept].reset_index(drop=True) if is_swept.any() else points


def without_far(points: DataFrame) -> DataFrame:
    """Return points without layouts that are far slower than others of their group at the smallest micro-batch."""
    kept = []
    for _, found in points.groupby("group", sort=False):
        smallest = found[found["micro_batch_size"] == found["micro_batch_size"].min()]
        kept.append(found[~found["layout"].isin(list(far_slower(smallest)))])
    return concat(kept)


def answer(points: DataFrame) -> Change | str:
    """Return what the largest micro-batch that most layouts ran at does, against the smallest."""
    done = points[points["status"] == Status.OK]
    sizes = labels.batches(done["micro_batch_size"])
    if len(sizes) < 2:
        return "No two micro-batch sizes finished"
    first = sizes[0]
    keys, setting = ["group", "layout"], "micro_batch_size"
    ran = {size: len(pair_points(done, "tokens_per_s_per_gpu", keys, setting, first, size)) for size in sizes[1:]}
    last = max(size for size, num in ran.items() if 2 * num >= max(ran.values()))
    words = f"micro-batch {first}", f"micro-batch {last}"
    return change_of_pairs(done, keys, setting, (first, last), _asked(points), words)


def _asked(points: DataFrame) -> Mapping[str, str]:
    """Return the columns whose changes are given, and what they are called."""
    return _ANSWERED_OF_HOSTS if (points["device_type"] == "cpu").all() else _ANSWERED


def heading(change: Change) -> str:
    """Return what stands above the changes at the right of the page."""
    sizes = " against ".join(words.removeprefix("micro-batch ") for words in (change.subject, change.base))
    return f"{sizes},\n" + titles.mean_of(change.num, titles.LAYOUT).replace(" of ", " of\n")


def _numbers(points: DataFrame, published: DataFrame | None, quantities: Sequence[Quantity]) -> DataFrame:
    drawn = {one.column for one in quantities}
    said = [name for name in _asked(points) if name in points and name not in drawn and points[name].notna().any()]
    columns = [*_NAMES, *said]
    for one in quantities:
        names = [one.column, *(column_of(one.column, end) for end in ("p10", "p90", "lo", "hi")), one.limit[0]]
        columns += [name for name in names if name in points and name not in columns]
    numbers = points[columns].copy()
    for one in quantities:
        values = published_of(published, points["run"], one.column)
        if values.notna().any():
            numbers[f"published_{one.column}"] = values
    return numbers


def draw_panel(axes: Axes, found: DataFrame, quantity: Quantity, is_first: bool) -> list[Artist]:
    """Draw a line per layout over the micro-batch size, and return what of it needs a legend.

    Args:
        axes: The panel.
        found: Numbers of one model.
        quantity: What to draw.
        is_first: Whether to name limits: panels beside it have the same.
    """
    sizes = labels.batches(found["micro_batch_size"])
    handles: list[Artist] = []
    for own, at in _lines(found):
        handles += _draw_line(axes, own, quantity, at)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axes.locator_params(axis="y", nbins=4)
    if quantity.from_zero:
        highest = drawing.limit_of(found[quantity.column] * quantity.scale)
        _break_off(axes, found, quantity, highest)
        axes.set_ylim(0, 1.6 * highest if (found[quantity.column] * quantity.scale > highest).any() else None)
    if quantity.limit[0] in found and found[quantity.limit[0]].notna().any():
        value = float(found[quantity.limit[0]].max())
        drawing.draw_limit(axes, value, quantity.limit[1].format(value) if is_first else "")
    return handles


def _draw_line(axes: Axes, own: DataFrame, quantity: Quantity, places: np.ndarray) -> list[Artist]:
    mark = marks.of_layout(int(own["tp"].iloc[0]), bool(own["is_sharded"].iloc[0]))
    values = own[quantity.column].to_numpy(float) * quantity.scale
    is_done = (own["status"] == Status.OK).to_numpy()
    axes.plot(
        places[is_done], values[is_done], marker=mark.marker, color=mark.colour,
        linestyle=":" if own["is_sharded"].iloc[0] else "-",
    )  # fmt: skip
    ends = ("lo", "hi") if (own["origin"] == "simulated").all() else ("p10", "p90")
    low, high = (_end(own, quantity, end)[is_done] for end in ends)
    axes.fill_between(places[is_done], low, high, color=mark.colour, alpha=0.12, linewidth=0)
    published = own.get(f"published_{quantity.column}")
    if published is None or published.isna().all():
        return []
    drawn = drawing.draw_published(axes, list(places), list(published.to_numpy(float) * quantity.scale))
    drawn.set_color(mark.colour)  # type: ignore[attr-defined]
    return [Line2D([], [], color=marks.BLACK, marker="D", markerfacecolor="none", linestyle="none", label="published")]


def _lines(found: DataFrame) -> Iterator[tuple[DataFrame, np.ndarray]]:
    """Yield the points of each layout in the order of sizes, with their places along x."""
    sizes = labels.batches(found["micro_batch_size"])
    names = list(dict.fromkeys(found["layout"]))
    shift = 0.4 / max(len(names), 1)
    for number, name in enumerate(names):
        own = found[(found["layout"] == name)].sort_values("micro_batch_size", kind="stable")
        offset = (number - (len(names) - 1) / 2) * shift
        yield own, np.array([sizes.index(int(size)) + offset for size in own["micro_batch_size"]])


def write_statuses(axes: Axes, found: DataFrame, quantity: Quantity) -> None:
    """Write what became of points that gave no numbers, at the foot of a finished panel or where a line is in the way.

    Args:
        axes: The panel.
        found: Numbers of one model.
        quantity: What is drawn in it.
    """
    low, high = axes.get_ylim()
    heights = (found[quantity.column] * quantity.scale - low) / (high - low)
    for own, places in _lines(found):
        colour = marks.of_layout(int(own["tp"].iloc[0]), bool(own["is_sharded"].iloc[0])).colour
        for place, size, status in zip(places, own["micro_batch_size"], own["status"], strict=True):
            if status == Status.OK:
                continue
            beside = heights[(found["micro_batch_size"] == size) & (found["status"] == Status.OK)]
            is_high = bool((beside < _TEXT).any() and not (beside > 1 - _TEXT).any())
            axes.text(
                place, 0.97 if is_high else 0.03, style.word(status), transform=axes.get_xaxis_transform(),
                color=colour, ha="center", va="top" if is_high else "bottom", rotation=90, fontsize=style.TEXT_PT,
            )  # fmt: skip


_TEXT = 0.4
"""Part of a panel's height that the text of a status may take."""


def _break_off(axes: Axes, found: DataFrame, quantity: Quantity, limit: float) -> None:
    """Write the numbers that are not on the axis at its upper edge."""
    sizes = labels.batches(found["micro_batch_size"])
    for _, row in found[found["status"] == Status.OK].iterrows():
        value = float(row[quantity.column]) * quantity.scale
        drawing.break_off(axes, sizes.index(int(row["micro_batch_size"])), value, limit, f"{value:.2g}")


def _end(own: DataFrame, quantity: Quantity, end: str) -> np.ndarray:
    column = column_of(quantity.column, end)
    return own[column].to_numpy(float) * quantity.scale if column in own else np.full(len(own), np.nan)


def legend_of_layouts(numbers: DataFrame) -> list[Artist]:
    """Return what the legend shows of lines by degree of tensor parallelism and sharding."""
    keys = sorted({(bool(row["is_sharded"]), int(row["tp"])) for _, row in numbers.iterrows()})
    return [
        drawing.as_line(
            marks.of_layout(tp, is_sharded)._replace(name=f"TP{tp} FSDP" if is_sharded else f"TP{tp}"),
            linestyle=":" if is_sharded else "-",
        )
        for is_sharded, tp in keys
    ]
