"""Heat maps of GPUs: one row per run, one cell per GPU."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, Normalize
from pandas import DataFrame, Series, concat

from triplepoint.figures import drawing, labels, marks, style
from triplepoint.status import Status

NOTHING = "no run with a GPU finished"
ROW_IN, _LEAST_ROW_IN = 0.145, 0.125
"""Usual and least height of a line of a map. Unit: inch."""
_PER_PANEL_IN = 0.42
"""Height of the title and the axis of a map. Unit: inch."""
_LEAST_GREY = 0.2
"""Share of the width of a row from which a grey part has room for its reason."""
_HEAD_IN, _SCALE_IN = 1.0, 0.4
"""Heights of the head of the page and of the colour scale. Unit: inch."""
PUBLISHED = "published"
"""End of the label of a row of published values, which is below the row of ours."""


def with_gpus(tables: Mapping[str, DataFrame]) -> tuple[DataFrame, DataFrame]:
    """Return the finished runs to draw with column `label`, and their GPUs.

    The runs of a model on a cluster differ only in layout, as `labels.choose` selects them. Runs with published values
    of single GPUs are added; their labels tell what else differs.

    Args:
        tables: `points`, `gpus` and optionally `published`.

    Returns:
        Rows of `points`, and rows of `gpus` with columns `label`, `place`, `origin` and `number`, the slot in the node.
    """
    points = labels.prepare(tables["points"])
    points = points[points["device_type"] != "cpu"]
    published = tables.get("published", DataFrame(columns=["run", "node"]))
    published_runs = set(published.loc[published["node"].notna(), "run"])
    chosen = [
        _with_published(members, labels.choose(members), published_runs)
        for _, members in points.groupby("group", sort=False)
    ]
    drawn = concat(chosen) if chosen else points.assign(label="")
    # Sorted by cluster, then by model, both in the order of the table.
    models, places = (list(dict.fromkeys(drawn[name])) for name in ("model", "place"))
    order = drawn["place"].map(places.index) * len(models) + drawn["model"].map(models.index)
    drawn = drawn.iloc[order.argsort(kind="stable")]
    done = drawn[drawn["status"] == Status.OK]
    gpus = done[["run", "label", "place", "origin"]].merge(tables["gpus"], on="run", sort=False)
    number = gpus["device"].str.extract(r"(\d+)$")[0].astype(float)
    slot = gpus["slot"].astype(float)
    return done, gpus.assign(number=slot.where(slot.notna(), number).fillna(0).astype(int))


def with_values(tables: Mapping[str, DataFrame], column: str, name: str) -> tuple[DataFrame, DataFrame, str]:
    """Return the finished runs to draw, and their GPUs that have a value of a quantity.

    Args:
        tables: `points`, `gpus` and optionally `published`.
        column: Column of the quantity.
        name: Name of the quantity.

    Returns:
        Rows of `points`; rows of `gpus` as in `with_gpus`, with column `published`; and '', or the reason why no GPU
        has a value.
    """
    points, gpus = with_gpus(tables)
    known = published_gpus(tables.get("published"), gpus[gpus[column].notna()], column)
    reason = NOTHING if points.empty else f"{style.absent_text(points)}: {name}" if known.empty else ""
    return points[points["run"].isin(known["run"])], known, reason


def _with_published(members: DataFrame, chosen: DataFrame, published_runs: set[str]) -> DataFrame:
    """Return the chosen points of a group and those with published values of single GPUs, with column `label`."""
    more = members[members["run"].isin(published_runs) & ~members["run"].isin(chosen["run"])]
    layouts = [_layout_with_differences(row, chosen.iloc[0]) for _, row in more.iterrows()]
    joined = concat([chosen, more.assign(layout=layouts)])
    repeats = joined["repeat"].where(joined["repeat"] > 1, 0).astype(int)
    return joined.assign(
        label=[
            f"{model} {layout}" + (f" r{repeat}" if repeat else "")
            for model, layout, repeat in zip(joined["model"], joined["layout"], repeats, strict=True)
        ]
    )


def _layout_with_differences(row: Series, base: Series) -> str:
    """Return the layout of a run and its settings that differ from run `base`, also that it recomputes nothing."""
    without = " no recompute" if row["recompute"] == "none" != base["recompute"] else ""
    return labels.layout_at(row, base) + without


def published_gpus(published: DataFrame | None, gpus: DataFrame, quantity: str) -> DataFrame:
    """Return GPUs with column `published`, the published value of a quantity; null where there is none."""
    if published is None:
        return gpus.assign(published=np.nan)
    values = published[(published["quantity"] == quantity) & published["slot"].notna()]
    values = values.rename(columns={"slot": "number"})[["run", "node", "number", "published"]]
    values = values.drop_duplicates(["run", "node", "number"]).astype({"node": int, "number": int})
    return gpus.merge(values, on=["run", "node", "number"], how="left", sort=False)


def rows_of(gpus: DataFrame, column: str) -> DataFrame:
    """Return the cells of a map: one row per GPU, and one more per published value.

    Args:
        gpus: GPUs with columns `label`, `node`, `number` and optionally `published`.
        column: Column of the quantity.

    Returns:
        Rows of `gpus` with columns `row` (label of the row of the map), `at` (position in the row), `value` and
        `is_published`.
    """
    per_node = int(gpus["number"].max()) + 1 if len(gpus) else 1
    ours = gpus.assign(row=gpus["label"], at=gpus["node"] * per_node + gpus["number"], value=gpus[column].astype(float))
    ours["is_published"] = False
    if "published" not in gpus or gpus["published"].isna().all():
        return ours
    theirs = ours[ours["published"].notna()].assign(value=lambda cells: cells["published"], is_published=True)
    theirs["row"] = theirs["row"] + f", {PUBLISHED}"
    order = {run: index for index, run in enumerate(dict.fromkeys(gpus["run"]))}
    joined = concat([ours, theirs], ignore_index=True).assign(order=lambda cells: cells["run"].map(order))
    return joined.sort_values(["order", "is_published"], kind="stable").drop(columns="order")


def draw_maps(
    answers: style.Answer, note: str, points: DataFrame, known: DataFrame, column: str, colours: tuple[str, str],
    extreme: Callable[["Series[Any]"], Any],
) -> tuple[style.Page, DataFrame]:  # fmt: skip
    """Return a page with one map per cluster on a common colour scale, and the cells of all maps.

    Args:
        answers: Title, one line per cluster, since a mean over two types of GPUs has no meaning.
        note: Note of the page.
        points: Runs that are drawn.
        known: GPUs of these runs that have a value.
        column: Column of the quantity.
        colours: Name of the colour map, and label of the colour scale.
        extreme: Function that returns the index of the value to mark in each map and to name above it.
    """
    panels = [(str(place), rows_of(DataFrame(gpus), column)) for place, gpus in known.groupby("place", sort=False)]
    all_cells = DataFrame([row for _, cells in panels for row in cells.to_dict("records")])
    panels = _fitting([(title_of(place, points), cells) for place, cells in panels])
    num_rows = [len(lines_of(cells["row"])) for _, cells in panels]
    height = min(style.TALLEST, _HEAD_IN + _SCALE_IN + _PER_PANEL_IN * len(panels) + ROW_IN * sum(num_rows))
    page = style.new_page(
        answers, points, len(panels), 1, style.PAGE, height, note, height_ratios=[rows + 0.5 for rows in num_rows]
    )
    values = concat([cells["value"] for _, cells in panels])
    low, high = float(values.min()), float(values.max())
    scale = Normalize(low, max(high, low + 1e-9))
    unit = colours[1].rpartition("(")[2].rstrip(")")
    for axes, (title, cells) in zip(page.all_axes, panels, strict=True):
        drawn = draw_cells(axes, cells, colours[0], scale)
        axes.set_title(title, loc="left")
        _mark_extreme(axes, cells, cells.loc[extreme(cells.loc[~cells["is_published"], "value"])], unit)
    page.figure.colorbar(
        drawn, ax=page.all_axes, orientation="horizontal", label=colours[1], aspect=60, shrink=0.5, pad=0.01
    )
    return page, all_cells


def _mark_extreme(axes: Axes, cells: DataFrame, cell: "Series[Any]", unit: str) -> None:
    """Mark a cell of a map with a ring, and write its value and place above the map."""
    y = lines_of(cells["row"])[str(cell["row"])]
    for colour, width in ((marks.BLACK, 1.6), ("white", 0.7)):
        axes.plot([cell["at"]], [y], "o", markersize=4.5, markerfacecolor="none", color=colour, markeredgewidth=width)
    text = f"○ {cell['value']:.0f} {unit}, node {cell['node']} GPU {cell['number']}, {cell['label']}"
    axes.set_title(text, loc="right", fontweight="normal")


def title_of(place: str, points: DataFrame) -> str:
    """Return the title of a panel: its place, without 'simulated' if the stamp of the page says so."""
    return place.removesuffix(", simulated") if points["origin"].nunique() < 2 else place


def _fitting(panels: Sequence[tuple[str, DataFrame]]) -> list[tuple[str, DataFrame]]:
    """Return the panels with as many rows as fit on the page; titles of shortened panels tell how many are drawn."""
    most_lines = (style.TALLEST - _HEAD_IN - _SCALE_IN - _PER_PANEL_IN * len(panels)) / _LEAST_ROW_IN
    if sum(len(lines_of(cells["row"])) for _, cells in panels) <= most_lines:
        return list(panels)
    shortened = []
    for title, cells in panels:
        names = list(dict.fromkeys(cells["row"]))
        most = max(sum(line < most_lines / len(panels) for name, line in lines_of(names).items() if " " in name), 1)
        note = f" ({most} of {len(names)} runs; the others are in the CSV)" if len(names) > most else ""
        shortened.append((title + note, cells[cells["row"].isin(names[:most])]))
    return shortened


def draw_cells(axes: Axes, cells: DataFrame, colours: str | Colormap, scale: Normalize, label_rows: bool = True) -> Any:
    """Draw one map with white lines between nodes.

    Args:
        axes: The panel.
        cells: Cells with columns `row`, `at`, `node` and `value`. Cells without a value are grey; a long grey part of a
            row tells why.
        colours: A colour map or its name.
        scale: Range of the colour map.
        label_rows: Whether to write the labels of rows.

    Returns:
        The artist that a colour scale can be made for.
    """
    lines = lines_of(cells["row"])
    values = np.full((len(lines), int(cells["at"].max()) + 1), np.nan)
    values[[lines[name] for name in cells["row"]], cells["at"].to_numpy(int)] = cells["value"]
    axes.set_facecolor(marks.PALE)
    _name_grey(axes, cells, lines)
    drawn = _boxes(values, cmap=colours, norm=scale, linewidth=0, antialiased=False)
    axes.add_collection(drawn, autolim=False)
    axes.set_xlim(-0.5, values.shape[1] - 0.5)
    starts = cells.groupby("node")["at"].min().sort_index()
    for start in starts[1:]:
        axes.axvline(start - 0.5, color="white", linewidth=1.5)
    rows = {name: number for name, number in lines.items() if " " in name}
    for model, number in ((name, line) for name, line in lines.items() if name not in rows):
        axes.axhspan(number - 0.5, number + 0.5, color="white", linewidth=0, zorder=2)
        if label_rows:
            axes.text(-0.5, number, model, va="center", fontweight="bold", fontsize=style.TEXT_PT, zorder=3)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(list(rows.values()), [_short(name) if label_rows else "" for name in rows])
    width = values.shape[1] / max(len(starts), 1)
    has_room = len(starts) <= 8
    texts = [f"node {node}" if has_room else str(node) for node in starts.index]
    axes.set_xticks(starts.to_numpy(float) + (width - 1) / 2, texts)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    return drawn


def _boxes(values: np.ndarray, **properties: Any) -> PolyCollection:
    """Return the cells of a map as boxes. Equal neighbours share a box, since the links of a node often are equal.

    Args:
        values: Value of each cell, NaN for none. Shape (num_lines, num_cells).
        **properties: Properties of the collection of boxes.
    """
    boxes, box_values = [], []
    for row, row_values in enumerate(values):
        ends = np.flatnonzero(np.append(row_values[1:] != row_values[:-1], True))
        for start, end in zip(np.append(0, ends[:-1] + 1), ends, strict=True):
            if not np.isnan(row_values[end]):
                left, right, top, bottom = start - 0.5, end + 0.5, row - 0.5, row + 0.5
                boxes.append([(left, top), (right, top), (right, bottom), (left, bottom)])
                box_values.append(row_values[end])
    drawn = PolyCollection(boxes, **properties)
    drawn.set_array(np.asarray(box_values))
    return drawn


def lines_of(names: Iterable[str]) -> dict[str, int]:
    """Return the numbers of the lines of a map from the top: rows, and a heading above the rows of each model."""
    lines: dict[str, int] = {}
    for name in names:
        lines.setdefault(name.partition(" ")[0], len(lines))
        lines.setdefault(name, len(lines))
    return lines


def _short(name: str) -> str:
    """Return the short label of a row: its layout, or 'published' for a row below the same layout."""
    return PUBLISHED if name.endswith(f", {PUBLISHED}") else name.partition(" ")[2]


def _name_grey(axes: Axes, cells: DataFrame, lines: Mapping[str, int]) -> None:
    """Write in the grey part of a row why it is grey: nothing is published there, or the run uses fewer nodes."""
    end = float(cells["at"].max())
    for name, row in cells[cells["value"].notna()].groupby("row", sort=False):
        last = float(row["at"].max())
        if end - last >= _LEAST_GREY * (end + 1):
            is_published = bool("is_published" in row and row["is_published"].any())
            axes.text(
                (last + end) / 2 + 0.5, lines[str(name)], "not published" if is_published else "not used", ha="center",
                va="center", fontsize=style.TEXT_PT, bbox={"facecolor": marks.PALE, "edgecolor": "none", "pad": 0.6},
            )  # fmt: skip


def empty_page(points: DataFrame, text: str = NOTHING) -> style.Page:
    """Return a page without values that tells why nothing is drawn."""
    page = style.new_page("Nothing to draw", points)
    drawing.write_reason(page.axes[0][0], text)
    return page
