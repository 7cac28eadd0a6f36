"""Fabrics of published runs: nodes and network as stated, completed with those usual for the GPU type."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from triplepoint.config.gpu import GpuConfig
from triplepoint.published.network import GIGABIT, StatedNetwork
from triplepoint.published.words import UnreadableError
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.fabric import Fabric, Network, gpus_per_leaf, network_levels, node_levels


@lru_cache(maxsize=256)
def usual_fabric(gpu: GpuConfig, num_gpus: int, stated: StatedNetwork, config: Path) -> Fabric:
    """Return the fabric of a cluster.

    Args:
        gpu: GPU type.
        num_gpus: GPUs of the job.
        stated: Stated nodes and network, completed with those usual for the GPU type.
        config: Folder of the configuration.

    Raises:
        UnreadableError: If the stated nodes do not fit the GPU type or the job, or Ethernet has no rate.
    """
    usual = gpu.usual_network
    _check_machines(gpu, stated)
    _check_scale_up(gpu, stated)
    node, domain = _node_and_domain(gpu, _with_node_size(stated, num_gpus))
    inside = node_levels(gpu, domain, config)
    if num_gpus <= domain:
        return Fabric(inside)
    _check_between(num_gpus, domain, stated)
    per_gpu = usual.node_bandwidth.value / usual.gpus_per_node
    nics = (usual.nics_per_node or usual.gpus_per_node) * node / usual.gpus_per_node
    if stated_nics := _stated_adapters(stated, node):
        nics, per_gpu = stated_nics, usual.nic_bandwidth * stated_nics / node
    if stated.nic_bandwidth:
        per_gpu = stated.nic_bandwidth * nics / node
    if stated.bandwidth:
        _check_owner(gpu, stated)
        per_gpu = stated.bandwidth if stated.is_per_gpu else stated.bandwidth / node
        nics = stated_nics or per_gpu * node / usual.nic_bandwidth
    # Rounding could lower the bandwidth of an adapter when that of the node grows.
    per_node = max(1.0, nics)
    network = Network(
        per_gpu * domain,
        per_node * max(1, domain // node),
        stated.link,
        stated.has_reduction,
        gpus_per_leaf(stated.is_rail_optimised, round(per_node), node) if stated.oversubscription > 1 else None,
        stated.oversubscription,
    )
    return Fabric(inside + network_levels(network, load_link(network.link, config), domain, num_gpus))


def usual_words(gpu: GpuConfig) -> str:
    """Return the usual adapters of a node with a GPU type, in the words of a cell: `8x400G`."""
    usual = gpu.usual_network
    return f"{usual.nics_per_node or usual.gpus_per_node}x{usual.nic_bandwidth / GIGABIT:g}G"


def _stated_adapters(stated: StatedNetwork, node: int) -> float | None:
    """Return the stated number of adapters per node of `node` GPUs; None where it is not stated."""
    from_gpus = stated.nics_per_gpu * node if stated.nics_per_gpu else None
    if from_gpus and stated.num_nics and from_gpus != stated.num_nics:
        raise UnreadableError(
            f"interconnect counts {stated.num_nics} adapters of a node and {from_gpus:g} of its {node} GPUs; write one"
        )
    return from_gpus or stated.num_nics


def _with_node_size(stated: StatedNetwork, num_gpus: int) -> StatedNetwork:
    """Add the GPUs per node that follow from a named machine or from the number of nodes."""
    sizes = {machine.gpus_per_node for machine in stated.machines}
    if stated.gpus_per_node is None and stated.num_nodes is None and len(sizes) == 1:
        return replace(stated, gpus_per_node=sizes.pop())
    if stated.num_nodes is None:
        return stated
    size, rest = divmod(num_gpus, stated.num_nodes)
    if rest or not size or stated.gpus_per_node not in (None, size):
        each = f" of {stated.gpus_per_node} GPUs" if stated.gpus_per_node else ""
        raise UnreadableError(f"interconnect states {stated.num_nodes} nodes{each}, n_gpus is {num_gpus}; write one")
    return replace(stated, gpus_per_node=size)


def _check_machines(gpu: GpuConfig, stated: StatedNetwork) -> None:
    """Raise `UnreadableError` if a named machine has other GPUs."""
    chips = [chip for machine in stated.machines for chip in machine.chips]
    if chips and gpu.chip not in chips:
        names = " and ".join(chip.upper() for chip in chips)
        raise UnreadableError(f"interconnect names a machine with {names}, gpu is {gpu.name}; write one of them")


_NVLINK_RATES = {300e9, 600e9, 900e9, 1800e9}
"""Rates of one GPU over NVLink 2 to 5, both directions together. Source: NVIDIA, data sheets of V100, A100, H100, B200.
Unit: byte/s."""


def _check_scale_up(gpu: GpuConfig, stated: StatedNetwork) -> None:
    """Raise `UnreadableError` on the NVLink rate of another generation; any other rate may be a measured one."""
    one_way = gpu.scale_up_bandwidth.value
    rate = stated.scale_up_bandwidth
    if rate in _NVLINK_RATES and not any(abs(rate / known - 1) < 0.05 for known in (one_way, 2 * one_way)):
        raise UnreadableError(
            f"interconnect states NVLink of {rate / 1e9:g} GB/s, {gpu.name} has {2 * one_way / 1e9:g} GB/s; write one"
        )


def _check_between(num_gpus: int, domain: int, stated: StatedNetwork) -> None:
    """Raise `UnreadableError` on a job of several nodes stated to be inside one, and on Ethernet without a rate."""
    if stated.is_one_node and not (stated.bandwidth or stated.nic_bandwidth):
        raise UnreadableError(
            f"interconnect says that all is in one node, n_gpus is {num_gpus} in nodes of {domain}; write what is "
            "between nodes, such as 8x400G"
        )
    if stated.is_silent and stated.link == "ethernet":
        raise UnreadableError("interconnect is Ethernet of no rate, expected one such as 100GbE or 8x400G Ethernet")


_MOST_OF_NODE_GBPS = 100
"""Largest rate of Ethernet that counts as that of the whole node unless stated otherwise. A choice."""


def _check_owner(gpu: GpuConfig, stated: StatedNetwork) -> None:
    """Raise `UnreadableError` on a rate that may be that of an adapter or of a node.

    The usual rates of adapters are ambiguous on nodes with several adapters. Slow Ethernet counts as that of a node,
    EFA as that of an instance.
    """
    nics = gpu.usual_network.nics_per_node or gpu.usual_network.gpus_per_node
    rate_gbps = round((stated.bandwidth or 0.0) / GIGABIT)
    is_of_node = stated.is_of_instance or (stated.link == "ethernet" and rate_gbps <= _MOST_OF_NODE_GBPS)
    if stated.is_of_unknown and rate_gbps in _ADAPTER_GBPS and nics > 1 and not is_of_node:
        rate = f"{rate_gbps:g}"
        raise UnreadableError(
            f"interconnect states {rate} Gb/s, of an adapter ({nics}x{rate}G) or a node ({rate} Gb/s per node); write "
            "which"
        )


def _node_and_domain(gpu: GpuConfig, stated: StatedNetwork) -> tuple[int, int]:
    """Return the GPUs per node and the GPUs per scale-up domain."""
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


_ADAPTER_GBPS = {25, 40, 50, 56, 100, 200, 400, 800}
"""Rates of one adapter. Source: InfiniBand Trade Association, roadmap; Ethernet Alliance, roadmap. Unit: Gb/s."""
_MOST_CARDS = 16
"""Most GPUs of a node with PCIe cards. A choice."""


def _is_node(gpu: GpuConfig, node: int, domain: int | None) -> bool:
    """Return whether a GPU type comes in nodes of `node` GPUs: the usual size, a divisor of it, or an NVLink domain."""
    usual = gpu.usual_network.gpus_per_node
    if gpu.form_factor in ("pcie", "nvl"):
        return node <= _MOST_CARDS and (node == 1 or node % 2 == 0)
    return usual % node == 0 or node == (domain or gpu.usual_network.domain) or node in gpu.usual_network.other_nodes
