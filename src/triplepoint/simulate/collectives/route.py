"""Route of a process group: the levels of the fabric it crosses, and the bandwidth it has on each."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from triplepoint.simulate.collectives.links import Link
from triplepoint.simulate.fabric import Fabric, Group, Level


@dataclass(frozen=True)
class Crossing:
    """A level at which parts of a group are joined.

    Attributes:
        link: Kind of link.
        place: Number of the level in the merged fabric, from the inside.
        inner: Members that are joined below, in one part.
        members: Members that are joined here.
        bandwidth: Of one part into this level, one direction, with what it shares taken off. Unit: byte/s.
        exchange: The same where each member sends for itself, and none passes on what others send. Unit: byte/s.
        single: Of one member of it. Unit: byte/s.
        latency: One hop. Unit: s.
        has_reduction: Whether the switches reduce.
    """

    link: Link
    place: int
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
        fabric: Levels of links.
        links: Kinds of link by name.
        group: Size and stride.
        num_sharing: Groups that are at work at once in the part of the cluster whose adapters they share; None for
            as many as fit, every rank being in one.

    Raises:
        ValueError: If a size, a stride or the number of groups is not positive.
    """
    if group.size < 1 or group.stride < 1 or (num_sharing is not None and num_sharing < 1):
        raise ValueError(f"{group} with {num_sharing} sharing, expected positive numbers")
    levels = fabric.merged.levels
    crossed: list[Crossing] = []
    inner, part = 1.0, 1
    for place, level in enumerate(levels):
        is_last = place == len(levels) - 1
        room = group.size if is_last else max(1, level.num_gpus // group.stride)
        # A group that does not fill its last part is taken as spread evenly over them.
        members = group.size / ceil(group.size / min(group.size, room))
        if members > inner:
            is_first = level.is_network and not levels[place - 1].is_network
            crossed.append(_crossing(level, links[level.kind], place, (inner, members, part), num_sharing, is_first))
            inner = members
        part = level.num_gpus
    return tuple(crossed)


def _crossing(
    level: Level, link: Link, place: int, sizes: tuple[float, float, int], num_sharing: int | None, leaves_node: bool
) -> Crossing:
    inner, members, part = sizes
    share = level.bandwidth * link.usable.get(round(members), 1.0)
    single = max(share, level.single or 0.0)
    num_groups = max(1.0, part / inner) if num_sharing is None else num_sharing
    exchange = bandwidth = min(single * inner, share * part / num_groups)
    if link.partial_ring_bandwidth and leaves_node and single > share and 1 < inner < part:
        # A ring may leave and enter by one adapter, so that all together reach that of one at least.
        bandwidth = min(bandwidth, max(link.partial_ring_bandwidth.value, single) / num_groups)
    reached = bandwidth, exchange, min(single, exchange)
    return Crossing(link, place, inner, members, *reached, level.latency, level.has_reduction)
