"""Rank mesh: the position of each rank in a layout, and the ranks of each process group.

Source:
    NVIDIA/Megatron-LM megatron/core/parallel_state.py, RankGenerator, in its default order tp-cp-ep-dp-pp.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import NamedTuple

from triplepoint.config.point import Layout


class Place(NamedTuple):
    """Index of a rank along each kind of parallelism."""

    tp: int = 0
    cp: int = 0
    dp: int = 0
    pp: int = 0


@dataclass(frozen=True)
class Group:
    """Shape of the process groups of one kind: `size` ranks that are `stride` apart.

    For example, tp 8 gives tensor parallel groups of size 8 and stride 1, and data parallel groups of stride 8*cp.
    Groups of one kind cover all ranks and communicate at the same time.

    Attributes:
        size: Ranks of a group.
        stride: Difference between the ranks of neighbouring members.
    """

    size: int
    stride: int

    def ranks(self, rank: int) -> range:
        """Return the ranks of the group of `rank`, in order."""
        first = rank - rank // self.stride % self.size * self.stride
        return range(first, first + self.size * self.stride, self.stride)


@dataclass(frozen=True)
class RankMesh:
    """All ranks of a layout, numbered with tp fastest, then cp, dp, pp.

    Expert groups divide the ranks of a stage independently: expert tensor parallel fastest, then ep, then edp.

    Attributes:
        layout: Degrees of parallelism.
        num_copies: Replicas of the sharded parameters in hybrid sharding; 1 without hybrid sharding.
    """

    layout: Layout
    num_copies: int = 1

    @cached_property
    def ranks_per_replica(self) -> int:
        """Ranks of one pipeline stage of one replica."""
        return self.layout.tp * self.layout.cp

    @cached_property
    def ranks_per_stage(self) -> int:
        """Ranks of one pipeline stage."""
        return self.ranks_per_replica * self.layout.dp

    @property
    def num_ranks(self) -> int:
        """World size."""
        return self.ranks_per_stage * self.layout.pp

    def rank(self, place: Place) -> int:
        """Return the rank at a position."""
        return ((place.pp * self.layout.dp + place.dp) * self.layout.cp + place.cp) * self.layout.tp + place.tp

    def place(self, rank: int) -> Place:
        """Return the position of a rank."""
        rest, tp = divmod(rank, self.layout.tp)
        rest, cp = divmod(rest, self.layout.cp)
        pp, dp = divmod(rest, self.layout.dp)
        return Place(tp, cp, dp, pp)

    def stage(self, stage: int) -> range:
        """Return the ranks of a pipeline stage."""
        return range(stage * self.ranks_per_stage, (stage + 1) * self.ranks_per_stage)

    def group(self, name: str) -> Group:
        """Return the shape of the process groups of a kind.

        Args:
            name: Kind of group. tp, cp, dp, pp: ranks along one degree. dp_cp: ranks that reduce gradients of
                parameters outside experts. etp, ep, edp: tensor, expert and data parallel ranks of experts. With hybrid
                sharding dp_shard: the ranks of dp_cp that hold the shards of one copy; dp_copy: those that hold
                the same shard; edp_shard and edp_copy: the same for experts.

        Raises:
            ValueError: If there is no such kind.
        """
        if name not in self.groups:
            raise ValueError(f"unknown process group {name}, expected one of {', '.join(self.groups)}")
        return self.groups[name]

    @cached_property
    def groups(self) -> dict[str, Group]:
        """Shapes of all process groups, by kind."""
        layout, etp = self.layout, self.layout.expert_tp
        expert_stride = etp * layout.ep
        edp = max(1, self.ranks_per_stage // expert_stride)
        groups = {
            "tp": Group(layout.tp, 1),
            "cp": Group(layout.cp, layout.tp),
            "dp": Group(layout.dp, self.ranks_per_replica),
            "dp_cp": Group(layout.dp * layout.cp, layout.tp),
            "pp": Group(layout.pp, self.ranks_per_stage),
            "etp": Group(etp, 1),
            "ep": Group(layout.ep, etp),
            "edp": Group(edp, expert_stride),
        }
        for name, size, stride in (("dp", layout.dp * layout.cp, layout.tp), ("edp", edp, expert_stride)):
            copies = gcd(size, self.num_copies)
            groups[f"{name}_shard"] = Group(size // copies, stride)
            groups[f"{name}_copy"] = Group(copies, stride * size // copies)
        return groups


def ranks_by_role(layout: Layout, gpus_per_node: int, rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return representative ranks, in order: for each pipeline stage one in each row of the airflow.

    Ranks of a stage do the same work but run at different temperatures: rows further back get warmed air. The lowest
    rank of the stage in each row is taken, so the result also has tensor and data parallel ranks other than 0. For a
    stage on several nodes the two ranks at the first node boundary are added (`ranks_at_boundary`).

    Args:
        layout: Parallelism.
        gpus_per_node: Ranks placed on each node.
        rows: Devices of a node by row of its airflow, the row at the inlet first.
    """
    mesh = RankMesh(layout)
    firsts = (
        next((rank for rank in mesh.stage(stage) if rank % gpus_per_node in row), None)
        for stage in range(layout.pp)
        for row in rows
    )
    at_boundaries = [rank for stage in range(layout.pp) for rank in ranks_at_boundary(mesh.stage(stage), gpus_per_node)]
    return tuple(sorted({rank for rank in firsts if rank is not None}.union(at_boundaries)))


def ranks_at_boundary(ranks: range, gpus_per_node: int) -> tuple[int, ...]:
    """Return the last rank of a stage's first node and the first rank of its second; none if it has one node."""
    boundary = (ranks.start // gpus_per_node + 1) * gpus_per_node
    return (boundary - 1, boundary) if boundary in ranks else ()
