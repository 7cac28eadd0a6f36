"""Kernel time by class and kind of communication: one stacked bar per run, per profiled step and rank."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.figures import labels
from triplepoint.figures import old_page as style
from triplepoint.figures.rows import Block, Part, mark_slot, place_blocks, row_axes
from triplepoint.status import Status

_COMM = "comm"
_OTHER = "other computation"
_COMPUTE_COLOURS = (style.BLUE, style.SKY, style.GREEN, style.YELLOW, "#999999")
_SUBTITLE = "per profiled step and rank, concurrent kernels count twice; line: lowest to highest rank"
_COMM_HATCH = "//////"
"""Communication is hatched, so that it is told from computation without colour."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and part of its bar.

    Of repeats the first is drawn. Bars sum over kernels, so concurrent kernels count twice: they are no step times.
    """
    points = labels.prepare(tables["points"])
    points = points.drop_duplicates(["group", *labels.LAYOUT, *labels.SETTING])
    names: dict[Any, str] = {}
    for _, members in points.groupby("group", sort=False):
        names |= labels.run_labels(members)
    points = points.assign(label=[names[index] for index in points.index])
    parts = _parts(tables["kernels"], set(points["run"]))
    sums = _sums(tables["kernels"], parts)
    shown = ["label", "group", "run", "status", "reason", "gpu", "kernel_sum_s", "kernel_sum_min_s", "kernel_sum_max_s"]
    numbers = points[shown].merge(sums, on="run", how="left", sort=False)
    blocks = [Block(str(name), _SUBTITLE, _rows(found)) for name, found in points.groupby("group", sort=False)]
    canvas, places = place_blocks(blocks, points, parts)
    for place in places:
        _draw_bars(row_axes(canvas, place, 0.0, 1.0), place.block, numbers, parts)
    return canvas.figure, numbers


def _rows(found: DataFrame) -> list[tuple[str, DataFrame]]:
    return [(str(row["label"]), found.loc[[index]]) for index, row in found.iterrows()]


def _parts(kernels: DataFrame, runs: set[str]) -> list[Part]:
    """Return the parts of the bars: the largest classes of computation, the rest as one, then communication by kind."""
    drawn = kernels[kernels["run"].isin(runs)]
    compute = drawn[drawn["class"] != _COMM].groupby("class")["sum_s"].sum().sort_values(ascending=False, kind="stable")
    named = [str(name) for name in compute.index if name != "other"][: len(_COMPUTE_COLOURS)]
    parts: list[Part] = [(name, colour, "") for name, colour in zip(named, _COMPUTE_COLOURS, strict=False)]
    if len(compute) > len(named):
        parts.append((_OTHER, style.PALE, ""))
    kinds = sorted(set(drawn.loc[drawn["class"] == _COMM, "kind"]))
    return parts + [(kind, style.COMMS.get(kind, style.GREY), _COMM_HATCH) for kind in kinds]


def _sums(kernels: DataFrame, parts: list[Part]) -> DataFrame:
    """Return seconds per run and part, in the order of the parts; communication of all groups together."""
    labelled = {label for label, _, hatch in parts if not hatch}
    part = [
        kind if name == _COMM else (name if name in labelled else _OTHER)
        for name, kind in zip(kernels["class"], kernels["kind"], strict=True)
    ]
    order = {label: index for index, (label, _, _) in enumerate(parts)}
    summed = kernels.assign(part=part).groupby(["run", "part"], sort=False)[["sum_s"]].sum().reset_index()
    place = [order.get(label, len(order)) for label in summed["part"]]
    return DataFrame(summed.iloc[sorted(range(len(place)), key=place.__getitem__)])


def _draw_bars(axes: Axes, block: Block, numbers: DataFrame, parts: list[Part]) -> None:
    for number, (_, found) in enumerate(block.rows):
        point = found.iloc[0]
        own = numbers[(numbers["run"] == point["run"]) & numbers["sum_s"].notna()]
        if own.empty:
            mark_slot(axes, number, "no trace" if point["status"] == Status.OK else style.word(point["status"]))
            continue
        seconds = dict(zip(own["part"], own["sum_s"], strict=True))
        left = 0.0
        for label, colour, hatch in parts:
            width = float(seconds.get(label, 0.0))
            axes.barh(number, width, 0.66, left, color=colour, hatch=hatch, edgecolor="white", linewidth=0.2)
            left += width
        low, high = point["kernel_sum_min_s"], point["kernel_sum_max_s"]
        axes.plot([low, high], [number, number], "|-", color=style.BLACK, linewidth=0.8, markersize=4)
    axes.set_xlim(0, axes.get_xlim()[1] if axes.lines else 1)
    axes.locator_params(axis="x", nbins=6)
    if not axes.lines:
        axes.set_xticks([])
    axes.set_xlabel("sum of kernel times (s)", labelpad=1)
