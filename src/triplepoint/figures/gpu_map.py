"""Maps of GPUs: a row per run, a cell per GPU of its nodes; what figures of single GPUs share."""

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
"""Height of a line of a map, and how little it is where that is what fits a page."""
_PER_PANEL_IN = 0.42
_LEAST_GREY = 0.2
"""Of the width, from which on there is room to say why the rest of a row is grey."""
_HEAD_IN, _SCALE_IN = 1.0, 0.4
PUBLISHED = "published"
"""End of the label of a row of published values, which stands below ours."""


def with_gpus(tables: Mapping[str, DataFrame]) -> tuple[DataFrame, DataFrame]:
    """Return the finished runs to draw, with labels, and their GPUs with node and `number`, their place in it.

    Of each model and cluster only the layout differs, see `labels.choose`; runs that single GPUs are
    published of are drawn too, and named by what else differs in them.

    Args:
        tables: `points` and `gpus`; `published` where there is one.
    """
    points = labels.prepare(tables["points"])
    points = points[points["device_type"] != "cpu"]
    published = tables.get("published", DataFrame(columns=["run", "node"]))
    of_gpus = set(published.loc[published["node"].notna(), "run"])
    chosen = [
        _with_published(members, labels.choose(members), of_gpus) for _, members in points.groupby("group", sort=False)
    ]
    drawn = concat(chosen) if chosen else points.assign(label="")
    # Fully sharded layouts beside the others of their model, clusters in the order of the table.
    models, places = (list(dict.fromkeys(drawn[name])) for name in ("model", "place"))
    order = drawn["place"].map(places.index) * len(models) + drawn["model"].map(models.index)
    drawn = drawn.iloc[order.argsort(kind="stable")]
    done = drawn[drawn["status"] == Status.OK]
    gpus = done[["run", "label", "place", "origin"]].merge(tables["gpus"], on="run", sort=False)
    number = gpus["device"].str.extract(r"(\d+)$")[0].astype(float)
    slot = gpus["slot"].astype(float)
    return done, gpus.assign(number=slot.where(slot.notna(), number).fillna(0).astype(int))


def with_values(tables: Mapping[str, DataFrame], column: str, name: str) -> tuple[DataFrame, DataFrame, str]:
    """Return the finished runs that are drawn and their GPUs with a value, published ones beside ours; and why none is.

    Args:
        tables: `points`, `gpus`, and `published` where there is one.
        column: The quantity.
        name: What it is called.
    """
    points, gpus = with_gpus(tables)
    known = published_gpus(tables.get("published"), gpus[gpus[column].notna()], column)
    why = NOTHING if points.empty else f"{style.absent(points)}: {name}" if known.empty else ""
    return points[points["run"].isin(known["run"])], known, why


def _with_published(members: DataFrame, chosen: DataFrame, of_gpus: set[str]) -> DataFrame:
    more = members[members["run"].isin(of_gpus) & ~members["run"].isin(chosen["run"])]
    layouts = [_beside(row, chosen.iloc[0]) for _, row in more.iterrows()]
    joined = concat([chosen, more.assign(layout=layouts)])
    repeats = joined["repeat"].where(joined["repeat"] > 1, 0).astype(int)
    return joined.assign(
        label=[
            f"{model} {layout}" + (f" r{repeat}" if repeat else "")
            for model, layout, repeat in zip(joined["model"], joined["layout"], repeats, strict=True)
        ]
    )


def _beside(row: Series, base: Series) -> str:
    """Return the layout of a run with what else differs from another; that it recomputes nothing has no short text."""
    without = " no recompute" if row["recompute"] == "none" != base["recompute"] else ""
    return labels.layout_at(row, base) + without


def published_gpus(published: DataFrame | None, gpus: DataFrame, quantity: str) -> DataFrame:
    """Return GPUs with column `published`: the published value of a quantity, null where there is none."""
    if published is None:
        return gpus.assign(published=np.nan)
    found = published[(published["quantity"] == quantity) & published["slot"].notna()]
    found = found.rename(columns={"slot": "number"})[["run", "node", "number", "published"]]
    found = found.drop_duplicates(["run", "node", "number"]).astype({"node": int, "number": int})
    return gpus.merge(found, on=["run", "node", "number"], how="left", sort=False)


def rows_of(gpus: DataFrame, column: str) -> DataFrame:
    """Return GPUs with `row`, the label of their row, `at`, their place along it, and `value`; published ones below."""
    per_node = int(gpus["number"].max()) + 1 if len(gpus) else 1
    own = gpus.assign(row=gpus["label"], at=gpus["node"] * per_node + gpus["number"], value=gpus[column].astype(float))
    if "published" not in gpus or gpus["published"].isna().all():
        return own.assign(is_published=False)
    also = own[own["published"].notna()].assign(value=lambda found: found["published"], is_published=True)
    also["row"] = also["row"] + f", {PUBLISHED}"
    together = [own.assign(is_published=False), also]
    order = {run: index for index, run in enumerate(dict.fromkeys(gpus["run"]))}
    joined = concat(together, ignore_index=True).assign(order=lambda found: found["run"].map(order))
    return joined.sort_values(["order", "is_published"], kind="stable").drop(columns="order")


def draw_maps(
    answers: style.Answer, note: str, points: DataFrame, known: DataFrame, column: str, colours: tuple[str, str],
    extreme: Callable[["Series[Any]"], Any],
) -> tuple[style.Page, DataFrame]:  # fmt: skip
    """Return a page with a map per cluster below each other, on one scale of colours, and all cells.

    Args:
        answers: What the page says, a line per cluster: GPUs of two types have no mean.
        note: What is shown.
        points: Runs that are drawn.
        known: Their GPUs with a value.
        column: The quantity.
        colours: Name of a colour map, and what the scale says.
        extreme: Returns the index of the value that is marked in a map and named above it.
    """
    places = [(str(place), DataFrame(found)) for place, found in known.groupby("place", sort=False)]
    panels = [(place, rows_of(found, column)) for place, found in places]
    cells = DataFrame([row for _, found in panels for row in found.to_dict("records")])
    panels = _fitting([(title_of(place, points), found) for place, found in panels])
    num_rows = [len(lines_of(found["row"])) for _, found in panels]
    height = min(style.TALLEST, _HEAD_IN + _SCALE_IN + _PER_PANEL_IN * len(panels) + ROW_IN * sum(num_rows))
    page = style.new_page(
        answers, points, len(panels), 1, style.PAGE, height, note, height_ratios=[rows + 0.5 for rows in num_rows]
    )
    values = concat([found["value"] for _, found in panels])
    low, high = float(values.min()), float(values.max())
    scale = Normalize(low, max(high, low + 1e-9))
    unit = colours[1].rpartition("(")[2].rstrip(")")
    for axes, (title, found) in zip(page.all_axes, panels, strict=True):
        drawn = draw_cells(axes, found, colours[0], scale)
        axes.set_title(title, loc="left")
        _mark_extreme(axes, found, found.loc[extreme(found.loc[~found["is_published"], "value"])], unit)
    page.figure.colorbar(
        drawn, ax=page.all_axes, orientation="horizontal", label=colours[1], aspect=60, shrink=0.5, pad=0.01
    )
    return page, cells


def _mark_extreme(axes: Axes, found: DataFrame, cell: "Series[Any]", unit: str) -> None:
    """Mark a cell of a map with a ring, and say at the right above the map what it is."""
    at = lines_of(found["row"])[str(cell["row"])]
    axes.plot([cell["at"]], [at], "o", markersize=4.5, markerfacecolor="none", color=marks.BLACK, markeredgewidth=1.6)
    axes.plot([cell["at"]], [at], "o", markersize=4.5, markerfacecolor="none", color="white", markeredgewidth=0.7)
    text = f"○ {cell['value']:.0f} {unit}, node {cell['node']} GPU {cell['number']}, {cell['label']}"
    axes.set_title(text, loc="right", fontweight="normal")


def title_of(place: str, points: DataFrame) -> str:
    """Return the title of a panel: its place, without the engine where the stamp says all of it."""
    return place.removesuffix(", simulated") if points["origin"].nunique() < 2 else place


def _fitting(panels: Sequence[tuple[str, DataFrame]]) -> list[tuple[str, DataFrame]]:
    """Return the panels with as many rows as the page holds; titles say where there are more."""
    room = (style.TALLEST - _HEAD_IN - _SCALE_IN - _PER_PANEL_IN * len(panels)) / _LEAST_ROW_IN
    if sum(len(lines_of(found["row"])) for _, found in panels) <= room:
        return list(panels)
    cut = []
    for title, found in panels:
        names = list(dict.fromkeys(found["row"]))
        most = max(sum(line < room / len(panels) for name, line in lines_of(names).items() if " " in name), 1)
        more = f" ({most} of {len(names)} runs; the others are in the CSV)" if len(names) > most else ""
        cut.append((title + more, found[found["row"].isin(names[:most])]))
    return cut


def draw_cells(axes: Axes, found: DataFrame, colours: str | Colormap, scale: Normalize, label_rows: bool = True) -> Any:
    """Draw one map, nodes apart by white lines, and return what a scale of colours is drawn of.

    Args:
        axes: Where.
        found: Cells, as `rows_of` returns them; a cell without a value stays grey, and many of a row say why.
        colours: A colour map or its name.
        scale: Its ends.
        label_rows: Whether rows are named.
    """
    lines = lines_of(found["row"])
    cells = np.full((len(lines), int(found["at"].max()) + 1), np.nan)
    cells[[lines[name] for name in found["row"]], found["at"].to_numpy(int)] = found["value"]
    axes.set_facecolor(marks.PALE)
    _name_grey(axes, found, lines)
    drawn = _boxes(cells, cmap=colours, norm=scale, linewidth=0, antialiased=False)
    axes.add_collection(drawn, autolim=False)
    axes.set_xlim(-0.5, cells.shape[1] - 0.5)
    starts = found.groupby("node")["at"].min().sort_index()
    for start in starts[1:]:
        axes.axvline(start - 0.5, color="white", linewidth=1.5)
    rows = {name: number for name, number in lines.items() if " " in name}
    for model, number in lines.items() - rows.items():
        axes.axhspan(number - 0.5, number + 0.5, color="white", linewidth=0, zorder=2)
        if label_rows:
            axes.text(-0.5, number, model, va="center", fontweight="bold", fontsize=style.TEXT_PT, zorder=3)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_yticks(list(rows.values()), [_short(name) if label_rows else "" for name in rows])
    width = (cells.shape[1]) / max(len(starts), 1)
    has_room = len(starts) <= 8
    texts = [f"node {node}" if has_room else str(node) for node in starts.index]
    axes.set_xticks(starts.to_numpy(float) + (width - 1) / 2, texts)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    return drawn


def _boxes(cells: np.ndarray, **how: Any) -> PolyCollection:
    """Return cells as boxes, neighbours of one value as one: links of a node are often used alike."""
    boxes, values = [], []
    for row, of_row in enumerate(cells):
        ends = np.flatnonzero(np.append(of_row[1:] != of_row[:-1], True))
        for start, end in zip(np.append(0, ends[:-1] + 1), ends, strict=True):
            if of_row[end] == of_row[end]:
                left, right, top, bottom = start - 0.5, end + 0.5, row - 0.5, row + 0.5
                boxes.append([(left, top), (right, top), (right, bottom), (left, bottom)])
                values.append(of_row[end])
    drawn = PolyCollection(boxes, **how)
    drawn.set_array(np.asarray(values))
    return drawn


def lines_of(names: Iterable[str]) -> dict[str, int]:
    """Return the lines of a map from the top: rows, and above the first row of each model a line with its name."""
    lines: dict[str, int] = {}
    for name in names:
        lines.setdefault(name.partition(" ")[0], len(lines))
        lines.setdefault(name, len(lines))
    return lines


def _short(name: str) -> str:
    """Return the label of a row: its layout; a published one stands below the layout it is of."""
    return PUBLISHED if name.endswith(f", {PUBLISHED}") else name.partition(" ")[2]


def _name_grey(axes: Axes, found: DataFrame, lines: Mapping[str, int]) -> None:
    """Write in rows why nodes of others are grey in them: nothing is published of them, or the run is on fewer."""
    end = float(found["at"].max())
    for name, own in found[found["value"].notna()].groupby("row", sort=False):
        number = lines[str(name)]
        last = float(own["at"].max()) if len(own) else -1.0
        if end - last >= _LEAST_GREY * (end + 1):
            is_published = bool("is_published" in own and own["is_published"].any())
            axes.text(
                (last + end) / 2 + 0.5, number, "not published" if is_published else "not used", ha="center",
                va="center", fontsize=style.TEXT_PT, bbox={"facecolor": marks.PALE, "edgecolor": "none", "pad": 0.6},
            )  # fmt: skip


def empty_page(points: DataFrame, text: str = NOTHING) -> style.Page:
    """Return a page that says why nothing is drawn, in its title and in its panel."""
    page = style.new_page("Nothing to draw", points)
    drawing.say(page.axes[0][0], text)
    return page
