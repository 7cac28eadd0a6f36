"""What the network between nodes does: step times by layout from the narrowest to the widest network."""

import re

from pandas import DataFrame, Series

from triplepoint import effects
from triplepoint.effects import titles
from triplepoint.status import Status
from triplepoint.units import counted

_NAME = re.compile(r".+?-(?P<adapters>\d+)x(?P<gbit>\d+)$")
SPEED = "tokens_per_s_per_gpu"


def name_networks(clusters: Series) -> DataFrame:
    """Return `network` and `gbit_per_s` of clusters called as 'h200x32-4x100': 4 adapters a node of 100 Gb/s.

    A cluster with another name is a network of its own, of unknown bandwidth.
    """
    rows = []
    for name in clusters:
        found = _NAME.match(str(name))
        if found is None:
            rows.append({"network": str(name), "gbit_per_s": float("nan")})
        else:
            adapters, gbit = int(found["adapters"]), int(found["gbit"])
            network = f"{adapters}×{gbit}"
            rows.append({"network": network, "gbit_per_s": float(adapters * gbit)})
    return DataFrame(rows, clusters.index)


def in_order(points: DataFrame) -> list[str]:
    """Return the networks by bandwidth, of two alike that with more adapters last; unknown ones after them."""
    found = points[["network", "gbit_per_s"]].drop_duplicates()
    found = found.assign(adapters=found["network"].str.split("×").str[0].str.len(), name=found["network"])
    order = found.sort_values(["gbit_per_s", "adapters", "name"], kind="stable", na_position="last")
    return list(order["network"])


def _fastest(points: DataFrame) -> str:
    """Return the layout with the highest mean speed."""
    return str(points.groupby("layout", sort=False)[SPEED].mean().idxmax())


def answer(points: DataFrame) -> str:
    """Return what the widest network does against the narrowest, and which layouts are fastest on both, as a title.

    A model has one line where one layout is fastest on both, else a line for each.

    Args:
        points: Rows of table `points` with columns `network`, `gbit_per_s` and `layout`.
    """
    done = points[(points["status"] == Status.OK) & points[SPEED].notna()]
    names = in_order(done)
    if len(names) < 2:
        return "No two networks to compare"
    first, last = names[0], names[-1]
    found = list(effects.pair_points(done, SPEED, ["model", "layout"], "network", first, last).values())
    lines = []
    if found:
        low, *_, high = sorted(1 + effect.value for effect in (*found, *found))
        factor = f"{low:.3g}" if len(found) < 2 else f"{low:.3g} to {high:.3g}"
        speed = f"training is {factor} times as fast ({counted(len(found), 'layout')})"
        lines.append(f"With {last} instead of {first} Gb/s a node, {speed}")
    for model, members in done.groupby("model", sort=False):
        ends = {name: members[members["network"] == name] for name in (first, last)}
        best = {name: _fastest(here) for name, here in ends.items() if here["layout"].nunique() > 1}
        said = {name: f"{model} with {name} Gb/s: {titles.answer_best(ends[name])}" for name in best}
        if len(best) > 1 and best[first] == best[last]:
            said = {last: f"{said[last]}; {best[last]} is fastest with {first} too"}
        lines += said.values()
    return "\n".join(lines)
