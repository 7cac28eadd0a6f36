"""Simulated sensors: telemetry columns as the driver of real GPUs would fill them.

A GPU publishes every `publish_period`, each at a moment of its own. Powers are means of a window before that; the
energy counter stands still in between. In a package of several dies power and energy are of the package and show on
one die.
"""

from dataclasses import dataclass

import numpy as np

from triplepoint.simulate.heat.clocks import COUNTED
from triplepoint.simulate.heat.loop import Trace
from triplepoint.simulate.heat.parameters import SensorConfig
from triplepoint.simulate.power.gpu import Float, Int64


@dataclass(frozen=True)
class Sensors:
    """The sensors of the GPUs of some nodes.

    Attributes:
        config: Of the GPU type.
        packages: Devices of every package of a node.
        offset_k: Temperature shown less that of the die; shape (num_nodes, num_devices). Unit: K.
    """

    config: SensorConfig
    packages: list[list[int]]
    offset_k: Float | float = 0.0

    @property
    def power_devices(self) -> dict[int, list[int]]:
        """Devices of every package, by the one that shows their power."""
        die = self.config.power_die
        return {package[die]: package for package in self.packages if die < len(package)}


def show(trace: Trace, node: int, sensors: Sensors, sample_s: Float, seed: int) -> dict[str, Float]:
    """Return what a sampler reads from the devices of a node.

    Args:
        trace: Power, temperatures and clocks.
        node: Number of the node.
        sensors: Of its devices.
        sample_s: When the sampler reads, from the trace's start, in order. Unit: s.
        seed: Of the moments at which devices publish.

    Returns:
        Columns of the telemetry by name, each of shape (num_samples, num_devices); NaN where a device shows nothing.
    """
    num_devices, config = trace.power_w.shape[2], sensors.config
    period_s, average_s = config.publish_period.value, config.average_window.value
    instant_s = config.instant_window.value if config.instant_window else average_s
    phase = np.random.default_rng([seed, node]).random(num_devices) * period_s
    published = np.floor((sample_s[:, None] - phase) / period_s) * period_s + phase
    if not trace.repeats:
        # Before its first publication a device shows what it did at the start.
        published = np.maximum(published, 0.0)
    power = _package_power(trace.power_w[:, node], sensors)
    energy = Counter(power * trace.period_s, trace)
    columns = {"gpu_power_average_w": energy.window_mean(published, average_s, power[0])}
    columns["gpu_power_w"] = energy.window_mean(published, instant_s, power[0])
    step_j = config.energy_step.value
    counted = np.floor(energy.at(published) / step_j + 1e-9) * step_j
    columns["gpu_energy_j"] = counted - counted[0]
    is_shown = np.isin(np.arange(num_devices), list(sensors.power_devices))
    columns = {name: np.where(is_shown, values, np.nan) for name, values in columns.items()}
    return columns | _clocks_and_heat(trace, node, sensors, published, sample_s)


class Counter:
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


def _package_power(power_w: Float, sensors: Sensors) -> Float:
    """Return the power of each device's package; shape (num_periods, num_devices)."""
    power = np.empty_like(power_w)
    for package in sensors.packages:
        power[:, package] = power_w[:, package].sum(axis=1, keepdims=True)
    return power


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
    step = sensors.config.temperature_step.value
    now = np.broadcast_to(sample_s[:, None], published.shape)
    columns = {
        "gpu_temp_c": np.floor(last(temp, published) / step + 0.5) * step,
        "sm_clock_mhz": last(trace.clock_mhz[:, node], now),
    }
    reasons = trace.reasons[:, node]
    columns["gpu_throttle_reasons"] = last(reasons, now)
    for cause, name in COUNTED.items():
        is_held = (reasons & int(cause)) != 0
        counted = Counter(is_held * trace.period_s, trace).at(now)
        columns[name] = counted - counted[0]
    return columns
