"""Figure `occupancy`: occupancy and launch geometry of kernels by layout, a column of panels per model and cluster."""

from collections.abc import Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame, concat

from triplepoint.effects import occupancy
from triplepoint.figures import drawing, labels, marks, style

ROWS = (
    ("occupancy", "occupancy\n(%)", 100.0),
    ("warps_per_sm", "warps of a launch\nper SM", 1.0),
    ("blocks_per_sm", "blocks of a launch\nper SM", 1.0),
    ("threads_per_block", "threads\nper block", 1.0),
)
"""Rows of panels: column, label of the axis, and factor from the column to the axis."""
SHOWN = ("gemm", "attention", "elementwise", "norm")
"""Classes of kernels that are drawn next to the mean of all computation."""
NOTE = (
    "Means weighted by the time of kernels, without communication; black: all kernels. Occupancy is the profiler's "
    "estimate."
)
NOTE_ABSENT = "Occupancy needs the trace of a GPU: make some of these points on one."


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and class of kernels.

    In each panel only the layout differs. Runs without launch geometry are left out. If no run has it, the figure
    tells why.

    Args:
        tables: `points` and `kernels`.
    """
    prepared = labels.prepare(tables["points"])
    groups = [labels.choose(members).drop_duplicates("layout") for _, members in prepared.groupby("group", sort=False)]
    points = concat(groups, ignore_index=True)
    kernels = tables["kernels"]
    kernels_of_points = kernels[kernels["run"].isin(points["run"])]
    classes = occupancy.by_class(kernels_of_points)
    shown = ["group", "layout", "run", "status", "origin"]
    numbers = points[shown].merge(classes, on="run", how="inner", sort=False)
    if numbers.empty:
        page = style.new_page(occupancy.reason_absent(points, kernels_of_points), points, height=1.0, note=NOTE_ABSENT)
        page.axes[0][0].set_axis_off()
        return page.finish(), numbers
    return _draw(points[points["run"].isin(numbers["run"])], numbers), numbers


def _draw(points: DataFrame, numbers: DataFrame) -> Figure:
    """Return the figure of the points that have launch geometry."""
    groups = [DataFrame(members) for _, members in numbers.groupby("group", sort=False)]
    names = {run: f"{model} {layout}" for run, model, layout in points[["run", "model", "layout"]].to_numpy()}
    page = style.new_page(
        occupancy.answer(numbers, names), points, len(ROWS), len(groups),
        style.PAGE if len(groups) > 1 else style.COLUMN, 1.9 + 1.15 * len(ROWS), NOTE, sharex="col", sharey="row",
        width_ratios=[max(members["layout"].nunique(), 3) for members in groups],
    )  # fmt: skip
    page.head([str(members["group"].iloc[0]).partition(" on ")[::2] for members in groups])
    for col, members in enumerate(groups):
        for row, (column, _, scale) in enumerate(ROWS):
            _draw_panel(page.axes[row][col], members, column, scale)
    for row, (_, title, _) in enumerate(ROWS):
        page.axes[row][0].set_ylabel(title)
        page.axes[row][0].set_ylim(bottom=0)
    page.figure.align_ylabels(page.figure.axes)
    page.legend(_legend(set(numbers["class"])))
    return page.finish()


def _draw_panel(axes: Axes, numbers: DataFrame, column: str, scale: float) -> None:
    """Draw one quantity of each layout: all kernels in black, classes next to it in their colours."""
    names: Sequence[str] = list(dict.fromkeys(numbers["layout"]))
    whole = occupancy.by_run(numbers)[column]
    for at, name in enumerate(names):
        of_layout = numbers[numbers["layout"] == name]
        axes.plot([at - 0.2], [whole[of_layout["run"].iloc[0]] * scale], "D", color=marks.BLACK)
        for _, row in of_layout[of_layout["class"].isin(SHOWN)].iterrows():
            offset = 0.15 * SHOWN.index(row["class"]) - 0.05
            axes.plot([at + offset], [row[column] * scale], "o", color=marks.KERNEL_CLASSES[row["class"]].colour)
    drawing.name_bars(axes, names)
    axes.locator_params(axis="y", nbins=4)


def _legend(classes: set[str]) -> list[Artist]:
    """Return the legend entries of all kernels and of the classes that occur."""
    handles: list[Artist] = [Line2D([], [], color=marks.BLACK, marker="D", linestyle="none", label="all kernels")]
    drawn = [name for name in SHOWN if name in classes]
    return handles + [drawing.as_line(marks.KERNEL_CLASSES[name], linestyle="none") for name in drawn]
