"""Time of a collective: the fastest algorithm on the levels its group crosses, links shared with other groups."""

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
class Algorithm:
    """One algorithm and protocol for a collective on a route.

    Attributes:
        name: Algorithm and protocol.
        latency: Time of an empty collective. Unit: s.
        s_per_byte: Transfer time of one byte over the slowest level. Unit: s/byte.
        bend: Exponent of the sum of both, see `Link.bend`.
    """

    name: str
    latency: float
    s_per_byte: float
    bend: float

    def time_s(self, num_bytes: float) -> float:
        """Return the time of a collective of `num_bytes` bytes. Unit: s."""
        transfer = self.s_per_byte * num_bytes
        large, small = max(self.latency, transfer), min(self.latency, transfer)
        # Equal to the p-norm, but without a power of a tiny number that underflows.
        return float(large * (1 + (small / large) ** self.bend) ** (1 / self.bend))


def algorithms(kind: CommKind, size: int, route: Route) -> list[Algorithm]:
    """Return the algorithms for a collective of `size` ranks along a route that is not empty."""
    return list(_ALGORITHMS[kind](size, route))


def _all_reduce(size: int, route: Route) -> Iterator[Algorithm]:
    yield from _rings(2, size, route)
    for name, protocol in _protocols(route):
        yield _hierarchical(f"tree {name}", route, protocol, uses_switches=False)
    if any(_reduces_in_switches(crossing) for crossing in route):
        yield _hierarchical("switches", route, SIMPLE, uses_switches=True)


def _gather_or_scatter(size: int, route: Route) -> Iterator[Algorithm]:
    return _rings(1, size, route)


def _rings(rounds: int, size: int, route: Route) -> Iterator[Algorithm]:
    """Yield ring algorithms: `rounds` times n-1 steps through all ranks, of which few cross the outer levels."""
    slowest = min(crossing.bandwidth * crossing.link.efficiency for crossing in route)
    for name, protocol in _protocols(route):
        latency = rounds * _ring_latency(size, route, protocol)
        if rounds == 2 and protocol is SIMPLE:
            latency *= route[-1].link.plateau
        transfer = rounds * (size - 1) / size / (slowest * protocol.bandwidth)
        yield Algorithm(f"ring {name}", _launch(route) + latency, transfer, route[-1].link.bend)


def _ring_latency(size: int, route: Route, protocol: Protocol) -> float:
    hops = (crossing.latency * (size / crossing.inner - size / crossing.members) for crossing in route)
    return protocol.latency * sum(hops)


def _hierarchical(name: str, route: Route, protocol: Protocol, uses_switches: bool) -> Algorithm:
    """Return a pipelined all-reduce up and down the levels: chain or switches in the node, tree or switches between."""
    latency, transfer = 0.0, 0.0
    for crossing in route:
        link, fanout = crossing.link, crossing.members / crossing.inner
        if uses_switches and _reduces_in_switches(crossing):
            latency += link.reduction_s
            transfer = max(transfer, (1 + 1 / fanout) / (crossing.bandwidth * link.reduction_efficiency))
            continue
        is_chain = not link.is_network and crossing.inner == 1
        depth = fanout - 1 if is_chain else log2(fanout)
        latency += 2 * depth * crossing.latency * link.tree_latency * protocol.tree_latency
        bandwidth = crossing.bandwidth * link.efficiency * link.tree_efficiency * protocol.bandwidth
        transfer = max(transfer, 2 / bandwidth)
    return Algorithm(name, _launch(route) + latency, transfer, route[-1].link.bend)


def _reduces_in_switches(crossing: Crossing) -> bool:
    # Between two members, reduction in the switch moves more than an exchange of halves.
    return crossing.has_reduction and crossing.members / crossing.inner > 2


def _all_to_all(size: int, route: Route) -> Iterator[Algorithm]:
    """Yield the pairwise exchange; data for far ranks crosses the inner levels too."""
    transfer = max(
        (size - crossing.inner) / size / (crossing.exchange / crossing.inner * crossing.link.exchange_efficiency)
        for crossing in route
    )
    peers = sum((crossing.members - crossing.inner) * crossing.link.peer_s for crossing in route)
    latency = _launch(route) + max(crossing.latency for crossing in route) + peers
    yield Algorithm("pairwise", latency, transfer, route[-1].link.bend)


def _broadcast(size: int, route: Route) -> Iterator[Algorithm]:
    slowest = min(crossing.bandwidth * crossing.link.efficiency for crossing in route)
    for name, protocol in _protocols(route):
        latency = _launch(route) + _ring_latency(size, route, protocol)
        yield Algorithm(f"ring {name}", latency, 1 / (slowest * protocol.bandwidth), route[-1].link.bend)


def _send_recv(size: int, route: Route) -> Iterator[Algorithm]:
    """Yield one send to the next member, as slow as between the slowest pair of neighbours."""
    del size
    transfer = max(1 / (crossing.single * crossing.link.exchange_efficiency) for crossing in route)
    latency = _launch(route) + max(crossing.latency for crossing in route)
    yield Algorithm("direct", latency, transfer, route[-1].link.bend)


def _protocols(route: Route) -> Iterator[tuple[str, Protocol]]:
    """Yield Simple and the protocols that every level of the route has, with the parameters of the outermost level."""
    yield "simple", SIMPLE
    for name in sorted(set.intersection(*(set(crossing.link.protocols) for crossing in route))):
        yield name, route[-1].link.protocols[name]


def _launch(route: Route) -> float:
    return max(crossing.link.launch_s for crossing in route)


_ALGORITHMS: dict[CommKind, Callable[[int, Route], Iterator[Algorithm]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _gather_or_scatter,
    "reduce_scatter": _gather_or_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "send_recv": _send_recv,
}


SIGMA_PER_DOUBLING = 0.05
"""Increase of sigma per factor of two outside the measured sizes or groups: assumed, not measured."""

_Key = tuple[CommKind, Group, int | None]


@dataclass(frozen=True)
class CollectiveModel:
    """Times of collectives on one fabric.

    Attributes:
        fabric: The fabric.
        links: Kinds of link of the fabric, by name.
        bound: The same fabric with kinds of link that are no slower, see `Link.no_faster_than`; its times are a lower
            bound. None without any.
    """

    fabric: Fabric
    links: Mapping[str, Link]
    bound: "CollectiveModel | None" = None
    _routes: dict[tuple[Group, int | None], tuple[Crossing, ...]] = field(default_factory=dict, repr=False)
    _algorithms: dict[_Key, list[Algorithm]] = field(default_factory=dict, repr=False)
    _times: dict[tuple[_Key, float], float] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, fabric: Fabric, config: Path) -> "CollectiveModel":
        """Return the model of a fabric.

        Args:
            fabric: The fabric; it contains everything that depends on the GPU.
            config: Folder of the configuration.

        Raises:
            UserError: If a level's kind of link is unknown.
        """
        links = {level.kind: load_link(level.kind, config) for level in fabric.levels}
        bounds = {name: load_link(link.no_faster_than, config) for name, link in links.items() if link.no_faster_than}
        return cls(fabric, links, cls(fabric, links | bounds) if bounds else None)

    def time_s(self, kind: CommKind, num_bytes: float, group: Group, num_sharing: int | None = None) -> float:
        """Return the time of a collective once all ranks have arrived.

        Args:
            kind: Kind of the collective.
            num_bytes: Size as nccl-tests counts it, see `Communication`. Unit: byte.
            group: Size and stride.
            num_sharing: Groups that communicate at the same time in a node; None for as many as fit.

        Returns:
            Time, 0 for a group of one. Unit: s.

        Raises:
            ValueError: If a size is negative, or a group or the number of groups is not positive.
        """
        key = ((kind, group, num_sharing), num_bytes)
        if key not in self._times:
            fastest = self.fastest(kind, num_bytes, group, num_sharing)
            own = fastest.time_s(num_bytes) if fastest else 0.0
            bound = self.bound.time_s(kind, num_bytes, group, num_sharing) if self.bound else 0.0
            self._times[key] = max(own, bound, self._inner_s(kind, num_bytes, group, num_sharing))
        return self._times[key]

    def times_s(self, kind: CommKind, sizes: FloatArray, group: Group) -> FloatArray:
        """Return `time_s` for an array of positive sizes, of the same shape. Unit: s."""
        route = self.route(group)
        if not route:
            return np.zeros_like(sizes)
        parameters = [(way.latency, way.s_per_byte, way.bend) for way in self._algorithms_of(kind, group, None)]
        latency, s_per_byte, bend = np.array(parameters).T[:, :, np.newaxis]
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
        """Return the members joined below the outermost level; their collective is a lower bound of that of the group.

        The levels are fitted separately, so the curve of the whole group may fall below that of its part.
        """
        if len(route) < 2 or kind in ("all_to_all", "send_recv"):
            return None
        return Group(int(route[-1].inner), group.stride)

    def fastest(
        self, kind: CommKind, num_bytes: float, group: Group, num_sharing: int | None = None
    ) -> Algorithm | None:
        """Return the fastest algorithm, None for a group of one. Arguments and errors are those of `time_s`."""
        if num_bytes < 0:
            raise ValueError(f"{kind} of {num_bytes} byte, expected 0 or more")
        ways = self._algorithms_of(kind, group, num_sharing)
        return min(ways, key=lambda algorithm: algorithm.time_s(num_bytes), default=None)

    def _algorithms_of(self, kind: CommKind, group: Group, num_sharing: int | None) -> list[Algorithm]:
        key = (kind, group, num_sharing)
        if key not in self._algorithms:
            route = self.route(group, num_sharing)
            self._algorithms[key] = algorithms(kind, group.size, route) if route else []
        return self._algorithms[key]

    def route(self, group: Group, num_sharing: int | None = None) -> tuple[Crossing, ...]:
        """Return the levels that a group crosses and that take time, from the inside out."""
        key = (group, num_sharing)
        if key not in self._routes:
            levels = self.fabric.merged.levels
            crossed = crossings(self.fabric, self.links, group, num_sharing)
            self._routes[key] = tuple(crossing for crossing in crossed if not levels[crossing.level].is_free)
        return self._routes[key]

    def sigma(self, num_bytes: float, group: Group) -> float:
        """Return the standard deviation of the logarithm of a time; it grows outside of the measured range."""
        route = self.route(group)
        if not route:
            return 0.0
        link = max((crossing.link for crossing in route), key=lambda crossed: crossed.sigma)
        outside = max(link.min_bytes / max(num_bytes, 1.0), num_bytes / link.max_bytes, group.size / link.max_gpus, 1.0)
        return link.sigma + SIGMA_PER_DOUBLING * log2(outside)

    def together_s(self, times: Mapping[Group, float]) -> float:
        """Return the end of collectives that start together.

        Groups on different levels do not slow each other. A level that several groups need is busy for each of them in
        turn.

        Args:
            times: Time of each group's collective alone. Unit: s.

        Returns:
            Time until the last one ends. Unit: s.
        """
        busy: dict[int, float] = {}
        for group, time in times.items():
            for level, load in self._loads(group).items():
                busy[level] = busy.get(level, 0.0) + time * load
        return max([*times.values(), *busy.values()], default=0.0)

    def _loads(self, group: Group) -> dict[int, float]:
        """Return the share of each level's bandwidth that a group alone uses, by number of the level.

        A group saturates its slowest level and loads the other levels in proportion.
        """
        route = self.route(group)
        bandwidths = {crossing.level: crossing.bandwidth * crossing.link.efficiency for crossing in route}
        slowest = min(bandwidths.values(), default=0.0)
        return {level: slowest / bandwidth for level, bandwidth in bandwidths.items()}
