"""Maps of GPUs: one row per run, one cell per GPU of its nodes, a block per model and cluster over the page's width."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from pandas import DataFrame

from triplepoint.figures import labels
from triplepoint.figures import old_page as style
from triplepoint.figures.old_page import HEAD_IN, MARGIN_IN, Canvas, Place, shortened, text_width_in, wrapped
from triplepoint.status import Status

ROW_IN = 0.125
_TITLE_IN, _BELOW_IN, _EMPTY_IN = 0.30, 0.30, 0.30
_LABEL_SHARE = 0.3


@dataclass(frozen=True)
class Band:
    """One block of runs.

    Attributes:
        title: Model and cluster.
        runs: One row per run, with its label, in the order drawn.
        absent: Why nothing is drawn; None where something is.
    """

    title: str
    runs: DataFrame
    absent: str | None

    @property
    def height_in(self) -> float:
        """Height with title and axis. Unit: inch."""
        return _TITLE_IN + (_EMPTY_IN if self.absent else ROW_IN * len(self.runs) + _BELOW_IN)


def with_gpus(tables: Mapping[str, DataFrame]) -> tuple[DataFrame, DataFrame]:
    """Return finished runs with labels in the order drawn, and their GPUs with node and place in it."""
    points = labels.prepare(tables["points"])
    points = points[points["gpu"].notna()]
    names: dict[object, str] = {}
    for _, members in points.groupby("group", sort=False):
        names |= labels.run_labels(members)
    has_repeats = set(points.loc[points["repeat"] > 1, "group"])
    label = [
        names[index] + (f" r{row['repeat']}" if row["group"] in has_repeats else "") for index, row in points.iterrows()
    ]
    points = points.assign(label=label)
    gpus = tables["gpus"].merge(points[["run", "group", "place", "cluster", "origin"]], on="run", sort=False)
    number = gpus["device"].str.extract(r"(\d+)$")[0].astype(float)
    slot = gpus["slot"].astype(float)
    gpus = gpus.assign(slot_known=slot.notna(), number=slot.where(slot.notna(), number).fillna(0).astype(int))
    return points[points["status"] == Status.OK], gpus


def place_bands(bands: Sequence[Band], points: DataFrame, nothing: str) -> tuple[Canvas, list[Place[Band]]]:
    """Return a page with titles and labels, and the place left for each band's axes.

    Args:
        bands: What to draw, in order.
        points: Points in them, for the stamp; without bands any there are.
        nothing: What the page says where there is no band at all.
    """
    width_in = style.PAGE_WIDTH_IN
    height_in = HEAD_IN + (sum(band.height_in for band in bands) or _EMPTY_IN) + MARGIN_IN
    canvas = Canvas.make(width_in, height_in)
    canvas.stamp(points)
    if not bands:
        canvas.text(width_in / 2, HEAD_IN + 0.1, nothing, ha="center")
    names = [label for band in bands if not band.absent for label in band.runs["label"]]
    label_in = min(max((text_width_in(name, style.SMALL_PT) for name in names), default=0.0), _LABEL_SHARE * width_in)
    top_in, places = HEAD_IN, []
    for band in bands:
        left_in = MARGIN_IN + label_in + 0.06
        canvas.text(MARGIN_IN, top_in + 0.02, shortened(band.title, width_in - 0.1, style.TEXT_PT + 0.8), weight="bold")
        if band.absent:
            line = wrapped(band.absent, width_in - 2 * MARGIN_IN, style.SMALL_PT)[0]
            canvas.text(MARGIN_IN, top_in + _TITLE_IN - 0.1, line, fontsize=style.SMALL_PT, color=style.GREY)
        else:
            for number, name in enumerate(band.runs["label"]):
                text, middle_in = shortened(name, label_in + 0.01, style.SMALL_PT), (number + 0.5) * ROW_IN
                canvas.text(
                    MARGIN_IN + label_in, top_in + _TITLE_IN + middle_in, text, ha="right", va="center",
                    fontsize=style.SMALL_PT,
                )  # fmt: skip
            width_rows_in = width_in - left_in - 3 * MARGIN_IN
            places.append(Place(band, len(band.runs), ROW_IN, left_in, top_in + _TITLE_IN, width_rows_in))
        top_in += band.height_in
    return canvas, places


def grid_of(band: Band, gpus: DataFrame, column: str) -> tuple[np.ndarray, list[int], int]:
    """Return values of a band's runs by GPU; shape (num_runs, num_gpus), NaN where there is none.

    Returns:
        Values, where each node begins, and the number of GPUs in a node.
    """
    own = gpus[gpus["run"].isin(band.runs["run"])]
    per_node, num_nodes = int(own["number"].max()) + 1, int(own["node"].max()) + 1
    values = np.full((len(band.runs), per_node * num_nodes), np.nan)
    rows = {run: number for number, run in enumerate(band.runs["run"])}
    at = own["node"].to_numpy() * per_node + own["number"].to_numpy()
    values[[rows[run] for run in own["run"]], at] = own[column].to_numpy(float)
    return values, [node * per_node for node in range(num_nodes)], per_node


def draw_grid(axes: Axes, values: np.ndarray, starts: list[int], colours: tuple[str, Normalize]) -> None:
    """Draw values as cells, nodes apart by lines; cells without a value stay hatched.

    Args:
        axes: Where.
        values: Shape (num_runs, num_gpus).
        starts: Where each node begins.
        colours: Name of a colour map and its scale.
    """
    axes.set_facecolor(style.FAINT)
    cells = np.ma.masked_invalid(values)
    axes.pcolormesh(
        np.arange(values.shape[1] + 1) - 0.5, np.arange(len(values) + 1) - 0.5, cells, cmap=colours[0], norm=colours[1],
        rasterized=False, linewidth=0,
    )  # fmt: skip
    for start in starts[1:]:
        axes.axvline(start - 0.5, color="white", linewidth=1.2)
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.set_xticks(starts, labels=[f"node {number}" for number in range(len(starts))], ha="left")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def draw_scale(canvas: Canvas, colours: tuple[str, Normalize], label: str) -> None:
    """Draw the scale of colours on the stamp line, right."""
    axes = canvas.axes(canvas.width_in - 1.25, 0.06, 1.1, 0.06)
    canvas.figure.colorbar(ScalarMappable(colours[1], colours[0]), cax=axes, orientation="horizontal")
    axes.tick_params(labelsize=style.SMALL_PT - 1, length=1.5, pad=0.8)
    canvas.text(
        canvas.width_in - 1.32, 0.09, label, ha="right", va="center", fontsize=style.SMALL_PT,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
    )  # fmt: skip
