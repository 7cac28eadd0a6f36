"""What the network between nodes does: step times by layout from the narrowest to the widest network."""

import re

from pandas import DataFrame, Series

from triplepoint import effects
from triplepoint.effects import titles
from triplepoint.status import Status

_NAME = re.compile(r".+?-(?P<adapters>\d+)x(?P<gbit>\d+)$")
SPEED = "tokens_per_s_per_gpu"
_ASKED = {SPEED: "speed", "step_time_s": "step time", "gpu_energy_per_token_j": "energy per token"}


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


def answer(points: DataFrame) -> titles.Change | str:
    """Return what the widest network does against the narrowest.

    Args:
        points: Rows of table `points` with columns `network`, `gbit_per_s` and `layout`.
    """
    done = points[(points["status"] == Status.OK) & points[SPEED].notna()]
    names = in_order(done)
    if len(names) < 2:
        return "No two networks to compare"
    found = {
        name: effects.pair_points(done, column, ["model", "layout"], "network", names[0], names[-1])
        for column, name in _ASKED.items()
        if column in done
    }
    return titles.Change(f"training on {names[-1]} Gb/s a node", f"on {names[0]}", found)


def range_of(change: titles.Change) -> str:
    """Return from how many to how many times as fast layouts become, as the end of a title; '' of one layout."""
    factors = sorted(1 + effect.value for effect in change.found["speed"].values())
    return f" ({factors[0]:.3g} to {factors[-1]:.3g} times by layout)" if len(factors) > 1 else ""


def fastest(points: DataFrame) -> dict[str, str]:
    """Return which layout of each model is fastest on the narrowest and on the widest network, a line each.

    Args:
        points: As `answer` takes them.
    """
    done = points[(points["status"] == Status.OK) & points[SPEED].notna()]
    names = in_order(done)
    lines: dict[str, list[str]] = {}
    for model, members in done.groupby("model", sort=False):
        for name in dict.fromkeys([names[0], names[-1]]):
            ranking = titles.rank(members[members["network"] == name])
            if ranking.lead is not None:
                first = ranking.note.replace("\n", ", ")
                lines.setdefault(str(model), []).append(f"{name}: {first}")
    return {model: "\n".join(said) for model, said in lines.items()}
