"""Route of a process group: the levels of the fabric that it crosses, and its bandwidth on each."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from triplepoint.simulate.collectives.links import Link
from triplepoint.simulate.fabric import Fabric, Group, Level


@dataclass(frozen=True)
class Crossing:
    """A level of the fabric that joins parts of a group.

    Attributes:
        link: Kind of link.
        level: Number of the level in the merged fabric, from the inside.
        inner: Members that one part has, joined below this level.
        members: Members that this level joins.
        bandwidth: Bandwidth of one part into this level, one direction, shared with other groups. Unit: byte/s.
        exchange: The same if each member sends its own data and forwards none. Unit: byte/s.
        single: Bandwidth of one member. Unit: byte/s.
        latency: Latency of one hop. Unit: s.
        has_reduction: Whether the switches reduce.
    """

    link: Link
    level: int
    inner: float
    members: float
    bandwidth: float
    exchange: float
    single: float
    latency: float
    has_reduction: bool


def crossings(
    fabric: Fabric, links: Mapping[str, Link], group: Group, num_sharing: int | None = None
) -> tuple[Crossing, ...]:
    """Return the levels that a group crosses, from the inside out; empty for a group of one.

    Args:
        fabric: The fabric.
        links: Kinds of link by name.
        group: Size and stride.
        num_sharing: Groups that communicate at the same time through the same adapters; None for as many as fit, so
            that every rank is in one.

    Raises:
        ValueError: If a size, a stride or the number of groups is not positive.
    """
    if group.size < 1 or group.stride < 1 or (num_sharing is not None and num_sharing < 1):
        raise ValueError(f"{group} with {num_sharing} sharing, expected positive numbers")
    levels = fabric.merged.levels
    crossed: list[Crossing] = []
    inner, part = 1.0, 1
    for number, level in enumerate(levels):
        is_last = number == len(levels) - 1
        room = group.size if is_last else max(1, level.num_gpus // group.stride)
        # A group that does not fill its last part counts as spread evenly over the parts.
        members = group.size / ceil(group.size / min(group.size, room))
        if members > inner:
            leaves_node = level.is_network and not levels[number - 1].is_network
            sizes = inner, members, part
            crossed.append(_crossing(level, links[level.kind], number, sizes, num_sharing, leaves_node))
            inner = members
        part = level.num_gpus
    return tuple(crossed)


def _crossing(
    level: Level, link: Link, number: int, sizes: tuple[float, float, int], num_sharing: int | None, leaves_node: bool
) -> Crossing:
    """Return one crossing.

    Args:
        level: The level.
        link: Its kind of link.
        number: Number of the level.
        sizes: Members of the group in one part below the level, members that it joins, and GPUs of a part.
        num_sharing: As `crossings`.
        leaves_node: Whether the level is the first network level.
    """
    inner, members, part = sizes
    share = level.bandwidth * link.usable.get(round(members), 1.0)
    single = max(share, level.single or 0.0)
    num_groups = max(1.0, part / inner) if num_sharing is None else num_sharing
    exchange = bandwidth = min(single * inner, share * part / num_groups)
    if link.partial_ring_bandwidth and leaves_node and single > share and 1 < inner < part:
        # A ring may leave and enter by one adapter, so all rings together have at least the bandwidth of one adapter.
        bandwidth = min(bandwidth, max(link.partial_ring_bandwidth.value, single) / num_groups)
    return Crossing(
        link, number, inner, members, bandwidth, exchange, min(single, exchange), level.latency, level.has_reduction
    )
