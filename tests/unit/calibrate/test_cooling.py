"""Fits of heat: to what the network made, to public snapshots, and to a public step."""

import csv
from pathlib import Path

import numpy as np
import pytest

from tests.unit.simulate.heat.machines import CONFIG, airflow, cooling
from triplepoint.calibrate.power import StepLog, fit_heat, simulate_log
from triplepoint.errors import UserError
from triplepoint.simulate.heat.devices import equal_devices
from triplepoint.simulate.heat.network import build_network, propagator
from triplepoint.simulate.heat.parameters import CoolingConfig, read_airflow, read_heat
from triplepoint.simulate.power.gpu import Float

DATA = Path(__file__).parents[2] / "data" / "heat"


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


def undo_average(t_s: Float, average_w: Float, window_s: float, age_s: float) -> Float:
    """Return the power behind one step as a sensor shows it that averages over a long window.

    The steepest climb of the shown power is a step: half of it is reached half a window after. The rest of the shown
    power is taken as it is.

    Args:
        t_s: When; shape (num_samples,). Unit: s.
        average_w: Shown power. Unit: W.
        window_s: Window of the average. Unit: s.
        age_s: How old a shown value is. Unit: s.

    Returns:
        Mean power since the sample before, of the shape of `t_s`. Unit: W.
    """
    climb = np.interp(t_s + window_s, t_s, average_w) - average_w
    first = int(np.argmax(np.abs(climb)))
    last = int(np.searchsorted(t_s, t_s[first] + window_s, side="right"))
    low, high = float(average_w[first]), float(average_w[min(last, len(t_s)) - 1])
    way = np.sign(high - low)
    half = float(np.interp(way * (low + high) / 2, way * average_w[first:last], t_s[first:last]))
    step = half - window_s / 2 - age_s
    begin = max(int(np.searchsorted(t_s, step)), 1)
    power = average_w.copy()
    power[first:begin] = low
    power[begin:last] = high
    # The step falls between two samples.
    power[begin] += (low - high) * (step - t_s[begin - 1]) / (t_s[begin] - t_s[begin - 1])
    return power


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


def read_snapshots() -> dict[str, tuple[Float, Float, Float]]:
    """Temperature, power and heat of the rows before of every device in balance, by node."""
    rows = read_airflow("hgx-8", CONFIG).rows
    with (DATA / "snapshots.csv").open(newline="") as lines:
        cells = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    nodes = {}
    for node in sorted({cell["node"] for cell in cells}):
        temp, power = (np.array([float(c[name]) for c in cells if c["node"] == node]) for name in ("temp_c", "power_w"))
        before = np.zeros(len(power))
        for index, row in enumerate(rows):
            before[row] = sum(float(power[other].mean()) for other in rows[:index])
        is_used = np.array([not c["left_out"] for c in cells if c["node"] == node])
        nodes[node] = temp[is_used], power[is_used], before[is_used]
    return nodes


def resistance_and_preheat(nodes: dict[str, tuple[Float, Float, Float]]) -> tuple[float, float]:
    """By linear least squares, each node with an inlet of its own: no mean of a node counts. Unit: K/W."""
    temp, power, before = (
        np.concatenate([column - column.mean() for column in columns]) for columns in zip(*nodes.values(), strict=True)
    )
    found, *_ = np.linalg.lstsq(np.column_stack([power, before]), temp, rcond=None)
    return float(found[0]), float(found[1])


def left_out_error(nodes: dict[str, tuple[Float, Float, Float]], node: str) -> Float:
    """Errors of a node by a fit to the others and its own inlet. Unit: K."""
    resistance, preheat = resistance_and_preheat({name: nodes[name] for name in nodes if name != node})
    temp, power, before = nodes[node]
    away = temp - resistance * power - preheat * before
    return np.asarray(away - away.mean())


def test_public_snapshots_fit_as_configured() -> None:
    flow, known = read_airflow("hgx-8", CONFIG), read_heat("h100", CONFIG).cooling["air"]
    resistance, preheat = resistance_and_preheat(read_snapshots())
    assert resistance == pytest.approx(known.die_resistance.value + known.sink_resistance.value, rel=0.02)
    assert preheat == pytest.approx(flow.preheat.value, rel=0.02)


def test_public_snapshots_left_out() -> None:
    """Target 1.0 K in the mean and 3 K at most: met over all eight nodes, not over the four under load."""
    nodes = read_snapshots()
    errors = {node: np.abs(left_out_error(nodes, node)) for node in nodes}
    assert np.concatenate(list(errors.values())).mean() < 1.0
    assert max(found.max() for found in errors.values()) < 3.0
    assert np.concatenate([errors[node] for node in "ABCD"]).mean() < 1.15
    assert all(errors[node].mean() < 1.0 for node in "ABD")


def test_public_snapshots_of_three_nodes_tell_the_other_five() -> None:
    """Nodes D to H were found after resistance and preheat had been fitted to A, B and C."""
    nodes = read_snapshots()
    first = {node: nodes[node] for node in "ABC"}
    assert resistance_and_preheat(first)[0] == pytest.approx(0.0458, abs=1e-4), "as published with the first three"
    later = {node: np.abs(left_out_error(first | {node: nodes[node]}, node)) for node in "DEFGH"}
    assert np.concatenate(list(later.values())).mean() < 0.9 and later["D"].mean() < 1.0
