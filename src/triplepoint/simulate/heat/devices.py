"""Differences between devices: part-to-part spread, bad contact, blocked airflow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from triplepoint.simulate.heat.parameters import HeatConfig
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.parameters import PowerConfig

_FLOW_EXPONENT = 0.8
"""Exponent of the flow in forced convection (Dittus-Boelter, turbulent flow in a channel)."""


@dataclass(frozen=True, eq=False)
class Devices:
    """Factors of single devices on the parameters of their GPU type; shape (num_nodes, num_devices).

    Attributes:
        die: Factor on the thermal resistance from die to sink.
        leakage: Factor on leakage.
        flow: Factor on the air flow past the device.
        sensor_k: Offset of the temperature sensor, positive if it reads too high. Unit: K.
    """

    die: Float
    leakage: Float
    flow: Float
    sensor_k: Float | float = 0.0

    @property
    def sink(self) -> Float:
        """Factor on the thermal resistance from sink to air, which grows if less air flows."""
        return np.asarray(self.flow**-_FLOW_EXPONENT)


@dataclass(frozen=True)
class BadContact:
    """Fault: bad contact between a device and its heat sink.

    Attributes:
        node: Number of the node.
        device: Number of the device.
        factor: Factor on the thermal resistance from die to sink.
    """

    node: int
    device: int
    factor: float


@dataclass(frozen=True)
class BlockedAirflow:
    """Fault: devices of a node that get only a share of their air.

    Attributes:
        node: Number of the node.
        devices: Numbers of the devices.
        flow_share: Share of the air flow that is left.
    """

    node: int
    devices: tuple[int, ...]
    flow_share: float


Fault = BadContact | BlockedAirflow


def equal_devices(num_nodes: int, num_devices: int) -> Devices:
    """Return devices that equal their GPU type."""
    return Devices(*(np.ones((num_nodes, num_devices)) for _ in range(3)))


def draw_devices(
    heat: HeatConfig, power: PowerConfig, shape: tuple[int, int], seed: int, faults: Sequence[Fault] = ()
) -> Devices:
    """Return devices with random part-to-part spread, equal for equal seeds, and with faults.

    Args:
        heat: Spread of resistances and sensors, and frequency of bad contact.
        power: Spread of leakage.
        shape: Number of nodes, and of devices in each.
        seed: Seed of the random numbers.
        faults: Known faults.
    """
    random = np.random.default_rng(seed)
    die = np.exp(heat.resistance_spread.value * random.standard_normal(shape))
    leakage = np.exp(power.leakage_spread.value * random.standard_normal(shape))
    is_bad = random.random(shape) < heat.bad_contact_share.value
    sensor_k = heat.sensor_offset.value * random.standard_normal(shape) if heat.sensor_offset else 0.0
    die = np.where(is_bad, die * heat.bad_contact_factor.value, die)
    return with_faults(Devices(die, leakage, np.ones(shape), sensor_k), faults)


def with_faults(devices: Devices, faults: Sequence[Fault]) -> Devices:
    """Return devices with additional faults."""
    die, flow = devices.die.copy(), devices.flow.copy()
    for fault in faults:
        if isinstance(fault, BadContact):
            die[fault.node, fault.device] *= fault.factor
        else:
            flow[fault.node, list(fault.devices)] *= fault.flow_share
    return replace(devices, die=die, flow=flow)
