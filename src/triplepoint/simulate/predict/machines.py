"""The fabric of a cluster that is known only by its GPU type and some words about its network."""

from functools import lru_cache
from pathlib import Path

from triplepoint.config.gpu import GpuConfig
from triplepoint.simulate.collectives.links import load_link
from triplepoint.simulate.fabric import Fabric, Network, network_levels, node_levels
from triplepoint.simulate.predict.spelling import SaidNetwork


@lru_cache(maxsize=256)
def usual_fabric(gpu: GpuConfig, num_gpus: int, said: SaidNetwork, config: Path) -> Fabric:
    """Return the levels of a cluster.

    Args:
        gpu: GPU type.
        num_gpus: In the job.
        said: What is known about the network; the usual one of the GPU type stands in for the rest.
        config: Folder of the configuration.
    """
    usual = gpu.usual_network
    node = said.domain_size or usual.gpus_per_node
    inside = node_levels(gpu, node, config)
    if num_gpus <= node:
        return Fabric(inside)
    bandwidth = said.bandwidth or usual.node_bandwidth.value
    share = bandwidth if said.bandwidth and said.is_per_gpu else bandwidth / usual.gpus_per_node
    network = Network(share * node, link=said.link, has_reduction=said.has_reduction)
    return Fabric(inside + network_levels(network, load_link(network.link, config), node, num_gpus))
