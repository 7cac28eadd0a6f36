"""Share of their capacity that links use: NVLink, Infinity Fabric, PCIe and InfiniBand, from table `traffic`."""

from collections.abc import Hashable, Mapping

from pandas import DataFrame, Series

from triplepoint import effects
from triplepoint.effects import titles
from triplepoint.status import Status

NAMES: Mapping[str, str] = {"nvlink": "NVLink", "xgmi": "Infinity Fabric", "pcie": "PCIe", "infiniband": "InfiniBand"}
"""Names of the links of table `traffic`, in the order of figures."""


def share_column(link: str) -> str:
    """Return the name of the column with the share of a link."""
    return f"{link}_share"


def shares(traffic: DataFrame) -> DataFrame:
    """Return the share of its capacity that each link uses in its busier direction, by run.

    Returns:
        One row per run. Column `<link>_share` is the mean over GPUs, or over nodes for InfiniBand, 0-1;
        `<link>_share_min` and `<link>_share_max` are the lowest and the highest of them. Links without counters have no
        columns.
    """
    busier = traffic.assign(share=traffic[["tx_share", "rx_share"]].max(axis=1))
    known = busier[busier["share"].notna()]
    columns: dict[str, Series] = {}
    for link in NAMES:
        by_run = known[known["link"] == link].groupby("run")["share"]
        if len(by_run):
            ends = {"": by_run.mean(), "_min": by_run.min(), "_max": by_run.max()}
            columns |= {f"{share_column(link)}{end}": values for end, values in ends.items()}
    return DataFrame(columns)


def highest(points: DataFrame) -> dict[str, float]:
    """Return the highest share of each link on any GPU or node, 0-1; unused links are left out.

    Args:
        points: Rows of table `points` with the columns of `shares`.
    """
    done = points[points["status"] == Status.OK]
    columns = {link: f"{share_column(link)}_max" for link in NAMES}
    maxima = {link: float(done[column].max()) for link, column in columns.items() if column in done}
    return {link: value for link, value in maxima.items() if value > 0}


def answer(points: DataFrame) -> str:
    """Return a title: the most used link, and its share and point.

    Args:
        points: Rows of table `points` with the columns of `shares` and `layout`.
    """
    maxima = highest(points)
    if not maxima:
        return "No traffic was counted"
    link = max(maxima, key=lambda name: maxima[name])
    column = f"{share_column(link)}_max"
    point = points.sort_values(column, ascending=False, kind="stable", na_position="last").iloc[0]
    where = f"{point['model']} {point['layout']} at micro-batch {point['micro_batch_size']}"
    return f"{NAMES[link]} is the fullest link: {where} uses {100 * maxima[link]:.0f} % of it"


def changes(points: DataFrame) -> titles.Change | None:
    """Return the effect of a larger micro-batch on the use of each link; None if only one size ran.

    The smallest size is compared with the largest that at least half as many layouts ran with as with any other.

    Args:
        points: Rows of table `points` with the columns of `shares`, `group` and `layout`.
    """
    done = points[points["status"] == Status.OK]
    sizes = sorted(done["micro_batch_size"].unique())
    by_size = {
        size: {link: _pairs(done, share_column(link), sizes[0], size) for link in highest(points)} for size in sizes[1:]
    }
    counts = {size: max((len(pairs) for pairs in by_link.values()), default=0) for size, by_link in by_size.items()}
    most = max(counts.values(), default=0)
    if not most:
        return None
    last = max(size for size, count in counts.items() if 2 * count >= most)
    return titles.Change(f"micro-batch {last}", f"micro-batch {sizes[0]}", by_size[last])


def _pairs(done: DataFrame, column: str, first: int, last: int) -> dict[tuple[Hashable, ...], effects.Effect]:
    """Return the effect of the micro-batch size on a share, for each layout that uses the link at both sizes."""
    known = done[done[column] > 0]
    return effects.pair_points(known, column, ["group", "layout"], "micro_batch_size", first, last)
