"""Figure `traffic_heatmap`: use of NVLink and PCIe of every GPU and of InfiniBand of every node, by direction."""

from collections.abc import Mapping, Sequence

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from pandas import DataFrame, concat

from triplepoint.effects import between_gpus
from triplepoint.figures import drawing, gpu_map, marks, style
from triplepoint.figures.parallelism_sweep import without_far

LINKS = {"nvlink": "NVLink", "xgmi": "xGMI", "pcie": "PCIe", "infiniband": "InfiniBand"}
DIRECTIONS = {"tx_share": "sent", "rx_share": "received"}
_HEAD_IN = 2.2
_COLOURS = colormaps["viridis"].with_extremes(over=marks.VERMILION)
_PLOTTED = [
    "place", "row", "run", "origin", "link", "node", "number", "rank", "tx_share", "rx_share", "tx_bytes_per_s",
    "rx_bytes_per_s", "capacity_bytes_per_s",
]  # fmt: skip
NOTE = (
    "A cell is the mean use of a GPU's link, InfiniBand of a node's. Scales are logarithmic, one per link{beyond}. "
    "Above: mean over runs, busier direction, with its {about} over runs, and the highest."
)


@style.styled
def draw(tables: Mapping[str, DataFrame]) -> tuple[Figure, DataFrame]:
    """Return the figure and the numbers it plots, one row per run and link, of the first cluster.

    Args:
        tables: `points`, `gpus` and `traffic`.
    """
    points, gpus = gpu_map.with_gpus(tables)
    traffic = _cells(tables["traffic"], gpus)
    counted = traffic[traffic[list(DIRECTIONS)].notna().any(axis=1)]
    if counted.empty:
        reasons = tables["traffic"].loc[tables["traffic"]["run"].isin(points["run"]), "absent"].dropna()
        text = gpu_map.NOTHING if points.empty else f"traffic was not counted: {', '.join(reasons.unique()[:1])}"
        return gpu_map.empty_page(tables["points"], text).finish(), DataFrame(columns=_PLOTTED)
    place, *others = (str(name).removesuffix(", simulated") for name in counted["place"].unique())
    left_out = f"No room for {', '.join(others)}. " if others else ""
    counted = counted[counted["place"] == counted["place"].iloc[0]]
    drawn = points[points["run"].isin(counted["run"])]
    links = [link for link in LINKS if link in set(counted["link"])]
    compared = [without_far(DataFrame(found)) for _, found in drawn.groupby("group", sort=False)]
    counted = counted.assign(is_far=~counted["run"].isin(concat(compared)["run"]))
    page = _page(_answer(place, counted[~counted["is_far"]], links), drawn, counted, links, left_out)
    return page.finish(), counted[_PLOTTED]


def _cells(traffic: DataFrame, gpus: DataFrame) -> DataFrame:
    """Return the cells of the maps: rows of table `traffic` with `row`, `at` and labels, as in `gpu_map.rows_of`."""
    known = gpus[["run", "rank", "number"]]
    runs = gpus.drop_duplicates("run")[["run", "label", "place", "origin"]]
    placed = runs.merge(traffic, on="run", sort=False).merge(known, on=["run", "rank"], how="left", sort=False)
    placed = placed.assign(number=placed["number"].fillna(0).astype(int), row=placed["label"])
    most = int(placed["number"].max()) + 1 if len(placed) else 1
    per_node = placed["rank"].notna().astype(int) * (most - 1) + 1
    return placed.assign(at=placed["node"] * per_node + placed["number"])


def _answer(place: str, counted: DataFrame, links: Sequence[str]) -> str:
    """Return the title: the most used link and its share."""
    shares = {link: share for link in links if (share := _mean(counted, link)) is not None}
    if not shares:
        return f"No run on {place} is compared"
    fullest = max(shares, key=lambda link: shares[link][0])
    return f"{LINKS[fullest]} is the fullest link on {place}: runs use {between_gpus.share_text(shares[fullest])} of it"


def _mean(counted: DataFrame, link: str) -> tuple[float, float, float] | None:
    """Return the mean share of a link over runs with its interval; None if it is unknown."""
    return between_gpus.mean_share(counted[counted["link"] == link], list(DIRECTIONS))


def _note(counted: DataFrame, link: str) -> str:
    """Return the note above the maps of a link: its mean and highest use, without runs that are far slower."""
    compared = counted[~counted["is_far"]]
    share = _mean(compared, link)
    if share is None:
        return ""
    busiest = compared.loc[compared["link"] == link, list(DIRECTIONS)].astype(float).max(axis=1)
    return f"{between_gpus.share_text(share)}\nat most {100 * busiest.max():.2g} %"


def _page(answer: str, points: DataFrame, counted: DataFrame, links: Sequence[str], left_out: str) -> style.Page:
    """Return the page with all maps.

    Args:
        answer: Title.
        points: Points that are drawn.
        counted: Cells.
        links: Links, one column of maps each.
        left_out: Note on clusters that are not drawn.
    """
    names = list(dict.fromkeys(counted["row"]))
    room = (style.TALLEST - _HEAD_IN) / 2 / gpu_map.ROW_IN
    most = sum(line < room for name, line in gpu_map.lines_of(names).items() if " " in name)
    height = _HEAD_IN + 2 * gpu_map.ROW_IN * len(gpu_map.lines_of(names[:most]))
    cut = f"{most} of {len(names)} runs are drawn; the others are in the CSV. " if len(names) > most else ""
    widths = [3.0 if counted.loc[counted["link"] == link, "rank"].notna().any() else 1.6 for link in links]
    beyond = "; what far slower runs have beyond it is written" if counted["is_far"].any() else ""
    note = cut + left_out + NOTE.format(about=between_gpus.INTERVAL, beyond=beyond)
    page = style.new_page(answer, points, len(DIRECTIONS), len(links), style.PAGE, height, note, width_ratios=widths)
    for row, word in enumerate(DIRECTIONS.values()):
        page.head([(f"{LINKS[link]}, {word}", "" if row else _note(counted, link)) for link in links], row)
    for col, link in enumerate(links):
        cells_of_link = counted[(counted["link"] == link) & counted["row"].isin(names[:most])]
        scale = _scale(cells_of_link)
        for row, column in enumerate(DIRECTIONS):
            axes = page.axes[row][col]
            # Unused links get the lowest colour, since grey cells stand for links without counters.
            shown_cells = cells_of_link.assign(value=(100 * cells_of_link[column].astype(float)).clip(lower=scale.vmin))
            shown = gpu_map.draw_cells(axes, shown_cells, _COLOURS, scale, label_rows=not col)
            _write_beyond(axes, shown_cells, names, float(scale.vmax or 0))
            if int(cells_of_link["node"].nunique()) > 2:
                axes.set_xticks(axes.get_xticks(), [str(node) for node in sorted(cells_of_link["node"].unique())])
            if row:
                axes.set_xlabel("node")
        extend = "both" if cells_of_link["is_far"].any() else "min"
        bar = page.figure.colorbar(
            shown, ax=[page.axes[row][col] for row in range(2)], orientation="horizontal", label="% of capacity",
            aspect=25 if widths[col] > 2 else 10, shrink=0.9, pad=0.01, extend=extend,
        )  # fmt: skip
        drawing.name_decades(bar.ax.xaxis, *bar.ax.get_xlim(), steps=(1, 2, 5) if widths[col] > 2 else (1,))
    return page


def _scale(cells: DataFrame) -> LogNorm:
    """Return the colour scale of a link: two decades up to the highest value of runs that are not far slower."""
    compared = cells[~cells["is_far"]]
    highest = float((cells if compared.empty else compared)[list(DIRECTIONS)].astype(float).max().max())
    end = max(100 * highest, 1e-9)
    return LogNorm(end / 100, end)


def _write_beyond(axes: Axes, cells: DataFrame, names: Sequence[str], limit: float) -> None:
    """Write the highest value of each row that exceeds the scale."""
    for name, number in gpu_map.lines_of(names).items():
        beyond = cells[(cells["row"] == name) & (cells["value"] > limit)]
        if len(beyond):
            middle = (float(beyond["at"].min()) + float(beyond["at"].max())) / 2
            text = f"{beyond['value'].max():.2g}"
            box = {"facecolor": marks.VERMILION, "edgecolor": "none", "pad": 0.6}
            axes.text(middle, number, text, ha="center", va="center", color="white", fontsize=style.TEXT_PT, bbox=box)
