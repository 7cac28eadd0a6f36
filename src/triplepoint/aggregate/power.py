"""Power, utilisation, temperature, clocks and throttling of one run, cut to its measured steps."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from triplepoint.aggregate.energy import NONE, DeviceEnergy, NotMeasuredError, Sensors, measure_energy
from triplepoint.aggregate.plug import Readings, plug_columns
from triplepoint.aggregate.steps import RunSteps
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError
from triplepoint.manifest import Device, Manifest, Node
from triplepoint.metrics import Spread, spread
from triplepoint.units import NS_PER_S

CAUSES = ("power_cap", "sync_boost", "sw_thermal", "hw_thermal", "power_brake")


def throttle_shares(samples: Mapping[str, np.ndarray], start_ns: int, end_ns: int) -> dict[str, float]:
    """Return the share of time each cause throttled a GPU, by `<cause>_share`; none that is not counted.

    The time runs from the last sample before the start to the first one after the end, between which the counters are
    exact; where there is no sample before or after, from the first or to the last one.

    Args:
        samples: Columns of table `telemetry`, rows of one GPU by time.
        start_ns: Start, on the clock of the samples. Unit: ns.
        end_ns: End. Unit: ns.
    """
    row = {}
    for cause in CAUSES:
        throttled_s = samples[f"gpu_{cause}_s"].astype(float)
        known = np.isfinite(throttled_s)
        t_ns, throttled_s = samples["t_ns"][known], throttled_s[known]
        if t_ns.size < 2:
            continue
        first = max(int(np.searchsorted(t_ns, start_ns, side="right")) - 1, 0)
        last = min(int(np.searchsorted(t_ns, end_ns, side="left")), t_ns.size - 1)
        if last > first:
            passed_s = float(t_ns[last] - t_ns[first]) / NS_PER_S
            row[f"{cause}_share"] = min(1.0, float(throttled_s[last] - throttled_s[first]) / passed_s)
    return row


_QUANTITIES = (("gpu_temp", "c"), ("sm_clock", "mhz"))
SAMPLED = ("gpu_temp_c", "sm_clock_mhz", "gpu_power_w")
"""Columns of table `telemetry` that are needed."""


def peak_column(gpu: GpuConfig) -> str:
    """Return what the highest sample of power is of: of a GPU, or of a package whose GPUs share a sensor."""
    return "gpu_power_peak_w" if gpu.gpus_per_package == 1 else "package_power_peak_w"


class Weighted(NamedTuple):
    """Samples of measured steps without nulls, and the time each stands for, in ns; both of shape (num_samples,)."""

    values: np.ndarray
    weight_ns: np.ndarray


def heat_of_gpu(samples: Mapping[str, Weighted], peak: str) -> dict[str, float]:
    """Return what samples of measured steps say of a GPU, by column of `gpus`; nothing of what was not sampled.

    Args:
        samples: By column of table `telemetry`.
        peak: Column for the highest power: `peak_column`.
    """
    row = _spreads(samples)
    if samples["gpu_power_w"].values.size:
        row[peak] = float(samples["gpu_power_w"].values.max())
    return row


def heat_of_run(
    samples: Iterable[Mapping[str, Weighted]], throttle: Iterable[Mapping[str, float]], peak: str
) -> dict[str, float]:
    """Return the same of all GPUs of a run together, by column of `points`.

    Args:
        samples: Of every GPU, as of `heat_of_gpu`.
        throttle: Shares of time by cause, of every GPU.
        peak: Column for the highest power: `peak_column`.
    """
    each = list(samples)
    together = {
        name: Weighted(*(np.concatenate([one[name][part] for one in each] or [np.array([])]) for part in range(2)))
        for name in SAMPLED
    }
    row = heat_of_gpu(together, peak)
    # Causes can hold clocks at the same time.
    shares = [min(1.0, sum(one.get(f"{cause}_share", 0.0) for cause in CAUSES)) for one in throttle if one]
    return row | ({"throttle_fraction": float(np.mean(shares))} if shares else {})


def sample_weights_ns(t_ns: np.ndarray, windows_ns: np.ndarray) -> np.ndarray:
    """Return the time each sample stands for: half way to its neighbours, in measured steps alone.

    Samplers read more often at ends of steps, where clocks are not those of the rest, so plain means are wrong. A
    sample stands for no more than twice the usual time: what lies in a gap was not measured.

    Args:
        t_ns: When samples were read, in order; shape (num_samples,). Unit: ns.
        windows_ns: Measured steps, in order; shape (num_steps, 2). Unit: ns.

    Returns:
        Shape (num_samples,). Unit: ns.
    """
    if len(t_ns) < 2:
        return np.ones(len(t_ns))
    half = np.diff(t_ns) / 2
    half = np.minimum(half, 2 * np.median(half))
    low, high = t_ns - np.append(0.0, half), t_ns + np.append(half, 0.0)
    # Measured time up to a moment, a line that is flat between steps.
    passed = np.cumsum(np.diff(windows_ns, axis=1)[:, 0])
    edges, so_far = windows_ns.reshape(-1).astype(float), np.repeat(passed, 2)
    so_far[::2] -= np.diff(windows_ns, axis=1)[:, 0]
    return np.asarray(np.interp(high, edges, so_far) - np.interp(low, edges, so_far))


def _spreads(samples: Mapping[str, Weighted]) -> dict[str, float]:
    row: dict[str, float] = {}
    for name, unit in _QUANTITIES:
        values, weight_ns = samples[f"{name}_{unit}"]
        if values.size:
            low, high = np.percentile(values, [10, 90])
            mean = np.average(values, weights=weight_ns) if weight_ns.any() else values.mean()
            row |= {f"{name}_{unit}": mean, f"{name}_p10_{unit}": low, f"{name}_p90_{unit}": high}
            if name == "gpu_temp":
                row["gpu_temp_max_c"] = values.max()
    return {name: float(value) for name, value in row.items()}


DeviceKey = tuple[int, str]
"""Node index and device name."""


@dataclass(frozen=True)
class Power:
    """What telemetry says of the measured steps of one run; None and missing keys are what was not measured."""

    gpu_power_w: float | None = None
    """Mean, summed over GPUs. Unit: W."""
    gpu_spread_w: Spread | None = None
    """Over measured steps that have samples of every GPU. Unit: W."""
    gpu_source: str | None = None
    """What the power of the GPUs is from."""
    host_power_w: float | None = None
    """Mean CPU package and DRAM power, summed over nodes. Unit: W."""
    host_spread_w: Spread | None = None
    """Over measured steps. Unit: W."""
    absent: str | None = None
    """Why the power that matters here (of the GPUs; on cpu, of the nodes) was not measured."""
    cpu_utilisation: np.ndarray = field(default_factory=lambda: np.array([]))
    """All samples of measured steps. Shape (num_samples,)."""
    gpu_utilisation: np.ndarray = field(default_factory=lambda: np.array([]))
    """All samples of measured steps and all GPUs. Shape (num_samples,)."""
    device_energy: dict[DeviceKey, DeviceEnergy] = field(default_factory=dict)
    """Of each GPU that reports its own."""
    device_throttle: dict[DeviceKey, dict[str, float]] = field(default_factory=dict)
    """Share of time it was throttled, by `<cause>_share`, of each GPU."""
    device_heat: dict[DeviceKey, dict[str, float]] = field(default_factory=dict)
    """Temperature, clock and peak power of each GPU, by column of `gpus`."""
    plug: dict[str, float] = field(default_factory=dict)
    """Power of nodes at the plug, by column of `points`."""
    heat: dict[str, float] = field(default_factory=dict)
    """The same of all GPUs, by column of `points`."""


def measure_power(
    run: str, manifest: Manifest, steps: RunSteps, telemetry: pa.Table, gpu: GpuConfig | None, sensors: Sensors = NONE
) -> Power:
    """Return what the samples of a run's measured steps say.

    Args:
        run: Run id, for errors.
        manifest: The run's manifest.
        steps: The run's steps.
        telemetry: Table `telemetry` of the run.
        gpu: GPU type; None on cpu.
        sensors: Sensor cards there are.

    Raises:
        UserError: If only some GPUs have power samples for no known reason: a sum of fewer would look efficient.
    """
    samples = _Samples(manifest, steps, telemetry)
    if gpu is None:
        return samples.power_of_hosts()
    energy, refused = samples.energies(sensors)
    if lost := _lost_packages(samples.devices, set(energy), gpu):
        energy, refused = {}, _why_lost(run, manifest, lost)
    throttle, peak = samples.throttling(), peak_column(gpu)
    sampled = {key: {name: samples.weighted(name, key) for name in SAMPLED} for key in samples.devices}
    return replace(
        samples.power_of_hosts(),
        gpu_power_w=sum(one.mean_w for one in energy.values()) if energy else None,
        gpu_spread_w=_spread_of_sum(energy.values()),
        gpu_source="; ".join(dict.fromkeys(one.source for one in energy.values())) or None,
        absent=None if energy else refused or _reason(manifest, "gpu_power_w"),
        gpu_utilisation=np.concatenate([samples.values("gpu_utilisation", key) for key in samples.devices]),
        device_energy=energy,
        device_throttle=throttle,
        device_heat={key: heat_of_gpu(columns, peak) for key, columns in sampled.items()},
        heat=heat_of_run(sampled.values(), throttle.values(), peak),
    )


class _Samples:
    """The samples of a run, by device, with the windows of its measured steps."""

    def __init__(self, manifest: Manifest, steps: RunSteps, telemetry: pa.Table) -> None:
        """Take the columns of the telemetry; samples of interrupted steps get no kind of step."""
        self._manifest, self._steps = manifest, steps
        self._columns = {name: telemetry[name].to_numpy(zero_copy_only=False) for name in telemetry.column_names}
        if interrupted := list(manifest.interrupted_steps):
            kinds, is_interrupted = self._columns["kind"], np.isin(self._columns["step"], interrupted)
            self._columns["kind"] = np.where(is_interrupted, None, kinds)
        rows: dict[DeviceKey, list[int]] = {}
        keys = zip(self._columns["node"].tolist(), self._columns["device"].tolist(), strict=True)
        for row, key in enumerate(keys):
            rows.setdefault(key, []).append(row)
        self._rows = {key: np.array(numbers) for key, numbers in rows.items()}
        self.devices = sorted({(node.node, device.device) for node in manifest.nodes for device in node.devices})

    def of(self, key: DeviceKey) -> dict[str, np.ndarray]:
        """Return the columns of a device's samples."""
        rows = self._rows.get(key, np.array([], dtype=np.int64))
        return {name: values[rows] for name, values in self._columns.items()}

    def values(self, name: str, key: DeviceKey) -> np.ndarray:
        """Return a device's values of samples in measured steps, without nulls."""
        if key not in self._rows:
            return np.array([])
        values: np.ndarray = self._columns[name][self._rows[key]].astype(float)
        return np.asarray(values[np.isfinite(values) & (self._columns["kind"][self._rows[key]] == "measured")])

    def weighted(self, name: str, key: DeviceKey) -> Weighted:
        """Return `values` with the time that each stands for."""
        node = next(node for node in self._manifest.nodes if node.node == key[0])
        if key not in self._rows or node.node not in self._steps.windows_ns:
            return Weighted(self.values(name, key), np.ones(self.values(name, key).shape))
        columns = self.of(key)
        found: np.ndarray = columns[name].astype(float)
        known = np.isfinite(found)
        weight_ns = sample_weights_ns(columns["t_ns"][known], self.windows_ns(node))
        is_measured = columns["kind"][known] == "measured"
        return Weighted(found[known][is_measured], weight_ns[is_measured])

    def windows_ns(self, node: Node) -> np.ndarray:
        """Return the measured steps of a node on the clock of the telemetry, which is the first node's."""
        return self._manifest.on_first_clock(node, self._steps.windows_ns[node.node])

    def energies(self, sensors: Sensors) -> tuple[dict[DeviceKey, DeviceEnergy], str | None]:
        """Return what each GPU drew in the measured steps, none where one's sensor is refused, and why."""
        energies = {}
        for node, device in self._sampled():
            card = sensors.card_of(device.uuid, device.product)
            try:
                energy = measure_energy(self.of((node.node, device.device)), self.windows_ns(node), card)
            except NotMeasuredError as error:
                return {}, f"{node.host} {device.device}: {error}"
            if energy is not None:
                energies[node.node, device.device] = energy
        return energies, None

    def throttling(self) -> dict[DeviceKey, dict[str, float]]:
        """Return the share of time from the first to the last measured step in which each GPU was throttled."""
        shares = {}
        for node, device in self._sampled():
            key, windows_ns = (node.node, device.device), self.windows_ns(node)
            shares[key] = throttle_shares(self.of(key), int(windows_ns[0, 0]), int(windows_ns[-1, 1]))
        return shares

    def _sampled(self) -> Iterator[tuple[Node, Device]]:
        """Yield the GPUs that have samples and steps."""
        for node in self._manifest.nodes:
            for device in node.devices:
                if (node.node, device.device) in self._rows and node.node in self._steps.windows_ns:
                    yield node, device

    def power_of_hosts(self) -> Power:
        """Return what the hosts' own sensors say."""
        steps_w, absent = self._host_power()
        busy = [self.values("cpu_utilisation", (node.node, "host")) for node in self._manifest.nodes]
        return Power(
            # Energy over time of all measured steps: long steps weigh more than in the plain mean.
            host_power_w=None if steps_w is None else float(np.average(steps_w, weights=self._steps.step_time_s)),
            host_spread_w=None if steps_w is None else spread(steps_w),
            absent=absent,
            cpu_utilisation=np.concatenate(busy),
            plug=plug_columns([self._plug(node) for node in self._manifest.nodes]),
        )

    def _plug(self, node: Node) -> Readings:
        """Return what the meter of a node's plug read from the first measured step to the last."""
        if node.node not in self._steps.windows_ns or (node.node, "host") not in self._rows:
            return Readings(np.array([]), np.array([]))
        samples, windows_ns = self.of((node.node, "host")), self.windows_ns(node)
        power_w, t_ns = samples["node_power_w"].astype(float), samples["t_ns"]
        is_inside = np.isfinite(power_w) & (t_ns >= windows_ns[0, 0]) & (t_ns <= windows_ns[-1, 1])
        return Readings(t_ns[is_inside], power_w[is_inside])

    def _host_power(self) -> tuple[np.ndarray | None, str | None]:
        """Return the power of all nodes in each measured step, or why there is none."""
        total_w = np.zeros(len(self._steps.measured))
        for node in self._manifest.nodes:
            if node.node not in self._steps.windows_ns:
                continue
            power_w = _power_of_node(self.of((node.node, "host")), self.windows_ns(node))
            if power_w is None:
                return None, _reason(self._manifest, "cpu_energy_j")
            total_w += power_w
        return total_w, None


def _spread_of_sum(energies: Collection[DeviceEnergy]) -> Spread | None:
    """Return the spread over steps of the power of all GPUs; steps that lack one are left out."""
    steps_w = np.sum([energy.power_w for energy in energies], axis=0) if energies else np.array([])
    known_w = steps_w[np.isfinite(steps_w)]
    return spread(known_w) if known_w.size else None


def _lost_packages(devices: list[DeviceKey], powered: set[DeviceKey], gpu: GpuConfig) -> list[DeviceKey]:
    """Return GPUs of packages without power samples where others have some: both dies of an MI250 share one sensor."""
    packages = {(node, int(name.removeprefix("gpu")) // gpu.gpus_per_package) for node, name in powered}
    lost = [key for key in devices if (key[0], int(key[1].removeprefix("gpu")) // gpu.gpus_per_package) not in packages]
    return lost if powered else []


def _why_lost(run: str, manifest: Manifest, lost: list[DeviceKey]) -> str:
    """Return why some GPUs have no power samples while others have: what became of the samplers of their nodes.

    Raises:
        UserError: If that does not explain it.
    """
    gaps = {node.node: node.gaps for node in manifest.nodes}
    unexplained = [f"node {node} {name}" for node, name in lost if not gaps[node]]
    if unexplained:
        raise UserError(
            f"run {run}: no power samples in measured steps for {', '.join(unexplained)}, but for the other GPUs; "
            "a sum over fewer GPUs is no result: launch it again"
        )
    return "; ".join(gaps[node][-1] for node in sorted({node for node, _ in lost}))


def _power_of_node(samples: dict[str, np.ndarray], window_ns: np.ndarray) -> np.ndarray | None:
    """Return CPU package power, and DRAM power where the host reports it, in each measured step of one node."""
    energies = [_counter(samples, name, window_ns) for name in ("cpu_energy_j", "dram_energy_j")]
    if energies[0] is None:
        return None
    energy_j = sum(np.diff(found, axis=1)[:, 0] for found in energies if found is not None)
    return np.asarray(energy_j / (np.diff(window_ns, axis=1)[:, 0] / NS_PER_S))


def _counter(samples: dict[str, np.ndarray], name: str, at_ns: np.ndarray) -> np.ndarray | None:
    """Return a cumulative counter at given times, or None where its samples do not reach around all of them."""
    values = samples[name].astype(float)
    kept = np.isfinite(values)
    t_ns = samples["t_ns"][kept]
    if t_ns.size < 2 or at_ns.min() < t_ns[0] or at_ns.max() > t_ns[-1]:
        return None
    return np.asarray(np.interp(at_ns, t_ns, values[kept]))


def _reason(manifest: Manifest, column: str) -> str:
    for node in manifest.nodes:
        if node.telemetry is None:
            return node.gaps[-1] if node.gaps else f"the sampler of {node.host} left no account"
        if column in node.telemetry.absent:
            return node.telemetry.absent[column]
        if node.gaps:
            return node.gaps[-1]
    return "no samples around the measured steps; use a shorter telemetry_period_s or more steps"
