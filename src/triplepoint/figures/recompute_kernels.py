"""Kernel seconds with and without recomputation, exposed apart from overlapped: two bars per layout."""

from collections.abc import Hashable, Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series, concat

from triplepoint import effects
from triplepoint.effects import shares, titles
from triplepoint.figures import drawing, labels, stacks, style
from triplepoint.figures.kernel_breakdown import SOURCE
from triplepoint.figures.parallelism_sweep import published_of

FREE = ("recompute", "recompute_layers", "recompute_modules")
"""Settings that differ between the two bars."""
NOTE = (
    "Left bar: without recomputation, right bar: with it; mean over ranks, without idle time. Right: mean change over "
    "layouts with its 90 % interval over GPUs, where wide enough to show, and the range over layouts."
)
_COMPARED = ("kernel_sum_s", "published_s")
_ANSWERED = {"compute_s": "computation", "exposed_comm_s": "exposed\ncomm."}


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and part of its bar.

    In each panel only layout and recomputation differ. Of repeats the first is drawn.

    Args:
        tables: `points`, `breakdown` and `published`.
    """
    groups = paired(tables["points"])
    points = concat(groups, ignore_index=True)
    breakdown = tables["breakdown"]
    parts = shares.exposed_and_overlapped(breakdown[breakdown["run"].isin(points["run"])])
    shown = ["group", "layout", "recompute", "run", "status", "reason"]
    numbers = points[shown].merge(parts, on="run", how="left", sort=False)
    numbers["published_kernel_sum_s"] = _published(tables.get("published"), numbers)
    rows = stacks.grid(groups)
    changes = _changes(points, numbers, _by_rank(breakdown))
    several = len(changes) > 1
    answers = [titles.at_place(where if several else "", change.sentence) for where, change in changes.items()]
    page = stacks.new_page(rows, answers, NOTE, row_in=2.3)
    of_rows = dict.fromkeys(stacks.place_of(row[0]) for row in rows)
    page.beside([_said(changes[where]) for where in of_rows], "change")
    for row, axes_of_row in zip(rows, page.axes, strict=True):
        axes_of_row[0].set_ylabel("kernel seconds per step\nand rank (s)")
        for found, axes in zip(row, axes_of_row, strict=False):
            _draw_panel(axes, found, numbers)
    page.legend(_legend(numbers))
    return page.finish(), numbers


def paired(points: DataFrame, free: Sequence[str] = FREE) -> list[DataFrame]:
    """Return the points of each group that differ in layout and in `free` alone, of repeats the first.

    Layouts that were tried one way alone are left out where others were tried both ways.
    """
    groups = []
    for _, members in labels.prepare(points).groupby("group", sort=False):
        chosen = labels.common_setting(members, free=tuple(free))
        chosen = chosen.drop_duplicates(["layout", *free]).reset_index(drop=True)
        is_paired = chosen.groupby("layout")["recompute"].transform("nunique") > 1
        kept = chosen[is_paired] if is_paired.any() else chosen
        groups.append(kept.assign(layout=labels.without_shared(kept["layout"])).reset_index(drop=True))
    has_pairs = [found["recompute"].nunique() > 1 for found in groups]
    return [found for found, has in zip(groups, has_pairs, strict=True) if has or not any(has_pairs)]


def _changes(points: DataFrame, numbers: DataFrame, ranks: DataFrame) -> dict[str, titles.Change]:
    """Return what recomputation does on each cluster, and to the published kernel seconds where two pairs are known."""
    both = points.assign(published_s=points["run"].map(numbers.groupby("run")["published_kernel_sum_s"].first()))
    both = both[both["published_s"] > 0]
    changes = {}
    for _, found in points.groupby("place", sort=False):
        pairs = {name: _pairs(found, column, ranks) for column, name in _ANSWERED.items()}
        ours, published = (_pairs(both.loc[both["run"].isin(found["run"])], column) for column in _COMPARED)
        if len(published) > 1:
            same = {key: effect for key, effect in ours.items() if key in published}
            pairs |= {f"kernels of {len(published)}\nlayouts": same, "published": published}
        changes[stacks.place_of(found)] = titles.Change("recomputation", "", pairs, is_paired=True)
    return changes


def _said(change: titles.Change) -> str:
    """Return the changes as they stand beside a row of panels."""
    return "\n".join(f"{name}\n{text}" for name in change.found if (text := change.short(name)))


def _pairs(found: DataFrame, column: str, ranks: DataFrame | None = None) -> dict[tuple[Hashable, ...], effects.Effect]:
    known = found[found[column] > 0]
    others = [kind for kind in known["recompute"].value_counts().index if kind != "none"]
    if not others:
        return {}
    return effects.pair_points(known, column, ["group", "layout"], "recompute", "none", others[0], ranks)


def _by_rank(breakdown: DataFrame) -> DataFrame:
    """Return seconds of computation and of exposed communication of each run and rank."""
    compute = breakdown["busy_s"].where(breakdown["category"] == "compute", 0.0)
    exposed = breakdown["exposed_s"].where(breakdown["category"] == "comm", 0.0)
    seconds = breakdown[["run", "rank"]].assign(compute_s=compute, exposed_comm_s=exposed)
    return seconds.groupby(["run", "rank"], sort=False).sum().reset_index()


def _published(published: DataFrame | None, numbers: DataFrame) -> Series:
    own = None if published is None else published[published["source"] == SOURCE]
    return published_of(own, numbers["run"], "kernel_sum_s")


def _draw_panel(axes: Axes, found: DataFrame, numbers: DataFrame) -> None:
    own = numbers[numbers["group"] == found["group"].iloc[0]]
    totals = own.groupby("run")["seconds"].sum()
    published = own.drop_duplicates("run").set_index("run")["published_kernel_sum_s"]
    names = list(dict.fromkeys(found["layout"]))
    limit = stacks.finish_axes(axes, names, totals)
    for _, point in found.iterrows():
        at = names.index(point["layout"]) + (-0.2 if point["recompute"] == "none" else 0.2)
        parts = own[(own["run"] == point["run"]) & own["seconds"].notna()].set_index("part")["seconds"].to_dict()
        if parts:
            stacks.draw_stack(axes, at, 0.36, parts, limit)
        else:
            stacks.say_why_empty(axes, at, point["status"], "no trace")
        value = float(published[point["run"]])
        if value <= axes.get_ylim()[1]:
            drawing.draw_published(axes, [at], [value])


def _legend(numbers: DataFrame) -> list[Artist]:
    found = stacks.legend_of(numbers.loc[numbers["seconds"].notna(), "part"])
    if numbers["published_kernel_sum_s"].notna().any():
        scratch = Figure().subplots()
        found.append(drawing.draw_published(scratch, [], []))
    return found
