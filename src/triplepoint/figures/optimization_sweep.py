"""What recomputation and overlap change in time, power, heat, energy and memory: a mark per layout and optimisation."""

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
from triplepoint.figures.parallelism_sweep import fitting, share_y, title_of
from triplepoint.figures.recompute_kernels import FREE
from triplepoint.status import Status


@dataclass(frozen=True)
class Change:
    """One row of panels: a column of `points`, the title of its axis, and what titles call it ('' for not there).

    Shares change by percentage points, all else by a ratio, but for temperatures, which change by kelvin.
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
_NAMES = (
    "group", "layout", "switched", "run", "status", "origin", "peak_memory_bytes", "needed_memory_bytes",
    "needed_memory_lo_bytes", "needed_memory_hi_bytes", "memory_capacity_bytes",
)  # fmt: skip
_CHANGES = {
    "base": {},
    "overlap": {"overlap": "base"},
    "recompute": {"recompute": "base"},
    "both": {"overlap": "recompute", "recompute": "overlap"},
}
"""By what is switched on, the one setting that is changed to get there and what was on before."""


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and its numbers, one row per layout and optimisation.

    In each column only layout, recomputation and overlap differ.

    Args:
        tables: `points` and `gpus`.
    """
    groups, left_out = fitting(
        [_chosen(found) for _, found in labels.prepare(tables["points"]).groupby("group", sort=False)]
    )
    chosen = concat(groups, ignore_index=True)
    changes = [one for one in CHANGES if chosen[one.column].notna().any()] or list(CHANGES[:1])
    numbers = _numbers(chosen, tables["gpus"], changes)
    height_in = min(1.9 + 1.02 * (len(changes) + 1), style.TALLEST)
    done = _changes(numbers, changes)
    page = style.new_page(
        [one.answer for one in done.values()] or "No layout ran with and without recomputation or overlap", chosen,
        len(changes) + 1, len(groups), style.PAGE if len(groups) > 1 else style.COLUMN, height_in, left_out + NOTE,
        sharex="col", width_ratios=[max(found["layout"].nunique(), 2) for found in groups],
    )  # fmt: skip
    page.head([title_of(str(group), chosen).partition("\n")[::2] for group in numbers["group"].unique()])
    names = [one.name for one in changes] + ["memory"]
    page.beside([_beside(done, name) for name in names], "mean of\nlayouts")
    for col, (_, found) in enumerate(numbers.groupby("group", sort=False)):
        for row, one in enumerate(changes):
            _draw_changes(page.axes[row][col], DataFrame(found), one.column, is_top=not row)
        _draw_memory(page.axes[-1][col], DataFrame(found))
    for row, one in enumerate(changes):
        page.axes[row][0].set_ylabel(one.title)
        share_y(page.axes[row])
    share_y(page.axes[-1])
    page.axes[-1][0].set_ylabel(MEMORY.format(rank=labels.rank_word(chosen)))
    page.figure.align_ylabels(page.figure.axes)
    page.legend(_legend(numbers))
    return page.finish(), numbers


def _chosen(members: DataFrame) -> DataFrame:
    """Return points of a group that differ in layout, recomputation and overlap, with column `switched`."""
    chosen = labels.common_setting(members, free=(*FREE, "overlap"))
    kinds = {(False, False): "base", (False, True): "overlap", (True, False): "recompute", (True, True): "both"}
    switched = [
        kinds[kind != "none", len(overlap) > 0]
        for kind, overlap in zip(chosen["recompute"], chosen["overlap"], strict=True)
    ]
    return chosen.assign(switched=switched, layout=labels.without_shared(chosen["layout"]))


def _numbers(points: DataFrame, gpus: DataFrame, changes: Sequence[Change]) -> DataFrame:
    """Return what is plotted, a row per group, layout, what is switched on and changed."""
    rows = []
    # Of two hundred columns a few: to take rows of all, pair by pair, would take most of the figure's time.
    compared = [name for one in changes for name in effects.compared_columns(one.column) if name in points]
    points = points[list(dict.fromkeys([*_NAMES, *compared]))]
    groups = {key: DataFrame(found) for key, found in points.groupby(["group", "layout"], sort=False)}
    of_gpus = _by_rank(gpus[gpus["run"].isin(points["run"])])
    of_groups = {key: of_gpus[of_gpus["run"].isin(found["run"])] for key, found in groups.items()}
    for (group, layout, switched), found in points.groupby(["group", "layout", "switched"], sort=False):
        alike, ranks = groups[group, layout], of_groups[group, layout]
        row = found.iloc[0]
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
            for one in changes:
                effect = _effect(alike[alike["switched"] == before], found, one, ranks)
                scale = 100 if one.is_share or (effect is not None and effect.is_relative) else 1
                for name, end in (("change", "value"), ("change_lo", "low"), ("change_hi", "high")):
                    # Equal shares may differ in their last bit.
                    change = np.nan if effect is None else round(scale * getattr(effect, end), 9)
                    numbers[f"{one.column}_{name}"] = change
            rows.append(numbers | _memory(row))
    return DataFrame(rows)


def _by_rank(gpus: DataFrame) -> DataFrame:
    """Return quantities of GPUs that differ from one to another; ranks of a job have one step time."""
    energy_j = gpus["gpu_power_w"] * gpus["step_time_s"]  # of equal tokens in a pair
    return gpus[["run", "rank", "gpu_power_w", "gpu_temp_c"]].assign(gpu_energy_per_token_j=energy_j)


def _effect(base: DataFrame, found: DataFrame, change: Change, ranks: DataFrame) -> effects.Effect | None:
    """Return the change of a quantity; None where either gave no number."""
    least = -np.inf if change.is_share else 0.0
    both = [rows[(rows["status"] == Status.OK) & (rows[change.column] > least)] for rows in (base, found)]
    if any(rows.empty for rows in both):
        return None
    return effects.compare(both[0], both[1], change.column, False if change.is_share else None, ranks)


def _memory(row: Series) -> dict[str, Any]:
    """Return the memory of the fullest GPU, measured or simulated, and where it did not fit what would be needed."""
    value = row["peak_memory_bytes"] if row["status"] == Status.OK else row["needed_memory_bytes"]
    return {
        "may_not_fit": labels.may_not_fit(row),
        "memory_gib": float(value) / _GIB,
        "memory_capacity_gib": float(row["memory_capacity_bytes"]) / _GIB,
    }


def _changes(numbers: DataFrame, changes: Sequence[Change]) -> dict[str, titles.Change]:
    """Return what each optimisation does, by its name; nothing of one that no layout ran with and without."""
    found = {}
    for changed in ("recompute", "overlap"):
        own = numbers[numbers["changed"] == changed]
        pairs: dict[str, titles.Found] = {one.name: _effects_of(own, one.column) for one in changes if one.name}
        if any(pairs.values()):
            pairs |= {"memory": _memory_effects(numbers, changed)}
            found[changed] = titles.Change(marks.OPTIMIZATIONS[changed].name, "", pairs, is_paired=True)
    return found


def _beside(changes: Mapping[str, titles.Change], name: str) -> str:
    """Return the changes of one quantity as they stand beside its panels, each with the sign of its marks."""
    texts = {_SIGNS[changed]: change.short(name) for changed, change in changes.items()}
    return "\n".join(f"{sign} {text}" for sign, text in texts.items() if text)


def _effects_of(numbers: DataFrame, column: str) -> dict[tuple[Hashable, ...], effects.Effect]:
    """Return the effect on a quantity in each layout: of its pairs, with the other setting and without, the mean."""
    is_relative = not column.endswith("_c")
    ends = [f"{column}_{end}" for end in ("change", "change_lo", "change_hi")]
    known = numbers[numbers[ends[0]].notna()]
    return {
        key: effects.over_pairs(
            [
                effects.Effect(value, low, high, "ranks", 1, is_relative)
                for value, low, high in (found[ends] / (100 if is_relative else 1)).to_numpy(float)
            ]
        )
        for key, found in known.groupby(["group", "layout"], sort=False)
    }


def _memory_effects(numbers: DataFrame, changed: str) -> titles.Found:
    """Return the effect on memory in each layout, the mean of its pairs; no error is known of two such numbers."""
    done = numbers[numbers["status"] == Status.OK].drop_duplicates(["group", "layout", "switched"])
    names = done[["group", "layout", "switched"]].itertuples(index=False, name=None)
    gib = {key: value for key, value in zip(names, done["memory_gib"].astype(float), strict=True) if value > 0}
    pairs: dict[tuple[Hashable, ...], list[effects.Effect]] = {}
    for (group, layout, switched), value in gib.items():
        before = gib.get((group, layout, _CHANGES[switched].get(changed)))
        if before is not None:
            one = effects.Effect(value / before - 1, np.nan, np.nan, "none", 1)
            pairs.setdefault((group, layout), []).append(one)
    return {key: effects.over_pairs(found) for key, found in pairs.items()}


def _draw_changes(axes: Axes, found: DataFrame, column: str, is_top: bool) -> None:
    """Draw the changes of one quantity, a mark per layout and pair."""
    names = list(dict.fromkeys(found["layout"]))
    axes.axhline(0, color=marks.MIDDLE, linewidth=0.7)
    if is_top:
        _write_statuses(axes, found.drop_duplicates(["layout", "switched"]), names)
    for _, row in found[found["changed"] != ""].iterrows():
        at = names.index(row["layout"]) + _PAIRS[row["switched"], row["changed"]]
        mark = _mark_of(row["switched"], row["changed"])
        value, low, high = (row[f"{column}_{end}"] for end in ("change", "change_lo", "change_hi"))
        if np.isfinite(value):
            axes.plot([at], [value], mark.marker, color=mark.colour)
            drawing.draw_interval(axes, at, low, high, mark.colour)
    axes.margins(y=0.15)
    _name_layouts(axes, names)


def _mark_of(switched: str, changed: str) -> marks.Mark:
    """Return how a change looks: a diamond where the other setting is on."""
    mark = marks.OPTIMIZATIONS[changed]
    if switched != "both":
        return mark
    other = next(name for name in _CHANGES["both"] if name != changed)
    name = f"{mark.name}, with {marks.OPTIMIZATIONS[other].name} on"
    return mark._replace(name=name, marker=marks.OPTIMIZATIONS["both"].marker)


def _write_statuses(axes: Axes, found: DataFrame, names: Sequence[str]) -> None:
    """Write what became of points that gave no numbers, once for all of a layout that have one fate."""
    failed = found[found["status"] != Status.OK]
    for (layout, status), rows in failed.groupby(["layout", "status"], sort=False):
        places = [_OFFSETS[switched] for switched in rows["switched"]]
        colour = marks.OPTIMIZATIONS[rows["switched"].iloc[0]].colour if len(rows) == 1 else marks.BLACK
        at = names.index(str(layout)) + sum(places) / len(places)
        axes.text(
            at, 0.03, style.word(str(status)), ha="center", va="bottom", transform=axes.get_xaxis_transform(),
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
"""Places of changes, such that what became of a point stands where its changes would."""


def _name_layouts(axes: Axes, names: Sequence[str]) -> None:
    drawing.name_bars(axes, names)
    axes.locator_params(axis="y", nbins=4)


def _draw_memory(axes: Axes, found: DataFrame) -> None:
    """Draw the memory of each point, and what there is; what did not fit is hollow."""
    names = list(dict.fromkeys(found["layout"]))
    found = found.drop_duplicates(["layout", "switched"])
    could_run = found["status"] != Status.INVALID
    for _, row in found[could_run].iterrows():
        at = names.index(row["layout"]) + _OFFSETS[row["switched"]]
        mark = marks.OPTIMIZATIONS[row["switched"]]
        fill = "left" if row["may_not_fit"] else "full" if row["status"] == Status.OK else "none"
        if np.isfinite(row["memory_gib"]):
            axes.plot([at], [row["memory_gib"]], mark.marker, color=mark.colour, fillstyle=fill, markerfacecoloralt="w")
    _write_statuses(axes, found[~could_run], names)
    _name_layouts(axes, names)
    axes.set_ylim(0, 1.12 * max(found.loc[could_run, "memory_gib"].max(), 1e-9))
    capacity = found["memory_capacity_gib"].max()
    drawing.draw_limit(axes, float(capacity), "")


def _legend(numbers: DataFrame) -> list[Artist]:
    drawn = set(zip(numbers["switched"], numbers["changed"], strict=True))
    pairs = [pair for pair in _PAIRS if pair in drawn]
    shown = [_mark_of(*pair) for pair in pairs]
    shown += [
        marks.OPTIMIZATIONS[name]._replace(name=f"memory with {marks.OPTIMIZATIONS[name].name}")
        for name in ("base", "both")
        if name in set(numbers["switched"])
    ]
    found: list[Artist] = [drawing.as_line(mark, linestyle="none") for mark in shown]
    how: dict[str, Any] = {"color": marks.GREY, "marker": "o", "linestyle": "none", "markerfacecoloralt": "w"}
    if (~numbers["status"].isin([Status.OK, Status.INVALID])).any():
        found.append(Line2D([], [], label="out of memory: what it needs", fillstyle="none", **how))
    if numbers["may_not_fit"].any():
        found.append(Line2D([], [], label=labels.MAY_NOT_FIT, fillstyle="left", **how))
    capacities = [f"{gib:.0f}" for gib in sorted(numbers["memory_capacity_gib"].dropna().unique())]
    return [*found, drawing.limit_line(f"memory {' or '.join(capacities)} GiB")] if capacities else found
