"""Simulated sensors: telemetry columns as the driver of real GPUs would fill them.

A GPU publishes new values every `publish_period`, each GPU at moments of its own. Powers are means over a window before
that moment; the energy counter is constant in between. In a package of several dies, power and energy belong to the
package and are reported by one die.
"""

from dataclasses import dataclass

import numpy as np

from triplepoint.simulate.heat.clocks import COUNTED
from triplepoint.simulate.heat.loop import Trace
from triplepoint.simulate.heat.parameters import SensorConfig
from triplepoint.simulate.power.gpu import Float, Int64


@dataclass(frozen=True)
class Sensors:
    """Sensors of the GPUs of some nodes.

    Attributes:
        config: Sensors of the GPU type.
        packages: Devices of every package of a node.
        offset_k: Reported temperature less that of the die; shape (num_nodes, num_devices). Unit: K.
    """

    config: SensorConfig
    packages: list[list[int]]
    offset_k: Float | float = 0.0

    @property
    def power_devices(self) -> dict[int, list[int]]:
        """Devices of every package, by the device that reports their power."""
        die = self.config.power_die
        return {package[die]: package for package in self.packages if die < len(package)}


def show(trace: Trace, node: int, sensors: Sensors, sample_s: Float, seed: int) -> dict[str, Float]:
    """Return the values that a sampler reads from the devices of a node.

    Args:
        trace: Power, temperatures and clocks.
        node: Number of the node.
        sensors: Sensors of its devices.
        sample_s: Times of the samples from the start of the trace, in order. Unit: s.
        seed: Seed of the moments at which devices publish.

    Returns:
        Telemetry columns by name, each of shape (num_samples, num_devices); NaN if a device reports no value.
    """
    num_devices, config = trace.power_w.shape[2], sensors.config
    period_s, average_s = config.publish_period.value, config.average_window.value
    instant_s = config.instant_window.value if config.instant_window else average_s
    phase = np.random.default_rng([seed, node]).random(num_devices) * period_s
    published = np.floor((sample_s[:, None] - phase) / period_s) * period_s + phase
    if not trace.repeats:
        # Before its first publication a device reports its state at the start.
        published = np.maximum(published, 0.0)
    power = _package_power(trace.power_w[:, node], sensors)
    energy = CyclicCounter(power * trace.period_s, trace)
    columns = {"gpu_power_average_w": energy.window_mean(published, average_s, power[0])}
    columns["gpu_power_w"] = energy.window_mean(published, instant_s, power[0])
    step_j = config.energy_step.value
    counted = np.floor(energy.at(published) / step_j + 1e-9) * step_j
    columns["gpu_energy_j"] = counted - counted[0]
    is_shown = np.isin(np.arange(num_devices), list(sensors.power_devices))
    columns = {name: np.where(is_shown, values, np.nan) for name, values in columns.items()}
    return columns | _clocks_and_heat(trace, node, sensors, published, sample_s)


class CyclicCounter:
    """A counter over a trace, which continues to count if the trace repeats."""

    def __init__(self, added: Float, trace: Trace) -> None:
        """Take the increments of every period; shape (num_periods, n)."""
        self._edges = np.arange(len(added) + 1) * trace.period_s
        self._sums = np.concatenate([np.zeros((1, added.shape[1])), np.cumsum(added, axis=0)])
        self._repeats = trace.repeats

    def at(self, when_s: Float) -> Float:
        """Return the counter at some times; shapes (num_samples, n). Unit of times: s."""
        turns, within = np.zeros_like(when_s), when_s
        if self._repeats:
            turns, within = np.divmod(when_s, self._edges[-1])
        columns = range(self._sums.shape[1])
        inside = np.stack([np.interp(within[:, k], self._edges, self._sums[:, k]) for k in columns], axis=1)
        return np.asarray(turns * self._sums[-1] + inside)

    def window_mean(self, end_s: Float, window_s: float, before: Float) -> Float:
        """Return means over windows.

        Args:
            end_s: Ends of the windows; shape (num_samples, n). Unit: s.
            window_s: Length of the windows. Unit: s.
            before: Value before a trace that does not repeat; shape (n,).
        """
        start_s = end_s - window_s
        if self._repeats:
            return np.asarray((self.at(end_s) - self.at(start_s)) / window_s)
        before_start_s = np.maximum(-start_s, 0.0)
        counted = self.at(end_s) - self.at(np.maximum(start_s, 0.0))
        return np.asarray((counted + before_start_s * before) / window_s)


def _package_power(power_w: Float, sensors: Sensors) -> Float:
    """Return the power of each device's package; shape (num_periods, num_devices). Unit: W."""
    power = np.empty_like(power_w)
    for package in sensors.packages:
        power[:, package] = power_w[:, package].sum(axis=1, keepdims=True)
    return power


def _clocks_and_heat(trace: Trace, node: int, sensors: Sensors, published: Float, sample_s: Float) -> dict[str, Float]:
    num_periods = len(trace.power_w)

    def last(values: Float | Int64, when: Float) -> Float:
        # `values` may have one more entry in front: temperatures are those at the end of the period before.
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
        counted = CyclicCounter(is_held * trace.period_s, trace).at(now)
        columns[name] = counted - counted[0]
    return columns
