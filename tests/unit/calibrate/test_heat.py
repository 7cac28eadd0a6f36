"""Heat of a cluster learned from runs: made-up clusters of known truth, by the model and by simulated runs."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.simulate.test_heated import planned
from triplepoint.calibrate.heat import ChassisHeat, fit_heat_of, follow
from triplepoint.calibrate.heat_runs import Observed, Runs, read_runs
from triplepoint.calibrate.heat_search import BETWEEN, INLET_K, known_of, search, temperatures, values_of, with_numbers
from triplepoint.calibrate.protocol import calibrate
from triplepoint.config.catalogue import Catalogue
from triplepoint.errors import UserError
from triplepoint.files import write_text
from triplepoint.simulate.artefacts.simulate_run import job_of, simulate_run
from triplepoint.simulate.heat.devices import equal_devices
from triplepoint.simulate.heat.machine import Machine
from triplepoint.simulate.heat.network import propagator
from triplepoint.simulate.heat.nodes import machine_of
from triplepoint.simulate.heat.parameters import LEARNED
from triplepoint.simulate.power.gpu import Float
from triplepoint.simulate.predict.prediction import predict_job
from triplepoint.telemetry.align import align_run

CONFIG = Path(__file__).parents[3] / "config"
CLUSTER = "h200x32"
_Z90 = 1.645


def known_machine(num_nodes: int) -> Machine:
    catalogue = Catalogue(CONFIG)
    cluster = catalogue.cluster(CLUSTER)
    gpu = catalogue.gpu_of(cluster)
    assert gpu is not None
    machine = machine_of(cluster.conditions, gpu, (num_nodes, 8), CLUSTER, CONFIG)
    return replace(machine, devices=equal_devices(num_nodes, 8))


def widths(machine: Machine) -> Float:
    own = [max(one.sigma / one.value, BETWEEN[name]) for name, one in zip(LEARNED[1:], known_of(machine), strict=True)]
    return np.array([max(machine.inlet_sigma_k, INLET_K), *own])


def steady(power_w: Float, temp_c: Float) -> Observed:
    return Observed(power_w, temp_c, power_w[None], temp_c[None], 1.0)


def drawn(seed: int, loads_w: list[float], num_nodes: int = 2) -> tuple[Runs, Machine]:
    """Return what sensors show of a cluster that differs from what is known as clusters do, and the cluster."""
    random, start = np.random.default_rng(seed), known_machine(num_nodes)
    contacts = start.heat.resistance_spread.value * random.normal(size=8 * num_nodes)
    truth = with_numbers(start, np.concatenate([random.normal(size=len(LEARNED)) * widths(start), contacts]))
    observed = []
    for load_w in loads_w:
        power_w = load_w * np.exp(0.03 * random.normal(size=start.shape))
        shown_c = temperatures(truth, steady(power_w, power_w)) + 0.25 * random.normal(size=start.shape)
        observed.append(steady(power_w, shown_c))
    return Runs(Catalogue(CONFIG).cluster(CLUSTER), start, observed), truth


def truth_of(start: Machine, machine: Machine) -> Float:
    values = [machine.inlet_c[0], *(one.value for one in known_of(machine))]
    return np.array(values)


@pytest.mark.parametrize("loads_w", [[620.0], pytest.param([300.0, 620.0], marks=pytest.mark.long)])
def test_intervals_hold_the_truth_of_20_clusters(loads_w: list[float]) -> None:
    """90 % intervals of six numbers each; and of temperatures at another load, which all numbers together give."""
    is_inside = []
    for seed in range(100, 120):
        runs, truth = drawn(seed, loads_w)
        at, covariance, _ = search(runs.machine, runs.observed)
        before = values_of(runs.machine, np.zeros(len(at)))
        true = truth_of(runs.machine, truth)
        away = np.concatenate([[true[0] - before[0]], np.log(true[1:] / before[1:])]) - at[: len(LEARNED)]
        is_inside.append(np.abs(away) <= _Z90 * np.sqrt(np.diag(covariance)))
    assert 0.85 <= np.mean(is_inside) <= 0.95


def test_more_loads_tell_more_and_one_says_what_it_cannot() -> None:
    one, two = (drawn(7, loads_w)[0] for loads_w in ([620.0], [250.0, 620.0]))
    fitted = [fit_heat_of(runs) for runs in (one, two)]
    assert (fitted[1].sigma[:2] < fitted[0].sigma[:2]).all(), "inlet and die; preheat hangs on the flow"
    procedure = ChassisHeat([], CONFIG)
    procedure.runs = one
    said = "\n".join(procedure.report(fitted[0]))
    assert (
        "least_flow" in said
        and "hardly told by these runs, its width is kept" in said
        and "are too near to tell" in said
    )
    assert fitted[0].sigma[5] > 0.8 * fitted[0].prior[1][5], "flow at rest keeps its width"


def test_bad_contact_is_found_and_does_not_move_the_others() -> None:
    runs, truth = drawn(3, [300.0, 500.0])
    die = truth.devices.die.copy()
    die[1, 6] = 5.0
    truth = replace(truth, devices=replace(truth.devices, die=die))
    observed = [steady(one.power_w, temperatures(truth, one)) for one in runs.observed]
    fitted = fit_heat_of(replace(runs, observed=observed))
    contact = fitted.conditions.contact
    assert contact["node1.gpu6"] == pytest.approx(5.0, rel=0.1)
    others = [value / die[int(name[4]), int(name[9])] for name, value in contact.items() if name != "node1.gpu6"]
    assert np.abs(np.array(others) - 1.0).max() < 0.08


def test_rows_turned_around_are_learned() -> None:
    runs, truth = drawn(5, [600.0])
    turned = truth.airflow.model_copy(update={"rows": truth.airflow.rows[::-1]})
    (one,) = runs.observed
    observed = [steady(one.power_w, temperatures(replace(truth, airflow=turned), one))]
    runs = replace(runs, observed=observed)
    assert fit_heat_of(without_airflow(runs)).airflow.rows == truth.airflow.rows[::-1]
    assert fit_heat_of(runs).airflow.rows == truth.airflow.rows, "the cluster file names the airflow"


def without_airflow(runs: Runs) -> Runs:
    """Return the runs of a cluster whose file does not name the order of GPUs in the air."""
    conditions = runs.cluster.conditions.model_copy(update={"airflow": None})
    return replace(runs, cluster=runs.cluster.model_copy(update={"conditions": conditions}))


@pytest.mark.parametrize("is_known", [True, False])
def test_moderate_bad_contact_of_a_front_gpu_does_not_move_it_to_the_rear_row(is_known: bool) -> None:
    """With 1.8 times the resistance it is as hot as the rear row; in the other node its position is not."""
    runs, truth = drawn(3, [450.0])
    die = np.ones(truth.shape)
    die[0, 6], die[1, 2] = 4.5, 1.8
    truth = replace(truth, devices=replace(truth.devices, die=die))
    (one,) = runs.observed
    power_w = one.power_w.copy()
    power_w[0, 6] = 240.0  # heat holds its clock
    runs = replace(runs, observed=[steady(power_w, temperatures(truth, steady(power_w, power_w)))])
    runs = runs if is_known else without_airflow(runs)
    fitted = fit_heat_of(runs)
    assert fitted.airflow.rows == truth.airflow.rows
    assert fitted.conditions.contact["node1.gpu2"] == pytest.approx(1.8, rel=0.1)
    others = [value for name, value in fitted.conditions.contact.items() if name not in ("node0.gpu6", "node1.gpu2")]
    assert np.abs(np.array(others) - 1.0).max() < 0.1


def test_time_constants_from_a_run_that_warms_up() -> None:
    runs, truth = drawn(11, [600.0], 1)
    air_time = truth.airflow.air_time.model_copy(update={"value": 110.0})
    truth = replace(truth, airflow=truth.airflow.model_copy(update={"air_time": air_time}))
    (one,), period_s, num_times = runs.observed, 5.0, 200
    power_w = np.where(np.arange(num_times)[:, None, None] < 2, 75.0, one.power_w)
    loaded = truth.under_load(one.power_w)
    state, step, shown = loaded.network.steady(power_w[0]), propagator(loaded.network, period_s), []
    for now_w in power_w:
        state = step(state, now_w)
        shown.append(np.rint(state[:, :8] + truth.inlet_c[:, None]))
    warming = replace(one, series_w=power_w, series_c=np.stack(shown), period_s=period_s)
    fitted = fit_heat_of(replace(runs, observed=[warming]))
    assert "air_time" in fitted.times
    assert abs(fitted.airflow.air_time.value - 110.0) < 3 * fitted.airflow.air_time.sigma < 60.0
    assert not fit_heat_of(runs).times, "warm from its start"


def warming_up(truth: Machine, power_w: Float, num_times: int, period_s: float) -> Observed:
    """Return a run on nodes that were at rest: from its first sample on at full power."""
    at_rest = np.full(truth.shape, 75.0)
    state = truth.under_load(at_rest).network.steady(at_rest)
    start_c = state[:, : truth.shape[1]] + truth.inlet_c[:, None]
    step, shown = propagator(truth.under_load(power_w).network, period_s), []
    for _ in range(num_times):
        state = step(state, power_w)
        shown.append(state[:, : truth.shape[1]] + truth.inlet_c[:, None])
    series_w = np.broadcast_to(power_w, (num_times, *power_w.shape)).copy()
    return Observed(power_w, shown[-1], series_w, np.rint(np.stack(shown)), period_s, np.rint(start_c))


def test_a_run_from_rest_is_followed_from_rest() -> None:
    machine = known_machine(1)
    one = warming_up(machine, np.full(machine.shape, 600.0), 120, 5.0)
    found_c = follow(machine, one)
    assert np.abs(found_c - one.series_c).mean() < 0.6, "whole degrees"
    assert one.series_c[-1].mean() - one.first_c.mean() > 20


def test_time_constants_from_a_run_from_rest() -> None:
    runs, truth = drawn(11, [600.0], 1)
    air_time = truth.airflow.air_time.model_copy(update={"value": 110.0})
    truth = replace(truth, airflow=truth.airflow.model_copy(update={"air_time": air_time}))
    warming = warming_up(truth, runs.observed[0].power_w, 200, 5.0)
    fitted = fit_heat_of(replace(runs, observed=[replace(warming, temp_c=runs.observed[0].temp_c)]))
    assert "air_time" in fitted.times
    assert abs(fitted.airflow.air_time.value - 110.0) < 3 * fitted.airflow.air_time.sigma


def test_report_says_how_far_temperatures_changed_where_times_are_not_told() -> None:
    runs, truth = drawn(11, [600.0], 1)
    fitted = fit_heat_of(runs)
    short = warming_up(truth, runs.observed[0].power_w, 20, 0.5)
    assert short.drift_k > 3 > runs.observed[0].drift_k
    procedure = ChassisHeat([], CONFIG)
    for observed, words in ((runs.observed, "change by less than 3 K"), ([short], "change by up to ")):
        procedure.runs = replace(runs, observed=observed)
        (line,) = [line for line in procedure.report(fitted) if line.startswith("time constants")]
        assert words in line


@pytest.fixture(scope="module")
def hot_cluster(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Path]]:
    """A configuration whose h200x32 is another one than the truth, and folders of runs simulated on the truth."""
    folder = tmp_path_factory.mktemp("heat")
    truth, known = (shutil.copytree(CONFIG, folder / name) for name in ("truth", "known"))
    for path, old, new in (
        (truth / "clusters" / f"{CLUSTER}.yaml", "inlet_temp_c: 2", "inlet_temp_c: 3"),
        (truth / "heat" / "airflow" / "hgx-8-fans.yaml", "value: 0.0172", "value: 0.0140"),
    ):
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    runs = []
    for name in ("gpt3-175b_h200x32_tp2-pp16-dp1-sp_mbs1_act_sim", "gpt3-175b_h200x32_tp1-pp32-dp1_mbs8_act_sim"):
        run = planned(name)
        where = folder / "results" / "runs" / run.run
        write_text(where / "point.json", run.model_dump_json())
        simulate_run(run, where / "raw", truth)
        align_run(where / "raw", where / "telemetry.parquet")
        runs.append(where)
    return folder, runs


def test_another_job_is_predicted_within_its_interval(hot_cluster: tuple[Path, list[Path]]) -> None:
    """Two runs are learned from; the temperature of a third layout is predicted for both clusters."""
    folder, runs = hot_cluster
    said = calibrate(ChassisHeat(runs, folder / "known"))
    assert any(line.startswith("temperatures of nodes left out") for line in said)
    point = planned("gpt3-175b_h200x32_tp4-pp8-dp1-sp_mbs2_act_sim").point
    found = {}
    for name, cluster in (("truth", CLUSTER), ("known", CLUSTER), ("known", f"{CLUSTER}-learned")):
        catalogue = Catalogue(folder / name)
        job = job_of(point, catalogue)
        found[name, cluster] = predict_job(job, None, folder / name, catalogue.cluster(cluster)).power
    true, before, learned = found.values()
    assert learned.gpu_temp_lo_c <= true.gpu_temp_c <= learned.gpu_temp_hi_c
    assert learned.gpu_temp_max_lo_c <= true.gpu_temp_max_c <= learned.gpu_temp_max_hi_c
    assert abs(learned.gpu_temp_c - true.gpu_temp_c) < 0.5 < 5.0 < abs(before.gpu_temp_c - true.gpu_temp_c)
    assert learned.gpu_temp_hi_c - learned.gpu_temp_lo_c < before.gpu_temp_hi_c - before.gpu_temp_lo_c


def with_power(run: Path, folder: Path, columns: dict[str, str | None]) -> Path:
    """Return a copy of a run in which columns of power are others, or empty."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("raw"))
    table = pq.read_table(folder / "telemetry.parquet")
    for name, source in columns.items():
        at = table.column_names.index(name)
        column = table[source].cast("float64") if source else pa.nulls(len(table))
        table = table.set_column(at, table.schema.field(at), column.cast(table.schema.field(at).type))
    pq.write_table(table, folder / "telemetry.parquet")
    return folder


def test_read_runs_takes_the_average_power_where_it_is_all_there_is(
    hot_cluster: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    """As of `nvidia-smi --query-gpu=power.draw`; the counter of the same simulated run has the true mean power."""
    run = hot_cluster[1][0]
    own = with_power(run, tmp_path / "own", {"gpu_energy_j": None, "gpu_power_w": None})
    true, found = (read_runs([folder], CONFIG).observed[0] for folder in (run, own))
    assert found.power_w == pytest.approx(true.power_w, rel=0.01)
    assert np.isfinite(found.series_w).all() and found.temp_c == pytest.approx(true.temp_c)


def test_read_runs_refuses_a_run_without_power(hot_cluster: tuple[Path, list[Path]], tmp_path: Path) -> None:
    nothing = dict.fromkeys(("gpu_energy_j", "gpu_power_w", "gpu_power_average_w"))
    own = with_power(hot_cluster[1][0], tmp_path / "own", nothing)
    with pytest.raises(UserError, match="no GPU has both power and temperature; heat cannot be fitted to this run"):
        read_runs([own], CONFIG)


def test_folders_that_are_no_runs_are_refused(hot_cluster: tuple[Path, list[Path]], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"point.json: no such file; name folders of runs"):
        read_runs([tmp_path], CONFIG)
    shutil.copy(hot_cluster[1][0] / "point.json", tmp_path)
    with pytest.raises(UserError, match=r"telemetry.parquet: no such file; run the telemetry stage first"):
        read_runs([tmp_path], CONFIG)
    other = planned("gpt3-175b_h100x64_tp4-pp16", "h100x64")
    write_text(tmp_path / "point.json", other.model_dump_json())
    with pytest.raises(UserError, match="runs on clusters h100x64 and h200x32; give runs of one cluster at a time"):
        read_runs([tmp_path, hot_cluster[1][0]], CONFIG)
