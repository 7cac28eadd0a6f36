"""What throttles clocks on every GPU, by cause, and how warm it is: a column of panels per layout."""

from collections.abc import Mapping

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from pandas import DataFrame, Series

from triplepoint.effects import between_gpus, titles
from triplepoint.figures import drawing, gpu_map, marks, style
from triplepoint.units import counted

MOST_LAYOUTS = 3
"""On one page."""
NORMALISED = "throttle_normalised"
_NORMALISED_PUBLISHED = "throttle_fraction_normalised"
_SHARES = {f"{cause}_share": mark for cause, mark in marks.CAUSES.items()}
_PLACES = {between_gpus.REAR: marks.ORANGE, between_gpus.FRONT: marks.BLUE}
_PLOTTED = [
    "label", "place", "run", "origin", "node", "number", "rank", "airflow_place", "gpu_temp_c", "published_temp_c",
    *_SHARES, NORMALISED, "published_normalised",
]  # fmt: skip
NOTE = (
    "A mark or bar is a GPU, in slots of nodes. Normalised: over the most throttled GPU of its run, published ones "
    "over what is not known, so compare their pattern alone. Right: {about} over nodes."
)


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and GPU.

    Drawn are the layouts of which single GPUs are published; of other studies the layouts that are throttled most.

    Args:
        tables: `points`, `gpus` and `published`.
    """
    points, gpus = gpu_map.with_gpus(tables)
    counted = gpus[gpus[list(_SHARES)].notna().any(axis=1)]
    if counted.empty:
        why = "time under throttling was not counted: this GPU's driver has no counters of it"
        return gpu_map.empty_page(tables["points"], gpu_map.NOTHING if points.empty else why).finish(), DataFrame(
            columns=_PLOTTED
        )
    numbers = _numbers(counted, tables.get("published"))
    layouts = [(str(name), DataFrame(found)) for name, found in numbers.groupby(["place", "label"], sort=False)]
    page = _page(points[points["run"].isin(numbers["run"])], numbers, len(layouts))
    handles: list[Artist] = []
    page.head([(str(found["label"].iloc[0]), _note(found)) for _, found in layouts])
    apart = between_gpus.rear_over_front(numbers.assign(airflow_lane=_lanes(numbers)))
    page.beside([f"{titles.signed(apart)}" if apart else "", _never(numbers)], "rear less\nfront" if apart else "")
    for col, (_, found) in enumerate(layouts):
        handles += _draw_temperatures(page.axes[0][col], found) + _draw_causes(page.axes[1][col], found)
        handles += _draw_normalised(page.axes[2][col], found)
        _mark_nodes([row[col] for row in page.axes], found)
    for row, text in zip(page.axes, ("GPU (°C)", "time throttled\n(%)", "normalised"), strict=True):
        row[0].set_ylabel(text)
    page.legend(handles)
    return page.finish(), numbers


def _numbers(counted: DataFrame, published: DataFrame | None) -> DataFrame:
    total = counted[list(_SHARES)].astype(float).sum(axis=1)
    with_temp = gpu_map.published_gpus(published, counted.assign(total=total), "gpu_temp_c")
    both = gpu_map.published_gpus(
        published, with_temp.rename(columns={"published": "published_temp_c"}), _NORMALISED_PUBLISHED
    ).rename(columns={"published": "published_normalised"})
    most = both.groupby("run", sort=False)["total"].mean().sort_values(ascending=False, kind="stable").index
    of_published = [run for run in dict.fromkeys(both["run"]) if both.loc[both["run"] == run, "published_temp_c"].any()]
    drawn = both[both["run"].isin(list(dict.fromkeys([*of_published, *most]))[:MOST_LAYOUTS])]
    highest = drawn.groupby("run")["total"].transform("max")
    drawn = drawn.assign(**{NORMALISED: (drawn["total"] / highest).where(highest > 0)})
    return drawn.sort_values(["label", "node", "number"], kind="stable").reset_index(drop=True)[_PLOTTED]


def _page(points: DataFrame, numbers: DataFrame, num_layouts: int) -> style.Page:
    width = style.PAGE if num_layouts > 1 else style.COLUMN
    return style.new_page(
        _answer(numbers), points, 3, num_layouts, width, 5.4, NOTE.format(about=between_gpus.ABOUT), sharex="col",
        sharey="row", height_ratios=[1.2, 1, 1],
    )  # fmt: skip


def _answer(numbers: DataFrame) -> str:
    """Return which run is throttled longest, and by what."""
    throttled = [(*_longest(own), str(own["label"].iloc[0])) for _, own in numbers.groupby(["place", "label"])]
    share, cause, label = max(throttled)
    if not share > 0:
        return "No GPU is throttled"
    return f"{label} is throttled {100 * share:.0f} % of the time, by {'the ' * cause.startswith('power')}{cause}"


def _longest(own: DataFrame) -> tuple[float, str]:
    """Return the share of the time that the most frequent cause holds clocks back, and its name."""
    means = own[list(_SHARES)].astype(float).mean().dropna()
    return (float(means.max()), _SHARES[str(means.idxmax())].name) if len(means) else (0.0, "")


def _note(own: DataFrame) -> str:
    """Return what stands below the name of a layout: how long it is throttled, and how alike the published pattern."""
    share = _longest(own)[0]
    said = f"throttled {100 * share:.0f} % of the time" if share > 0 else "never throttled"
    published = own["published_normalised"].astype(float)
    if not (published > 0).any():
        return said
    if not share > 0:
        gpus = counted(int(published.notna().sum()), "GPU")
        return f"{said}\npublished: {int((published > 0).sum())} of {gpus} are"
    order = between_gpus.same_order(own, NORMALISED, "published_normalised")
    return said if order is None else f"{said}\npublished: rank correlation {order:.2f}"


def _never(numbers: DataFrame) -> str:
    """Return the causes that no GPU met, and those that were not counted."""
    shares = numbers[list(_SHARES)].astype(float)
    never = [mark.name for name, mark in _SHARES.items() if shares[name].notna().any() and not (shares[name] > 0).any()]
    unknown = [mark.name for name, mark in _SHARES.items() if shares[name].isna().all()]
    texts = {"never by": never, "not counted": unknown}
    lines = ["\n".join([words, *names]) for words, names in texts.items() if names]
    return "\n".join(lines).replace(" (", "\u00a0(")


def _lanes(numbers: DataFrame) -> Series:
    """Return the place of each GPU among those of its row, node and run: GPUs behind each other share it."""
    return numbers.groupby(["run", "node", "airflow_place"], dropna=False).cumcount()


def _draw_temperatures(axes: Axes, found: DataFrame) -> list[Artist]:
    handles: list[Artist] = []
    at = np.arange(len(found))
    colours = found["airflow_place"].map(_PLACES).fillna(marks.GREY)
    for place, colour in {**_PLACES, "GPU": marks.GREY}.items():
        own = (colours == colour).to_numpy()
        if own.any():
            drawn = axes.plot(at[own], found["gpu_temp_c"].to_numpy(float)[own], "o", color=colour, markersize=2.8)
            drawn[0].set_label(f"{place} GPU" if place in _PLACES else place)
            handles += drawn
    if found["published_temp_c"].notna().any():
        handles.append(drawing.draw_published(axes, list(at), list(found["published_temp_c"].astype(float))))
    return handles


def _draw_causes(axes: Axes, found: DataFrame) -> list[Artist]:
    handles: list[Artist] = []
    bottom = np.zeros(len(found))
    for name, mark in _SHARES.items():
        values = 100 * found[name].astype(float).fillna(0).to_numpy()
        if (values > 0).any():
            axes.bar(
                np.arange(len(found)), values, 0.85, bottom, color=mark.colour, hatch=mark.hatch, edgecolor="white",
                linewidth=0,
            )  # fmt: skip
            handles.append(Patch(facecolor=mark.colour, hatch=mark.hatch, edgecolor="white", label=mark.name))
            bottom += values
    axes.set_ylim(0, 100)
    if not bottom.any():
        axes.text(0.5, 0.5, "never", transform=axes.transAxes, ha="center", va="center", fontsize=style.TEXT_PT)
    return handles


def _draw_normalised(axes: Axes, found: DataFrame) -> list[Artist]:
    at = np.arange(len(found))
    axes.plot(at, found[NORMALISED].to_numpy(float), "s", color=marks.GREY, markersize=2.5)
    axes.set_ylim(0, 1.1)
    handles: list[Artist] = [
        Line2D([], [], color=marks.GREY, marker="s", linestyle="none", markersize=2.5, label="normalised, ours")
    ]
    if found["published_normalised"].notna().any():
        handles.append(drawing.draw_published(axes, list(at), list(found["published_normalised"].astype(float))))
    return handles


def _mark_nodes(column: list[Axes], found: DataFrame) -> None:
    nodes = found["node"].to_numpy()
    starts = [at for at in range(len(nodes)) if not at or nodes[at] != nodes[at - 1]]
    ends = [*starts[1:], len(nodes)]
    for axes in column:
        for start in starts[1:]:
            axes.axvline(start - 0.5, color=marks.PALE, linewidth=0.7)
        axes.set_xlim(-0.7, len(nodes) - 0.3)
    middles = [(start + end - 1) / 2 for start, end in zip(starts, ends, strict=True)]
    column[-1].set_xticks(middles, [f"node {nodes[start]}" for start in starts])
    for axes in column:
        axes.tick_params(axis="x", length=0)
