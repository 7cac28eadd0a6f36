"""Fit of a cluster's thermal parameters to telemetry of runs: inlet, resistances, preheat, fans and contacts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from triplepoint.calibrate.heat_runs import Observed, Runs, read_runs
from triplepoint.calibrate.heat_search import search, temperatures, values_of, with_numbers
from triplepoint.calibrate.protocol import COVERAGE, least_squares, rounded, to_yaml
from triplepoint.config.cluster import ConditionsConfig
from triplepoint.metrics import Z90
from triplepoint.simulate.heat.devices import Devices
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.network import propagator
from triplepoint.simulate.heat.parameters import LEARNED, AirflowConfig, FanConfig
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.power.parameters import Estimate
from triplepoint.text import percent

_UNINFORMED = 0.8
"""Standard deviation after the fit over that of the prior, above which runs do not determine a parameter."""
LEAST_GAP_K = 3.0
"""Least temperature gap between two rows of GPUs: positions within a row differ by 1 to 2 K, from part to part."""
_DRIFT_K = 3.0
"""Least change of a run's mean temperature that determines time constants of air and sinks."""
_FAN_ITERATIONS = 3
"""Iterations between fan speed and power at the start; after these, power changes by less than 1 %."""
_SAMPLE_NOISE_K = 1.0
"""Error of a sampled temperature: whole degrees, and loads that change between samples. Neighbours have like errors."""


@dataclass(frozen=True, eq=False)
class HeatOfCluster:
    """Thermal parameters of a cluster, fitted to runs.

    Attributes:
        conditions: Conditions of the cluster, with the fitted inlet and contacts.
        airflow: Airflow of its nodes, with the fitted parameters.
        prior: Values and standard deviations of `LEARNED` before the fit.
        value: Values of `LEARNED` after the fit.
        sigma: Standard deviations of `LEARNED` after the fit.
        residual_k: Observed less fitted temperatures of every run; shape (num_nodes, num_devices). Unit: K.
        held_out_k: Observed less predicted temperatures of every node, by a fit to the other nodes; empty where there
            is one node. Unit: K.
        times: Names of the time constants that the runs determine.
    """

    conditions: ConditionsConfig
    airflow: AirflowConfig
    prior: tuple[Float, Float]
    value: Float
    sigma: Float
    residual_k: list[Float]
    held_out_k: Float
    times: tuple[str, ...]


class ChassisHeat:
    """The procedure: see `calibrate.protocol`."""

    def __init__(self, folders: Sequence[Path], config: Path) -> None:
        """Prepare a fit.

        Args:
            folders: Folders of runs, all on one cluster.
            config: Folder of the configuration.
        """
        self.folders, self.config = list(folders), config

    def read(self) -> Runs:
        """Return the runs. Raises `UserError` if they have no telemetry, or are not of one cluster."""
        return read_runs(self.folders, self.config)

    def fit(self, measured: Runs) -> HeatOfCluster:
        """Return inlet, resistances, preheat and fans, with errors of nodes held out."""
        self.runs = measured
        return fit_heat_of(measured)

    def report(self, fitted: HeatOfCluster) -> list[str]:
        """Return every parameter before and after with its 90 % interval, and the held-out errors."""
        return _report(self.runs, fitted)

    def files(self, fitted: HeatOfCluster) -> dict[Path, str]:
        """Return the files of a new airflow and a new cluster, both named `<cluster>-learned`."""
        cluster, name = self.runs.cluster, f"{self.runs.cluster.name}-learned"
        header = f"# Learned from {', '.join(str(folder) for folder in self.folders)}.\n"
        airflow = fitted.airflow.model_copy(update={"name": name}).model_dump(exclude_none=True)
        keys = {"name": name, "like": cluster.name}
        keys |= {key: getattr(cluster, key) for key in ("device", "gpu", "num_nodes", "gpus_per_node", "executor")}
        conditions = fitted.conditions.model_copy(update={"airflow": name}).model_dump(exclude_defaults=True)
        content = {key: value for key, value in keys.items() if value is not None} | {"conditions": conditions}
        return {
            self.config / "heat" / "airflow" / f"{name}.yaml": header + to_yaml(airflow, width=118, flow=None),
            self.config / "clusters" / f"{name}.yaml": header + to_yaml(content, width=118),
        }


def fit_heat_of(runs: Runs) -> HeatOfCluster:
    """Fit the thermal parameters of a cluster to its runs."""
    start = starting_machine(runs)
    at, covariance, prior = search(start, runs.observed)
    contact = np.exp(at[len(LEARNED) :]).reshape(start.shape)
    fitted = with_numbers(start, at)
    number = len(LEARNED)
    value, sigma = values_of(start, at), np.sqrt(np.diag(covariance)[:number])
    sigma[1:] *= value[1:]
    airflow, times = _fit_time_constants(fitted, runs.observed)
    source = f"learned from {len(runs.observed)} runs on {runs.cluster.name}"
    return HeatOfCluster(
        conditions=runs.cluster.conditions.model_copy(update={
            "inlet_temp_c": rounded(float(value[0]), 3), "inlet_sigma_k": max(rounded(float(sigma[0]), 2), 0.05),
            "contact": {
                f"node{node}.gpu{gpu}": rounded(float(contact[node, gpu]), 4)
                for node, gpu in np.argwhere(runs.is_seen).tolist()
            },
        }),
        airflow=_rounded_airflow(airflow, value, sigma, _correlation(covariance[:number, :number]), source),
        prior=prior,
        value=value,
        sigma=sigma,
        residual_k=[run.temp_c - temperatures(fitted, run) for run in runs.observed],
        held_out_k=_held_out_k(start, runs.observed),
        times=times,
    )  # fmt: skip


def starting_machine(runs: Runs) -> Machine:
    """Return the thermal model before the fit: equal parts, and wide assumptions for fans where none are described."""
    air = runs.machine.airflow
    if air.fans is None:
        limit_w = float(runs.machine.power.power_limit.value)
        fans = FanConfig(
            full_power=Estimate(value=limit_w, unit="W", sigma=0.15 * limit_w, source="assumption: the power limit"),
            least_flow=Estimate(
                value=0.6, unit="1", sigma=0.3, source="assumption: between the known nodes, 0.2 and 1"
            ),
        )
        air = air.model_copy(update={"fans": fans})
    rows = air.rows if runs.is_airflow_known else guess_rows(air, runs.observed)
    air = air.model_copy(update={"rows": rows, "correlation": None})
    ones = np.ones(runs.machine.shape)
    return replace(runs.machine, airflow=air, devices=Devices(ones, ones, runs.machine.devices.flow))


def guess_rows(air: AirflowConfig, observed: Sequence[Observed]) -> list[list[int]]:
    """Return the GPUs of the front and the rear row, by temperature: as many in front as in the airflow.

    The temperature of a position is that in the node in which it is lowest against the median of the node: bad contact
    makes a GPU hotter, and rarely the same position of all nodes. The rows of the airflow are kept where the gap
    between both rows would be small, or a position has no temperature.
    """
    lowest_c = np.mean([np.fmin.reduce(run.temp_c - _median_of_nodes(run.temp_c)) for run in observed], axis=0)
    if len(air.rows) != 2 or not np.isfinite(lowest_c).all():
        return air.rows
    order, num_front = np.argsort(lowest_c), len(air.rows[0])
    # A gap at another place would be a part with bad contact.
    if lowest_c[order[num_front]] - lowest_c[order[num_front - 1]] < LEAST_GAP_K:
        return air.rows
    return [sorted(order[:num_front].tolist()), sorted(order[num_front:].tolist())]


def _median_of_nodes(temp_c: Float) -> Float:
    """Return the median temperature of each node with any; shape (num_nodes, 1). Unit: degC."""
    known_c = [of_node[np.isfinite(of_node)] for of_node in temp_c]
    return np.array([float(np.median(of_node)) if of_node.size else np.nan for of_node in known_c])[:, None]


def _held_out_k(start: Machine, observed: Sequence[Observed]) -> Float:
    """Return observed less predicted temperatures of every node, by a fit to the other nodes."""
    residuals_k = []
    for node in range(start.shape[0] if start.shape[0] > 1 else 0):
        is_hidden = np.arange(start.shape[0])[:, None] == node
        at, _, _ = search(start, [replace(run, temp_c=np.where(is_hidden, np.nan, run.temp_c)) for run in observed])
        machine = with_numbers(start, at)
        residuals_k += [(run.temp_c - temperatures(machine, run))[node] for run in observed]
    all_k = np.concatenate(residuals_k) if residuals_k else np.empty(0)
    return all_k[np.isfinite(all_k)]


def _correlation(covariance: Float) -> Float:
    deviation = np.sqrt(np.diag(covariance))
    return np.asarray(np.clip(np.round(covariance / np.outer(deviation, deviation), 3), -1.0, 1.0))


def _fit_time_constants(machine: Machine, observed: Sequence[Observed]) -> tuple[AirflowConfig, tuple[str, ...]]:
    """Fit time constants of sinks and air to runs whose temperatures change.

    Returns:
        The airflow with the time constants that the runs determine, and the names of these.
    """
    air, cooling = machine.airflow, machine.cooled_by
    drifting = [run for run in observed if run.drift_k >= _DRIFT_K]
    if not drifting:
        return air, ()
    known = [cooling.sink_time, air.air_time]
    width = np.array([max(estimate.sigma / estimate.value, 0.5) for estimate in known])

    def with_times(at: Float) -> AirflowConfig:
        sink_time, air_time = (
            estimate.model_copy(update={"value": float(estimate.value * np.exp(log_ratio))})
            for estimate, log_ratio in zip(known, at, strict=True)
        )
        return air.model_copy(update={"sink_time": sink_time, "air_time": air_time})

    def errors_k(at: Float) -> Float:
        timed = replace(machine, airflow=with_times(at))
        return np.concatenate([(run.series_c - follow(timed, run)).reshape(-1) for run in drifting])

    def residuals(at: Float) -> Float:
        errors = errors_k(at)
        return np.concatenate([errors[np.isfinite(errors)] / _SAMPLE_NOISE_K, at / width])

    optimum = least_squares(residuals, np.zeros(2))
    # Errors correlate in time and between the GPUs of a node: at most one sample per minute and GPU counts.
    noise = max(1.0, float(np.nanstd(errors_k(optimum.at))) / _SAMPLE_NOISE_K)
    widening = np.sqrt(max(1.0, 60.0 / drifting[0].period_s)) * noise
    sigmas = np.minimum(np.sqrt(np.diag(optimum.covariance)) * widening, width)
    fitted = with_times(optimum.at)
    update = {}
    for name, sigma, prior in zip(("sink_time", "air_time"), sigmas, width, strict=True):
        if sigma >= _UNINFORMED * prior:
            continue
        estimate: Estimate = getattr(fitted, name)
        update[name] = estimate.model_copy(update={
            "value": rounded(estimate.value, 3), "sigma": rounded(float(sigma * estimate.value), 2),
            "source": f"learned from temperatures that change within {len(drifting)} runs",
        })  # fmt: skip
    return air.model_copy(update=update), tuple(update)


def follow(machine: Machine, run: Observed) -> Float:
    """Simulate the temperatures of a run from its first ones; shape (num_times, num_nodes, num_devices). Unit: degC."""
    step = propagator(machine.under_load(run.power_w).network, run.period_s)
    state, rises_k = _first_state(machine, run), []
    for power_w in np.nan_to_num(run.series_w):
        state = step(state, power_w)
        rises_k.append(state[:, : machine.shape[1]])
    return np.asarray(np.stack(rises_k) + machine.inlet_c[:, None])


def _first_state(machine: Machine, run: Observed) -> Float:
    """Return the balance that a run starts from, at rest or warm from another run; shape (num_nodes, 3 num_devices).

    The power of that balance follows from the first temperatures reported, not from the power of the run.
    """
    num_devices = machine.shape[1]
    unit_loads: Float = np.eye(num_devices, dtype=np.float64)[:, None, :] + np.zeros(machine.shape)
    power_w: Float = np.asarray(np.nan_to_num(run.series_w[0]), dtype=float)
    reported_k = run.first_c - machine.inlet_c[:, None]
    for _ in range(_FAN_ITERATIONS):
        network = machine.under_load(power_w).network
        k_per_w = np.stack([network.steady(load_w)[:, :num_devices] for load_w in unit_loads], axis=-1)
        rise_k = np.where(np.isfinite(reported_k), reported_k, network.steady(power_w)[:, :num_devices])
        balance_w: Float = np.asarray(np.linalg.solve(k_per_w, rise_k[..., None])[..., 0], dtype=np.float64)
        power_w = np.asarray(np.maximum(balance_w, 0.0), dtype=np.float64)
    # Power below 0 means an assumed inlet above the temperature at rest; the state still has the reported temperatures.
    return machine.under_load(power_w).network.steady(balance_w)


def _rounded_airflow(air: AirflowConfig, value: Float, sigma: Float, correlation: Float, source: str) -> AirflowConfig:
    """Return the airflow with the fitted parameters, rounded as in its file."""
    assert air.fans is not None
    units = ("degC", "K/W", "K/W", "K/W", "W", "1")
    fitted = {
        name: Estimate(
            value=rounded(float(value[k]), 4), unit=units[k], sigma=rounded(float(sigma[k]), 2), source=source
        )
        for k, name in enumerate(LEARNED)
    }
    return air.model_copy(update={
        **{name: fitted[name] for name in ("die_resistance", "sink_resistance", "preheat")},
        "fans": FanConfig(full_power=fitted["full_power"], least_flow=fitted["least_flow"]),
        "correlation": {name: correlation[k].tolist() for k, name in enumerate(LEARNED)},
    })  # fmt: skip


def _report(runs: Runs, fitted: HeatOfCluster) -> list[str]:
    lines = []
    for k, name in enumerate(LEARNED):
        before, width = fitted.prior[0][k], fitted.prior[1][k]
        value, sigma = fitted.value[k], fitted.sigma[k]
        unit = "degC" if k == 0 else getattr(fitted.airflow, name, None) and getattr(fitted.airflow, name).unit
        unit = unit or {"full_power": "W", "least_flow": "of full flow"}[name]
        remark = "" if sigma < _UNINFORMED * width else "; hardly told by these runs, its width is kept"
        lines.append(
            f"{name}: {before:.4g} -> {value:.4g} {unit}, {percent(COVERAGE, 0)} {value - Z90 * sigma:.4g} to "
            f"{value + Z90 * sigma:.4g}{remark}"
        )
    loads = sorted(float(np.nanmean(run.power_w)) for run in runs.observed)
    if loads[-1] < 1.3 * loads[0]:
        lines.append(
            f"loads of {loads[0]:.0f} to {loads[-1]:.0f} W are too near to tell inlet, resistances and fans apart: "
            "temperatures near that load are known better than each number; add a run at half or twice the load"
        )
    if not fitted.times:
        most_k = max(run.drift_k for run in runs.observed)
        lines.append(
            f"time constants: cannot be told, temperatures change by less than {_DRIFT_K:g} K within the runs"
            if most_k < _DRIFT_K
            else f"time constants: hardly told by runs in which temperatures change by up to {most_k:.0f} K; those "
            "known before are kept"
        )
    lines += [
        f"{name}: {getattr(fitted.airflow, name).value:g} +- {getattr(fitted.airflow, name).sigma:g} s"
        for name in fitted.times
    ]
    contacts = list(fitted.conditions.contact.values())
    lines.append(f"contact of {len(contacts)} GPUs: {min(contacts):.2f} to {max(contacts):.2f} of the usual resistance")
    residuals_k = np.concatenate([residual_k[np.isfinite(residual_k)] for residual_k in fitted.residual_k])
    lines.append(f"temperatures fitted: mean error {np.abs(residuals_k).mean():.2f} K")
    lines.append(
        f"temperatures of nodes left out of the fit: mean error {np.abs(fitted.held_out_k).mean():.2f} K, parts unknown"
        if fitted.held_out_k.size
        else "no node could be left out: there is one"
    )
    return lines
