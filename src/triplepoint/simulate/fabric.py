"""The fabric of a cluster: its levels of links, from the inside out."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.mesh import Group as Group
from triplepoint.errors import PointError, UserError
from triplepoint.simulate.collectives.links import Counters, Link, load_link


@dataclass(frozen=True)
class Level:
    """One level of the fabric.

    Attributes:
        name: nvlink, xgmi, pcie, rail, leaf, spine, ...
        num_gpus: GPUs that this level and those below join: 8 in a node, all of the cluster at the last level.
        bandwidth: Bandwidth of one GPU into this level, one direction: that of its links, or its share of the adapters.
            Unit: byte/s.
        latency: Latency of one hop over this level. Unit: s.
        has_reduction: Whether the switches reduce (NVLS, SHARP).
        link: Kind of link, a file in `config/collectives/links/`; empty if `name` is the kind.
        single: Bandwidth of one GPU while the GPUs that share its adapters are silent: a whole adapter; None if no
            adapter is shared. Unit: byte/s.
        is_network: Whether it joins nodes.
        counters: Telemetry columns that count its bytes inside a node.
        is_free: Whether it takes no time, for what-if studies.
    """

    name: str
    num_gpus: int
    bandwidth: float
    latency: float
    has_reduction: bool = False
    link: str = ""
    single: float | None = None
    is_network: bool = False
    counters: Counters = "pcie"
    is_free: bool = False

    @property
    def kind(self) -> str:
        """Kind of link."""
        return self.link or self.name


@dataclass(frozen=True)
class Fabric:
    """Levels of links from the inside out; `num_gpus` grows from level to level."""

    levels: tuple[Level, ...]

    @property
    def gpus_per_node(self) -> int:
        """GPUs joined by scale-up links: those of the last level that is not a network."""
        inside = [level.num_gpus for level in self.levels if not level.is_network]
        return max(inside, default=1)

    @cached_property
    def merged(self) -> "Fabric":
        """The fabric with adjacent levels merged that differ only in name and size.

        One level can be described as two of the same bandwidth; results must not depend on that.
        """
        levels: list[Level] = []
        for level in self.levels:
            if levels and _same_links(levels[-1], level):
                levels.pop()
            levels.append(level)
        return Fabric(tuple(levels))

    def without_reduction(self) -> "Fabric":
        """Return the fabric without reduction in the switches inside nodes."""
        return Fabric(
            tuple(level if level.is_network else replace(level, has_reduction=False) for level in self.levels)
        )

    def free(self, is_network: bool) -> "Fabric":
        """Return the fabric with levels that take no time, either between nodes or inside them."""
        return Fabric(
            tuple(replace(level, is_free=True) if level.is_network == is_network else level for level in self.levels)
        )

    def faster(self, is_network: bool, factor: float) -> "Fabric":
        """Return the fabric with `factor` times the bandwidth, either between nodes or inside them."""

        def scaled(level: Level) -> Level:
            single = None if level.single is None else level.single * factor
            return replace(level, bandwidth=level.bandwidth * factor, single=single)

        return Fabric(tuple(scaled(level) if level.is_network == is_network else level for level in self.levels))

    def with_domain(self, num_gpus: int) -> "Fabric":
        """Return the fabric with scale-up links that join `num_gpus` GPUs.

        Network levels that join no more GPUs are removed.
        """
        scale_up = [level for level in self.levels if not level.is_network]
        network = [level for level in self.levels if level.is_network and level.num_gpus > num_gpus]
        return Fabric((*scale_up[:-1], replace(scale_up[-1], num_gpus=num_gpus), *network))


@dataclass(frozen=True)
class Network:
    """The network between nodes.

    Attributes:
        bytes_per_s_per_node: Bandwidth of all adapters of a node together, one direction. Unit: byte/s.
        nics_per_node: Adapters of a node, not whole if only their bandwidth is known; None for one per GPU.
        link: Kind of link: infiniband, roce, ethernet.
        has_reduction: Whether the switches reduce (SHARP).
        gpus_per_leaf: GPUs under one leaf switch; None if nothing above is slower.
        oversubscription: Bandwidth into a leaf over that out of it.
    """

    bytes_per_s_per_node: float
    nics_per_node: float | None = None
    link: str = "infiniband"
    has_reduction: bool = False
    gpus_per_leaf: int | None = None
    oversubscription: float = 1.0


def fabric_of(cluster: ClusterConfig, gpu: GpuConfig, config: Path) -> Fabric:
    """Return the fabric of a cluster.

    Args:
        cluster: The cluster.
        gpu: The GPU type.
        config: Folder of the configuration, with the kinds of link.

    Raises:
        PointError: If the cluster has several nodes without adapters given, or a kind of link at the wrong place.
    """
    domain = cluster.gpus_per_node * cluster.nodes_per_domain
    largest_domain = gpu.usual_network.largest_domain
    if cluster.nodes_per_domain > 1 and domain > largest_domain:
        raise PointError(
            f"cluster {cluster.name}: nodes_per_domain: {cluster.nodes_per_domain} joins {domain} GPUs, {gpu.name} has "
            f"{largest_domain} at most; leave it out"
        )
    inside = node_levels(gpu, domain, config, link=cluster.scale_up_link)
    if cluster.num_nodes <= cluster.nodes_per_domain:
        return Fabric(inside)
    if cluster.nics_per_node is None or cluster.nic_bandwidth is None:
        raise PointError(
            f"cluster {cluster.name}: {cluster.num_nodes} nodes and no nics_per_node or nic_bandwidth; give both"
        )
    num_nics = int(cluster.nics_per_node.value)
    bandwidth = num_nics * cluster.nic_bandwidth.value
    kind = cluster.network_link or Network.link
    link = load_link(kind, config)
    if not link.is_network:
        raise PointError(f"cluster {cluster.name}: network_link: {kind} joins GPUs of a node; name one between nodes")
    nodes = cluster.nodes_per_domain
    network = Network(
        bandwidth * nodes,
        num_nics * nodes,
        kind,
        gpus_per_leaf=_gpus_per_leaf(cluster, num_nics),
        oversubscription=cluster.oversubscription * (_DETOUR if cluster.topology == "dragonfly" else 1.0),
    )
    return Fabric(inside + network_levels(network, link, domain, cluster.num_gpus))


def _gpus_per_leaf(cluster: ClusterConfig, num_nics: int) -> int | None:
    """Return the GPUs under one leaf switch, or in one group of a dragonfly; None if nothing above is slower."""
    if cluster.topology == "dragonfly":
        nodes = max(1, _PORTS_PER_GROUP // num_nics)
        return cluster.gpus_per_leaf or nodes * cluster.gpus_per_node
    if cluster.oversubscription == 1:
        return None
    is_by_rail = None if cluster.topology is None else cluster.topology == "rail_optimised"
    return cluster.gpus_per_leaf or gpus_per_leaf(is_by_rail, num_nics, cluster.gpus_per_node)


_PORTS_PER_GROUP = 512
"""Adapters of one group of a balanced dragonfly: 32 switches of 64 ports each, 16 to adapters, 31 to the other switches
of the group, 16 to other groups. Source: Kim, Dally, Scott and Abts, ISCA 2008, section 3: a = 2p = 2h."""
_DETOUR = 2.0
"""Links between groups that a packet crosses. A ring loads few pairs of groups, and its traffic is routed through other
groups, which halves the bandwidth of all links together. Source: the same, on Valiant's routing."""
PORTS_PER_LEAF = 32
"""Adapters under one leaf switch: half of 64 ports. Source: NVIDIA DGX SuperPOD reference architecture, DGX H100: 32
nodes under the eight leaf switches of a scalable unit, one per rail."""


def gpus_per_leaf(is_rail_optimised: bool | None, num_nics: int, gpus_per_node: int) -> int:
    """Return the number of GPUs that reach each other without the spine.

    Args:
        is_rail_optimised: Whether adapters of the same number on many nodes share a leaf, rather than all adapters of
            few nodes; None: if each GPU has its own adapter.
        num_nics: Adapters of a node.
        gpus_per_node: GPUs of a node.
    """
    is_by_rail = num_nics >= gpus_per_node if is_rail_optimised is None else is_rail_optimised
    nodes = PORTS_PER_LEAF if is_by_rail else max(1, PORTS_PER_LEAF // num_nics)
    return nodes * gpus_per_node


def node_levels(
    gpu: GpuConfig, gpus_per_node: int, config: Path, has_reduction: bool | None = None, link: str | None = None
) -> tuple[Level, ...]:
    """Return the levels inside a node.

    Args:
        gpu: The GPU type.
        gpus_per_node: GPUs of a node.
        config: Folder of the configuration.
        has_reduction: Whether the switches reduce; None for the default of the link.
        link: Kind of link; None for that of the GPU type.

    Raises:
        PointError: If the link joins nodes.
    """
    kind = load_link(link or gpu.scale_up_link, config)
    if kind.is_network:
        raise PointError(f"scale_up_link: {kind.name} joins nodes; name one inside a node, such as {gpu.scale_up_link}")
    return scale_up_levels(kind, gpus_per_node, gpu.scale_up_bandwidth.value, has_reduction)


def scale_up_levels(
    link: Link, gpus_per_node: int, bandwidth: float, has_reduction: bool | None = None
) -> tuple[Level, ...]:
    """Return the levels inside a node from its kind of link.

    Args:
        link: Kind of link.
        gpus_per_node: GPUs of a node.
        bandwidth: Bandwidth of one GPU, one direction. Unit: byte/s.
        has_reduction: Whether the switches reduce; None for the default of the link.
    """
    reduces = link.has_reduction if has_reduction is None else has_reduction
    package = link.package
    if package is not None and gpus_per_node <= package.num_gpus:
        bandwidth = min(bandwidth, package.bandwidth.value)
    if package is None or gpus_per_node <= package.num_gpus:
        return (Level(link.name, gpus_per_node, bandwidth, link.latency_s, reduces, counters=link.counters),)
    inside = package.bandwidth.value
    return (
        Level("package", package.num_gpus, inside, link.latency_s, reduces, link.name, counters=link.counters),
        Level(link.name, gpus_per_node, bandwidth - inside, link.latency_s, reduces, counters=link.counters),
    )


def network_levels(network: Network, link: Link, gpus_per_node: int, num_gpus: int) -> tuple[Level, ...]:
    """Return the levels between nodes: one, or leaf and spine if the spine is slower.

    Args:
        network: The network.
        link: Its kind of link.
        gpus_per_node: GPUs of a node.
        num_gpus: GPUs of the cluster.

    Raises:
        UserError: If the adapters have no bandwidth, or the spine is faster than the leaves.
    """
    if network.bytes_per_s_per_node <= 0 or network.oversubscription < 1:
        raise UserError(
            f"network of {network.bytes_per_s_per_node:g} byte/s per node, oversubscribed {network.oversubscription:g}"
            " times; expected a positive bandwidth and 1 or more"
        )
    share = network.bytes_per_s_per_node / gpus_per_node
    # With more adapters than GPUs each GPU has several. With fewer, one GPU alone can use a whole adapter.
    num_nics = network.nics_per_node or gpus_per_node
    single = max(share, network.bytes_per_s_per_node / min(num_nics, gpus_per_node))
    rail = Level("rail", num_gpus, share, link.latency_s, network.has_reduction, link.name, single, is_network=True)
    if network.gpus_per_leaf is None or network.gpus_per_leaf >= num_gpus:
        return (rail,)
    leaf = replace(rail, name="leaf", num_gpus=network.gpus_per_leaf)
    return (leaf, replace(rail, name="spine", bandwidth=share / network.oversubscription))


def _same_links(first: Level, second: Level) -> bool:
    """Return whether two levels differ in name and size only."""
    return replace(first, name="", num_gpus=0, link=first.kind) == replace(
        second, name="", num_gpus=0, link=second.kind
    )
