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

from triplepoint.simulate.heat.clocks import COUNTED
from triplepoint.simulate.heat.loop import Trace
from triplepoint.simulate.power.gpu import Float, Int64
from triplepoint.units import MS_PER_S

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
        offset_k: What temperature sensors show beside their dies; shape (num_nodes, num_devices). Unit: K.
    """

    vendor: str
    publish_s: float
    instant_s: float
    average_s: float
    temperature_step_k: float
    packages: tuple[tuple[int, ...], ...]
    offset_k: Float | float = 0.0


def nvidia_sensors(num_devices: int, offset_k: Float | float = 0.0) -> Sensors:
    """Return the sensors of H100 and H200."""
    return Sensors("nvidia", 0.1, 0.025, 1.0, 1.0, tuple((device,) for device in range(num_devices)), offset_k)


def mi250_sensors(packages: Sequence[Sequence[int]], offset_k: Float | float = 0.0) -> Sensors:
    """Return the sensors of MI250: an average of a second of the package, no instantaneous one (gpu_metrics v1.3)."""
    return Sensors("amd", 0.1, 0.0, 1.0, 1.0, tuple(tuple(package) for package in packages), offset_k)


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
    published = np.floor((sample_s[:, None] - phase) / sensors.publish_s) * sensors.publish_s + phase
    if not trace.repeats:
        # Before its first publication a device shows what it did at the start.
        published = np.maximum(published, 0.0)
    power, first = _by_package(trace.power_w[:, node], sensors)
    energy = _Counter(power * trace.period_s, trace)
    columns = {"gpu_power_average_w": energy.window_mean(published, sensors.average_s, power[0])}
    columns["gpu_power_w"] = energy.window_mean(published, sensors.instant_s or sensors.average_s, power[0])
    unit_j = _ENERGY_UNIT_J[sensors.vendor]
    counted = np.floor(energy.at(published) / unit_j + 1e-9) * unit_j
    columns["gpu_energy_j"] = counted - counted[0]
    columns = {name: np.where(first, values, np.nan) for name, values in columns.items()}
    return columns | _clocks_and_heat(trace, node, sensors, published, sample_s)


class _Counter:
    """What adds up over a trace, and goes on adding up where it repeats."""

    def __init__(self, added: Float, trace: Trace) -> None:
        """Take what is added in every period; shape (num_periods, n)."""
        self._edges = np.arange(len(added) + 1) * trace.period_s
        self._sums = np.concatenate([np.zeros((1, added.shape[1])), np.cumsum(added, axis=0)])
        self._repeats = trace.repeats

    def at(self, when_s: Float) -> Float:
        """Return the counter at times of shape (num_samples, n)."""
        turns, within = np.zeros_like(when_s), when_s
        if self._repeats:
            turns, within = np.divmod(when_s, self._edges[-1])
        columns = range(self._sums.shape[1])
        inside = np.stack([np.interp(within[:, k], self._edges, self._sums[:, k]) for k in columns], axis=1)
        return np.asarray(turns * self._sums[-1] + inside)

    def window_mean(self, end_s: Float, window_s: float, before: Float) -> Float:
        """Return means over windows; before a trace that does not repeat all was as in its first period."""
        start_s = end_s - window_s
        if self._repeats:
            return np.asarray((self.at(end_s) - self.at(start_s)) / window_s)
        missing = np.maximum(-start_s, 0.0)
        inside = self.at(end_s) - self.at(np.maximum(start_s, 0.0))
        return np.asarray((inside + missing * before) / window_s)


def _by_package(power_w: Float, sensors: Sensors) -> tuple[Float, Float]:
    """Return the power of each device's package, and whether the device is the one it shows on."""
    power, is_first = np.empty_like(power_w), np.zeros(power_w.shape[1], dtype=bool)
    for package in sensors.packages:
        power[:, list(package)] = power_w[:, list(package)].sum(axis=1, keepdims=True)
        is_first[package[0]] = True
    return power, is_first


def _clocks_and_heat(trace: Trace, node: int, sensors: Sensors, published: Float, sample_s: Float) -> dict[str, Float]:
    num_periods = len(trace.power_w)

    def last(values: Float | Int64, when: Float) -> Float:
        # The period a moment falls in has a clock, and the temperature of its end is not known yet.
        index = np.floor(when / trace.period_s + 1e-9).astype(int)
        index = index % num_periods if trace.repeats else np.clip(index, 0, len(values) - 1)
        return np.asarray(np.take_along_axis(values, np.broadcast_to(index, (len(when), values.shape[1])), axis=0))

    first = trace.temp_c[-1:, node] if trace.repeats else trace.temp_c[:1, node]
    offset_k = np.broadcast_to(sensors.offset_k, trace.temp_c.shape[1:])[node]
    temp = np.concatenate([first, trace.temp_c[:, node]]) + offset_k
    step = sensors.temperature_step_k
    now = np.broadcast_to(sample_s[:, None], published.shape)
    columns = {
        "gpu_temp_c": np.floor(last(temp, published) / step + 0.5) * step,
        "sm_clock_mhz": last(trace.clock_mhz[:, node], now),
    }
    if sensors.vendor != "nvidia":
        # MI200 reports what throttles at an instant but counts no time of it.
        return columns
    reasons = trace.reasons[:, node]
    columns["gpu_throttle_reasons"] = last(reasons, now)
    for cause, name in COUNTED.items():
        is_held = (reasons & int(cause)) != 0
        counted = _Counter(is_held * trace.period_s, trace).at(now)
        columns[name] = counted - counted[0]
    return columns
