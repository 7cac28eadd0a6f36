"""Figure `throttling`: temperature and time under throttling of every GPU, by cause, a column of panels per layout."""

from collections.abc import Mapping

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame, Series

from triplepoint.effects import between_gpus, titles
from triplepoint.figures import drawing, gpu_map, marks, style
from triplepoint.units import counted

MOST_LAYOUTS = 3
"""Largest number of layouts on one page."""
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

    The figure draws layouts with published values of single GPUs first, then those that are throttled most.

    Args:
        tables: `points`, `gpus` and `published`.
    """
    points, gpus = gpu_map.with_gpus(tables)
    with_counters = gpus[gpus[list(_SHARES)].notna().any(axis=1)]
    if with_counters.empty:
        reason = "time under throttling was not counted: this GPU's driver has no counters of it"
        page = gpu_map.empty_page(tables["points"], gpu_map.NOTHING if points.empty else reason)
        return page.finish(), DataFrame(columns=_PLOTTED)
    numbers = _numbers(with_counters, tables.get("published"))
    layouts = [DataFrame(members) for _, members in numbers.groupby(["place", "label"], sort=False)]
    page = _page(points[points["run"].isin(numbers["run"])], numbers, len(layouts))
    handles: list[Artist] = []
    page.head([(str(members["label"].iloc[0]), _note(members)) for members in layouts])
    difference = between_gpus.rear_over_front(numbers.assign(airflow_lane=_lanes(numbers)))
    texts = [titles.signed(difference) if difference else "", _absent_causes(numbers)]
    page.beside(texts, "rear less\nfront" if difference else "")
    for col, members in enumerate(layouts):
        handles += _draw_temperatures(page.axes[0][col], members) + _draw_causes(page.axes[1][col], members)
        handles += _draw_normalised(page.axes[2][col], members)
        _mark_nodes([row[col] for row in page.axes], members)
    for row, text in zip(page.axes, ("GPU (°C)", "time throttled\n(%)", "normalised"), strict=True):
        row[0].set_ylabel(text)
    page.legend(handles)
    return page.finish(), numbers


def _numbers(gpus: DataFrame, published: DataFrame | None) -> DataFrame:
    """Return the plotted numbers of the layouts that are drawn.

    Args:
        gpus: GPUs with counters of throttling.
        published: Table `published`.
    """
    total = gpus[list(_SHARES)].astype(float).sum(axis=1)
    with_temp = gpu_map.published_gpus(published, gpus.assign(total=total), "gpu_temp_c")
    both = gpu_map.published_gpus(
        published, with_temp.rename(columns={"published": "published_temp_c"}), _NORMALISED_PUBLISHED
    ).rename(columns={"published": "published_normalised"})
    by_throttling = both.groupby("run", sort=False)["total"].mean().sort_values(ascending=False, kind="stable").index
    published_runs = [
        run for run in dict.fromkeys(both["run"]) if both.loc[both["run"] == run, "published_temp_c"].any()
    ]
    runs = list(dict.fromkeys([*published_runs, *by_throttling]))[:MOST_LAYOUTS]
    drawn = both[both["run"].isin(runs)]
    highest = drawn.groupby("run")["total"].transform("max")
    drawn = drawn.assign(**{NORMALISED: (drawn["total"] / highest).where(highest > 0)})
    return drawn.sort_values(["label", "node", "number"], kind="stable").reset_index(drop=True)[_PLOTTED]


def _page(points: DataFrame, numbers: DataFrame, num_layouts: int) -> style.Page:
    width = style.PAGE if num_layouts > 1 else style.COLUMN
    return style.new_page(
        _answer(numbers), points, 3, num_layouts, width, 5.4, NOTE.format(about=between_gpus.INTERVAL), sharex="col",
        sharey="row", height_ratios=[1.2, 1, 1],
    )  # fmt: skip


def _answer(numbers: DataFrame) -> str:
    """Return the title: the run that is throttled longest, and by which cause."""
    throttled = [
        (*_longest(members), str(members["label"].iloc[0])) for _, members in numbers.groupby(["place", "label"])
    ]
    share, cause, label = max(throttled)
    if not share > 0:
        return "No GPU is throttled"
    return f"{label} is throttled {100 * share:.0f} % of the time, by {'the ' * cause.startswith('power')}{cause}"


def _longest(gpus: DataFrame) -> tuple[float, str]:
    """Return the share of time that the most frequent cause throttles clocks, and the name of the cause."""
    means = gpus[list(_SHARES)].astype(float).mean().dropna()
    return (float(means.max()), _SHARES[str(means.idxmax())].name) if len(means) else (0.0, "")


def _note(gpus: DataFrame) -> str:
    """Return the note below the name of a layout: time under throttling, and correlation with published values."""
    share = _longest(gpus)[0]
    note = f"throttled {100 * share:.0f} % of the time" if share > 0 else "never throttled"
    published = gpus["published_normalised"].astype(float)
    if not (published > 0).any():
        return note
    if not share > 0:
        num_gpus = counted(int(published.notna().sum()), "GPU")
        return f"{note}\npublished: {int((published > 0).sum())} of {num_gpus} are"
    correlation = between_gpus.rank_correlation(gpus, NORMALISED, "published_normalised")
    return note if correlation is None else f"{note}\npublished: rank correlation {correlation:.2f}"


def _absent_causes(numbers: DataFrame) -> str:
    """Return a text on the causes that never throttled a GPU, and on those without counters."""
    shares = numbers[list(_SHARES)].astype(float)
    never = [mark.name for name, mark in _SHARES.items() if shares[name].notna().any() and not (shares[name] > 0).any()]
    unknown = [mark.name for name, mark in _SHARES.items() if shares[name].isna().all()]
    texts = {"never by": never, "not counted": unknown}
    lines = ["\n".join([words, *names]) for words, names in texts.items() if names]
    return "\n".join(lines).replace(" (", "\u00a0(")


def _lanes(numbers: DataFrame) -> Series:
    """Return the index of each GPU within its airflow row, node and run, so that GPUs behind each other share it."""
    return numbers.groupby(["run", "node", "airflow_place"], dropna=False).cumcount()


def _draw_temperatures(axes: Axes, gpus: DataFrame) -> list[Artist]:
    """Draw the temperature of every GPU, ours and published, and return the legend entries."""
    handles: list[Artist] = []
    at, temps_c = np.arange(len(gpus)), gpus["gpu_temp_c"].to_numpy(float)
    colours = gpus["airflow_place"].map(_PLACES).fillna(marks.GREY)
    for place, colour in {**_PLACES, "GPU": marks.GREY}.items():
        is_at_place = (colours == colour).to_numpy()
        if is_at_place.any():
            drawn = axes.plot(at[is_at_place], temps_c[is_at_place], "o", color=colour, markersize=2.8)
            drawn[0].set_label(f"{place} GPU" if place in _PLACES else place)
            handles += drawn
    if gpus["published_temp_c"].notna().any():
        handles.append(drawing.draw_published(axes, list(at), list(gpus["published_temp_c"].astype(float))))
    return handles


def _draw_causes(axes: Axes, gpus: DataFrame) -> list[Artist]:
    """Draw the time under throttling of every GPU as a bar stacked by cause, and return the legend entries."""
    handles: list[Artist] = []
    bottom = np.zeros(len(gpus))
    for name, mark in _SHARES.items():
        values = 100 * gpus[name].astype(float).fillna(0).to_numpy()
        if (values > 0).any():
            axes.bar(
                np.arange(len(gpus)), values, 0.85, bottom, color=mark.colour, hatch=mark.hatch, edgecolor="white",
                linewidth=0,
            )  # fmt: skip
            handles.append(drawing.as_patch(mark))
            bottom += values
    axes.set_ylim(0, 100)
    if not bottom.any():
        axes.text(0.5, 0.5, "never", transform=axes.transAxes, ha="center", va="center", fontsize=style.TEXT_PT)
    return handles


def _draw_normalised(axes: Axes, gpus: DataFrame) -> list[Artist]:
    """Draw normalised time under throttling, ours and published, and return the legend entries."""
    at = np.arange(len(gpus))
    axes.plot(at, gpus[NORMALISED].to_numpy(float), "s", color=marks.GREY, markersize=2.5)
    axes.set_ylim(0, 1.1)
    handles: list[Artist] = [
        Line2D([], [], color=marks.GREY, marker="s", linestyle="none", markersize=2.5, label="normalised, ours")
    ]
    if gpus["published_normalised"].notna().any():
        handles.append(drawing.draw_published(axes, list(at), list(gpus["published_normalised"].astype(float))))
    return handles


def _mark_nodes(column: list[Axes], gpus: DataFrame) -> None:
    """Draw lines between the nodes in a column of panels, and name the nodes below the last panel."""
    nodes = gpus["node"].to_numpy()
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
