"""Sample of the nodes of a job: a few nodes represent others with the same pipeline stages, for faster simulation."""

from typing import NamedTuple

import numpy as np

from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.power.gpu import Float, Int64

_MAX_SAMPLED_STAGES = 4
"""Sampled stages of a long pipeline: the first, the last, and two between them that represent the others."""


class NodeSample(NamedTuple):
    """Nodes to simulate.

    Attributes:
        shape: Number of nodes of the job, and of devices in each.
        nodes: Numbers of the simulated nodes; shape (num_sampled,).
        num_alike: Number of nodes that each simulated node represents, including itself; same shape.
    """

    shape: tuple[int, int]
    nodes: Int64
    num_alike: Int64

    @classmethod
    def all(cls, shape: tuple[int, int]) -> "NodeSample":
        """Return a sample of all nodes."""
        return cls(shape, np.arange(shape[0]), np.ones(shape[0], dtype=np.int64))


def sample_nodes(stage: Int64, machine: Machine) -> NodeSample:
    """Choose two nodes of each group with the same pipeline stages, and the hottest node of all.

    The first of the two is the node that heat slows most, because all ranks wait for it. The second is the median of
    the other nodes and represents them. Nodes differ only by the spread of their parts.

    Args:
        stage: Pipeline stage of every device, -1 without a rank; shape (num_nodes, num_devices).
        machine: The nodes, without power brakes or faults.
    """
    groups: dict[bytes, list[int]] = {}
    for node, stages in enumerate(_nearest_sampled(stage)):
        groups.setdefault(stages.tobytes(), []).append(node)
    leakage, hottest = _max_leakage(machine), int(machine.resistance.max(axis=1).argmax())
    num_alike: dict[int, int] = {}
    for group in groups.values():
        by_leakage = sorted(group, key=lambda node: float(leakage[node]))
        alone = {node for node in (by_leakage[-1], hottest) if node in group}
        others = [node for node in by_leakage if node not in alone]
        num_alike |= dict.fromkeys(alone, 1)
        if others:
            num_alike[others[len(others) // 2]] = len(others)
    nodes = np.array(sorted(num_alike))
    return NodeSample(machine.shape, nodes, np.array([num_alike[node] for node in nodes.tolist()]))


def _nearest_sampled(stage: Int64) -> Int64:
    """Return the sampled stage that represents each stage, in the shape of `stage`."""
    last = int(stage.max())
    sampled = np.unique(np.linspace(0, last, min(last + 1, _MAX_SAMPLED_STAGES)).round().astype(np.int64))
    # Only middle stages represent middle stages: the first has the embedding, the last the loss.
    middle = sampled[1:-1] if len(sampled) > 2 else sampled
    nearest = middle[np.abs(stage[..., None] - middle).argmin(axis=-1)]
    return np.where((stage <= 0) | (stage == last), stage, nearest)


def _max_leakage(machine: Machine) -> Float:
    """Return the largest relative leakage of any device of every node at the power limit; shape (num_nodes,)."""
    rise_k = machine.resistance * machine.limits_w
    leakage = machine.devices.leakage * np.exp(machine.power.leakage_growth.value * rise_k)
    return np.asarray(leakage.max(axis=1))
