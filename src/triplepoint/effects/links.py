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


def answer(points: DataFrame) -> str:
    """Return how full each link gets, and what a larger micro-batch does to the fullest, as a title.

    Args:
        points: Rows of table `points` with the columns of `shares`, `group` and `layout`.
    """
    done = points[points["status"] == Status.OK]
    highest = {link: float(done[f"{column(link)}_max"].max()) for link in NAMES if f"{column(link)}_max" in done}
    highest = {link: value for link, value in highest.items() if value > 0}
    if not highest:
        return "No traffic was counted"
    fullest = max(highest, key=lambda link: highest[link])
    of_it = done.sort_values(f"{column(fullest)}_max", ascending=False, kind="stable").iloc[0]
    others = [f"{100 * value:.0f} % of {NAMES[link]}" for link, value in highest.items() if link != fullest]
    said = (
        f"At most {100 * highest[fullest]:.0f} % of {NAMES[fullest]} is used ({of_it['model']} {of_it['layout']}, "
        f"micro-batch {of_it['micro_batch_size']})" + "".join(f", {other}" for other in others)
    )
    sizes = sorted(done["micro_batch_size"].unique())
    pairs = {size: _pairs(done, column(fullest), sizes[0], size) for size in sizes[1:]}
    most = max((len(found) for found in pairs.values()), default=0)
    if not most:
        return said
    last = max(size for size, found in pairs.items() if 2 * len(found) >= most)
    change = f"with micro-batch {last} instead of {sizes[0]}"
    return f"{said}; {titles.Change(change, {f'use of {NAMES[fullest]}': pairs[last]}).title}"


def _pairs(done: DataFrame, name: str, first: int, last: int) -> dict[tuple[Hashable, ...], effects.Effect]:
    known = done[done[name] > 0]
    return effects.pair_points(known, name, ["group", "layout"], "micro_batch_size", first, last)
