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
from triplepoint.figures import labels, marks, style
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
    Change("gpu_temp_c", "temperature\n(change, K)"),
    Change("throttle_fraction", "time throttled\n(change, % points)", is_share=True),
    Change("gpu_energy_per_token_j", "energy\n(change, %)", "energy"),
)
MEMORY = "memory of\na {rank} (GiB)"
_GIB = 2**30
NOTE = (
    "Change from the same layout with neither; at the foot memory itself, predicted where it ran out of it. "
    "Lines with caps: 90 % interval {basis}. Where both points' errors may be shared, which is not known, the "
    "interval is named, not drawn. Title: mean over layouts with its 90 % t interval over layouts alone, or "
    "how many rise and fall where that holds no change."
)


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and its numbers, one row per layout and optimisation.

    In each column only layout, recomputation and overlap differ.

    Args:
        tables: `points`.
    """
    groups, left_out = fitting(
        [_chosen(found) for _, found in labels.prepare(tables["points"]).groupby("group", sort=False)]
    )
    chosen = concat(groups, ignore_index=True)
    changes = [one for one in CHANGES if chosen[one.column].notna().any()] or list(CHANGES[:1])
    numbers, bases = _numbers(chosen, changes)
    note = NOTE.format(basis=" or ".join(bases) or "none known") + left_out
    height_in = min(2.5 + 1.02 * (len(changes) + 1), style.TALLEST)
    page = style.new_page(
        _answer(numbers, changes), chosen, len(changes) + 1, len(groups),
        style.PAGE if len(groups) > 1 else style.COLUMN, height_in, note, sharex="col",
        width_ratios=[max(found["layout"].nunique(), 2) for found in groups],
    )  # fmt: skip
    for col, (group, found) in enumerate(numbers.groupby("group", sort=False)):
        page.axes[0][col].set_title(title_of(str(group), chosen))
        for row, one in enumerate(changes):
            _draw_changes(page.axes[row][col], DataFrame(found), one.column, is_top=not row)
        _draw_memory(page.axes[-1][col], DataFrame(found), is_first=not col)
    for row, one in enumerate(changes):
        page.axes[row][0].set_ylabel(one.title)
        share_y(page.axes[row])
        if not _draws_intervals(numbers, one.column):
            _name_interval(page.axes[row], numbers, one.column)
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


def _numbers(points: DataFrame, changes: Sequence[Change]) -> tuple[DataFrame, list[str]]:
    """Return what is plotted, a row per group, layout and optimisation, and what intervals are over."""
    rows, bases = [], dict[str, None]()
    for (group, layout, switched), found in points.groupby(["group", "layout", "switched"], sort=False):
        alike = points[(points["group"] == group) & (points["layout"] == layout)]
        row = found.iloc[0]
        numbers = {
            "group": group,
            "layout": layout,
            "switched": switched,
            "run": row["run"],
            "status": row["status"],
            "origin": row["origin"],
        }
        for one in changes:
            effect = _effect(alike[alike["switched"] == "base"], found, one) if switched != "base" else None
            if effect is not None and not np.isnan(effect.low):
                bases[effects.ABOUT[effect.basis]] = None
            scale = 100 if one.is_share or (effect is not None and effect.is_relative) else 1
            for name, end in (("change", "value"), ("change_lo", "low"), ("change_hi", "high")):
                # Equal shares may differ in their last bit.
                change = np.nan if effect is None else round(scale * getattr(effect, end), 9)
                numbers[f"{one.column}_{name}"] = change
        rows.append(numbers | _memory(row))
    return DataFrame(rows), list(bases)


def _effect(base: DataFrame, found: DataFrame, change: Change) -> effects.Effect | None:
    """Return the change of a quantity; None where either gave no number."""
    done = [rows[rows["status"] == Status.OK] for rows in (base, found)]
    both = [rows[rows[change.column].notna() if change.is_share else rows[change.column] > 0] for rows in done]
    if any(rows.empty for rows in both):
        return None
    return effects.compare(both[0], both[1], change.column, False if change.is_share else None)


def _memory(row: Series) -> dict[str, Any]:
    """Return the memory of the fullest GPU, measured or simulated, and where it did not fit what would be needed."""
    value = row["peak_memory_bytes"] if row["status"] == Status.OK else row["needed_memory_bytes"]
    return {
        "may_not_fit": labels.may_not_fit(row),
        "memory_gib": float(value) / _GIB,
        "memory_capacity_gib": float(row["memory_capacity_bytes"]) / _GIB,
    }


def _answer(numbers: DataFrame, changes: Sequence[Change]) -> str:
    """Return what each optimisation does, a line each, as a title."""
    lines = []
    for switched in ("recompute", "overlap"):
        own = numbers[numbers["switched"] == switched]
        found = {
            one.name: _effects_of(own[own[f"{one.column}_change"].notna()], one.column) for one in changes if one.name
        }
        if any(found.values()):
            aside = titles.error_unknown(own)
            lines.append(titles.say_change(f"With {marks.OPTIMIZATIONS[switched].name}", found, aside=aside))
    return "\n".join(lines) or "No layout ran with and without recomputation or overlap"


def _effects_of(known: DataFrame, column: str) -> dict[tuple[Hashable, ...], effects.Effect]:
    return {
        (row["group"], row["layout"]): effects.Effect(row[f"{column}_change"] / 100, np.nan, np.nan, "none", 1)
        for _, row in known.iterrows()
    }


def _draw_changes(axes: Axes, found: DataFrame, column: str, is_top: bool) -> None:
    """Draw the changes of one quantity, a mark per layout and optimisation."""
    names = list(dict.fromkeys(found["layout"]))
    axes.axhline(0, color=marks.MIDDLE, linewidth=0.7)
    if is_top:
        _write_statuses(axes, found, names)
    for _, row in found.iterrows():
        at = names.index(row["layout"]) + _OFFSETS[row["switched"]]
        mark = marks.OPTIMIZATIONS[row["switched"]]
        value, low, high = (row[f"{column}_{end}"] for end in ("change", "change_lo", "change_hi"))
        if np.isfinite(value):
            axes.plot([at], [value], mark.marker, color=mark.colour)
            if _draws_intervals(found, column):
                style.draw_interval(axes, at, low, high, mark.colour)
    axes.margins(y=0.15)
    _name_layouts(axes, names)


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


def _draws_intervals(found: DataFrame, column: str) -> bool:
    """Return whether intervals of changes are drawn: of the model, only of step times is it known what points share."""
    return column == "step_time_s" or bool((found["origin"] == "measured").all())


def _name_interval(row: Sequence[Axes], numbers: DataFrame, column: str) -> None:
    """Write how wide the intervals are that are not drawn."""
    half = ((numbers[f"{column}_change_hi"] - numbers[f"{column}_change_lo"]) / 2).max()
    if np.isfinite(half):
        unit = "K" if column.endswith("_c") else "%"
        low, high = row[0].get_ylim()
        for axes in row:
            axes.set_ylim(low, high + 0.25 * (high - low))
        text = f"intervals up to ±{half:.0f} {unit}"
        row[0].text(0.01, 0.98, text, transform=row[0].transAxes, ha="left", va="top", color=marks.GREY)


_OFFSETS = {"base": -0.3, "overlap": -0.1, "recompute": 0.1, "both": 0.3}


def _name_layouts(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.tick_params(axis="x", length=0)
    axes.locator_params(axis="y", nbins=4)


def _draw_memory(axes: Axes, found: DataFrame, is_first: bool) -> None:
    """Draw the memory of each point, and what there is; what did not fit is hollow."""
    names = list(dict.fromkeys(found["layout"]))
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
    if np.isfinite(capacity):
        style.draw_limit(axes, float(capacity), f"memory {capacity:.0f} GiB" if is_first else "")


def _legend(numbers: DataFrame) -> list[Artist]:
    switched = [name for name in marks.OPTIMIZATIONS if name in set(numbers["switched"])]
    found: list[Artist] = [style.as_line(marks.OPTIMIZATIONS[name], linestyle="none") for name in switched]
    how: dict[str, Any] = {"color": marks.GREY, "marker": "o", "linestyle": "none", "markerfacecoloralt": "w"}
    if (~numbers["status"].isin([Status.OK, Status.INVALID])).any():
        found.append(Line2D([], [], label="out of memory: what it needs", fillstyle="none", **how))
    if numbers["may_not_fit"].any():
        found.append(Line2D([], [], label=labels.MAY_NOT_FIT, fillstyle="left", **how))
    return found
