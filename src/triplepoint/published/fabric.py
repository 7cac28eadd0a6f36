"""Fabric of a published run: what its GPU type usually comes with, and what is stated of its network."""

from functools import lru_cache
from pathlib import Path

from triplepoint.config.gpu import GpuConfig
from triplepoint.published.words import StatedNetwork
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.fabric import Fabric, Network, network_levels, node_levels


@lru_cache(maxsize=256)
def usual_fabric(gpu: GpuConfig, num_gpus: int, stated: StatedNetwork, config: Path) -> Fabric:
    """Return the levels of a cluster.

    Args:
        gpu: GPU type.
        num_gpus: GPUs of the job.
        stated: What is known of the network; the usual one of the GPU type stands in for the rest.
        config: Folder of the configuration.
    """
    usual = gpu.usual_network
    node = stated.domain_size or usual.gpus_per_node
    inside = node_levels(gpu, node, config)
    if num_gpus <= node:
        return Fabric(inside)
    bandwidth = stated.bandwidth or usual.node_bandwidth.value
    share = bandwidth if stated.bandwidth and stated.is_per_gpu else bandwidth / usual.gpus_per_node
    network = Network(share * node, link=stated.link, has_reduction=stated.has_reduction)
    return Fabric(inside + network_levels(network, load_link(network.link, config), node, num_gpus))
