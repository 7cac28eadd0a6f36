"""Fabrics of published runs: nodes and network as stated, what is usual of the GPU type for the rest."""

from functools import lru_cache
from pathlib import Path

from triplepoint.config.gpu import GpuConfig
from triplepoint.published.network import GIGABIT, StatedNetwork
from triplepoint.published.words import UnreadableError
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.fabric import Fabric, Network, gpus_per_leaf, network_levels, node_levels


@lru_cache(maxsize=256)
def usual_fabric(gpu: GpuConfig, num_gpus: int, stated: StatedNetwork, config: Path) -> Fabric:
    """Return the levels of a cluster.

    Args:
        gpu: GPU type.
        num_gpus: GPUs of the job.
        stated: What is known of nodes and network; the usual ones of the GPU type stand in for the rest.
        config: Folder of the configuration.

    Raises:
        UnreadableError: If the GPU type has no such nodes.
    """
    usual = gpu.usual_network
    node, domain = _node_and_domain(gpu, stated)
    inside = node_levels(gpu, domain, config)
    if num_gpus <= domain:
        return Fabric(inside)
    share = usual.node_bandwidth.value / usual.gpus_per_node
    nics = (usual.nics_per_node or usual.gpus_per_node) * node / usual.gpus_per_node
    if stated.nic_bandwidth:
        share = stated.nic_bandwidth * nics / node
    if stated.bandwidth:
        _check_owner(gpu, stated)
        share = stated.bandwidth if stated.is_per_gpu else stated.bandwidth / node
        nics = stated.num_nics or share * node / usual.nic_bandwidth
    # Not rounded: of more bandwidth no adapter has less.
    per_node = max(1.0, nics)
    network = Network(
        share * domain,
        per_node * max(1, domain // node),
        stated.link,
        stated.has_reduction,
        gpus_per_leaf(stated.is_rail_optimised, round(per_node), node) if stated.oversubscription > 1 else None,
        stated.oversubscription,
    )
    return Fabric(inside + network_levels(network, load_link(network.link, config), domain, num_gpus))


def _check_owner(gpu: GpuConfig, stated: StatedNetwork) -> None:
    """Refuse a rate that nothing is said of and that may be an adapter's as well as a node's; of Ethernet, a node's."""
    adapter, nics = gpu.usual_network.nic_bandwidth, gpu.usual_network.nics_per_node or gpu.usual_network.gpus_per_node
    is_adapters = stated.bandwidth is not None and abs(stated.bandwidth / adapter - 1) < 0.05
    if stated.is_of_unknown and is_adapters and nics > 1 and stated.link != "ethernet":
        rate = f"{adapter / GIGABIT:g}"
        raise UnreadableError(
            f"interconnect states {rate} Gb/s, of an adapter ({nics}x{rate}G) or a node ({rate} Gb/s per node); write "
            "which"
        )


def _node_and_domain(gpu: GpuConfig, stated: StatedNetwork) -> tuple[int, int]:
    """Return the GPUs of a node, and those that scale-up links join."""
    usual = gpu.usual_network
    domain, is_card = stated.domain_size, gpu.form_factor in ("pcie", "nvl")
    if domain and domain > usual.largest_domain:
        raise UnreadableError(
            f"interconnect states an NVLink domain of {domain}, {gpu.name} has {usual.largest_domain}"
        )
    node = stated.gpus_per_node or (
        usual.gpus_per_node if is_card else min(usual.gpus_per_node, domain or usual.gpus_per_node)
    )
    if node > max(usual.gpus_per_node, domain or 0) and not is_card:
        raise UnreadableError(f"interconnect states nodes of {node} GPUs, {gpu.name} has {usual.gpus_per_node}")
    if not _is_node(gpu, node, domain):
        sizes = ", ".join(str(size) for size in range(1, usual.gpus_per_node + 1) if _is_node(gpu, size, None))
        raise UnreadableError(f"interconnect states nodes of {node} GPUs, {gpu.name} stands in nodes of {sizes}")
    if is_card:
        return node, node
    if domain and domain < node:
        raise UnreadableError(f"interconnect states nodes of {node} GPUs and an NVLink domain of {domain}; write one")
    return node, domain or (usual.domain or node)


_MOST_CARDS = 16
"""GPUs of a node of cards, at most: a choice."""


def _is_node(gpu: GpuConfig, node: int, domain: int | None) -> bool:
    """Return whether a GPU type stands in nodes of a size: the usual one or an even part of it, or an NVLink domain."""
    usual = gpu.usual_network.gpus_per_node
    if gpu.form_factor in ("pcie", "nvl"):
        return node <= _MOST_CARDS and (node == 1 or node % 2 == 0)
    return usual % node == 0 or node == (domain or gpu.usual_network.domain) or node in gpu.usual_network.other_nodes
