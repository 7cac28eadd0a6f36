"""How much of their capacity links use: NVLink, PCIe and InfiniBand, of table `traffic`."""

from collections.abc import Hashable, Mapping

from pandas import DataFrame, Series

from triplepoint import effects
from triplepoint.effects import titles
from triplepoint.status import Status

NAMES: Mapping[str, str] = {"nvlink": "NVLink", "xgmi": "Infinity Fabric", "pcie": "PCIe", "infiniband": "InfiniBand"}
"""Links of table `traffic`, in the order they are drawn."""


def column(link: str) -> str:
    """Return the name of the column of a link's share."""
    return f"{link}_share"


def shares(traffic: DataFrame) -> DataFrame:
    """Return per run what part of its capacity each link uses, in the busier direction, 0-1.

    Returns:
        A row per run, with columns `<link>_share`: the mean over GPUs, or over nodes for InfiniBand. `_min` and `_max`
        of it are the lowest and highest of them. Links that nothing was counted of have no columns.
    """
    busier = traffic.assign(share=traffic[["tx_share", "rx_share"]].max(axis=1))
    known = busier[busier["share"].notna()]
    columns: dict[str, Series] = {}
    for link in NAMES:
        found = known[known["link"] == link].groupby("run")["share"]
        if len(found):
            ends = {"": found.mean(), "_min": found.min(), "_max": found.max()}
            columns |= {f"{column(link)}{end}": values for end, values in ends.items()}
    return DataFrame(columns)


def highest(points: DataFrame) -> dict[str, float]:
    """Return the highest share of its capacity that any GPU or node uses of each link, 0-1; without unused links.

    Args:
        points: Rows of table `points` with the columns of `shares`.
    """
    done = points[points["status"] == Status.OK]
    found = {link: float(done[f"{column(link)}_max"].max()) for link in NAMES if f"{column(link)}_max" in done}
    return {link: value for link, value in found.items() if value > 0}


def answer(points: DataFrame) -> str:
    """Return how full the fullest link gets, and where, as a title.

    Args:
        points: Rows of table `points` with the columns of `shares` and `layout`.
    """
    found = highest(points)
    if not found:
        return "No traffic was counted"
    link = max(found, key=lambda one: found[one])
    of_it = points.sort_values(f"{column(link)}_max", ascending=False, kind="stable", na_position="last").iloc[0]
    where = f"{of_it['model']} {of_it['layout']} at micro-batch {of_it['micro_batch_size']}"
    return f"{NAMES[link]} is the fullest link: {where} uses {100 * found[link]:.0f} % of it"


def changes(points: DataFrame) -> titles.Change | None:
    """Return what a larger micro-batch does to the use of each link; None of one size alone.

    Args:
        points: Rows of table `points` with the columns of `shares`, `group` and `layout`.
    """
    done = points[points["status"] == Status.OK]
    sizes = sorted(done["micro_batch_size"].unique())
    found = {size: {link: _pairs(done, column(link), sizes[0], size) for link in highest(points)} for size in sizes[1:]}
    counts = {size: max((len(pairs) for pairs in of_size.values()), default=0) for size, of_size in found.items()}
    most = max(counts.values(), default=0)
    if not most:
        return None
    last = max(size for size, count in counts.items() if 2 * count >= most)
    return titles.Change(f"micro-batch {last}", f"micro-batch {sizes[0]}", found[last])


def _pairs(done: DataFrame, name: str, first: int, last: int) -> dict[tuple[Hashable, ...], effects.Effect]:
    known = done[done[name] > 0]
    return effects.pair_points(known, name, ["group", "layout"], "micro_batch_size", first, last)
