"""What a sampler reads of the power, heat and clocks of a simulated run: through the sensors its GPUs would have."""

from typing import NamedTuple

import numpy as np

from triplepoint.simulate.artefacts.simulated import Heated, Recorded
from triplepoint.simulate.heat.sensor import Sensors, mi250_sensors, nvidia_sensors, show
from triplepoint.simulate.power.gpu import Float

_CPU_UTILISATION = 0.1
"""Share of all cores busy. Assumed, as in `node_power_w`: training keeps few of them busy."""
_BOTH = ("gpu_power_average_w", "gpu_power_w", "gpu_energy_j", "gpu_power_limit_w", "gpu_temp_c", "sm_clock_mhz")
COUNTED = ("gpu_throttle_reasons", "gpu_power_cap_s", "gpu_sw_thermal_s", "gpu_hw_thermal_s", "gpu_power_brake_s")
"""What holds clocks down, and for how long each cause has: shown by NVIDIA's GPUs alone."""
_NVIDIA = ("gpu_temp_margin_c", *COUNTED)
_HOST = ("inlet_temp_c", "cpu_energy_j", "dram_energy_j")


class Columns(NamedTuple):
    """Columns of the telemetry that sensors fill, of GPUs and of hosts."""

    gpu: tuple[str, ...]
    host: tuple[str, ...]


def columns_sensed(simulated: Recorded) -> Columns:
    """Return the columns that power and heat give; none where they are not known."""
    if simulated.heated is None:
        return Columns((), ())
    return Columns(_BOTH + _NVIDIA if simulated.job.gpu.vendor == "nvidia" else _BOTH, _HOST)


def sense_gpus(simulated: Recorded, node: int, sample_s: Float) -> Float:
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
    sensors = _sensors(heated, simulated.job.gpu.vendor)
    found = show(heated.trace, node, sensors, sample_s, seed=0)
    limits, shown = heated.machine.limits_w[node].copy(), found["gpu_temp_c"].shape
    for package in sensors.packages:
        limits[package[0]], limits[list(package[1:])] = limits[list(package)].sum(), np.nan
    found["gpu_power_limit_w"] = np.broadcast_to(limits, shown)
    found["gpu_temp_margin_c"] = heated.machine.heat.limits.max_temperature.value - found["gpu_temp_c"]
    return np.stack([found[name] for name in columns_sensed(simulated).gpu], axis=-1).transpose(1, 0, 2)


def sense_host(simulated: Recorded, sample_s: Float) -> Float:
    """Return what a host shows; shape (num_samples, num_columns), in the order of `columns_sensed`."""
    heated = simulated.heated
    if heated is None:
        return np.empty((len(sample_s), 0))
    node = heated.node
    cpu = node.cpu_idle.value + (node.cpu_busy.value - node.cpu_idle.value) * _CPU_UTILISATION
    inlet = np.full_like(sample_s, heated.machine.inlet_c[0])
    return np.stack([inlet, cpu * sample_s, node.dram.value * sample_s], axis=-1)


def _sensors(heated: Heated, vendor: str) -> Sensors:
    machine = heated.machine
    if vendor == "nvidia":
        return nvidia_sensors(machine.shape[1], machine.devices.sensor_k)
    return mi250_sensors(machine.airflow.packages, machine.devices.sensor_k)
