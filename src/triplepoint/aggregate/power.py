"""Power, utilisation and temperature of one run, cut to its measured steps."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from triplepoint.aggregate.energy import DeviceEnergy, NotMeasuredError, measure_energy
from triplepoint.aggregate.heat import SAMPLED, heat_of_gpu, heat_of_run, peak_column, throttle_shares
from triplepoint.aggregate.sensors import NONE, Sensors
from triplepoint.aggregate.steps import RunSteps
from triplepoint.config.gpu import GpuConfig
from triplepoint.errors import UserError
from triplepoint.manifest import Manifest
from triplepoint.metrics import Spread, spread
from triplepoint.units import NS_PER_S

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
    heat: dict[str, float] = field(default_factory=dict)
    """The same of all GPUs, by column of `points`."""


def measure_power(
    run: str,
    manifest: Manifest,
    steps: RunSteps,
    telemetry: pa.Table,
    gpu: GpuConfig | None,
    sensors: Sensors = NONE,
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
        UserError: If some GPUs have power samples and others have none for no known reason: a sum over fewer GPUs would
            look efficient.
    """
    columns = _columns(telemetry, manifest)
    rows = _rows_by_device(columns)
    hosts = _power_of_hosts(manifest, steps, columns, rows)
    if gpu is None:
        return hosts
    devices = sorted({(node.node, device.device) for node in manifest.nodes for device in node.devices})
    energy, refused = _energies(manifest, steps, columns, rows, sensors)
    sampled = {key: {name: _values(columns, name, rows, key) for name in SAMPLED} for key in devices}
    if lost := _lost_packages(devices, set(energy), gpu):
        energy, refused = {}, _why_lost(run, manifest, lost)
    throttle = _throttling(manifest, steps, columns, rows)
    return replace(
        hosts,
        gpu_power_w=sum(found.mean_w for found in energy.values()) if energy else None,
        gpu_spread_w=_spread_of_sum(energy.values()),
        gpu_source="; ".join(dict.fromkeys(found.source for found in energy.values())) or None,
        absent=None if energy else refused or _reason(manifest, "gpu_power_w"),
        gpu_utilisation=np.concatenate([_values(columns, "gpu_utilisation", rows, key) for key in devices]),
        device_energy=energy,
        device_throttle=throttle,
        device_heat={key: heat_of_gpu(samples, peak_column(gpu)) for key, samples in sampled.items()},
        heat=heat_of_run(sampled.values(), throttle.values(), peak_column(gpu)),
    )


def _columns(telemetry: pa.Table, manifest: Manifest) -> dict[str, np.ndarray]:
    """Return the columns of a run's telemetry; samples of interrupted steps have no kind of step."""
    columns = {name: telemetry[name].to_numpy(zero_copy_only=False) for name in telemetry.column_names}
    if manifest.interrupted_steps:
        columns["kind"] = np.where(np.isin(columns["step"], list(manifest.interrupted_steps)), None, columns["kind"])
    return columns


def _spread_of_sum(energies: Collection[DeviceEnergy]) -> Spread | None:
    """Return the spread over steps of the power of all GPUs; steps that lack one are left out."""
    steps_w = np.sum([energy.power_w for energy in energies], axis=0) if energies else np.array([])
    known_w = steps_w[np.isfinite(steps_w)]
    return spread(known_w) if known_w.size else None


def _power_of_hosts(
    manifest: Manifest, steps: RunSteps, columns: dict[str, np.ndarray], rows: dict[DeviceKey, np.ndarray]
) -> Power:
    """Return what the hosts' own sensors say."""
    steps_w, absent = _host_power(manifest, steps, columns, rows)
    busy = [_values(columns, "cpu_utilisation", rows, (node.node, "host")) for node in manifest.nodes]
    return Power(
        # Energy over time of all measured steps: long steps weigh more than in the plain mean.
        host_power_w=None if steps_w is None else float(np.average(steps_w, weights=steps.step_time_s)),
        host_spread_w=None if steps_w is None else spread(steps_w),
        absent=absent,
        cpu_utilisation=np.concatenate(busy),
    )


def _energies(
    manifest: Manifest,
    steps: RunSteps,
    columns: dict[str, np.ndarray],
    rows: dict[DeviceKey, np.ndarray],
    sensors: Sensors,
) -> tuple[dict[DeviceKey, DeviceEnergy], str | None]:
    """Return what each GPU drew in the measured steps, none where one's sensor is refused, and why."""
    found = {}
    for node in manifest.nodes:
        for device in node.devices:
            if (key := (node.node, device.device)) not in rows or node.node not in steps.windows_ns:
                continue
            windows_ns = manifest.on_first_clock(node, steps.windows_ns[node.node])
            samples = {name: values[rows[key]] for name, values in columns.items()}
            try:
                energy = measure_energy(samples, windows_ns, sensors.card_of(device.uuid, device.product))
            except NotMeasuredError as error:
                return {}, f"{node.host} {device.device}: {error}"
            if energy is not None:
                found[key] = energy
    return found, None


def _throttling(
    manifest: Manifest, steps: RunSteps, columns: dict[str, np.ndarray], rows: dict[DeviceKey, np.ndarray]
) -> dict[DeviceKey, dict[str, float]]:
    """Return the share of time from the first to the last measured step in which each GPU was throttled."""
    found = {}
    for node in manifest.nodes:
        for device in node.devices:
            if (key := (node.node, device.device)) in rows and node.node in steps.windows_ns:
                windows_ns = manifest.on_first_clock(node, steps.windows_ns[node.node])
                samples = {name: values[rows[key]] for name, values in columns.items()}
                found[key] = throttle_shares(samples, int(windows_ns[0, 0]), int(windows_ns[-1, 1]))
    return found


def _rows_by_device(columns: dict[str, np.ndarray]) -> dict[DeviceKey, np.ndarray]:
    """Return the row numbers of each device's samples."""
    found: dict[DeviceKey, list[int]] = {}
    for row, key in enumerate(zip(columns["node"].tolist(), columns["device"].tolist(), strict=True)):
        found.setdefault(key, []).append(row)
    return {key: np.array(numbers) for key, numbers in found.items()}


def _values(columns: dict[str, np.ndarray], name: str, rows: dict[DeviceKey, np.ndarray], key: DeviceKey) -> np.ndarray:
    """Return a device's values of samples in measured steps, without nulls."""
    if key not in rows:
        return np.array([])
    values: np.ndarray = columns[name][rows[key]].astype(float)
    return np.asarray(values[np.isfinite(values) & (columns["kind"][rows[key]] == "measured")])


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


def _host_power(
    manifest: Manifest, steps: RunSteps, columns: dict[str, np.ndarray], rows: dict[DeviceKey, np.ndarray]
) -> tuple[np.ndarray | None, str | None]:
    """Return the power of all nodes in each measured step, or why there is none."""
    total = np.zeros(len(steps.measured))
    for node in manifest.nodes:
        if node.node not in steps.windows_ns:
            continue
        samples = {name: values[rows.get((node.node, "host"), [])] for name, values in columns.items()}
        # Telemetry stands on the first node's clock, steps on their own node's.
        power_w = _power_of_node(samples, manifest.on_first_clock(node, steps.windows_ns[node.node]))
        if power_w is None:
            return None, _reason(manifest, "cpu_energy_j")
        total += power_w
    return total, None


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
