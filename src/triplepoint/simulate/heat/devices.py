"""Differences between devices: spread from part to part, bad contact, blocked air."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from triplepoint.simulate.heat.parameters import HeatConfig
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.parameters import PowerConfig

_FLOW_EXPONENT = 0.8
"""Forced convection: transfer goes with this power of the flow (Dittus-Boelter, turbulent flow in a channel)."""


@dataclass(frozen=True, eq=False)
class Devices:
    """Factors on what a GPU type's parameters say, one per device; shape (num_nodes, num_devices).

    Attributes:
        die: On the die's resistance.
        leakage: On leakage.
        flow: On the flow of air past the device.
        sensor_k: No factor: by how much the device's temperature sensor shows its die too warm. Unit: K.
    """

    die: Float
    leakage: Float
    flow: Float
    sensor_k: Float | float = 0.0

    @property
    def sink(self) -> Float:
        """On the sink's resistance, which grows where less air flows."""
        return np.asarray(self.flow**-_FLOW_EXPONENT)


@dataclass(frozen=True)
class BadContact:
    """A fault: a device that touches its sink badly; `factor` is on the die's resistance."""

    node: int
    device: int
    factor: float


@dataclass(frozen=True)
class BlockedAirflow:
    """A fault: some devices of a node see only a share of their air."""

    node: int
    devices: tuple[int, ...]
    flow_share: float


Fault = BadContact | BlockedAirflow


def equal_devices(num_nodes: int, num_devices: int) -> Devices:
    """Return devices that are all as their type says."""
    return Devices(*(np.ones((num_nodes, num_devices)) for _ in range(3)))


def draw_devices(
    heat: HeatConfig, power: PowerConfig, shape: tuple[int, int], seed: int, faults: Sequence[Fault] = ()
) -> Devices:
    """Return devices that differ as parts do, the same ones for the same seed, with faults on top.

    Args:
        heat: How far resistances and sensors differ, and how often contact is bad.
        power: How far leakage differs.
        shape: Nodes, and devices in each.
        seed: Of the draw.
        faults: Known ones.
    """
    random = np.random.default_rng(seed)
    die = np.exp(heat.resistance_spread.value * random.standard_normal(shape))
    leakage = np.exp(power.leakage_spread.value * random.standard_normal(shape))
    is_bad = random.random(shape) < heat.bad_contact_share.value
    sensor_k = heat.sensor_offset.value * random.standard_normal(shape) if heat.sensor_offset else 0.0
    die = np.where(is_bad, die * heat.bad_contact_factor.value, die)
    return with_faults(Devices(die, leakage, np.ones(shape), sensor_k), faults)


def with_faults(devices: Devices, faults: Sequence[Fault]) -> Devices:
    """Return devices with faults on top."""
    die, flow = devices.die.copy(), devices.flow.copy()
    for fault in faults:
        if isinstance(fault, BadContact):
            die[fault.node, fault.device] *= fault.factor
        else:
            flow[fault.node, list(fault.devices)] *= fault.flow_share
    return replace(devices, die=die, flow=flow)
