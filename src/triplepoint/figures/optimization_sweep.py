"""Figure `optimization_sweep`: effect of recomputation and overlap on time, power, temperature, energy and memory."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame, Series, concat

from triplepoint import effects
from triplepoint.effects import titles
from triplepoint.figures import drawing, labels, marks, style
from triplepoint.figures.parallelism_sweep import fitting_groups, title_of
from triplepoint.figures.quantities import share_y
from triplepoint.figures.recompute_kernels import FREE
from triplepoint.status import Status


@dataclass(frozen=True)
class Change:
    """One row of panels with the changes of a quantity.

    Attributes:
        column: Column of table `points`.
        title: Label of the y axis.
        name: Name of the quantity in texts; '' if texts leave it out.
        is_share: Whether the quantity is a share, whose change is in percentage points. Temperatures change by kelvin,
            all other quantities by a ratio.
    """

    column: str
    title: str
    name: str = ""
    is_share: bool = False


CHANGES = (
    Change("step_time_s", "step time\n(change, %)", "step time"),
    Change("gpu_power_w", "GPU power\n(change, %)", "power"),
    Change("gpu_temp_c", "temperature\n(change, K)", "temperature"),
    Change("throttle_fraction", "time throttled\n(change, % points)", is_share=True),
    Change("gpu_energy_per_token_j", "energy\n(change, %)", "energy"),
)
MEMORY = "memory of\na {rank} (GiB)"
_GIB = 2**30
NOTE = (
    "A mark: change of one setting in one layout, the other as it is; lines with caps: 90 % interval of it. Right: "
    "mean over layouts, its interval where wide enough to show, and their range. Memory is predicted where it ran out."
)
_COLUMNS = (
    "group", "layout", "switched", "run", "status", "origin", "peak_memory_bytes", "needed_memory_bytes",
    "needed_memory_lo_bytes", "needed_memory_hi_bytes", "memory_capacity_bytes",
)  # fmt: skip
_CHANGES = {
    "base": {},
    "overlap": {"overlap": "base"},
    "recompute": {"recompute": "base"},
    "both": {"overlap": "recompute", "recompute": "overlap"},
}
"""By the optimisations that are on: each setting that can be switched on last, and the optimisations on before it."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per layout and change of one setting.

    In each column of panels only layout, recomputation and overlap differ.

    Args:
        tables: `points` and `gpus`.
    """
    groups, left_out = fitting_groups(
        [_chosen(members) for _, members in labels.prepare(tables["points"]).groupby("group", sort=False)]
    )
    chosen = concat(groups, ignore_index=True)
    changes = [change for change in CHANGES if chosen[change.column].notna().any()] or list(CHANGES[:1])
    numbers = _numbers(chosen, tables["gpus"], changes)
    height_in = min(1.9 + 1.02 * (len(changes) + 1), style.TALLEST)
    effects_of = _title_changes(numbers, changes)
    answers = [change.answer for change in effects_of.values()]
    page = style.new_page(
        answers or "No layout ran with and without recomputation or overlap", chosen,
        len(changes) + 1, len(groups), style.PAGE if len(groups) > 1 else style.COLUMN, height_in, left_out + NOTE,
        sharex="col", width_ratios=[max(group["layout"].nunique(), 2) for group in groups],
    )  # fmt: skip
    page.head([title_of(str(group), chosen).partition("\n")[::2] for group in numbers["group"].unique()])
    names = [change.name for change in changes] + ["memory"]
    page.beside([_change_texts(effects_of, name) for name in names], "mean of\nlayouts")
    for col, (_, members) in enumerate(numbers.groupby("group", sort=False)):
        for row, change in enumerate(changes):
            _draw_changes(page.axes[row][col], DataFrame(members), change.column, is_top=not row)
        _draw_memory(page.axes[-1][col], DataFrame(members))
    for row, change in enumerate(changes):
        page.axes[row][0].set_ylabel(change.title)
        share_y(page.axes[row])
    share_y(page.axes[-1])
    page.axes[-1][0].set_ylabel(MEMORY.format(rank=labels.rank_word(chosen)))
    page.figure.align_ylabels(page.figure.axes)
    page.legend(_legend(numbers))
    return page.finish(), numbers


def _chosen(members: DataFrame) -> DataFrame:
    """Return points of a group that differ only in layout, recomputation and overlap.

    New column `switched`: the optimisations that are on, a key of `marks.OPTIMIZATIONS`.
    """
    chosen = labels.common_setting(members, free=(*FREE, "overlap"))
    kinds = {(False, False): "base", (False, True): "overlap", (True, False): "recompute", (True, True): "both"}
    switched = [
        kinds[kind != "none", len(overlap) > 0]
        for kind, overlap in zip(chosen["recompute"], chosen["overlap"], strict=True)
    ]
    return chosen.assign(switched=switched, layout=labels.without_shared(chosen["layout"]))


def _numbers(points: DataFrame, gpus: DataFrame, changes: Sequence[Change]) -> DataFrame:
    """Return the plotted numbers: one row per group, layout, optimisations that are on, and changed setting."""
    rows = []
    # Table `points` has two hundred columns. Selecting rows of all of them per pair would take most of the time.
    compared = [name for change in changes for name in effects.compared_columns(change.column) if name in points]
    points = points[list(dict.fromkeys([*_COLUMNS, *compared]))]
    by_layout = {key: DataFrame(members) for key, members in points.groupby(["group", "layout"], sort=False)}
    by_rank = _by_rank(gpus[gpus["run"].isin(points["run"])])
    ranks_by_layout = {key: by_rank[by_rank["run"].isin(members["run"])] for key, members in by_layout.items()}
    for (group, layout, switched), repeats in points.groupby(["group", "layout", "switched"], sort=False):
        of_layout, ranks = by_layout[group, layout], ranks_by_layout[group, layout]
        row = repeats.iloc[0]
        for changed, before in (_CHANGES[str(switched)] or {"": ""}).items():
            numbers = {
                "group": group,
                "layout": layout,
                "switched": switched,
                "changed": changed,
                "run": row["run"],
                "status": row["status"],
                "origin": row["origin"],
            }
            for change in changes:
                effect = _effect(of_layout[of_layout["switched"] == before], repeats, change, ranks)
                scale = 100 if change.is_share or (effect is not None and effect.is_relative) else 1
                for name, end in (("change", "value"), ("change_lo", "low"), ("change_hi", "high")):
                    # Rounded, since equal shares may differ in their last bit.
                    value = np.nan if effect is None else round(scale * getattr(effect, end), 9)
                    numbers[f"{change.column}_{name}"] = value
                numbers[f"{change.column}_basis"] = "none" if effect is None else effect.basis
            rows.append(numbers | _memory(row))
    return DataFrame(rows)


def _by_rank(gpus: DataFrame) -> DataFrame:
    """Return power, temperature and energy by run and rank. Step time is the same for all ranks of a run."""
    # Energy of a step instead of energy per token: both points of a pair process the same number of tokens.
    energy_j = gpus["gpu_power_w"] * gpus["step_time_s"]
    return gpus[["run", "rank", "gpu_power_w", "gpu_temp_c"]].assign(gpu_energy_per_token_j=energy_j)


def _effect(base: DataFrame, changed: DataFrame, change: Change, ranks: DataFrame) -> effects.Effect | None:
    """Return the change of a quantity from `base` to `changed`; None if one of them has no value."""
    least = -np.inf if change.is_share else 0.0
    both = [rows[(rows["status"] == Status.OK) & (rows[change.column] > least)] for rows in (base, changed)]
    if any(rows.empty for rows in both):
        return None
    return effects.compare(both[0], both[1], change.column, False if change.is_share else None, ranks)


def _memory(row: Series) -> dict[str, Any]:
    """Return the memory of the fullest GPU, its capacity, and whether it may not fit.

    The memory of a point that ran out of it is the predicted need.
    """
    value = row["peak_memory_bytes"] if row["status"] == Status.OK else row["needed_memory_bytes"]
    return {
        "may_not_fit": labels.may_not_fit(row),
        "memory_gib": float(value) / _GIB,
        "memory_capacity_gib": float(row["memory_capacity_bytes"]) / _GIB,
    }


def _title_changes(numbers: DataFrame, changes: Sequence[Change]) -> dict[str, titles.Change]:
    """Return the effect of each optimisation that some layout ran with and without."""
    by_setting = {}
    for changed in ("recompute", "overlap"):
        rows = numbers[numbers["changed"] == changed]
        pairs: dict[str, titles.EffectsByLayout] = {
            change.name: _effects_of(rows, change.column) for change in changes if change.name
        }
        if any(pairs.values()):
            pairs |= {"memory": _memory_effects(numbers, changed)}
            by_setting[changed] = titles.Change(marks.OPTIMIZATIONS[changed].name, "", pairs, is_paired=True)
    return by_setting


def _change_texts(changes: Mapping[str, titles.Change], name: str) -> str:
    """Return the text at the right of the panels of a quantity: the change by each optimisation, after its marker."""
    texts = {_SIGNS[changed]: change.short(name) for changed, change in changes.items()}
    return "\n".join(f"{sign} {text}" for sign, text in texts.items() if text)


def _effects_of(numbers: DataFrame, column: str) -> dict[tuple[Hashable, ...], effects.Effect]:
    """Return the effect on a quantity by layout: mean over the pairs with and without the other optimisation."""
    is_relative = not column.endswith("_c")
    ends = [f"{column}_{end}" for end in ("change", "change_lo", "change_hi")]
    known = numbers[numbers[ends[0]].notna()]
    return {
        key: effects.over_pairs(
            [
                effects.Effect(value, low, high, basis, 1, is_relative)
                for (value, low, high), basis in zip(
                    (pairs[ends] / (100 if is_relative else 1)).to_numpy(float), pairs[f"{column}_basis"], strict=True
                )
            ]
        )
        for key, pairs in known.groupby(["group", "layout"], sort=False)
    }


def _memory_effects(numbers: DataFrame, changed: str) -> titles.EffectsByLayout:
    """Return the effect on memory by layout, mean over its pairs, without an interval."""
    done = numbers[numbers["status"] == Status.OK].drop_duplicates(["group", "layout", "switched"])
    names = done[["group", "layout", "switched"]].itertuples(index=False, name=None)
    gib = {key: value for key, value in zip(names, done["memory_gib"].astype(float), strict=True) if value > 0}
    pairs: dict[tuple[Hashable, ...], list[effects.Effect]] = {}
    for (group, layout, switched), value in gib.items():
        before = gib.get((group, layout, _CHANGES[switched].get(changed)))
        if before is not None:
            effect = effects.Effect(value / before - 1, np.nan, np.nan, "none", 1)
            pairs.setdefault((group, layout), []).append(effect)
    return {key: effects.over_pairs(of_layout) for key, of_layout in pairs.items()}


def _draw_changes(axes: Axes, numbers: DataFrame, column: str, is_top: bool) -> None:
    """Draw the changes of one quantity, a mark per layout and pair."""
    names = list(dict.fromkeys(numbers["layout"]))
    axes.axhline(0, color=marks.MIDDLE, linewidth=0.7)
    if is_top:
        _write_statuses(axes, numbers.drop_duplicates(["layout", "switched"]), names)
    for _, row in numbers[numbers["changed"] != ""].iterrows():
        x = names.index(row["layout"]) + _PAIRS[row["switched"], row["changed"]]
        mark = _mark_of(row["switched"], row["changed"])
        value, low, high = (row[f"{column}_{end}"] for end in ("change", "change_lo", "change_hi"))
        if np.isfinite(value):
            axes.plot([x], [value], mark.marker, color=mark.colour)
            drawing.draw_interval(axes, x, low, high, mark.colour)
    axes.margins(y=0.15)
    _name_layouts(axes, names)


def _mark_of(switched: str, changed: str) -> marks.Mark:
    """Return the mark of a change; its marker is a diamond if the other optimisation is on."""
    mark = marks.OPTIMIZATIONS[changed]
    if switched != "both":
        return mark
    other = next(name for name in _CHANGES["both"] if name != changed)
    name = f"{mark.name}, with {marks.OPTIMIZATIONS[other].name} on"
    return mark._replace(name=name, marker=marks.OPTIMIZATIONS["both"].marker)


def _write_statuses(axes: Axes, numbers: DataFrame, names: Sequence[str]) -> None:
    """Write the status of points without numbers, once for all points of a layout with the same status."""
    failed = numbers[numbers["status"] != Status.OK]
    for (layout, status), rows in failed.groupby(["layout", "status"], sort=False):
        places = [_OFFSETS[switched] for switched in rows["switched"]]
        colour = marks.OPTIMIZATIONS[rows["switched"].iloc[0]].colour if len(rows) == 1 else marks.BLACK
        x = names.index(str(layout)) + sum(places) / len(places)
        axes.text(
            x, 0.03, style.status_text(str(status)), ha="center", va="bottom", transform=axes.get_xaxis_transform(),
            rotation=90, fontsize=style.TEXT_PT, color=colour,
        )  # fmt: skip


_SIGNS = {"recompute": "▲", "overlap": "■"}
_OFFSETS = {"base": -0.3, "overlap": -0.1, "recompute": 0.1, "both": 0.3}
_PAIRS = {
    ("recompute", "recompute"): -0.3,
    ("overlap", "overlap"): -0.1,
    ("both", "overlap"): 0.1,
    ("both", "recompute"): 0.3,
}
"""Offsets of changes on the x axis. `_OFFSETS` puts the status of a point where its changes would be."""


def _name_layouts(axes: Axes, names: Sequence[str]) -> None:
    """Write the labels of layouts below a panel."""
    drawing.name_bars(axes, names)
    axes.locator_params(axis="y", nbins=4)


def _draw_memory(axes: Axes, numbers: DataFrame) -> None:
    """Draw the memory of each point and the capacity; marks of points that ran out of memory are hollow."""
    names = list(dict.fromkeys(numbers["layout"]))
    numbers = numbers.drop_duplicates(["layout", "switched"])
    could_run = numbers["status"] != Status.INVALID
    for _, row in numbers[could_run].iterrows():
        x = names.index(row["layout"]) + _OFFSETS[row["switched"]]
        mark = marks.OPTIMIZATIONS[row["switched"]]
        fill = "left" if row["may_not_fit"] else "full" if row["status"] == Status.OK else "none"
        if np.isfinite(row["memory_gib"]):
            axes.plot([x], [row["memory_gib"]], mark.marker, color=mark.colour, fillstyle=fill, markerfacecoloralt="w")
    _write_statuses(axes, numbers[~could_run], names)
    _name_layouts(axes, names)
    axes.set_ylim(0, 1.12 * max(numbers.loc[could_run, "memory_gib"].max(), 1e-9))
    capacity = numbers["memory_capacity_gib"].max()
    drawing.draw_limit(axes, float(capacity), "")


def _legend(numbers: DataFrame) -> list[Artist]:
    """Return the legend entries of the changes and the kinds of memory that occur."""
    drawn = set(zip(numbers["switched"], numbers["changed"], strict=True))
    pairs = [pair for pair in _PAIRS if pair in drawn]
    shown = [_mark_of(*pair) for pair in pairs]
    shown += [
        marks.OPTIMIZATIONS[name]._replace(name=f"memory with {marks.OPTIMIZATIONS[name].name}")
        for name in ("base", "both")
        if name in set(numbers["switched"])
    ]
    handles: list[Artist] = [drawing.as_line(mark, linestyle="none") for mark in shown]
    look: dict[str, Any] = {"color": marks.GREY, "marker": "o", "linestyle": "none", "markerfacecoloralt": "w"}
    if (~numbers["status"].isin([Status.OK, Status.INVALID])).any():
        handles.append(Line2D([], [], label="out of memory: what it needs", fillstyle="none", **look))
    if numbers["may_not_fit"].any():
        handles.append(Line2D([], [], label=labels.MAY_NOT_FIT, fillstyle="left", **look))
    capacities = [f"{gib:.0f}" for gib in sorted(numbers["memory_capacity_gib"].dropna().unique())]
    return [*handles, drawing.limit_line(f"memory {' or '.join(capacities)} GiB")] if capacities else handles
