"""Power of nodes and racks from that of their GPUs."""

from collections.abc import Sequence

import numpy as np

from triplepoint.simulate.power.config import NodePowerConfig
from triplepoint.simulate.power.model import Float, Number


def fan_power_w(config: NodePowerConfig, hottest_c: Number) -> Float:
    """Return what fans take: they turn faster from `fan_start` to `fan_end`, and power goes with the cube of speed.

    Args:
        config: Of the node.
        hottest_c: Temperature of the node's hottest GPU. Unit: degC.
    """
    low, high = config.fan_idle.value, config.fan_full.value
    slowest = (low / high) ** (1 / 3) if high else 1.0
    reach = np.interp(hottest_c, [config.fan_start.value, config.fan_end.value], [0.0, 1.0])
    return np.asarray(high * (slowest + (1.0 - slowest) * reach) ** 3)


def node_power_w(
    config: NodePowerConfig, gpu_power_w: Float, hottest_c: Number, num_nics: int, cpu_utilisation: Number = 0.1
) -> Float:
    """Return what a node takes at the plug.

    Args:
        config: Of the node.
        gpu_power_w: Of all its GPUs (of packages, counted once); shape (..., num_gpus). Unit: W.
        hottest_c: Temperature of the hottest of them; shape (...). Unit: degC.
        num_nics: Network adapters.
        cpu_utilisation: Share of all cores busy; training keeps few of them busy.

    Returns:
        Shape (...). Unit: W.
    """
    cpu = config.cpu_idle.value + (config.cpu_busy.value - config.cpu_idle.value) * np.asarray(cpu_utilisation)
    still = config.dram.value + config.storage.value + config.switch.value + num_nics * config.nic.value
    boards = gpu_power_w.sum(axis=-1) + cpu + still + fan_power_w(config, hottest_c)
    return np.asarray(boards / config.conversion_efficiency.value)


def rack_power_w(node_power_w: Float, racks: Sequence[Sequence[int]]) -> Float:
    """Return the power of racks from that of nodes, shape (..., num_nodes), by the nodes in each. Unit: W."""
    return np.stack([node_power_w[..., list(nodes)].sum(axis=-1) for nodes in racks], axis=-1)
