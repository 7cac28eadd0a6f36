"""Time of a collective: the fastest algorithm on the levels its group crosses, links shared with others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from pathlib import Path

import numpy as np
import numpy.typing as npt

from triplepoint.simulate.collectives.links import Link, Protocol, load_link
from triplepoint.simulate.collectives.route import Crossing, crossings
from triplepoint.simulate.fabric import Fabric, Group
from triplepoint.simulate.operations import CommKind

Route = Sequence[Crossing]
FloatArray = npt.NDArray[np.float64]

SIMPLE = Protocol(latency=1.0, tree_latency=1.0, bandwidth=1.0)


@dataclass(frozen=True)
class Cost:
    """One way to carry out a collective.

    Attributes:
        name: Algorithm and protocol.
        latency: Time of an empty collective. Unit: s.
        s_per_byte: Transfer of one byte over the slowest level. Unit: s/byte.
        bend: How the two add up, see `Link.bend`.
    """

    name: str
    latency: float
    s_per_byte: float
    bend: float

    def time_s(self, num_bytes: float) -> float:
        """Return the time of a collective of so many bytes. Unit: s."""
        transfer = self.s_per_byte * num_bytes
        large, small = max(self.latency, transfer), min(self.latency, transfer)
        # Same as the p-norm, but no power of a tiny number that underflows.
        return float(large * (1 + (small / large) ** self.bend) ** (1 / self.bend))


def costs(kind: CommKind, size: int, route: Route) -> list[Cost]:
    """Return the ways to carry out a collective among `size` ranks along a route that is not empty."""
    return list(_WAYS[kind](size, route))


def _all_reduce(size: int, route: Route) -> Iterator[Cost]:
    yield from _rings(2, size, route)
    for name, protocol in _protocols(route):
        yield _levelled(f"tree {name}", route, protocol, reduces=False)
    if any(_reduces(crossing) for crossing in route):
        yield _levelled("switches", route, SIMPLE, reduces=True)


def _gather_or_scatter(size: int, route: Route) -> Iterator[Cost]:
    return _rings(1, size, route)


def _rings(rounds: int, size: int, route: Route) -> Iterator[Cost]:
    """A ring visits all ranks: `rounds` times n-1 steps, of which few cross the outer levels."""
    slowest = min(crossing.bandwidth * crossing.link.efficiency for crossing in route)
    for name, protocol in _protocols(route):
        latency = rounds * _ring_latency(size, route, protocol)
        if rounds == 2 and protocol is SIMPLE:
            latency *= route[-1].link.plateau
        transfer = rounds * (size - 1) / size / (slowest * protocol.bandwidth)
        yield Cost(f"ring {name}", _launch(route) + latency, transfer, route[-1].link.bend)


def _ring_latency(size: int, route: Route, protocol: Protocol) -> float:
    hops = (crossing.latency * (size / crossing.inner - size / crossing.members) for crossing in route)
    return protocol.latency * sum(hops)


def _levelled(name: str, route: Route, protocol: Protocol, reduces: bool) -> Cost:
    """Up and down the levels, pipelined: a chain in the node or its switches, a tree of nodes or the network's."""
    latency, transfer = 0.0, 0.0
    for crossing in route:
        link, fanout = crossing.link, crossing.members / crossing.inner
        if reduces and _reduces(crossing):
            latency += link.reduction_s
            transfer = max(transfer, (1 + 1 / fanout) / (crossing.bandwidth * link.reduction_efficiency))
            continue
        is_chain = not link.is_network and crossing.inner == 1
        depth = fanout - 1 if is_chain else log2(fanout)
        latency += 2 * depth * crossing.latency * link.tree_latency * protocol.tree_latency
        reached = crossing.bandwidth * link.efficiency * link.tree_efficiency * protocol.bandwidth
        transfer = max(transfer, 2 / reached)
    return Cost(name, _launch(route) + latency, transfer, route[-1].link.bend)


def _reduces(crossing: Crossing) -> bool:
    # Between two, reducing in the switch moves more than exchanging halves.
    return crossing.has_reduction and crossing.members / crossing.inner > 2


def _all_to_all(size: int, route: Route) -> Iterator[Cost]:
    """Every rank sends to every other; what goes far crosses the inner levels on its way too."""
    transfer = max(
        (size - crossing.inner) / size / (crossing.exchange / crossing.inner * crossing.link.exchange_efficiency)
        for crossing in route
    )
    peers = sum((crossing.members - crossing.inner) * crossing.link.peer_s for crossing in route)
    latency = _launch(route) + max(crossing.latency for crossing in route) + peers
    yield Cost("pairwise", latency, transfer, route[-1].link.bend)


def _broadcast(size: int, route: Route) -> Iterator[Cost]:
    slowest = min(crossing.bandwidth * crossing.link.efficiency for crossing in route)
    for name, protocol in _protocols(route):
        latency = _launch(route) + _ring_latency(size, route, protocol)
        yield Cost(f"ring {name}", latency, 1 / (slowest * protocol.bandwidth), route[-1].link.bend)


def _send_recv(size: int, route: Route) -> Iterator[Cost]:
    """One send to the next member: as slow as the slowest pair of neighbours."""
    del size
    transfer = max(1 / (crossing.single * crossing.link.exchange_efficiency) for crossing in route)
    latency = _launch(route) + max(crossing.latency for crossing in route)
    yield Cost("direct", latency, transfer, route[-1].link.bend)


def _protocols(route: Route) -> Iterator[tuple[str, Protocol]]:
    """Simple, and those that every level of the route knows, as the outermost has them."""
    yield "simple", SIMPLE
    for name in sorted(set.intersection(*(set(crossing.link.protocols) for crossing in route))):
        yield name, route[-1].link.protocols[name]


def _launch(route: Route) -> float:
    return max(crossing.link.launch_s for crossing in route)


_WAYS: dict[CommKind, Callable[[int, Route], Iterator[Cost]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _gather_or_scatter,
    "reduce_scatter": _gather_or_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "send_recv": _send_recv,
}


SIGMA_PER_DOUBLING = 0.05
"""Added to sigma for a factor of two outside the sizes or groups that were measured: assumed, not measured."""

_Key = tuple[CommKind, Group, int | None]


@dataclass(frozen=True)
class CollectiveModel:
    """Times of collectives on one fabric.

    Attributes:
        fabric: How the GPUs are joined.
        links: The kinds of link it is made of, by name.
        bound: The same fabric of kinds of link that are no slower, where some are; no time is below its.
    """

    fabric: Fabric
    links: Mapping[str, Link]
    bound: "CollectiveModel | None" = None
    _routes: dict[tuple[Group, int | None], tuple[Crossing, ...]] = field(default_factory=dict, repr=False)
    _costs: dict[_Key, list[Cost]] = field(default_factory=dict, repr=False)
    _times: dict[tuple[_Key, float], float] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, fabric: Fabric, config: Path) -> "CollectiveModel":
        """Return the model of a fabric.

        Args:
            fabric: How the GPUs are joined; it carries what depends on the GPU.
            config: Folder of the configuration.

        Raises:
            UserError: If a level's kind of link is not known.
        """
        links = {level.kind: load_link(level.kind, config) for level in fabric.levels}
        faster = {name: link.no_faster_than for name, link in links.items() if link.no_faster_than}
        bound = {name: load_link(other, config) for name, other in faster.items()}
        return cls(fabric, links, cls(fabric, links | bound) if bound else None)

    def time_s(self, kind: CommKind, num_bytes: float, group: Group, num_sharing: int | None = None) -> float:
        """Return how long a collective takes once all ranks are there.

        Args:
            kind: Of the collective.
            num_bytes: Size as nccl-tests counts it, see `Communication`. Unit: byte.
            group: Size and stride.
            num_sharing: Groups at work at once in a node; None for as many as it has room for.

        Returns:
            Time, 0 for a group of one. Unit: s.

        Raises:
            ValueError: If a size is negative, or a group or the number of groups is not positive.
        """
        key = ((kind, group, num_sharing), num_bytes)
        if key not in self._times:
            best = self.choice(kind, num_bytes, group, num_sharing)
            alone = best.time_s(num_bytes) if best else 0.0
            bound = self.bound.time_s(kind, num_bytes, group, num_sharing) if self.bound else 0.0
            self._times[key] = max(alone, bound, self._inner_s(kind, num_bytes, group, num_sharing))
        return self._times[key]

    def times_s(self, kind: CommKind, sizes: FloatArray, group: Group) -> FloatArray:
        """Return `time_s` of collectives of several sizes above 0, shape as `sizes`. Unit: s."""
        route = self.route(group)
        if not route:
            return np.zeros_like(sizes)
        ways = [(cost.latency, cost.s_per_byte, cost.bend) for cost in self._ways(kind, group, None)]
        latency, s_per_byte, bend = np.array(ways).T[:, :, np.newaxis]
        transfer = s_per_byte * sizes
        large, small = np.maximum(latency, transfer), np.minimum(latency, transfer)
        times: FloatArray = (large * (1 + (small / large) ** bend) ** (1 / bend)).min(axis=0)
        if self.bound:
            times = np.maximum(times, self.bound.times_s(kind, sizes, group))
        inner = self._inner(kind, group, route)
        return np.maximum(times, self.times_s(kind, sizes, inner)) if inner else times

    def _inner_s(self, kind: CommKind, num_bytes: float, group: Group, num_sharing: int | None) -> float:
        inner = self._inner(kind, group, self.route(group, num_sharing))
        return self.time_s(kind, num_bytes, inner, num_sharing) if inner else 0.0

    @staticmethod
    def _inner(kind: CommKind, group: Group, route: Route) -> Group | None:
        """Return the members joined below the outermost level: with more of them a collective is never faster.

        The levels' curves are fitted apart, so that the curve of the whole may fall below that of its part.
        """
        if len(route) < 2 or kind in ("all_to_all", "send_recv"):
            return None
        return Group(int(route[-1].inner), group.stride)

    def choice(self, kind: CommKind, num_bytes: float, group: Group, num_sharing: int | None = None) -> Cost | None:
        """Return the algorithm that is taken, None where it takes no time. Arguments and errors as of `time_s`."""
        if num_bytes < 0:
            raise ValueError(f"{kind} of {num_bytes} byte, expected 0 or more")
        return min(self._ways(kind, group, num_sharing), key=lambda cost: cost.time_s(num_bytes), default=None)

    def _ways(self, kind: CommKind, group: Group, num_sharing: int | None) -> list[Cost]:
        key = (kind, group, num_sharing)
        if key not in self._costs:
            route = self.route(group, num_sharing)
            self._costs[key] = costs(kind, group.size, route) if route else []
        return self._costs[key]

    def route(self, group: Group, num_sharing: int | None = None) -> tuple[Crossing, ...]:
        """Return the levels a group crosses that take time, from the inside out."""
        key = (group, num_sharing)
        if key not in self._routes:
            levels = self.fabric.merged.levels
            crossed = crossings(self.fabric, self.links, group, num_sharing)
            self._routes[key] = tuple(crossing for crossing in crossed if not levels[crossing.place].is_free)
        return self._routes[key]

    def sigma(self, num_bytes: float, group: Group) -> float:
        """Return the standard deviation of the logarithm of a time; it grows outside of what was measured."""
        route = self.route(group)
        if not route:
            return 0.0
        link = max((crossing.link for crossing in route), key=lambda crossed: crossed.sigma)
        outside = max(link.min_bytes / max(num_bytes, 1.0), num_bytes / link.max_bytes, group.size / link.max_gpus, 1.0)
        return link.sigma + SIGMA_PER_DOUBLING * log2(outside)

    def slowdown(self, group: Group, others: Sequence[Group]) -> float:
        """Return how many times longer the transfers of a group take while `others` transfer too.

        Every group keeps its own bottleneck busy and the other levels it crosses in proportion. A level that is asked
        for more than it has is shared in proportion to what is asked; one that is not slows nobody.
        """
        loads = self._loads(group)
        total = dict(loads)
        for other in others:
            for place, load in self._loads(other).items():
                total[place] = total.get(place, 0.0) + load
        return max([1.0, *(total[place] for place in loads)])

    def together_s(self, times: Mapping[Group, float]) -> float:
        """Return when the last of some groups is done that begin at once, each with its time alone. Unit: s.

        Groups on levels of their own pass each other; a level that several need is busy for all of them in turn.
        """
        busy: dict[int, float] = {}
        for group, time in times.items():
            for place, load in self._loads(group).items():
                busy[place] = busy.get(place, 0.0) + time * load
        return max([*times.values(), *busy.values()], default=0.0)

    def _loads(self, group: Group) -> dict[int, float]:
        """Return the share of each level's bandwidth that a group takes when alone, by place of the level."""
        route = self.route(group)
        reached = {crossing.place: crossing.bandwidth * crossing.link.efficiency for crossing in route}
        slowest = min(reached.values(), default=0.0)
        return {place: slowest / bandwidth for place, bandwidth in reached.items()}
