"""Telemetry of a simulated run: power, heat and clocks through the sensors its GPUs would have."""

from typing import NamedTuple

import numpy as np

from triplepoint.simulate.artefacts.simulated import Simulated
from triplepoint.simulate.heat.parameters import SHOWN
from triplepoint.simulate.heat.sensor import Sensors, show
from triplepoint.simulate.power.gpu import Float

_CPU_UTILISATION = 0.1
"""Share of all cores busy. Assumed, as in `node_power_w`: training keeps few of them busy."""
_HOST = ("inlet_temp_c", "cpu_energy_j", "dram_energy_j")


class Columns(NamedTuple):
    """Columns of the telemetry that sensors fill, of GPUs and of hosts."""

    gpu: tuple[str, ...]
    host: tuple[str, ...]


def columns_sensed(simulated: Simulated) -> Columns:
    """Return the columns that power and heat give; none where they are not known."""
    if simulated.heated is None:
        return Columns((), ())
    shows = simulated.heated.machine.heat.sensors.shows
    return Columns(tuple(name for name in SHOWN if name in shows), _HOST)


def sense_gpus(simulated: Simulated, node: int, sample_s: Float) -> Float:
    """Return what GPUs of a node show.

    Args:
        simulated: What was simulated.
        node: Which node.
        sample_s: When they are read, from the start of the run. Unit: s.

    Returns:
        Shape (num_devices, num_samples, num_columns), in the order of `columns_sensed`; no devices where power and heat
        are not known.
    """
    heated = simulated.heated
    if heated is None:
        return np.empty((0, len(sample_s), 0))
    machine = heated.machine
    sensors = Sensors(machine.heat.sensors, machine.airflow.packages, machine.devices.sensor_k)
    columns = show(heated.trace, node, sensors, sample_s, seed=0)
    limit_w = np.full(machine.shape[1], np.nan)
    for device, package in sensors.power_devices.items():
        limit_w[device] = machine.limits_w[node][package].sum()
    columns["gpu_power_limit_w"] = np.broadcast_to(limit_w, columns["gpu_temp_c"].shape)
    columns["gpu_temp_margin_c"] = machine.heat.limits.max_temperature.value - columns["gpu_temp_c"]
    return np.stack([columns[name] for name in columns_sensed(simulated).gpu], axis=-1).transpose(1, 0, 2)


def sense_host(simulated: Simulated, sample_s: Float) -> Float:
    """Return what a host shows; shape (num_samples, num_columns), in the order of `columns_sensed`."""
    heated = simulated.heated
    if heated is None:
        return np.empty((len(sample_s), 0))
    node = heated.node
    cpu = node.cpu_idle.value + (node.cpu_busy.value - node.cpu_idle.value) * _CPU_UTILISATION
    inlet = np.full_like(sample_s, heated.machine.inlet_c[0])
    return np.stack([inlet, cpu * sample_s, node.dram.value * sample_s], axis=-1)
