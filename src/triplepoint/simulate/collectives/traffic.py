"""Traffic of a rank in a collective, inside its node and out of it.

Collectives are counted as rings, where every rank sends as much as every other (with several rings, as NCCL has them,
the hops between nodes take turns too); reduction in switches would move less.
"""

from collections.abc import Sequence
from typing import NamedTuple

from triplepoint.simulate.fabric import Group
from triplepoint.simulate.operations import CommKind

_ROUNDS: dict[CommKind, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1}
"""Times a ring passes the buffer on, but for the share that is there already."""


class Traffic(NamedTuple):
    """What one rank sends. Unit: byte.

    Attributes:
        inside: To GPUs of its node.
        outside: To other nodes.
    """

    inside: float
    outside: float


class Spread(NamedTuple):
    """How the ranks of a process group lie over nodes, as one of them sees it.

    Attributes:
        size: Ranks.
        near: Of them on its node, itself among them.
        num_nodes: Nodes they are on.
    """

    size: int
    near: int
    num_nodes: int


def spread_of(ranks: Sequence[int], rank: int, gpus_per_node: int) -> Spread:
    """Return how the ranks of a group lie over nodes of so many GPUs, as `rank` sees it."""
    nodes = [one // gpus_per_node for one in ranks]
    return Spread(len(ranks), nodes.count(rank // gpus_per_node), len(set(nodes)))


def spread_by(group: Group, gpus_per_node: int) -> Spread:
    """Return how the ranks of a group lie over nodes of so many GPUs, where its first rank is a node's first."""
    near = min(group.size, max(1, gpus_per_node // group.stride))
    return Spread(group.size, near, -(-group.size // near))


def traffic(kind: CommKind, num_bytes: float, spread: Spread) -> Traffic:
    """Return what a rank sends in one collective; it receives as much.

    What two ranks exchange (tied embeddings of the first and the last stage, a ring's neighbours) counts as leaving the
    node where their group does.

    Args:
        kind: Of the collective; activations between pipeline stages are not asked for here.
        num_bytes: As nccl-tests counts it, see `Communication`. Unit: byte.
        spread: Of the process group, as the rank sees it.

    Source:
        NVIDIA/nccl-tests doc/PERFORMANCE.md, the factors between algorithm and bus bandwidth.
    """
    size, near, num_nodes = spread
    if kind == "all_to_all":
        return Traffic(num_bytes * (near - 1) / size, num_bytes * (size - near) / size)
    if kind == "send_recv":
        return Traffic(num_bytes, 0.0) if num_nodes == 1 else Traffic(0.0, num_bytes)
    sent = _ROUNDS[kind] * (size - 1) / size * num_bytes
    hops_outside = num_nodes if num_nodes > 1 else 0
    return Traffic(sent * (size - hops_outside) / size, sent * hops_outside / size)
