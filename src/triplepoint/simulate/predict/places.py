"""Where GPUs stand in a node, by what warms them there."""

import math
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from triplepoint.config.conditions import USUAL
from triplepoint.config.gpu import GpuConfig
from triplepoint.simulate.heat.devices import equal_devices
from triplepoint.simulate.heat.job import airflow_of, usual_devices
from triplepoint.simulate.heat.network import build_network
from triplepoint.simulate.heat.parameters import Cooling, read_heat
from triplepoint.simulate.power.gpu import Float


class Places(NamedTuple):
    """Where GPUs of a node stand, those alike in one; shape (num_places,).

    Attributes:
        resistance: Die over inlet for each watt that all GPUs of the node take. Unit: K/W.
        share: Of the node's GPUs.
        die: Part of the resistance that follows power at once. Unit: K/W.
        die_time_s: Time in which it does. Unit: s.
        sigma: Relative standard deviation of the resistance, of what is known and of parts.
        spread: Of it, from part to part.
    """

    resistance: Float
    share: Float
    die: float
    die_time_s: float
    sigma: float
    spread: float


@lru_cache(maxsize=32)
def places_of(
    gpu: GpuConfig, num_devices: int, config: Path, coolant: Cooling = USUAL.coolant, airflow: str | None = None
) -> Places:
    """Return where the GPUs of a node stand; no airflow is that of usual nodes."""
    heat = read_heat(gpu.name, config)
    num_devices = min(num_devices, usual_devices(gpu, config))
    air = airflow_of(airflow, gpu, num_devices, config)
    cooling = heat.cooling_by(coolant)
    network = build_network(cooling, air, equal_devices(1, num_devices))
    whole = np.round(network.steady(np.ones((1, num_devices)))[0, :num_devices], 6)
    resistance, count = np.unique(whole, return_counts=True)
    die, sink = cooling.die_resistance, cooling.sink_resistance
    sigma = math.hypot(die.sigma, sink.sigma, air.preheat.sigma) / float(resistance.max())
    return Places(
        resistance, count / num_devices, die.value, cooling.die_time.value, sigma, heat.resistance_spread.value
    )
