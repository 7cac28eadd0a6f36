"""Learns the heat of a cluster from telemetry of runs: inlet, resistances, preheat and fans."""

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

_UNTOLD = 0.8
"""Share of its prior width above which a run is taken to say nothing of a number."""
_LEAST_GAP_K = 3.0
"""Gap between two rows from which they are told apart: positions of a row differ by 1 to 2 K (parts)."""
_DRIFT_K = 3.0
"""Change of a run's mean temperature from which it tells how fast air and sinks warm."""
_ROUNDS_OF_FANS = 3
"""Fans follow the power that temperatures at the start ask for; after these it changes by less than 1 %."""
_NOISE_OF_A_SAMPLE_K = 1.0
"""Of temperatures over time: whole degrees, and loads that change between samples. Neighbours are off together."""


@dataclass(frozen=True, eq=False)
class HeatOfCluster:
    """What runs say of the heat of a cluster.

    Attributes:
        conditions: Of the cluster, with what was learned of inlet and contacts.
        airflow: Of its nodes, with what was learned.
        prior: Values and standard deviations of `LEARNED` before.
        value: The same after.
        sigma: The same after.
        residual_k: Of every run, observed less fitted temperatures; shape (num_nodes, num_devices).
        held_out_k: Observed less predicted temperatures of nodes left out, each by a fit to the others; empty where
            there is one node.
        times: Names of time constants that were told.
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
        """Take the folders of runs, all on one cluster, and that of the configuration."""
        self.folders, self.config = list(folders), config

    def read(self) -> Runs:
        """Return the runs. Raises `UserError` if they have no telemetry, or are not of one cluster."""
        return read_runs(self.folders, self.config)

    def fit(self, measured: Runs) -> HeatOfCluster:
        """Return inlet, resistances, preheat and fans, with errors on nodes left out."""
        self.runs = measured
        return fit_heat_of(measured)

    def report(self, fitted: HeatOfCluster) -> list[str]:
        """Return every number before and after with its 90 % interval, what cannot be told, and errors left out."""
        return list(_report(self.runs, fitted))

    def files(self, fitted: HeatOfCluster) -> dict[Path, str]:
        """Return the airflow and the cluster, with other names than those they come from."""
        cluster, name = self.runs.cluster, f"{self.runs.cluster.name}-learned"
        said = f"# Learned from {', '.join(str(folder) for folder in self.folders)}.\n"
        airflow = fitted.airflow.model_copy(update={"name": name}).model_dump(exclude_none=True)
        own = {"name": name, "like": cluster.name}
        own |= {key: getattr(cluster, key) for key in ("device", "gpu", "num_nodes", "gpus_per_node", "executor")}
        conditions = fitted.conditions.model_copy(update={"airflow": name}).model_dump(exclude_defaults=True)
        content = {key: value for key, value in own.items() if value is not None} | {"conditions": conditions}
        return {
            self.config / "heat" / "airflow" / f"{name}.yaml": said + to_yaml(airflow, width=118, flow=None),
            self.config / "clusters" / f"{name}.yaml": said + to_yaml(content, width=118),
        }


def fit_heat_of(runs: Runs) -> HeatOfCluster:
    """Return what runs of one cluster say of its heat."""
    start = starting_machine(runs)
    at, covariance, prior = search(start, runs.observed)
    contact = np.exp(at[len(LEARNED) :]).reshape(start.shape)
    fitted = with_numbers(start, at)
    number = len(LEARNED)
    value, sigma = values_of(start, at), np.sqrt(np.diag(covariance)[:number])
    sigma[1:] *= value[1:]
    airflow, times = _timed(fitted, runs.observed)
    source = f"learned from {len(runs.observed)} runs on {runs.cluster.name}"
    return HeatOfCluster(
        conditions=runs.cluster.conditions.model_copy(update={
            "inlet_temp_c": rounded(float(value[0]), 3), "inlet_sigma_k": max(rounded(float(sigma[0]), 2), 0.05),
            "contact": {
                f"node{node}.gpu{gpu}": rounded(float(contact[node, gpu]), 4)
                for node, gpu in np.argwhere(runs.is_seen).tolist()
            },
        }),
        airflow=_written(airflow, value, sigma, _correlation(covariance[:number, :number]), source, times),
        prior=prior,
        value=value,
        sigma=sigma,
        residual_k=[one.temp_c - temperatures(fitted, one) for one in runs.observed],
        held_out_k=_held_out_k(start, runs.observed),
        times=times,
    )  # fmt: skip


def starting_machine(runs: Runs) -> Machine:
    """Return the cluster as it is known, parts equal, fans as those of an unknown node where none are described."""
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
    air = air.model_copy(update={"rows": rows_of(air, runs.observed), "correlation": None})
    ones = np.ones(runs.machine.shape)
    return replace(runs.machine, airflow=air, devices=Devices(ones, ones, runs.machine.devices.flow))


def rows_of(air: AirflowConfig, observed: Sequence[Observed]) -> list[list[int]]:
    """Return which GPUs stand behind which: in two rows, with the widest gap between mean temperatures of positions.

    Those of the airflow where the gap is small or a position was not seen.
    """
    mean_c = np.mean([np.nanmean(one.temp_c - np.nanmean(one.temp_c), axis=0) for one in observed], axis=0)
    if len(air.rows) != 2 or not np.isfinite(mean_c).all():
        return air.rows
    order = np.argsort(mean_c)
    # No row of one: that is a part with bad contact.
    gaps = np.diff(mean_c[order])[1:-1]
    if not gaps.size or gaps.max() < _LEAST_GAP_K:
        return air.rows
    at = int(gaps.argmax()) + 2
    return [sorted(order[:at].tolist()), sorted(order[at:].tolist())]


def _held_out_k(start: Machine, observed: Sequence[Observed]) -> Float:
    """Return observed less predicted temperatures of every node, by a fit to the other nodes."""
    found = []
    for node in range(start.shape[0] if start.shape[0] > 1 else 0):
        hidden = np.arange(start.shape[0])[:, None] == node
        at, _, _ = search(start, [replace(one, temp_c=np.where(hidden, np.nan, one.temp_c)) for one in observed])
        machine = with_numbers(start, at)
        found += [(one.temp_c - temperatures(machine, one))[node] for one in observed]
    away = np.concatenate(found) if found else np.empty(0)
    return away[np.isfinite(away)]


def _correlation(covariance: Float) -> Float:
    deviation = np.sqrt(np.diag(covariance))
    return np.asarray(np.clip(np.round(covariance / np.outer(deviation, deviation), 3), -1.0, 1.0))


def _timed(machine: Machine, observed: Sequence[Observed]) -> tuple[AirflowConfig, tuple[str, ...]]:
    """Return the airflow with the times of sinks and air where temperatures change within a run, and what was told."""
    air, cooling = machine.airflow, machine.cooled_by
    moving = [one for one in observed if one.drift_k >= _DRIFT_K]
    if not moving:
        return air, ()
    known = [cooling.sink_time, air.air_time]
    width = np.array([max(one.sigma / one.value, 0.5) for one in known])

    def timed(at: Float) -> AirflowConfig:
        sink, behind = (
            one.model_copy(update={"value": float(one.value * np.exp(move))})
            for one, move in zip(known, at, strict=True)
        )
        return air.model_copy(update={"sink_time": sink, "air_time": behind})

    def residuals(at: Float) -> Float:
        own = replace(machine, airflow=timed(at))
        away = [(one.series_c - follow(own, one)).reshape(-1) for one in moving]
        return np.concatenate([*(each[np.isfinite(each)] / _NOISE_OF_A_SAMPLE_K for each in away), at / width])

    found = least_squares(residuals, np.zeros(2))
    errors = np.concatenate(
        [(one.series_c - follow(replace(machine, airflow=timed(found.at)), one)).reshape(-1) for one in moving]
    )
    # Errors of neighbours in time and of GPUs of a node hang together: no more than one a minute and GPU counts.
    together = np.sqrt(max(1.0, 60.0 / moving[0].period_s)) * max(1.0, float(np.nanstd(errors)) / _NOISE_OF_A_SAMPLE_K)
    sigma = np.minimum(np.sqrt(np.diag(found.covariance)) * together, width)
    told = tuple(
        name for name, one, prior in zip(("sink_time", "air_time"), sigma, width, strict=True) if one < _UNTOLD * prior
    )
    moved = timed(found.at)
    update = {}
    for name, one in zip(("sink_time", "air_time"), sigma, strict=True):
        estimate: Estimate = getattr(moved, name)
        update[name] = estimate.model_copy(update={
            "value": rounded(estimate.value, 3), "sigma": rounded(float(one * estimate.value), 2),
            "source": f"learned from temperatures that change within {len(moving)} runs",
        })  # fmt: skip
    return air.model_copy(update={name: update[name] for name in told}), told


def follow(machine: Machine, one: Observed) -> Float:
    """Return temperatures over a run from those it begins at; shape (num_times, num_nodes, num_devices)."""
    step = propagator(machine.under_load(one.power_w).network, one.period_s)
    state, found = _first_state(machine, one), []
    for power_w in np.nan_to_num(one.series_w):
        state = step(state, power_w)
        found.append(state[:, : machine.shape[1]])
    return np.asarray(np.stack(found) + machine.inlet_c[:, None])


def _first_state(machine: Machine, one: Observed) -> Float:
    """Return the balance that a run begins from: at rest, or warm from a run before; shape (num_nodes, 3 num_devices).

    Its power is that whose balance has the temperatures first shown, not the power of the run.
    """
    num_devices = machine.shape[1]
    one_watt: Float = np.eye(num_devices, dtype=np.float64)[:, None, :] + np.zeros(machine.shape)
    power_w: Float = np.asarray(np.nan_to_num(one.series_w[0]), dtype=float)
    above_k = one.first_c - machine.inlet_c[:, None]
    for _ in range(_ROUNDS_OF_FANS):
        network = machine.under_load(power_w).network
        per_w = np.stack(
            [network.steady(each)[:, :num_devices] for each in one_watt],
            axis=-1,
        )
        shown_k = np.where(np.isfinite(above_k), above_k, network.steady(power_w)[:, :num_devices])
        balance_w: Float = np.asarray(np.linalg.solve(per_w, shown_k[..., None])[..., 0], dtype=np.float64)
        power_w = np.asarray(np.maximum(balance_w, 0.0), dtype=np.float64)
    # Below 0 where the inlet is taken as warmer than what was shown at rest: it still begins at what was shown.
    return machine.under_load(power_w).network.steady(balance_w)


def _written(
    air: AirflowConfig, value: Float, sigma: Float, correlation: Float, source: str, times: Sequence[str]
) -> AirflowConfig:
    """Return an airflow with numbers as files have them."""
    assert air.fans is not None
    units = ("degC", "K/W", "K/W", "K/W", "W", "1")
    known = {
        name: Estimate(
            value=rounded(float(value[k]), 4), unit=units[k], sigma=rounded(float(sigma[k]), 2), source=source
        )
        for k, name in enumerate(LEARNED)
    }
    return air.model_copy(update={
        **{name: known[name] for name in ("die_resistance", "sink_resistance", "preheat")},
        "fans": FanConfig(full_power=known["full_power"], least_flow=known["least_flow"]),
        "correlation": {name: correlation[k].tolist() for k, name in enumerate(LEARNED)},
    })  # fmt: skip


def _report(runs: Runs, fitted: HeatOfCluster) -> list[str]:
    lines = []
    for k, name in enumerate(LEARNED):
        before, width = fitted.prior[0][k], fitted.prior[1][k]
        value, sigma = fitted.value[k], fitted.sigma[k]
        unit = "degC" if k == 0 else getattr(fitted.airflow, name, None) and getattr(fitted.airflow, name).unit
        unit = unit or {"full_power": "W", "least_flow": "of full flow"}[name]
        told = "" if sigma < _UNTOLD * width else "; hardly told by these runs, its width is kept"
        lines.append(
            f"{name}: {before:.4g} -> {value:.4g} {unit}, {COVERAGE:.0%} {value - Z90 * sigma:.4g} to "
            f"{value + Z90 * sigma:.4g}{told}"
        )
    loads = sorted(float(np.nanmean(one.power_w)) for one in runs.observed)
    if loads[-1] < 1.3 * loads[0]:
        lines.append(
            f"loads of {loads[0]:.0f} to {loads[-1]:.0f} W are too near to tell inlet, resistances and fans apart: "
            "temperatures near that load are known better than each number; add a run at half or twice the load"
        )
    if not fitted.times:
        most_k = max(one.drift_k for one in runs.observed)
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
    away = np.concatenate([one[np.isfinite(one)] for one in fitted.residual_k])
    lines.append(f"temperatures fitted: mean error {np.abs(away).mean():.2f} K")
    lines.append(
        f"temperatures of nodes left out of the fit: mean error {np.abs(fitted.held_out_k).mean():.2f} K, parts unknown"
        if fitted.held_out_k.size
        else "no node could be left out: there is one"
    )
    return lines
