"""Reads power and temperature of every GPU from telemetry of runs, for `triplepoint calibrate --heat`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.plan import PlannedRun, read_planned_run
from triplepoint.errors import UserError
from triplepoint.simulate.heat.clocks import Bool
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.nodes import is_known, machine_of
from triplepoint.simulate.power.gpu import Float
from triplepoint.tables import TELEMETRY
from triplepoint.units import NS_PER_S

SETTLING_S = 240.0
"""Start of a recording that is left out of balance: four times the 60 s in which air and chassis follow. Unit: s."""
_LEAST_SAMPLES = 20
_NUM_TIMES = 200


@dataclass(frozen=True, eq=False)
class Observed:
    """Power and temperature of GPUs of a run; NaN where none was shown.

    Attributes:
        power_w: Mean power in balance; shape (num_nodes, num_devices); 0 where there was no GPU of the run. Unit: W.
        temp_c: Mean temperature in balance; same shape. Unit: degC.
        series_w: The run from its start; shape (num_times, num_nodes, num_devices). Unit: W.
        series_c: Temperatures of it; same shape. Unit: degC.
        period_s: Time between two of them. Unit: s.
        start_c: First temperatures shown; same shape as `temp_c`. None: those of the series. Unit: degC.
    """

    power_w: Float
    temp_c: Float
    series_w: Float
    series_c: Float
    period_s: float
    start_c: Float | None = None

    @property
    def first_c(self) -> Float:
        """First temperatures shown; shape (num_nodes, num_devices). Unit: degC."""
        return np.asarray(self.series_c[0] if self.start_c is None else self.start_c)

    @property
    def drift_k(self) -> float:
        """Change of the mean temperature from what is shown first to the second half of the run. Unit: K."""
        later_c = self.series_c[len(self.series_c) // 2 :]
        return abs(float(np.nanmean(later_c.mean(axis=0) - self.first_c)))


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs on one cluster.

    Attributes:
        cluster: The cluster.
        machine: What is known of it so far.
        observed: One of each run.
    """

    cluster: ClusterConfig
    machine: Machine
    observed: list[Observed]

    @property
    def is_seen(self) -> Bool:
        """Whether any run shows the temperature of a GPU; shape (num_nodes, num_devices)."""
        return np.asarray(np.any([np.isfinite(one.temp_c) for one in self.observed], axis=0))


def read_runs(folders: Sequence[Path], config: Path) -> Runs:
    """Return runs.

    Args:
        folders: `results/runs/<run>`, with `point.json` and `telemetry.parquet`.
        config: Folder of the configuration.

    Raises:
        UserError: If a file is missing, power or temperature was not measured, or runs are not of one cluster.
    """
    planned = [_planned(folder) for folder in folders]
    names = sorted({one.point.cluster.name for one in planned})
    if len(names) > 1:
        raise UserError(
            f"calibrate --heat: found runs on clusters {' and '.join(names)}; give runs of one cluster at a time"
        )
    catalogue = Catalogue(config)
    cluster = catalogue.cluster(names[0])
    gpu = catalogue.gpu_of(cluster)
    if gpu is None or not is_known(gpu, config) or gpu.gpus_per_package > 1 or cluster.conditions.coolant != "air":
        raise UserError(
            f"calibrate --heat: cluster {cluster.name} has no GPUs whose power and heat are described and that stand "
            "alone in air; triplepoint doctor --files says what a GPU type lacks"
        )
    shape = max(one.point.num_nodes for one in planned), cluster.gpus_per_node
    machine = machine_of(cluster.conditions.without_faults, gpu, shape, cluster.name, config)
    return Runs(cluster, machine, [_observe(folder, shape) for folder in folders])


def _planned(folder: Path) -> PlannedRun:
    path = folder / "point.json"
    if not path.is_file():
        raise UserError(f"{path}: no such file; name folders of runs, results/runs/<run>")
    return read_planned_run(path)


def _observe(folder: Path, shape: tuple[int, int]) -> Observed:
    path = folder / "telemetry.parquet"
    if not path.is_file():
        raise UserError(f"{path}: no such file; run the telemetry stage first: triplepoint telemetry {folder.name}")
    names = ("node", "device", "t_ns", "gpu_energy_j", "gpu_power_w", "gpu_temp_c")
    table = TELEMETRY.read(path).select(names)
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in names}
    start_s, end_s = (float(edge) / NS_PER_S for edge in (columns["t_ns"].min(), columns["t_ns"].max()))
    times_s = np.linspace(0.0, end_s - start_s, _NUM_TIMES + 1)
    series = np.full((2, _NUM_TIMES, *shape), np.nan)
    means, first_c = np.full((2, *shape), np.nan), np.full(shape, np.nan)
    for node in range(shape[0]):
        for gpu in range(shape[1]):
            own = (columns["node"] == node) & (columns["device"] == f"gpu{gpu}")
            if own.any():
                of_gpu = {name: columns[name][own].astype(float) for name in names[2:]}
                of_gpu["t_s"] = of_gpu["t_ns"] / NS_PER_S - start_s
                series[:, :, node, gpu], means[:, node, gpu] = _of_gpu(of_gpu, times_s)
                if np.isfinite(means[1, node, gpu]):
                    first_c[node, gpu] = of_gpu["gpu_temp_c"][np.isfinite(of_gpu["gpu_temp_c"])][0]
    if not np.isfinite(means).all(axis=0).any():
        raise UserError(
            f"{path}: no GPU has both power and temperature; heat cannot be fitted to this run; leave it out"
        )
    return Observed(np.nan_to_num(means[0]), means[1], series[0], series[1], float(times_s[1]), first_c)


def _of_gpu(columns: dict[str, Float], times_s: Float) -> tuple[Float, Float]:
    """Return power and temperature of a GPU over time, shape (2, num_times), and their means in balance, shape (2,)."""
    t_s, temp_c = columns["t_s"], columns["gpu_temp_c"]
    is_warm = np.isfinite(temp_c)
    if is_warm.sum() < _LEAST_SAMPLES:
        return np.full((2, len(times_s) - 1), np.nan), np.full(2, np.nan)
    counter = "gpu_energy_j" if np.isfinite(columns["gpu_energy_j"]).sum() >= _LEAST_SAMPLES else "gpu_power_w"
    is_known = np.isfinite(columns[counter])
    when_s, shown = t_s[is_known], columns[counter][is_known]
    # Energy so far: of the counter, or power times time.
    if counter == "gpu_power_w":
        shown = np.concatenate([[0.0], np.cumsum(np.diff(when_s) * (shown[1:] + shown[:-1]) / 2)])
    power_w = np.diff(np.interp(times_s, when_s, shown)) / np.diff(times_s)
    middle_s = (times_s[1:] + times_s[:-1]) / 2
    series = np.stack([power_w, np.interp(middle_s, t_s[is_warm], temp_c[is_warm])])
    first_s = SETTLING_S if (t_s[is_warm] > SETTLING_S).sum() >= _LEAST_SAMPLES else float(np.median(t_s[is_warm]))
    ends_s = np.array([first_s, when_s[-1]])
    mean_w = float(np.diff(np.interp(ends_s, when_s, shown))[0] / np.diff(ends_s)[0])
    settled = is_warm & (t_s >= first_s)
    return series, np.array([mean_w, temp_c[settled].mean()])
