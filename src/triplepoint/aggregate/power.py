"""Power, utilisation, temperature, clocks and throttling of one run over its measured steps."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from triplepoint.aggregate.energy import NONE, DeviceEnergy, NotMeasuredError, Sensors, measure_energy
from triplepoint.aggregate.nodes import host_energy_j, plug_columns, readings_of
from triplepoint.aggregate.samples import DeviceKey, Samples, Weighted, why_absent
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest
from triplepoint.metrics import Spread, spread
from triplepoint.units import NS_PER_S

CAUSES = ("power_cap", "sync_boost", "sw_thermal", "hw_thermal", "power_brake")


def throttle_shares(samples: Mapping[str, np.ndarray], start_ns: int, end_ns: int) -> dict[str, float]:
    """Return the share of time in which each cause throttled a GPU, by `<cause>_share`; without causes not counted.

    The share is that between the last sample before the start and the first one after the end, where the counters are
    exact; if there is no such sample, the first or the last one is used.

    Args:
        samples: Columns of table `telemetry`, rows of one GPU by time.
        start_ns: Start, on the clock of the samples. Unit: ns.
        end_ns: End, on the clock of the samples. Unit: ns.
    """
    row = {}
    for cause in CAUSES:
        throttled_s = samples[f"gpu_{cause}_s"].astype(float)
        has_value = np.isfinite(throttled_s)
        t_ns, throttled_s = samples["t_ns"][has_value], throttled_s[has_value]
        if t_ns.size < 2:
            continue
        first = max(int(np.searchsorted(t_ns, start_ns, side="right")) - 1, 0)
        last = min(int(np.searchsorted(t_ns, end_ns, side="left")), t_ns.size - 1)
        if last > first:
            duration_s = float(t_ns[last] - t_ns[first]) / NS_PER_S
            row[f"{cause}_share"] = min(1.0, float(throttled_s[last] - throttled_s[first]) / duration_s)
    return row


_QUANTITIES = (("gpu_temp", "c"), ("sm_clock", "mhz"))
"""Quantities with mean and percentiles, and their units."""
_HEAT_COLUMNS = ("gpu_temp_c", "sm_clock_mhz", "gpu_power_w")
"""Columns of table `telemetry` that `_heat_of_gpu` needs."""


def _heat_of_gpu(samples: Mapping[str, Weighted], peak: str) -> dict[str, float]:
    """Return temperature, clock and peak power of a GPU over measured steps, by column of `gpus`.

    Args:
        samples: Samples by column of table `telemetry`.
        peak: Column for the highest power.
    """
    row = _spreads(samples)
    if samples["gpu_power_w"].values.size:
        row[peak] = float(samples["gpu_power_w"].values.max())
    return row


def _heat_of_run(
    samples: Iterable[Mapping[str, Weighted]], throttle: Collection[Mapping[str, float]], peak: str
) -> dict[str, float]:
    """Return temperature, clock, peak power and throttling over all GPUs of a run, by column of `points`.

    Args:
        samples: Samples of every GPU, by column of table `telemetry`.
        throttle: Throttled share of time by cause, of every GPU.
        peak: Column for the highest power.
    """
    gpus = list(samples)
    all_samples = {
        name: Weighted(*(np.concatenate([gpu[name][part] for gpu in gpus] or [np.array([])]) for part in range(2)))
        for name in _HEAT_COLUMNS
    }
    row = _heat_of_gpu(all_samples, peak)
    # Several causes can throttle at the same time.
    totals = [min(1.0, sum(shares.get(f"{cause}_share", 0.0) for cause in CAUSES)) for shares in throttle if shares]
    return row | ({"throttle_fraction": float(np.mean(totals))} if totals else {}) | _mean_of(throttle)


def _spreads(samples: Mapping[str, Weighted]) -> dict[str, float]:
    """Return mean and percentiles of temperature and clock, and the highest temperature."""
    row: dict[str, float] = {}
    for name, unit in _QUANTITIES:
        values = samples[f"{name}_{unit}"].values
        if values.size:
            low, high = np.percentile(values, [10, 90])
            row |= {f"{name}_{unit}": samples[f"{name}_{unit}"].mean}
            row |= {f"{name}_p10_{unit}": low, f"{name}_p90_{unit}": high}
            if name == "gpu_temp":
                row["gpu_temp_max_c"] = values.max()
    return {name: float(value) for name, value in row.items()}


@dataclass(frozen=True)
class Power:
    """Power and heat of one run over its measured steps; what was not measured is None or a missing key."""

    gpu_power_w: float | None = None
    """Mean power, sum over GPUs. Unit: W."""
    gpu_spread_w: Spread | None = None
    """Spread of that sum over measured steps with samples of every GPU. Unit: W."""
    gpu_source: str | None = None
    """Sensor of the GPU power, and how it was computed."""
    host_power_w: float | None = None
    """Mean CPU package and DRAM power, sum over nodes. Unit: W."""
    host_spread_w: Spread | None = None
    """Spread of that sum over measured steps. Unit: W."""
    absent: str | None = None
    """Reason that power of GPUs (on cpu: of hosts) was not measured; None if it was."""
    cpu_utilisation: np.ndarray = field(default_factory=lambda: np.array([]))
    """CPU utilisation, all samples of measured steps. Shape (num_samples,)."""
    gpu_utilisation: np.ndarray = field(default_factory=lambda: np.array([]))
    """GPU utilisation, all samples of measured steps and all GPUs. Shape (num_samples,)."""
    device_energy: dict[DeviceKey, DeviceEnergy] = field(default_factory=dict)
    """Power of each GPU that has a power sensor."""
    device_throttle: dict[DeviceKey, dict[str, float]] = field(default_factory=dict)
    """Throttled share of time of each GPU, by `<cause>_share`."""
    device_heat: dict[DeviceKey, dict[str, float]] = field(default_factory=dict)
    """Temperature, clock and peak power of each GPU, by column of `gpus`."""
    plug: dict[str, float] = field(default_factory=dict)
    """Power of nodes at the plug, by column of `points`."""
    heat: dict[str, float] = field(default_factory=dict)
    """Temperature, clock, peak power and throttling over all GPUs, by column of `points`."""


def measure_power(run: str, samples: Samples, gpu: GpuConfig | None, sensors: Sensors = NONE) -> Power:
    """Return power and heat of a run over its measured steps.

    Args:
        run: Run id, for errors.
        samples: Samples of the run.
        gpu: GPU type; None on cpu, and if it is not known: each GPU then counts as a package.
        sensors: Sensor cards.

    Raises:
        UserError: If some GPUs have no power samples for no known reason. A sum over fewer GPUs would look efficient.
    """
    if gpu is None and not any(name.startswith("gpu") for _, name in samples.devices):
        return _power_of_hosts(samples)
    per_package = gpu.gpus_per_package if gpu else 1
    energy, refused = _energies(samples, sensors)
    if lost := _lost_packages(samples.devices, set(energy), per_package):
        energy, refused = {}, _why_lost(run, samples.manifest, lost)
    throttle = _throttling(samples)
    # If GPUs share a sensor, the highest sample is that of a package.
    peak = "gpu_power_peak_w" if per_package == 1 else "package_power_peak_w"
    sampled = {key: {name: samples.weighted(name, key) for name in _HEAT_COLUMNS} for key in samples.devices}
    busy = {key: _clock_busy(samples, key) for key in samples.devices}
    return replace(
        _power_of_hosts(samples),
        gpu_power_w=sum(device.mean_w for device in energy.values()) if energy else None,
        gpu_spread_w=_spread_of_sum(energy.values()),
        gpu_source="; ".join(dict.fromkeys(device.source for device in energy.values())) or None,
        absent=None if energy else refused or why_absent(samples.manifest, "gpu_power_w"),
        gpu_utilisation=np.concatenate([samples.values("gpu_utilisation", key) for key in samples.devices]),
        device_energy=energy,
        device_throttle=throttle,
        device_heat={key: _heat_of_gpu(columns, peak) | busy[key] for key, columns in sampled.items()},
        heat=_heat_of_run(sampled.values(), throttle.values(), peak) | _mean_of(busy.values()),
    )


def _clock_busy(samples: Samples, key: DeviceKey) -> dict[str, float]:
    """Return the mean clock while kernels run, by column of `gpus`; empty without samples of clock and utilisation."""
    clock = samples.weighted("sm_clock_mhz", key, by="gpu_utilisation")
    return {"sm_clock_busy_mhz": clock.mean} if clock.weight_ns.any() else {}


def _mean_of(rows: Collection[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each column over the rows that have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}


def _energies(samples: Samples, sensors: Sensors) -> tuple[dict[DeviceKey, DeviceEnergy], str | None]:
    """Return the power of each GPU in the measured steps; if one sensor is unusable, none and the reason."""
    energies = {}
    for node, device in samples.sampled():
        card = sensors.card_of(device.uuid, device.product)
        try:
            energy = measure_energy(samples.of((node.node, device.device)), samples.windows_ns(node), card)
        except NotMeasuredError as error:
            return {}, f"{node.host} {device.device}: {error}"
        if energy is not None:
            energies[node.node, device.device] = energy
    return energies, None


def _throttling(samples: Samples) -> dict[DeviceKey, dict[str, float]]:
    """Return the throttled share of the time from the first to the last measured step, by cause, for each GPU."""
    shares = {}
    for node, device in samples.sampled():
        key, windows_ns = (node.node, device.device), samples.windows_ns(node)
        shares[key] = throttle_shares(samples.of(key), int(windows_ns[0, 0]), int(windows_ns[-1, 1]))
    return shares


def _power_of_hosts(samples: Samples) -> Power:
    """Return power and utilisation from the sensors of the hosts."""
    steps_w, absent = _host_power(samples)
    nodes = samples.manifest.nodes
    return Power(
        # Weighted by step time, so that it is the energy of all measured steps over their time.
        host_power_w=None if steps_w is None else float(np.average(steps_w, weights=samples.steps.step_time_s)),
        host_spread_w=None if steps_w is None else spread(steps_w),
        absent=absent,
        cpu_utilisation=np.concatenate([samples.values("cpu_utilisation", (node.node, "host")) for node in nodes]),
        plug=plug_columns([readings_of(samples, node) for node in nodes]),
    )


def _host_power(samples: Samples) -> tuple[np.ndarray | None, str | None]:
    """Return the power of all hosts in each measured step, or why it was not measured."""
    total_w = np.zeros(len(samples.steps.measured))
    for node in samples.manifest.nodes:
        if node.node not in samples.steps.windows_ns:
            continue
        energy_j = host_energy_j(samples, node)
        if energy_j is None:
            return None, why_absent(samples.manifest, "cpu_energy_j")
        total_w += energy_j / samples.step_lengths_s(node)
    return total_w, None


def _spread_of_sum(energies: Collection[DeviceEnergy]) -> Spread | None:
    """Return the spread over steps of the power of all GPUs; steps without samples of a GPU are omitted."""
    steps_w = np.sum([energy.power_w for energy in energies], axis=0) if energies else np.array([])
    complete_w = steps_w[np.isfinite(steps_w)]
    return spread(complete_w) if complete_w.size else None


def _lost_packages(devices: list[DeviceKey], powered: set[DeviceKey], per_package: int) -> list[DeviceKey]:
    """Return the GPUs of packages without power samples, if other packages have samples.

    A package counts as a whole, because both dies of an MI250 share one sensor.
    """
    packages = {(node, int(name.removeprefix("gpu")) // per_package) for node, name in powered}
    lost = [key for key in devices if (key[0], int(key[1].removeprefix("gpu")) // per_package) not in packages]
    return lost if powered else []


def _why_lost(run: str, manifest: Manifest, lost: list[DeviceKey]) -> str:
    """Return why some GPUs have no power samples: a gap in the telemetry of their nodes.

    Raises:
        UserError: If a node of such a GPU has no gap.
    """
    gaps = {node.node: node.gaps for node in manifest.nodes}
    unexplained = [f"node {node} {name}" for node, name in lost if not gaps[node]]
    if unexplained:
        raise UserError(
            f"run {run}: no power samples in measured steps for {', '.join(unexplained)}, though the other GPUs have "
            "some; a sum over fewer GPUs would be wrong, so launch it again"
        )
    return "; ".join(gaps[node][-1] for node in sorted({node for node, _ in lost}))
