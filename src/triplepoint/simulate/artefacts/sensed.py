"""Telemetry of a simulated run: power, heat and clocks as the sensors of its GPUs and hosts report them."""

from typing import NamedTuple

import numpy as np

from triplepoint.simulate.artefacts.course import Course
from triplepoint.simulate.artefacts.simulated import Recorded
from triplepoint.simulate.heat.parameters import SHOWN
from triplepoint.simulate.heat.sensor import CyclicCounter, Sensors, show
from triplepoint.simulate.power.gpu import Float, Int64
from triplepoint.simulate.power.over_time import meter_phases
from triplepoint.units import NS_PER_S

_CPU_UTILISATION = 0.1
"""Share of CPU cores that are busy. Assumed, as in `node_power_w`: training keeps few of them busy."""
_HOST = ("inlet_temp_c", "node_power_w", "cpu_energy_j", "dram_energy_j")


class Columns(NamedTuple):
    """Telemetry columns that sensors fill.

    Attributes:
        gpu: Columns of GPUs.
        host: Columns of hosts.
    """

    gpu: tuple[str, ...]
    host: tuple[str, ...]


def columns_sensed(simulated: Recorded) -> Columns:
    """Return the columns of power and heat; none if the GPU type has no power and heat parameters."""
    if simulated.heated is None:
        return Columns((), ())
    shows = simulated.heated.machine.heat.sensors.shows
    return Columns(tuple(name for name in SHOWN if name in shows), _HOST)


def sense_gpus(simulated: Recorded, course: Course, node: int, t_ns: Int64) -> Float:
    """Return the sensor values of the GPUs of a node.

    Args:
        simulated: The simulated step.
        course: Times of the run's steps.
        node: Number of the node.
        t_ns: Times of the samples from the start of the run. Unit: ns.

    Returns:
        Values of shape (num_devices, num_samples, num_columns), in the order of `columns_sensed`; no devices if power
        and heat are unknown.
    """
    heated = simulated.heated
    if heated is None or course.trace is None:
        return np.empty((0, len(t_ns), 0))
    machine = heated.machine
    sensors = Sensors(machine.heat.sensors, machine.airflow.packages, machine.devices.sensor_k)
    columns = show(course.trace, node, sensors, course.trace_s(t_ns), seed=0)
    limit_w = np.full(machine.shape[1], np.nan)
    for device, package in sensors.power_devices.items():
        limit_w[device] = machine.limits_w[node][package].sum()
    columns["gpu_power_limit_w"] = np.broadcast_to(limit_w, columns["gpu_temp_c"].shape)
    columns["gpu_temp_margin_c"] = machine.heat.limits.max_temperature.value - columns["gpu_temp_c"]
    return np.stack([columns[name] for name in columns_sensed(simulated).gpu], axis=-1).transpose(1, 0, 2)


def meter_times(simulated: Recorded, course: Course, node: int, period_s: float) -> Int64:
    """Return the times at which the meter at a node's plug is read, different for each node. Unit: ns."""
    if simulated.heated is None or course.nodes_w is None:
        return np.empty(0, dtype=np.int64)
    first_s = meter_phases(course.nodes_w.shape[1], period_s, seed=0)[node]
    return np.arange(round(first_s * NS_PER_S), course.length_ns, round(period_s * NS_PER_S), dtype=np.int64)


def sense_host(simulated: Recorded, course: Course, node: int, t_ns: Int64, period_s: float) -> Float:
    """Return the sensor values of a host; shape (num_samples, num_columns), in the order of `columns_sensed`.

    Args:
        simulated: The simulated step.
        course: Times of the run's steps.
        node: Number of the node.
        t_ns: Times of the samples from the start of the run. Unit: ns.
        period_s: Time between readings of the meter at the plug, each the mean since the one before. Only samples at
            `meter_times` have a reading. Unit: s.
    """
    heated, sample_s = simulated.heated, t_ns / NS_PER_S
    if heated is None or course.trace is None or course.nodes_w is None:
        return np.empty((len(t_ns), 0))
    parts = heated.node
    cpu = parts.cpu_idle.value + (parts.cpu_busy.value - parts.cpu_idle.value) * _CPU_UTILISATION
    inlet = np.full_like(sample_s, heated.machine.inlet_c[node])
    node_w = course.nodes_w[:, node : node + 1]
    meter = CyclicCounter(node_w * course.trace.period_s, course.trace)
    power = meter.window_mean(course.trace_s(t_ns)[:, None], period_s, node_w[0])[:, 0]
    power[~np.isin(t_ns, meter_times(simulated, course, node, period_s))] = np.nan
    return np.stack([inlet, power, cpu * sample_s, parts.dram.value * sample_s], axis=-1)
