"""Figure `cooling`: temperature, clock, power and speed of the same layouts on clusters with different cooling."""

from collections.abc import Mapping

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame

from triplepoint.effects import titles
from triplepoint.effects.equal_work import change_of_pairs
from triplepoint.figures import drawing, labels, marks, style
from triplepoint.figures.quantities import Quantity
from triplepoint.status import Status
from triplepoint.tables.schema import column_of
from triplepoint.units import counted

QUANTITIES = (
    Quantity("gpu_temp_max_c", "hottest GPU\n(°C)", limit=("gpu_throttle_temp_c", "throttled at {:.0f} °C")),
    Quantity("sm_clock_mhz", "mean clock\n(GHz)", scale=1e-3),
    Quantity("gpu_power_w", "GPU power\n(W)", limit=("gpu_power_limit_w", "power limit {:.0f} W")),
    Quantity("speed_over_warmest", "speed over\nwarmest (%)", scale=100),
)
_NAMES = {
    "gpu_temp_max_c": "hottest GPU",
    "tokens_per_s_per_gpu": "speed",
    "sm_clock_mhz": "clock",
    "gpu_power_w": "power",
    "gpu_energy_per_token_j": "energy per token",
}
_COLUMNS = ["cluster", "label", "layout", "model", "tp", "is_sharded", "run", "origin", "status", "inlet_temp_c"]
NOTE = (
    "Lines with caps: 90 % interval of the model. Right: change from left to right, with its 90 % t interval over "
    "layouts."
)


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run. Clusters are ordered from warmest to coolest.

    Args:
        tables: `points` and `nodes`.
    """
    prepared = labels.prepare(tables["points"])
    inlets = tables["nodes"].groupby("run")["inlet_temp_c"].mean()
    prepared["inlet_temp_c"] = prepared["run"].map(inlets).astype(float)
    by_model = prepared.groupby("model", sort=False)["layout"]
    prepared["label"] = prepared["model"] + " " + by_model.transform(labels.without_shared)
    done = prepared[(prepared["status"] == Status.OK) & prepared["gpu_temp_max_c"].notna()]
    if done["cluster"].nunique() < 2:
        page = style.new_page("No two clusters finished with temperatures", prepared)
        drawing.write_reason(page.axes[0][0], "nothing to compare")
        return page.finish(), DataFrame(columns=_COLUMNS)
    warmest_first = done.groupby("cluster")["gpu_temp_max_c"].mean().sort_values(ascending=False, kind="stable")
    clusters = [str(name) for name in warmest_first.index]
    done = _with_speed(done, clusters[0])
    change = answer(done, clusters[0], clusters[-1])
    page = style.new_page(change.answer, done, len(QUANTITIES), 1, style.COLUMN, 6.0, NOTE, sharex="col")
    names = {**_NAMES, "speed_over_warmest": "speed"}
    page.beside(
        [change.short(names[quantity.column]) for quantity in QUANTITIES], f"mean of\n{counted(change.num, 'layout')}"
    )
    handles: list[Artist] = []
    for row, quantity in enumerate(QUANTITIES):
        handles += _draw_quantity(page.axes[row][0], done, clusters, quantity)
    ticks = [_short_name(clusters, name) + _inlet_text(done, name) for name in clusters]
    page.axes[-1][0].set_xticks(range(len(clusters)), ticks)
    page.axes[-1][0].set_xlabel("cluster, temperature at its inlet")
    page.figure.align_ylabels(page.figure.axes)
    page.legend(handles)
    return page.finish(), _numbers(done)


def answer(done: DataFrame, first: str, other: str) -> titles.Change:
    """Return the effect of going from cluster `first` to cluster `other`."""
    return change_of_pairs(done, ["label"], "cluster", (first, other), _NAMES, (first, other))


def _with_speed(done: DataFrame, warmest: str) -> DataFrame:
    """Return runs with `speed_over_warmest`: speed over that of the same layout on the warmest cluster, minus 1."""
    warmest_speed = done[done["cluster"] == warmest].drop_duplicates("label").set_index("label")["tokens_per_s_per_gpu"]
    return done.assign(speed_over_warmest=done["tokens_per_s_per_gpu"] / done["label"].map(warmest_speed) - 1)


def _short_name(clusters: list[str], name: str) -> str:
    """Return the name of a cluster without the shortest name, if it begins with that."""
    shortest = min(clusters, key=len)
    return name.removeprefix(shortest).lstrip("-") or shortest


def _inlet_text(done: DataFrame, cluster: str) -> str:
    """Return a line with the temperature of air or liquid at the inlet; '' if it is unknown."""
    mean = done.loc[done["cluster"] == cluster, "inlet_temp_c"].mean()
    return "" if np.isnan(mean) else f"\n{mean:g} °C"


def _draw_quantity(axes: Axes, done: DataFrame, clusters: list[str], quantity: Quantity) -> list[Artist]:
    """Draw a line per layout over clusters, and return the legend entries."""
    handles: list[Artist] = []
    names = list(dict.fromkeys(done["label"]))
    for number, name in enumerate(names):
        of_label = done[done["label"] == name].drop_duplicates("cluster").set_index("cluster").reindex(clusters)
        mark = marks.of_layout(int(of_label["tp"].dropna().iloc[0]), bool(of_label["is_sharded"].dropna().iloc[0]))
        at = np.arange(len(clusters)) + 0.1 * (number - (len(names) - 1) / 2)
        values = of_label[quantity.column].to_numpy(float) * quantity.scale
        line = axes.plot(at, values, marker=mark.marker, color=mark.colour, linestyle="-" if number % 2 == 0 else "--")
        line[0].set_label(name)
        handles += line
        for x, (_, row) in zip(at, of_label.iterrows(), strict=True):
            low, high = (float(row.get(column_of(quantity.column, end), np.nan)) for end in ("lo", "hi"))
            drawing.draw_interval(axes, float(x), low * quantity.scale, high * quantity.scale, mark.colour)
    axes.set_xlim(-0.4, len(clusters) - 0.6)
    axes.set_ylabel(quantity.title)
    axes.locator_params(axis="y", nbins=4)
    if quantity.limit[0] and done[quantity.limit[0]].notna().any():
        value = float(done[quantity.limit[0]].max())
        drawing.draw_limit(axes, value, quantity.limit[1].format(value))
    return handles


def _numbers(done: DataFrame) -> DataFrame:
    """Return the plotted numbers."""
    columns = [*_COLUMNS, *(name for name in _NAMES if name in done)]
    for quantity in QUANTITIES:
        ends = [column_of(quantity.column, end) for end in ("lo", "hi")]
        columns += [name for name in (quantity.column, *ends, quantity.limit[0]) if name in done]
    return done[list(dict.fromkeys(columns))]
