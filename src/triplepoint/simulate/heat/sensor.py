"""What sensors show of simulated devices: the columns of the telemetry, as the driver of real ones would fill them.

Sensors publish every 100 ms, each device at a moment of its own. The instantaneous power is the mean of a short window
before that, the average one of a second; the energy counter stands still in between; temperatures are whole degrees.
On MI250 power and energy are of the package and show on its first die; the second shows nothing (NaN).

Sources: nvml.h v13 (power averaged over a second on Hopper, field 186 instantaneous); arXiv:2312.02741 (A100 and H100:
published every 100 ms, window of 25 ms); ML.ENERGY blog (energy counter every 100 ms); rocm_smi_lib issue 160 and
ml-energy/zeus issue 203 (secondary die).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triplepoint.simulate.heat.clocks import COUNTED, violation_ns
from triplepoint.simulate.heat.loop import Trace
from triplepoint.simulate.power.model import Float, Int64
from triplepoint.units import MS_PER_S, NS_PER_S

_ENERGY_UNIT_J = {"nvidia": 1.0 / MS_PER_S, "amd": 2.0**-16}
"""Steps of the energy counter: NVML counts mJ, AMD 15.259 uJ."""


@dataclass(frozen=True)
class Sensors:
    """How a kind of device shows itself.

    Attributes:
        vendor: nvidia or amd.
        publish_s: Between two values. Unit: s.
        instant_s: Window of the instantaneous power; 0 where there is none. Unit: s.
        average_s: Window of the average power. Unit: s.
        temperature_step_k: Steps of temperatures. Unit: K.
        packages: Devices that share a power sensor, the one it shows on first.
    """

    vendor: str
    publish_s: float
    instant_s: float
    average_s: float
    temperature_step_k: float
    packages: tuple[tuple[int, ...], ...]


def nvidia_sensors(num_devices: int) -> Sensors:
    """Return the sensors of H100 and H200."""
    return Sensors("nvidia", 0.1, 0.025, 1.0, 1.0, tuple((device,) for device in range(num_devices)))


def mi250_sensors(packages: Sequence[Sequence[int]]) -> Sensors:
    """Return the sensors of MI250: an average of a second of the package, no instantaneous one (gpu_metrics v1.3)."""
    return Sensors("amd", 0.1, 0.0, 1.0, 1.0, tuple(tuple(package) for package in packages))


def show(trace: Trace, node: int, sensors: Sensors, sample_s: Float, seed: int) -> dict[str, Float]:
    """Return what a sampler reads from the devices of a node.

    Args:
        trace: What happened.
        node: Which node.
        sensors: Of its devices.
        sample_s: When the sampler reads, from the trace's start, in order. Unit: s.
        seed: Of the moments at which devices publish.

    Returns:
        Columns of the telemetry by name, each of shape (num_samples, num_devices); NaN where a device shows nothing.
    """
    num_devices = trace.power_w.shape[2]
    phase = np.random.default_rng([seed, node]).random(num_devices) * sensors.publish_s
    # Before its first publication a device shows what it did at the start.
    earlier = np.floor((sample_s[:, None] - phase) / sensors.publish_s) * sensors.publish_s + phase
    published = np.asarray(np.maximum(earlier, 0.0))
    power, first = _by_package(trace.power_w[:, node], sensors)
    edges = np.asarray(np.arange(len(power) + 1) * trace.period_s)
    energy = np.concatenate([np.zeros((1, num_devices)), np.cumsum(power, axis=0) * trace.period_s])
    columns = {"gpu_power_average_w": _window_mean(edges, energy, published, sensors.average_s, power[0])}
    instant_s = sensors.instant_s or sensors.average_s
    columns["gpu_power_w"] = _window_mean(edges, energy, published, instant_s, power[0])
    unit_j = _ENERGY_UNIT_J[sensors.vendor]
    counted = np.floor(_at(edges, energy, published) / unit_j + 1e-9) * unit_j
    columns["gpu_energy_j"] = counted - counted[0]
    columns = {name: np.where(first, values, np.nan) for name, values in columns.items()}
    return columns | _clocks_and_heat(trace, node, sensors, published, sample_s)


def _by_package(power_w: Float, sensors: Sensors) -> tuple[Float, Float]:
    """Return the power of each device's package, and whether the device is the one it shows on."""
    power, is_first = np.empty_like(power_w), np.zeros(power_w.shape[1], dtype=bool)
    for package in sensors.packages:
        power[:, list(package)] = power_w[:, list(package)].sum(axis=1, keepdims=True)
        is_first[package[0]] = True
    return power, is_first


def _at(edges: Float, values: Float, when: Float) -> Float:
    """Return piecewise linear values, shape (num_edges, n), at times of shape (num_samples, n)."""
    return np.stack([np.interp(when[:, k], edges, values[:, k]) for k in range(values.shape[1])], axis=1)


def _window_mean(edges: Float, energy: Float, end_s: Float, window_s: float, before_w: Float) -> Float:
    """Return mean power over windows; before the trace began power was as in its first period."""
    start_s = end_s - window_s
    missing = np.maximum(-start_s, 0.0)
    inside = _at(edges, energy, end_s) - _at(edges, energy, np.maximum(start_s, 0.0))
    return np.asarray((inside + missing * before_w) / window_s)


def _clocks_and_heat(trace: Trace, node: int, sensors: Sensors, published: Float, sample_s: Float) -> dict[str, Float]:
    def last(values: Float | Int64, when: Float) -> Float:
        # The period a moment falls in has a clock, and the temperature of its end is not known yet.
        index = np.clip((when / trace.period_s + 1e-9).astype(int), 0, len(values) - 1)
        return np.asarray(np.take_along_axis(values, np.broadcast_to(index, (len(when), values.shape[1])), axis=0))

    temp = np.concatenate([trace.temp_c[:1, node], trace.temp_c[:, node]])
    step = sensors.temperature_step_k
    now = sample_s[:, None]
    columns = {
        "gpu_temp_c": np.floor(last(temp, published) / step + 0.5) * step,
        "sm_clock_mhz": last(trace.clock_mhz[:, node], now),
    }
    if sensors.vendor != "nvidia":
        # MI200 reports what throttles at an instant but counts no time of it.
        return columns
    columns["gpu_throttle_reasons"] = last(trace.reasons[:, node], now)
    for cause, counter_ns in violation_ns(trace.reasons[:, node], trace.period_s).items():
        counter = last(np.concatenate([np.zeros_like(counter_ns[:1]), counter_ns]), now) / NS_PER_S
        columns[COUNTED[cause]] = counter - counter[0]
    return columns
