"""How GPUs are joined: levels of links from the inside out, and where a process group lies on them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Level:
    """One level of the fabric.

    Attributes:
        name: nvlink, xgmi, pcie, rail, leaf, spine, ...
        num_gpus: GPUs joined at this level and below: 8 in a node, all in the cluster at the last level.
        bandwidth: Of one GPU into this level, one direction: its links, or its share of the adapters. Unit: byte/s.
        latency: Of one message over this level. Unit: s.
        has_reduction: Whether the switches reduce (NVLS, SHARP).
    """

    name: str
    num_gpus: int
    bandwidth: float
    latency: float
    has_reduction: bool = False


@dataclass(frozen=True)
class Fabric:
    """The levels, from the inside out; `num_gpus` grows from one to the next."""

    levels: tuple[Level, ...]

    @property
    def gpus_per_node(self) -> int:
        """GPUs joined by the first level."""
        return self.levels[0].num_gpus


@dataclass(frozen=True)
class Group:
    """Where the ranks of one process group lie, and how many such groups work at once.

    A group of `size` ranks that are `stride` apart: tensor parallel 8 is size 8 stride 1, data parallel of tp 8 is
    stride 8 (times cp). Groups of the same kind fill the cluster and run at the same time: of those that share a node's
    adapters each gets its share.

    Attributes:
        size: Ranks of the group.
        stride: Ranks from one member to the next.
    """

    size: int
    stride: int
