"""Power of nodes and racks from that of their GPUs."""

from collections.abc import Sequence

import numpy as np

from triplepoint.simulate.power.gpu import Float, Number
from triplepoint.simulate.power.parameters import NodePowerConfig

TRAINING_SHARE = 0.35
"""Load of host processors while a job trains, between idle (0) and all cores busy (1): they poll, load and launch.

Source: the least by which nodes without fans draw more in MLPerf's 3D U-Net than at rest with GPUs at their limit
(tests/data/node_power/highest.csv: 7.18 kW of direct current): 130 W of the 380 W between `cpu_idle` and `cpu_busy`.
"""


def fan_power_w(config: NodePowerConfig, flow: Number) -> Float:
    """Return the power of fans: beyond their idle power it grows with the cube of the flow. Unit: W.

    Args:
        config: Parameters of the node.
        flow: Air flow over the full flow; `Machine.fan_flow`.

    Source:
        Fan affinity laws.
    """
    low, high = config.fan_idle.value, config.fan_full.value
    return np.asarray(low + (high - low) * np.asarray(flow) ** 3)


def node_power_w(
    config: NodePowerConfig, gpu_power_w: Float, fan_flow: Number, num_nics: int, cpu_share: Number = TRAINING_SHARE
) -> Float:
    """Return the power of a node at the plug; arguments are those of `board_power_w`. Unit: W."""
    inside = board_power_w(config, gpu_power_w, fan_flow, num_nics, cpu_share)
    return np.asarray(inside / config.rectifier_efficiency.value)


def board_power_w(
    config: NodePowerConfig, gpu_power_w: Float, fan_flow: Number, num_nics: int, cpu_share: Number = TRAINING_SHARE
) -> Float:
    """Return the power of a node behind its power supplies, or in a rack with one supply for all its nodes.

    Args:
        config: Parameters of the node.
        gpu_power_w: Power of all its GPUs (packages counted once); shape (..., num_gpus). Unit: W.
        fan_flow: Flow of its fans over the full flow; shape (...).
        num_nics: Network adapters.
        cpu_share: Load of host processors between idle (0) and all cores busy (1).

    Returns:
        Power as direct current, shape (...). Unit: W.
    """
    cpu = config.cpu_idle.value + (config.cpu_busy.value - config.cpu_idle.value) * np.asarray(cpu_share)
    constant = config.dram.value + config.storage.value + config.switch.value + config.board.value
    total = gpu_power_w.sum(axis=-1) + cpu + constant + num_nics * config.nic.value + fan_power_w(config, fan_flow)
    return np.asarray(total / config.converter_efficiency.value)


def rack_power_w(node_power_w: Float, racks: Sequence[Sequence[int]]) -> Float:
    """Return the power of racks from that of nodes, shape (..., num_nodes), and the nodes of each rack. Unit: W."""
    return np.stack([node_power_w[..., list(nodes)].sum(axis=-1) for nodes in racks], axis=-1)
