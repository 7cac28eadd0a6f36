"""Bytes that a rank sends in a collective, inside its node and to other nodes.

Collectives count as rings, in which every rank sends equally much. With several rings, as in NCCL, the hops between
nodes rotate over the ranks. Reduction in switches would move less.
"""

from collections.abc import Sequence
from typing import NamedTuple

from triplepoint.simulate.fabric import Group
from triplepoint.simulate.operations import CommKind

_ROUNDS: dict[CommKind, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1}
"""Times that a ring passes the buffer on, except the share that is already in place."""


class Traffic(NamedTuple):
    """Bytes that one rank sends. Unit: byte.

    Attributes:
        inside: Bytes to GPUs of its node.
        outside: Bytes to other nodes.
    """

    inside: float
    outside: float


class NodeSpread(NamedTuple):
    """Distribution of the ranks of a process group over nodes, from the view of one rank.

    Attributes:
        size: Ranks of the group.
        on_node: Ranks of the group on the rank's node, itself included.
        num_nodes: Nodes of the group.
    """

    size: int
    on_node: int
    num_nodes: int


def spread_of_ranks(ranks: Sequence[int], rank: int, gpus_per_node: int) -> NodeSpread:
    """Return the distribution of a list of ranks over nodes.

    Args:
        ranks: Ranks of the group.
        rank: One of them, from whose view the distribution is.
        gpus_per_node: GPUs of a node.
    """
    nodes = [other_rank // gpus_per_node for other_rank in ranks]
    return NodeSpread(len(ranks), nodes.count(rank // gpus_per_node), len(set(nodes)))


def spread_of_group(group: Group, gpus_per_node: int) -> NodeSpread:
    """Return the distribution of a process group over nodes, for a group whose first rank is the first of a node.

    Args:
        group: Size and stride.
        gpus_per_node: GPUs of a node.
    """
    on_node = min(group.size, max(1, gpus_per_node // group.stride))
    return NodeSpread(group.size, on_node, -(-group.size // on_node))


def traffic(kind: CommKind, num_bytes: float, spread: NodeSpread) -> Traffic:
    """Return the bytes that a rank sends in one collective; it receives equally many.

    What two ranks exchange (tied embeddings of the first and last stage, neighbours of a ring) counts as leaving the
    node if their group spans several nodes.

    Args:
        kind: Kind of the collective; activations between pipeline stages are counted elsewhere.
        num_bytes: Size as nccl-tests counts it, see `Communication`. Unit: byte.
        spread: Distribution of the process group over nodes.

    Source:
        NVIDIA/nccl-tests doc/PERFORMANCE.md, the factors between algorithm and bus bandwidth.
    """
    size, on_node, num_nodes = spread
    if kind == "all_to_all":
        return Traffic(num_bytes * (on_node - 1) / size, num_bytes * (size - on_node) / size)
    if kind == "send_recv":
        return Traffic(num_bytes, 0.0) if num_nodes == 1 else Traffic(0.0, num_bytes)
    sent = _ROUNDS[kind] * (size - 1) / size * num_bytes
    hops_outside = num_nodes if num_nodes > 1 else 0
    return Traffic(sent * (size - hops_outside) / size, sent * hops_outside / size)
