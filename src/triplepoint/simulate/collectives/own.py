"""Links of a cluster's own: a kind of link fitted to what `triplepoint doctor --measure` measured there."""

import csv
from collections.abc import Mapping
from pathlib import Path

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError
from triplepoint.metrics import bus_factor
from triplepoint.simulate.collectives.fit import MeasuredFabric, Row, fit_collectives, read_rows, write_link
from triplepoint.simulate.collectives.links import Link, link_of_gpu, load_link

LEVELS = ("node", "network")

FITTED = ("launch_s", "latency_s", "tree_latency", "peer_s", "efficiency", "exchange_efficiency", "bend")
"""Parameters that a doctor's table says something about, whatever the kind of link."""

CPU_LINK = "pcie5"
"""Stands for what joins processes on one machine, whose collectives go through its memory."""
CPU_NETWORK = "ethernet"
NETWORK = "infiniband"


def calibrate_links(table: Path, config: Path) -> list[str]:
    """Fit a cluster's own links to its table, write them, and return lines that tell what was done.

    Args:
        table: `collectives.csv` of `triplepoint doctor`.
        config: Folder of the configuration.

    Raises:
        UserError: If the table is missing or is not of one cluster of the configuration.
    """
    catalogue = Catalogue(config)
    levels = _levels(table)
    (name,) = {fabric.rpartition("-")[0] for fabric in levels}
    cluster = catalogue.cluster(name, table)
    gpu = catalogue.gpu_of(cluster)
    bases = {level: load_link(_base(cluster, gpu, level, config), config) for level in LEVELS}
    links = {f"{name}-{level}": _own(base, f"{name}-{level}") for level, base in bases.items()}
    rows = read_rows({fabric: _fabric(cluster, gpu, links, fabric, {}) for fabric in levels}, table)
    fabrics = {fabric: _fabric(cluster, gpu, links, fabric, _fastest(rows)) for fabric in levels}
    fitted = fit_collectives(rows, fabrics, links)
    told = []
    for fabric in levels:
        write_link(fitted[fabric], config)
        told.append(f"{config / 'collectives' / 'links' / fabric}.yaml: {fitted[fabric].fitted_to}")
        if gpu is not None:
            key = "network_link" if fitted[fabric].is_network else "scale_up_link"
            told.append(f"    to simulate with it, set {key}: {fabric} in {config / 'clusters' / name}.yaml")
    return told


def _levels(table: Path) -> list[str]:
    """Return the fabrics a table names, from the inside out: those of one cluster.

    Raises:
        UserError: If it has no rows, or others.
    """
    try:
        with table.open(encoding="utf-8", newline="") as file:
            found = {row.get("fabric") or "" for row in csv.DictReader(file)}
    except FileNotFoundError:
        raise UserError(
            f"{table}: no such file; write one with 'triplepoint doctor --cluster NAME --measure'"
        ) from None
    clusters = {fabric.rpartition("-")[0] for fabric in found}
    if len(clusters) != 1 or "" in clusters or not {fabric.rpartition("-")[2] for fabric in found} <= set(LEVELS):
        raise UserError(
            f"{table}: fabrics are {', '.join(sorted(found)) or 'none'}; expected NAME-node and NAME-network of one "
            "cluster, as 'triplepoint doctor --cluster NAME --measure' writes them"
        )
    (name,) = clusters
    return [f"{name}-{level}" for level in LEVELS if f"{name}-{level}" in found]


def _base(cluster: ClusterConfig, gpu: GpuConfig | None, level: str, config: Path) -> str:
    """Return the kind of link that a level is one of."""
    if level == "network":
        return CPU_NETWORK if gpu is None else NETWORK
    return CPU_LINK if gpu is None else link_of_gpu(gpu.name, config).name


def _own(base: Link, name: str) -> Link:
    """Return a kind of link as a cluster's own, with what is known of the kind as prior."""
    parameters = [*FITTED, *(parameter for parameter in base.prior if parameter not in FITTED)]
    prior = {parameter: value for parameter in parameters if (value := getattr(base, parameter)) > 0}
    return base.model_copy(
        update={"name": name, "gpus": [], "prior": prior, "source": f"priors and the rest: {base.name} as fitted"}
    )


def _fabric(
    cluster: ClusterConfig, gpu: GpuConfig | None, links: Mapping[str, Link], fabric: str, fastest: Mapping[str, float]
) -> MeasuredFabric:
    """Return what a level was measured on; for processors its best bandwidth, in `fastest`, stands for that described.

    Raises:
        UserError: If the adapters of a network are not described.
    """
    node = f"{cluster.name}-node"
    scale_up = gpu.scale_up_bandwidth.value if gpu else fastest.get(node, 1e9)
    common = {
        "scale_up": node, "scale_up_bandwidth": scale_up, "gpus_per_node": cluster.gpus_per_node,
        "has_reduction": links[node].has_reduction, "source": f"config/clusters/{cluster.name}.yaml",
    }  # fmt: skip
    if fabric == node:
        return MeasuredFabric.model_validate(common)
    if gpu is None:
        return MeasuredFabric.model_validate(
            common | {"network": fabric, "node_bandwidth": fastest.get(fabric, 1e9) * cluster.gpus_per_node}
        )
    if cluster.nics_per_node is None or cluster.nic_bandwidth is None:
        raise UserError(f"cluster {cluster.name}: give nics_per_node and nic_bandwidth to calibrate its network")
    bandwidth = cluster.nics_per_node.value * cluster.nic_bandwidth.value
    return MeasuredFabric.model_validate(common | {"network": fabric, "node_bandwidth": bandwidth})


def _fastest(rows: list[Row]) -> dict[str, float]:
    """Return the best bandwidth of each fabric. Unit: byte/s."""
    found: dict[str, float] = {}
    for row in rows:
        rate = float(bus_factor(row.kind, row.num_gpus)) * row.num_bytes / row.time_s
        found[row.fabric] = max(found.get(row.fabric, 0.0), rate)
    return found
