"""What each algorithm of a collective costs: latency, transfer, and how the two add up.

Source: steps per algorithm and protocol from the tuning model of NCCL, src/graph/tuning.cc; the constants are of links.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log2

from triplepoint.simulate.collectives.links import Protocol
from triplepoint.simulate.collectives.route import Crossing
from triplepoint.simulate.operations import CommKind

Route = Sequence[Crossing]

SIMPLE = Protocol(latency=1.0, tree_latency=1.0, bandwidth=1.0)


@dataclass(frozen=True)
class Cost:
    """One way to carry out a collective.

    Attributes:
        name: Algorithm and protocol.
        latency: What an empty message takes. Unit: s.
        s_per_byte: Transfer of one byte of the message over the slowest level. Unit: s/byte.
        bend: How the two add up, see `Link.bend`.
    """

    name: str
    latency: float
    s_per_byte: float
    bend: float

    def time_s(self, num_bytes: float) -> float:
        """Return the time of a message of so many bytes. Unit: s."""
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
        (size - crossing.inner) / size / (crossing.bandwidth / crossing.inner * crossing.link.exchange_efficiency)
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
    """One message to the next member: as slow as the slowest pair of neighbours."""
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
