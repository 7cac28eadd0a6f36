"""Effect of the network between nodes on step time and energy, by layout."""

import re

from pandas import DataFrame, Series

from triplepoint import effects
from triplepoint.effects import titles
from triplepoint.status import Status

_NAME = re.compile(r".+?-(?P<adapters>\d+)x(?P<gbit>\d+)$")
SPEED = "tokens_per_s_per_gpu"
_QUANTITIES = {SPEED: "speed", "step_time_s": "step time", "gpu_energy_per_token_j": "energy per token"}


def name_networks(clusters: Series) -> DataFrame:
    """Return `network` and `gbit_per_s` of clusters by their names.

    Cluster 'h200x32-4x100' has the network '4×100': 4 adapters per node with 100 Gb/s each. A cluster with another kind
    of name is a network of its own, with unknown bandwidth.
    """
    rows = []
    for name in clusters:
        match = _NAME.match(str(name))
        if match is None:
            rows.append({"network": str(name), "gbit_per_s": float("nan")})
        else:
            adapters, gbit = int(match["adapters"]), int(match["gbit"])
            network = f"{adapters}×{gbit}"
            rows.append({"network": network, "gbit_per_s": float(adapters * gbit)})
    return DataFrame(rows, clusters.index)


def networks_by_bandwidth(points: DataFrame) -> list[str]:
    """Return the networks by ascending bandwidth and number of adapters; unknown bandwidths come last."""
    networks = points[["network", "gbit_per_s"]].drop_duplicates()
    networks = networks.assign(adapters=networks["network"].str.split("×").str[0].str.len(), name=networks["network"])
    order = networks.sort_values(["gbit_per_s", "adapters", "name"], kind="stable", na_position="last")
    return list(order["network"])


def answer(points: DataFrame) -> titles.Change | str:
    """Return the effect of the fastest network against the slowest, over layouts; a title if there is only one.

    Args:
        points: Rows of table `points` with columns `network`, `gbit_per_s` and `layout`.
    """
    done = points[(points["status"] == Status.OK) & points[SPEED].notna()]
    names = networks_by_bandwidth(done)
    if len(names) < 2:
        return "No two networks to compare"
    effects_by_name = {
        name: effects.pair_points(done, column, ["model", "layout"], "network", names[0], names[-1])
        for column, name in _QUANTITIES.items()
        if column in done
    }
    return titles.Change(f"training on {names[-1]} Gb/s a node", f"on {names[0]}", effects_by_name)


def speedup_range(change: titles.Change) -> str:
    """Return the range of speed-ups over layouts, as the end of a title; '' for one layout."""
    factors = sorted(1 + effect.value for effect in change.effects["speed"].values())
    return f" ({factors[0]:.3g} to {factors[-1]:.3g} times by layout)" if len(factors) > 1 else ""


def fastest(points: DataFrame) -> dict[str, str]:
    """Return the fastest layout of each model on the slowest and on the fastest network, one line each.

    Args:
        points: As `answer` takes them.
    """
    done = points[(points["status"] == Status.OK) & points[SPEED].notna()]
    names = networks_by_bandwidth(done)
    lines: dict[str, list[str]] = {}
    for model, members in done.groupby("model", sort=False):
        for name in dict.fromkeys([names[0], names[-1]]):
            ranking = titles.rank(members[members["network"] == name])
            if ranking.lead is not None:
                note = ranking.note.replace("\n", ", ")
                lines.setdefault(str(model), []).append(f"{name}: {note}")
    return {model: "\n".join(of_model) for model, of_model in lines.items()}
