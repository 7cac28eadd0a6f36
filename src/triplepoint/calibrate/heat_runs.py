"""Power and temperature of every GPU of a run, read from telemetry for `triplepoint calibrate --heat`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.plan import PlannedRun, read_planned_run
from triplepoint.errors import UserError
from triplepoint.power_sensor import AVERAGE_S
from triplepoint.simulate.heat.clocks import Bool
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.nodes import is_known, machine_of
from triplepoint.simulate.power.gpu import Float
from triplepoint.tables import TELEMETRY
from triplepoint.units import NS_PER_S

SETTLING_S = 240.0
"""Start of a recording that means in thermal balance leave out: four time constants of air and chassis. Unit: s."""
_LEAST_SAMPLES = 20
"""Samples that a mean or an energy counter needs."""
_NUM_TIMES = 200
"""Points of the time series that a run is resampled to."""
_POWERS_S = {"gpu_power_w": 0.0, "gpu_power_average_w": AVERAGE_S / 2}
"""Columns of power, and how far a reading lags behind the middle of what it averages. Unit: s."""


class SharedPackageError(UserError):
    """Dies of a package have thermal resistances that a run does not tell apart."""


@dataclass(frozen=True, eq=False)
class Observed:
    """Power and temperature of the GPUs of a run; NaN where a sensor reported nothing.

    Attributes:
        power_w: Mean power in thermal balance, 0 where the run had no GPU; shape (num_nodes, num_devices). Unit: W.
        temp_c: Mean temperature in thermal balance; shape (num_nodes, num_devices). Unit: degC.
        series_w: Power from the start of the run; shape (num_times, num_nodes, num_devices). Unit: W.
        series_c: Temperature over the same times; same shape. Unit: degC.
        period_s: Time between two points of the series. Unit: s.
        start_c: First temperatures reported; shape (num_nodes, num_devices). None: the first of the series. Unit: degC.
    """

    power_w: Float
    temp_c: Float
    series_w: Float
    series_c: Float
    period_s: float
    start_c: Float | None = None

    @property
    def first_c(self) -> Float:
        """First temperatures reported; shape (num_nodes, num_devices). Unit: degC."""
        return np.asarray(self.series_c[0] if self.start_c is None else self.start_c)

    @property
    def drift_k(self) -> float:
        """Change of the mean temperature from the first reading to the second half of the run. Unit: K."""
        later_c = self.series_c[len(self.series_c) // 2 :]
        return abs(float(np.nanmean(later_c.mean(axis=0) - self.first_c)))


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs on one cluster.

    Attributes:
        cluster: Configuration of the cluster.
        machine: Thermal model of the cluster before the fit.
        observed: Power and temperature of each run.
    """

    cluster: ClusterConfig
    machine: Machine
    observed: list[Observed]

    @property
    def is_airflow_known(self) -> bool:
        """Whether the file of the cluster names the order of GPUs in the air; else that of the GPU type is assumed."""
        return self.cluster.conditions.airflow is not None or self.cluster.chassis is not None

    @property
    def is_seen(self) -> Bool:
        """Whether any run has the temperature of a GPU; shape (num_nodes, num_devices)."""
        return np.asarray(np.any([np.isfinite(run.temp_c) for run in self.observed], axis=0))


def read_runs(folders: Sequence[Path], config: Path) -> Runs:
    """Read power and temperature of runs, and the thermal model of their cluster.

    Args:
        folders: Folders `results/runs/<run>` with `point.json` and `telemetry.parquet`.
        config: Folder of the configuration.

    Raises:
        SharedPackageError: If a package of the GPU type has several dies.
        UserError: If a file is missing, power or temperature was not measured, or runs are not of one cluster.
    """
    planned = [_read_plan(folder) for folder in folders]
    names = sorted({run.point.cluster.name for run in planned})
    if len(names) > 1:
        raise UserError(
            f"calibrate --heat: found runs on clusters {' and '.join(names)}; give runs of one cluster at a time"
        )
    catalogue = Catalogue(config)
    cluster = catalogue.cluster(names[0])
    gpu = catalogue.gpu_of(cluster)
    if gpu is not None and gpu.gpus_per_package > 1:
        raise SharedPackageError(
            f"calibrate --heat: cluster {cluster.name}: {gpu.gpus_per_package} dies of {gpu.name} share a package, and "
            "a run does not tell their thermal resistances apart"
        )
    if gpu is None or not is_known(gpu, config) or cluster.conditions.coolant != "air":
        raise UserError(
            f"calibrate --heat: cluster {cluster.name} has no GPUs whose power and heat are described and that stand "
            "alone in air; triplepoint doctor --files says what a GPU type lacks"
        )
    shape = max(run.point.num_nodes for run in planned), cluster.gpus_per_node
    machine = machine_of(cluster.conditions.without_faults, gpu, shape, cluster.name, config)
    return Runs(cluster, machine, [_observe(folder, shape) for folder in folders])


def _read_plan(folder: Path) -> PlannedRun:
    path = folder / "point.json"
    if not path.is_file():
        raise UserError(f"{path}: no such file; name folders of runs, results/runs/<run>")
    return read_planned_run(path)


def _observe(folder: Path, shape: tuple[int, int]) -> Observed:
    path = folder / "telemetry.parquet"
    if not path.is_file():
        raise UserError(f"{path}: no such file; run the telemetry stage first: triplepoint telemetry {folder.name}")
    names = ("node", "device", "t_ns", "gpu_energy_j", *_POWERS_S, "gpu_temp_c")
    table = TELEMETRY.read(path).select(names)
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in names}
    start_s, end_s = (float(edge) / NS_PER_S for edge in (columns["t_ns"].min(), columns["t_ns"].max()))
    times_s = np.linspace(0.0, end_s - start_s, _NUM_TIMES + 1)
    series = np.full((2, _NUM_TIMES, *shape), np.nan)
    means, first_c = np.full((2, *shape), np.nan), np.full(shape, np.nan)
    for node in range(shape[0]):
        for gpu in range(shape[1]):
            is_gpu = (columns["node"] == node) & (columns["device"] == f"gpu{gpu}")
            if is_gpu.any():
                samples = {name: columns[name][is_gpu].astype(float) for name in names[2:]}
                samples["t_s"] = samples["t_ns"] / NS_PER_S - start_s
                series[:, :, node, gpu], means[:, node, gpu] = _series_and_means(samples, times_s)
                if np.isfinite(means[1, node, gpu]):
                    first_c[node, gpu] = samples["gpu_temp_c"][np.isfinite(samples["gpu_temp_c"])][0]
    if not np.isfinite(means).all(axis=0).any():
        raise UserError(
            f"{path}: no GPU has both power and temperature; heat cannot be fitted to this run; leave it out"
        )
    return Observed(np.nan_to_num(means[0]), means[1], series[0], series[1], float(times_s[1]), first_c)


def _series_and_means(samples: dict[str, Float], times_s: Float) -> tuple[Float, Float]:
    """Return power and temperature of a GPU over time, shape (2, num_times), and their means in balance, shape (2,).

    Args:
        samples: Columns of telemetry of the GPU, and `t_s`, time since the start of the run.
        times_s: Edges of the intervals of the time series; shape (num_times + 1,). Unit: s.
    """
    t_s, temp_c = samples["t_s"], samples["gpu_temp_c"]
    has_temp = np.isfinite(temp_c)
    if has_temp.sum() < _LEAST_SAMPLES:
        return np.full((2, len(times_s) - 1), np.nan), np.full(2, np.nan)
    known_s, energy_j = _energy(samples)
    if not known_s.size:
        return np.full((2, len(times_s) - 1), np.nan), np.full(2, np.nan)
    power_w = np.diff(np.interp(times_s, known_s, energy_j)) / np.diff(times_s)
    middle_s = (times_s[1:] + times_s[:-1]) / 2
    series = np.stack([power_w, np.interp(middle_s, t_s[has_temp], temp_c[has_temp])])
    first_s = SETTLING_S if (t_s[has_temp] > SETTLING_S).sum() >= _LEAST_SAMPLES else float(np.median(t_s[has_temp]))
    ends_s = np.array([first_s, known_s[-1]])
    mean_w = float(np.diff(np.interp(ends_s, known_s, energy_j))[0] / np.diff(ends_s)[0])
    is_settled = has_temp & (t_s >= first_s)
    return series, np.array([mean_w, temp_c[is_settled].mean()])


def _energy(samples: dict[str, Float]) -> tuple[Float, Float]:
    """Return times (s) and energy since the first of them (J): of the counter, or power integrated; empty without both.

    The driver's average counts at the middle of its window of about a second. Means in thermal balance do not depend
    on that lag, and time constants of air and sinks are tens of times longer.
    """
    for name in ("gpu_energy_j", *_POWERS_S):
        is_known = np.isfinite(samples[name])
        if is_known.sum() >= _LEAST_SAMPLES:
            t_s, values = samples["t_s"][is_known], samples[name][is_known]
            if name == "gpu_energy_j":
                return t_s, values
            steps_j = np.diff(t_s) * (values[1:] + values[:-1]) / 2
            return t_s - _POWERS_S[name], np.concatenate([[0.0], np.cumsum(steps_j)])
    return np.empty(0), np.empty(0)
