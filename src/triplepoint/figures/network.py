"""Figure `network`: time and energy of a step by network between nodes, a column per model, a line per layout."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame, concat

from triplepoint.effects.networks import answer, fastest, name_networks, networks_by_bandwidth, speedup_range
from triplepoint.effects.titles import Change, Statement
from triplepoint.figures import drawing, labels, marks, style
from triplepoint.figures.quantities import interval_of
from triplepoint.status import Status
from triplepoint.tables.schema import column_of
from triplepoint.units import counted

QUANTITIES = {"step_time_s": "step\ntime (s)", "gpu_energy_per_token_j": "energy\n(J/token)"}
NOTE = (
    "A line is a layout, with the 90 % interval of the model. Below a model: its fastest layout, and its lead on the "
    "next that is not tied; where all are tied, on the slowest. Right: mean change from left to right, 90 % t interval "
    "over layouts."
)
_COLUMNS = (
    "model", "layout", "network", "gbit_per_s", "cluster", "tp", "is_sharded", "run", "repeat", "origin", "status",
    "reason",
)  # fmt: skip


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per point."""
    prepared = labels.prepare(tables["points"])
    chosen = concat(
        [labels.common_setting(members) for _, members in prepared.groupby("group", sort=False)], ignore_index=True
    )
    chosen = chosen.join(name_networks(chosen["cluster"]))
    chosen["layout"] = chosen.groupby("model", sort=False)["layout"].transform(labels.without_shared)
    columns = [column_of(name, end) for name in QUANTITIES for end in ("", "p10", "p90", "lo", "hi")]
    numbers = chosen[[*_COLUMNS, *(name for name in columns if name in chosen)]]
    drawn = [name for name in QUANTITIES if name == "step_time_s" or numbers[name].notna().any()]
    networks = networks_by_bandwidth(numbers)
    models = list(dict.fromkeys(numbers["model"]))
    change = answer(chosen)
    title = change if isinstance(change, str) else change.answer
    if isinstance(change, Change) and isinstance(title, Statement):
        title = title._replace(sentence=title.sentence + speedup_range(change))
    page = style.new_page(
        title, chosen, len(drawn), len(models), style.PAGE if len(models) > 1 else style.COLUMN, 3.0 + 1.5 * len(drawn),
        NOTE, sharex="col",
    )  # fmt: skip
    notes = fastest(chosen)
    page.head([(model, notes.get(model, "")) for model in models])
    if isinstance(change, Change):
        names = ("step time", "energy per token")
        page.beside([change.short(name) for name in names[: len(drawn)]], f"mean of\n{counted(change.num, 'layout')}")
    handles: list[Artist] = []
    for col, model in enumerate(models):
        for row, name in enumerate(drawn):
            of_model = numbers[numbers["model"] == model]
            handles += _draw_panel(page.axes[row][col], of_model, name, networks)
        page.axes[-1][col].set_xlabel("Gb/s of a node")
    for row, name in enumerate(drawn):
        page.axes[row][0].set_ylabel(QUANTITIES[name])
    page.figure.align_ylabels(page.figure.axes)
    page.legend(handles)
    return page.finish(), numbers


def _draw_panel(axes: Axes, points: DataFrame, quantity: str, networks: list[str]) -> list[Artist]:
    """Draw a line per layout over the networks, and return the legend entries."""
    handles: list[Artist] = []
    names = list(dict.fromkeys(points["layout"]))
    for number, layout in enumerate(names):
        rows = points[(points["layout"] == layout) & (points["status"] == Status.OK) & points[quantity].notna()]
        rows = rows.iloc[np.argsort([networks.index(name) for name in rows["network"]], kind="stable")]
        first = points[points["layout"] == layout].iloc[0]
        is_sharded = bool(first["is_sharded"])
        mark = marks.of_layout(int(first["tp"]), is_sharded)
        shift = (number - (len(names) - 1) / 2) * 0.12
        at = np.array([networks.index(name) + shift for name in rows["network"]])
        line: Literal[":", "-"] = ":" if is_sharded else "-"
        axes.plot(at, rows[quantity].to_numpy(float), color=mark.colour, marker=mark.marker, linestyle=line)
        for place, (_, row) in zip(at, rows.iterrows(), strict=True):
            low, high = interval_of(row, quantity)
            drawing.draw_interval(axes, place, low, high, mark.colour)
        handles.append(Line2D([], [], color=mark.colour, marker=mark.marker, linestyle=line, label=layout))
    drawing.log_axis(axes)
    axes.set_xlim(-0.5, len(networks) - 0.5)
    axes.set_xticks(range(len(networks)), [name.replace("×", "×\n") for name in networks])
    return handles
