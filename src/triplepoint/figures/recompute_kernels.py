"""Figure `recompute_kernels`: exposed and overlapped kernel seconds with and without recomputation."""

from collections.abc import Hashable, Mapping

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series, concat

from triplepoint import effects
from triplepoint.effects import shares, titles
from triplepoint.figures import drawing, labels, stacks, style
from triplepoint.figures.kernel_breakdown import SOURCE
from triplepoint.figures.quantities import published_of

FREE = ("recompute", "recompute_layers", "recompute_modules")
"""Settings that may differ between the two bars of a layout."""
NOTE = (
    "Left bar: without recomputation, right bar: with it; mean over ranks, without idle time. Right: mean change over "
    "layouts with its 90 % interval over GPUs, where wide enough to show, and the range over layouts."
)
_COMPARED = ("kernel_sum_s", "published_s")
_QUANTITIES = {"compute_s": "computation", "exposed_comm_s": "exposed\ncomm."}


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and part of its bar.

    In each panel only layout and recomputation differ. The first repeat is drawn.

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
    has_places = len(changes) > 1
    answers = [titles.at_place(place if has_places else "", change.sentence) for place, change in changes.items()]
    page = stacks.new_page(rows, answers, NOTE, row_in=2.3)
    row_places = dict.fromkeys(stacks.place_of(row[0]) for row in rows)
    page.beside([_change_texts(changes[place]) for place in row_places], "change")
    for row, axes_of_row in zip(rows, page.axes, strict=True):
        axes_of_row[0].set_ylabel("kernel seconds per step\nand rank (s)")
        for group, axes in zip(row, axes_of_row, strict=False):
            _draw_panel(axes, group, numbers)
    page.legend(_legend(numbers))
    return page.finish(), numbers


def paired(points: DataFrame) -> list[DataFrame]:
    """Return the points of each group that differ only in layout and recomputation, the first repeat of each.

    Layouts with one setting of recomputation are left out if others have several. Likewise for groups.
    """
    groups = []
    for _, members in labels.prepare(points).groupby("group", sort=False):
        chosen = labels.common_setting(members, free=FREE)
        chosen = chosen.drop_duplicates(["layout", *FREE]).reset_index(drop=True)
        is_paired = chosen.groupby("layout")["recompute"].transform("nunique") > 1
        kept = chosen[is_paired] if is_paired.any() else chosen
        groups.append(kept.assign(layout=labels.without_shared(kept["layout"])).reset_index(drop=True))
    with_pairs = [group for group in groups if group["recompute"].nunique() > 1]
    return with_pairs or groups


def _changes(points: DataFrame, numbers: DataFrame, ranks: DataFrame) -> dict[str, titles.Change]:
    """Return the effect of recomputation by cluster.

    If kernel seconds of two layouts or more are published, the effect on them and on ours of the same layouts is added.

    Args:
        points: Points that are drawn.
        numbers: Plotted numbers.
        ranks: Seconds of `_QUANTITIES` by run and rank.
    """
    both = points.assign(published_s=points["run"].map(numbers.groupby("run")["published_kernel_sum_s"].first()))
    both = both[both["published_s"] > 0]
    changes = {}
    for _, members in points.groupby("place", sort=False):
        pairs = {name: _pairs(members, column, ranks) for column, name in _QUANTITIES.items()}
        ours, published = (_pairs(both.loc[both["run"].isin(members["run"])], column) for column in _COMPARED)
        if len(published) > 1:
            same = {key: effect for key, effect in ours.items() if key in published}
            pairs |= {f"kernels of {len(published)}\nlayouts": same, "published": published}
        changes[stacks.place_of(members)] = titles.Change("recomputation", "", pairs, is_paired=True)
    return changes


def _change_texts(change: titles.Change) -> str:
    """Return the text at the right of a row of panels: the effect on each quantity below its name."""
    return "\n".join(f"{name}\n{text}" for name in change.effects if (text := change.short(name)))


def _pairs(
    points: DataFrame, column: str, ranks: DataFrame | None = None
) -> dict[tuple[Hashable, ...], effects.Effect]:
    """Return the effect of the most frequent kind of recomputation on a quantity, by group and layout."""
    known = points[points[column] > 0]
    kinds = [kind for kind in known["recompute"].value_counts().index if kind != "none"]
    if not kinds:
        return {}
    return effects.pair_points(known, column, ["group", "layout"], "recompute", "none", kinds[0], ranks)


def _by_rank(breakdown: DataFrame) -> DataFrame:
    """Return seconds of computation and of exposed communication by run and rank."""
    compute = breakdown["busy_s"].where(breakdown["category"] == "compute", 0.0)
    exposed = breakdown["exposed_s"].where(breakdown["category"] == "comm", 0.0)
    seconds = breakdown[["run", "rank"]].assign(compute_s=compute, exposed_comm_s=exposed)
    return seconds.groupby(["run", "rank"], sort=False).sum().reset_index()


def _published(published: DataFrame | None, numbers: DataFrame) -> Series:
    """Return the published kernel seconds of the run of each row; null where there are none."""
    rows = None if published is None else published[published["source"] == SOURCE]
    return published_of(rows, numbers["run"], "kernel_sum_s")


def _draw_panel(axes: Axes, group: DataFrame, numbers: DataFrame) -> None:
    """Draw the two bars of each layout of a group, and published totals."""
    rows = numbers[numbers["group"] == group["group"].iloc[0]]
    totals = rows.groupby("run")["seconds"].sum()
    published = rows.drop_duplicates("run").set_index("run")["published_kernel_sum_s"]
    names = list(dict.fromkeys(group["layout"]))
    limit = stacks.finish_axes(axes, names, totals)
    for _, point in group.iterrows():
        at = names.index(point["layout"]) + (-0.2 if point["recompute"] == "none" else 0.2)
        parts = rows[(rows["run"] == point["run"]) & rows["seconds"].notna()].set_index("part")["seconds"].to_dict()
        if parts:
            stacks.draw_stack(axes, at, 0.36, parts, limit)
        else:
            stacks.write_missing(axes, at, point["status"])
        value = float(published[point["run"]])
        if value <= axes.get_ylim()[1]:
            drawing.draw_published(axes, [at], [value])


def _legend(numbers: DataFrame) -> list[Artist]:
    handles = stacks.legend_of(numbers.loc[numbers["seconds"].notna(), "part"])
    if numbers["published_kernel_sum_s"].notna().any():
        unused_axes = Figure().subplots()
        handles.append(drawing.draw_published(unused_axes, [], []))
    return handles
