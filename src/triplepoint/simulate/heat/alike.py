"""Nodes that stand for others: those whose ranks do the same and whose parts differ only as parts do."""

from typing import NamedTuple

import numpy as np

from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.power.gpu import Float, Int64

_FOLLOWED_STAGES = 4
"""Of a long pipeline: its first, its last, and two between them, which stand for the others."""


class Followed(NamedTuple):
    """Nodes that are followed.

    Attributes:
        shape: All nodes, and devices in each.
        nodes: Numbers of those that are followed; shape (num_followed,).
        num_alike: Nodes that each of them stands for, itself included; same shape.
    """

    shape: tuple[int, int]
    nodes: Int64
    num_alike: Int64

    @classmethod
    def all(cls, shape: tuple[int, int]) -> "Followed":
        """Return all nodes, each for itself."""
        return cls(shape, np.arange(shape[0]), np.ones(shape[0], dtype=np.int64))


def few_of(stage: Int64, machine: Machine) -> Followed:
    """Return two nodes for all that hold the same stages, and the hottest of all.

    Of the two, one is that which heat slows most: all ranks wait for it. A middle one stands for the others.

    Args:
        stage: Pipeline stage of every device, -1 where it has no rank; shape (num_nodes, num_devices).
        machine: The nodes, without brakes or faults.
    """
    groups: dict[bytes, list[int]] = {}
    for node, row in enumerate(_nearest_followed(stage)):
        groups.setdefault(row.tobytes(), []).append(node)
    slowness, hottest = _slowness(machine), int(machine.resistance.max(axis=1).argmax())
    found: dict[int, int] = {}
    for members in groups.values():
        *others, slowest = sorted(members, key=lambda node: float(slowness[node]))
        own = [one for one in dict.fromkeys((slowest, hottest)) if one in members]
        rest = [one for one in others if one not in own]
        found |= dict.fromkeys(own, 1)
        if rest:
            found[rest[len(rest) // 2]] = len(rest)
    nodes = np.array(sorted(found))
    return Followed(machine.shape, nodes, np.array([found[node] for node in nodes.tolist()]))


def _nearest_followed(stage: Int64) -> Int64:
    """Return the followed stage that each one is like, of its shape."""
    last = int(stage.max())
    chosen = np.unique(np.linspace(0, last, min(last + 1, _FOLLOWED_STAGES)).round().astype(np.int64))
    # A middle stage is like another, not like the ends with their embedding and loss.
    between = chosen[1:-1] if len(chosen) > 2 else chosen
    nearest = between[np.abs(stage[..., None] - between).argmin(axis=-1)]
    return np.where((stage <= 0) | (stage == last), stage, nearest)


def _slowness(machine: Machine) -> Float:
    """Return the leakage of the worst device of every node at the power limit; shape (num_nodes,)."""
    rise_k = machine.resistance * machine.limits_w
    leakage = machine.devices.leakage * np.exp(machine.power.leakage_growth.value * rise_k)
    return np.asarray(leakage.max(axis=1))
