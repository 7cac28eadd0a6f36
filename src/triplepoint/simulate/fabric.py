"""The fabric: levels of links from the inside out, and where a process group lies on them."""

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
        num_gpus: GPUs joined at this level and below: 8 in a node, all in the cluster at the last level.
        bandwidth: Of one GPU into this level, one direction: its links, or its share of the adapters. Unit: byte/s.
        latency: Of one hop over this level. Unit: s.
        has_reduction: Whether the switches reduce (NVLS, SHARP).
        link: Kind of link, a file in `config/collectives/links/`; empty if `name` is one.
        single: Bandwidth one GPU reaches while its neighbours are silent: a whole adapter; None if that is its share.
            Unit: byte/s.
        is_network: Whether it joins nodes.
        counters: Columns of the telemetry that count its bytes inside a node.
        is_free: Whether crossing it takes no time: what if it cost nothing.
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
    """The levels, from the inside out; `num_gpus` grows from one to the next."""

    levels: tuple[Level, ...]

    @property
    def gpus_per_node(self) -> int:
        """GPUs joined by scale-up links: the last level that is no network."""
        inside = [level.num_gpus for level in self.levels if not level.is_network]
        return max(inside, default=1)

    @cached_property
    def merged(self) -> "Fabric":
        """The fabric with neighbouring levels that differ in name and size only made one.

        A level can be spelled as two of the same bandwidth; what follows from it must not tell them apart.
        """
        levels: list[Level] = []
        for level in self.levels:
            if levels and _same_links(levels[-1], level):
                levels.pop()
            levels.append(level)
        return Fabric(tuple(levels))

    def without_reduction(self) -> "Fabric":
        """Return the fabric with switches that do not reduce inside its nodes."""
        return Fabric(
            tuple(level if level.is_network else replace(level, has_reduction=False) for level in self.levels)
        )

    def free(self, is_network: bool) -> "Fabric":
        """Return the fabric with levels between nodes, or inside them, that take no time."""
        return Fabric(
            tuple(replace(level, is_free=True) if level.is_network == is_network else level for level in self.levels)
        )

    def faster(self, is_network: bool, factor: float) -> "Fabric":
        """Return the fabric with levels between nodes, or inside them, of `factor` times the bandwidth."""

        def scaled(level: Level) -> Level:
            single = None if level.single is None else level.single * factor
            return replace(level, bandwidth=level.bandwidth * factor, single=single)

        return Fabric(tuple(scaled(level) if level.is_network == is_network else level for level in self.levels))

    def with_domain(self, num_gpus: int) -> "Fabric":
        """Return the fabric with scale-up links that join so many GPUs; what joins no more than them is gone."""
        inside = [level for level in self.levels if not level.is_network]
        beyond = [level for level in self.levels if level.is_network and level.num_gpus > num_gpus]
        return Fabric((*inside[:-1], replace(inside[-1], num_gpus=num_gpus), *beyond))


@dataclass(frozen=True)
class Network:
    """What joins the nodes.

    Attributes:
        bytes_per_s_per_node: All adapters of a node together, one direction. Unit: byte/s.
        nics_per_node: Adapters they are, not whole where only their bandwidth is known; None for one per GPU.
        link: Kind of link: infiniband, roce, ethernet.
        has_reduction: Whether its switches reduce (SHARP).
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
    """Return the fabric of a cluster, with the kinds of link in the folder of the configuration.

    Raises:
        PointError: If it has several nodes and its adapters are not given, or a link that does not belong there.
    """
    domain = cluster.gpus_per_node * cluster.nodes_per_domain
    usual = gpu.usual_network
    if cluster.nodes_per_domain > 1 and domain > usual.largest_domain:
        raise PointError(
            f"cluster {cluster.name}: nodes_per_domain: {cluster.nodes_per_domain} joins {domain} GPUs, {gpu.name} has "
            f"{usual.largest_domain} at most; leave it out"
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
    if cluster.topology == "dragonfly":
        nodes = max(1, _PORTS_PER_GROUP // num_nics)
        return cluster.gpus_per_leaf or nodes * cluster.gpus_per_node
    if cluster.oversubscription == 1:
        return None
    is_by_rail = None if cluster.topology is None else cluster.topology == "rail_optimised"
    return cluster.gpus_per_leaf or gpus_per_leaf(is_by_rail, num_nics, cluster.gpus_per_node)


_PORTS_PER_GROUP = 512
"""Adapters of a group of a balanced dragonfly: 32 switches of 64 ports, 16 of them to adapters, 31 to the other
switches of the group, 16 to other groups. Source: Kim, Dally, Scott and Abts, ISCA 2008, section 3: a = 2p = 2h."""
_DETOUR = 2.0
"""Links between groups that a packet crosses: a ring loads few pairs of groups, whose traffic goes by way of others,
which halves what all links together carry. Source: the same, on Valiant's routing."""
PORTS_PER_LEAF = 32
"""Adapters under one leaf switch: half of 64 ports. Source: NVIDIA DGX SuperPOD reference architecture, DGX H100, 32
nodes under the eight leaf switches of a scalable unit, one for each rail."""


def gpus_per_leaf(is_rail_optimised: bool | None, num_nics: int, gpus_per_node: int) -> int:
    """Return the GPUs that reach each other without the spine.

    Args:
        is_rail_optimised: Whether adapters of one number, of many nodes, share a leaf, rather than all adapters of few
            nodes; None: where each GPU has its own.
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
        has_reduction: Whether the switches reduce; None for what the link has.
        link: Kind of link; None for that of the GPU type.
    """
    kind = load_link(link or gpu.scale_up_link, config)
    if kind.is_network:
        raise PointError(f"scale_up_link: {kind.name} joins nodes; name one inside a node, such as {gpu.scale_up_link}")
    return scale_up_levels(kind, gpus_per_node, gpu.scale_up_bandwidth.value, has_reduction)


def scale_up_levels(
    link: Link, gpus_per_node: int, bandwidth: float, has_reduction: bool | None = None
) -> tuple[Level, ...]:
    """Return the levels inside a node from the link and the bandwidth of one GPU, one direction, in byte/s."""
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
    """Return the levels between nodes: one, or leaf and spine where the spine is slower.

    Raises:
        UserError: If the adapters have no bandwidth, or the spine is faster than the leaves.
    """
    if network.bytes_per_s_per_node <= 0 or network.oversubscription < 1:
        raise UserError(
            f"network of {network.bytes_per_s_per_node:g} byte/s per node, oversubscribed {network.oversubscription:g}"
            " times; expected a positive bandwidth and 1 or more"
        )
    share = network.bytes_per_s_per_node / gpus_per_node
    # More adapters than GPUs: each GPU has several. Fewer: one GPU alone has a whole one.
    adapters = network.nics_per_node or gpus_per_node
    single = max(share, network.bytes_per_s_per_node / min(adapters, gpus_per_node))
    whole = Level("rail", num_gpus, share, link.latency_s, network.has_reduction, link.name, single, True)
    if network.gpus_per_leaf is None or network.gpus_per_leaf >= num_gpus:
        return (whole,)
    leaf = replace(whole, name="leaf", num_gpus=network.gpus_per_leaf)
    return (leaf, replace(whole, name="spine", bandwidth=share / network.oversubscription))


def _same_links(one: Level, other: Level) -> bool:
    return replace(one, name="", num_gpus=0, link=one.kind) == replace(other, name="", num_gpus=0, link=other.kind)
