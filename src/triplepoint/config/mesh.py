"""The rank mesh: which rank has which place in a layout, and which ranks form a process group.

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
    """Where a rank is along each kind of parallelism."""

    tp: int = 0
    cp: int = 0
    dp: int = 0
    pp: int = 0


@dataclass(frozen=True)
class Group:
    """The shape of the process groups of one kind: `size` ranks that are `stride` apart.

    Tensor parallel 8 is size 8 stride 1, data parallel of tp 8 is stride 8 (times cp). Groups of the same kind fill the
    world and communicate at the same time.

    Attributes:
        size: Ranks of a group.
        stride: Ranks from one member to the next.
    """

    size: int
    stride: int

    def ranks(self, rank: int) -> range:
        """Return the ranks of the group that `rank` is in, in order."""
        first = rank - rank // self.stride % self.size * self.stride
        return range(first, first + self.size * self.stride, self.stride)


@dataclass(frozen=True)
class RankMesh:
    """All ranks of a layout, numbered tp fastest, then cp, dp, pp.

    Experts divide the ranks of a stage anew: expert tensor parallel fastest, then ep, then edp.

    Attributes:
        layout: Degrees.
        num_copies: Groups of data parallel ranks that hold copies of what each of them shards (hybrid sharding).
    """

    layout: Layout
    num_copies: int = 1

    @cached_property
    def ranks_per_replica(self) -> int:
        """Ranks of one stage of one replica."""
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
        """Return the rank at a place."""
        return ((place.pp * self.layout.dp + place.dp) * self.layout.cp + place.cp) * self.layout.tp + place.tp

    def place(self, rank: int) -> Place:
        """Return the place of a rank."""
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
            name: tp, cp, dp, pp; dp_cp: gradients of what all ranks of a stage have; etp, ep, edp: the same of experts;
                dp_shard and dp_copy: of dp_cp, ranks that shard parameters and those that have the same shard with
                hybrid sharding; edp_shard and edp_copy: the same of experts.

        Raises:
            ValueError: If there is no such kind.
        """
        if name not in self.groups:
            raise ValueError(f"unknown process group {name}, expected one of {', '.join(self.groups)}")
        return self.groups[name]

    @cached_property
    def groups(self) -> dict[str, Group]:
        """Shapes of all process groups, by kind."""
        layout, split = self.layout, self.layout.expert_tp
        expert_stride = split * layout.ep
        edp = max(1, self.ranks_per_stage // expert_stride)
        groups = {
            "tp": Group(layout.tp, 1),
            "cp": Group(layout.cp, layout.tp),
            "dp": Group(layout.dp, self.ranks_per_replica),
            "dp_cp": Group(layout.dp * layout.cp, layout.tp),
            "pp": Group(layout.pp, self.ranks_per_stage),
            "etp": Group(split, 1),
            "ep": Group(layout.ep, split),
            "edp": Group(edp, expert_stride),
        }
        for whole, size, stride in (("dp", layout.dp * layout.cp, layout.tp), ("edp", edp, expert_stride)):
            copies = gcd(size, self.num_copies)
            groups[f"{whole}_shard"] = Group(size // copies, stride)
            groups[f"{whole}_copy"] = Group(copies, stride * size // copies)
        return groups


def ranks_by_role(layout: Layout, gpus_per_node: int, rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return ranks that stand for the others, in order: of every stage the first in every row, and two in a border.

    Ranks of a stage do the same work, but for heat: those behind others get their warm air. In a stage the rank is
    taken that comes first in the row, so that tensor and data parallel ranks other than 0 are among them. Of a stage
    on several nodes the ranks next to the first border between them are added (`beside_border`).

    Args:
        layout: Parallelism.
        gpus_per_node: Ranks placed on each node.
        rows: Devices of a node by row of its airflow, those at the inlet first.
    """
    mesh = RankMesh(layout)
    firsts = (
        next((rank for rank in mesh.stage(stage) if rank % gpus_per_node in row), None)
        for stage in range(layout.pp)
        for row in rows
    )
    borders = [rank for stage in range(layout.pp) for rank in beside_border(mesh.stage(stage), gpus_per_node)]
    return tuple(sorted({rank for rank in firsts if rank is not None}.union(borders)))


def beside_border(ranks: range, gpus_per_node: int) -> tuple[int, ...]:
    """Return the two of a stage's ranks that are next to the first border between nodes; none where it has none."""
    border = (ranks.start // gpus_per_node + 1) * gpus_per_node
    return (border - 1, border) if border in ranks else ()
