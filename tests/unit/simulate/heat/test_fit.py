"""Fits of heat: to what the network made, to public snapshots, and to a public step."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.simulate.heat.machines import CONFIG, airflow, cooling
from triplepoint.errors import UserError
from triplepoint.simulate.heat.config import CoolingConfig, read_airflow, read_heat
from triplepoint.simulate.heat.fit import StepLog, fit_heat, simulate_log, undo_average
from triplepoint.simulate.heat.network import build_network, propagator
from triplepoint.simulate.heat.parts import equal_devices
from triplepoint.simulate.heat.steady import fit_steady, left_out_errors, read_snapshots
from triplepoint.simulate.power.model import Float

DATA = Path(__file__).parents[3] / "data" / "heat"


def made_log(known: CoolingConfig, inlet_c: float) -> StepLog:
    """Rest, load, rest at 20 Hz from the network, in whole degrees."""
    network = build_network(known, airflow([[0]]), equal_devices(1, 1))
    power = np.repeat([75.0, 690.0, 120.0], [200, 3000, 2000])
    step, state = propagator(network, 0.05), network.steady(np.array([[75.0]]))
    temp = []
    for watts in power:
        state = step(state, np.array([[watts]]))
        temp.append(float(state[0, 0]) + inlet_c)
    return StepLog(np.arange(len(power)) * 0.05, power, np.round(temp))


def test_fit_heat_finds_what_made_the_log() -> None:
    fit = fit_heat([made_log(cooling(), 27.3)], read_heat("h200", CONFIG).cooling["air"], "made up for tests")
    truth = cooling()
    for name, within in (("die_resistance", 0.03), ("sink_resistance", 0.06), ("die_time", 0.1), ("sink_time", 0.2)):
        assert getattr(fit.cooling, name).value == pytest.approx(getattr(truth, name).value, rel=within), name
    assert fit.inlet_c[0] == pytest.approx(27.3, abs=0.5)
    assert fit.rmse_k[0] < 0.4


def test_fit_heat_needs_a_change() -> None:
    log = made_log(cooling(), 25.0)
    with pytest.raises(UserError, match="power changes by 0 W"):
        fit_heat([StepLog(log.t_s, np.full_like(log.power_w, 300.0), log.temp_c)], cooling(), "flat")


def test_undo_average_finds_the_step() -> None:
    t_s = np.arange(0, 10, 0.1)
    # A step of 100 to 600 W at 4.03 s, seen through a second and 0.05 s late.
    shown = 100 + 500 * np.clip(t_s - 0.05 - 4.03, 0, 1)
    found = undo_average(t_s, shown, 1.0, 0.05)
    assert found[t_s < 3.95] == pytest.approx(100) and found[t_s > 4.15] == pytest.approx(600)
    # Of the sample interval from 4.0 to 4.1 s, 0.07 s are under load; found to 10 ms.
    assert found[41] == pytest.approx(100 + 500 * 0.7, abs=50)


def test_public_step_within_half_a_kelvin() -> None:
    """Four H100 from rest to load at 100 ms; when in its 100 ms each sensor publishes is not known, so it is tried."""
    rows = np.genfromtxt(DATA / "step_h100x4.csv", delimiter=",", comments="#", skip_header=4)
    known = read_heat("h100", CONFIG).cooling["air"]

    def log(gpu: int, age_s: float) -> StepLog:
        return StepLog(rows[:, 0], undo_average(rows[:, 0], rows[:, 1 + gpu], 1.1, age_s), rows[:, 5 + gpu])

    def error(gpu: int, age_s: float) -> float:
        tried = log(gpu, age_s)
        return float((tried.temp_c - simulate_log(tried, known, 0.0)).std())

    ages = [min((0.0, 0.05, 0.1), key=lambda age_s, gpu=gpu: error(gpu, age_s)) for gpu in range(4)]  # type: ignore[misc]
    fit = fit_heat([log(gpu, age_s) for gpu, age_s in enumerate(ages)], known, "step_h100x4.csv")
    assert np.sqrt(np.mean(np.square(fit.rmse_k))) < 0.5
    assert fit.cooling.die_resistance.value == pytest.approx(known.die_resistance.value, rel=0.1)


def test_public_snapshots_fit_as_configured() -> None:
    flow, known = read_airflow("hgx-8", CONFIG), read_heat("h100", CONFIG).cooling["air"]
    fit = fit_steady(read_snapshots(DATA / "snapshots.csv"), flow)
    whole = known.die_resistance.value + known.sink_resistance.value
    assert fit.resistance_k_per_w == pytest.approx(whole, rel=0.02)
    assert fit.preheat_k_per_w == pytest.approx(flow.preheat.value, rel=0.02)
    assert fit.preheat_k_per_w / fit.preheat_sigma > 5, "without preheat the rear could not be so much hotter"


def mean_error(errors: dict[str, Float], nodes: str) -> float:
    return float(np.abs(np.concatenate([errors[node] for node in nodes])).mean())


def test_public_snapshots_left_out() -> None:
    """Target 1.0 K in the mean and 3 K at most: met over all eight nodes, not over the four under load."""
    errors = left_out_errors(read_snapshots(DATA / "snapshots.csv"), read_airflow("hgx-8", CONFIG))
    assert mean_error(errors, "ABCDEFGH") < 1.0
    assert max(np.abs(found).max() for found in errors.values()) < 3.0
    assert mean_error(errors, "ABCD") < 1.15
    assert mean_error(errors, "A") < 1.0 and mean_error(errors, "B") < 1.0 and mean_error(errors, "D") < 1.0


def test_public_snapshots_of_three_nodes_tell_the_other_five() -> None:
    """Nodes D to H were found after resistance and preheat had been fitted to A, B and C."""
    flow, snapshots = read_airflow("hgx-8", CONFIG), read_snapshots(DATA / "snapshots.csv")
    first = [snapshot for snapshot in snapshots if snapshot.node in "ABC"]
    fit = fit_steady(first, flow)
    assert fit.resistance_k_per_w == pytest.approx(0.0458, abs=1e-4), "as published with the first three"
    later = {}
    for snapshot in snapshots[3:]:
        later |= {snapshot.node: left_out_errors([*first, snapshot], flow)[snapshot.node]}
    assert mean_error(later, "DEFGH") < 0.9 and mean_error(later, "D") < 1.0


def test_read_snapshots_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "wrong.csv").write_text("node,device,temp_c\nA,0,30\n")
    with pytest.raises(UserError, match=r"wrong.csv.*expected columns"):
        read_snapshots(tmp_path / "wrong.csv")
