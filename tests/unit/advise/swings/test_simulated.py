"""Swings of a simulated run and of its point: one model, read by the same meters."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from triplepoint import swings
from triplepoint.advise.recommend.passport import learn
from triplepoint.advise.swings.answer import answer_of
from triplepoint.advise.swings.point import (
    Evaluations,
    SimulatedPower,
    drawn_over_steps,
    over_steps,
    simulate_power,
)
from triplepoint.advise.swings.source import read_run
from triplepoint.cli import main
from triplepoint.errors import PointError, UserError
from triplepoint.predictions import Request, read_points
from triplepoint.simulate.power.over_time import Meter
from triplepoint.simulate.predict.draws import Draw, draw_unknowns

ROOT = Path(__file__).parents[4]
STUDY = """\
description: Two nodes whose power swings.
defaults: {cluster: h200x32, engine: simulated, model: llama3-8b, num_gpus: 16, tp: 4, pp: 4, trace_ranks: [0]}
sweeps: [{set: {global_batch_size: 32, telemetry_period_s: 2, steps: {warmup: 1, measured: 80, profiled: 1}}}]
"""
METER = Meter(2.0, 2.0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration of one study, and its run, simulated."""
    folder = tmp_path_factory.mktemp("place")
    config = folder / "config"
    shutil.copytree(ROOT / "config", config, ignore=shutil.ignore_patterns("studies"))
    (config / "studies").mkdir()
    (config / "studies" / "mine.yaml").write_text(STUDY)
    (config / "config.yaml").write_text("studies: null\nsimulated: [h200x32]\n")
    places = ["--config", str(config), "--results", str(folder / "results")]
    assert main(["plan", "mine", "--write", *places]) == 0
    run = next((folder / "results" / "runs").iterdir()).name
    assert main(["simulate", run, *places]) == 0
    assert main(["telemetry", run, *places[2:]]) == 0
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    return next((place / "results" / "runs").iterdir())


@pytest.fixture(scope="module")
def request_of_run(place: Path) -> Request:
    (found,) = read_points(place / "config" / "studies" / "mine.yaml", place / "config")
    return found


@pytest.fixture(scope="module")
def power(request_of_run: Request, place: Path) -> SimulatedPower:
    return simulate_power(request_of_run, place / "config")


def test_meters_of_a_run_are_read_at_moments_of_their_own(run: Path) -> None:
    table = pq.read_table(run / "telemetry.parquet", columns=["node", "t_ns", "node_power_w"])
    known = table.filter(pa.compute.is_valid(table["node_power_w"]))
    first, second = (set(known.filter(pa.compute.equal(known["node"], node))["t_ns"].to_pylist()) for node in (0, 1))
    assert len(first) >= 100 and len(second) >= 100
    assert not first & second


def test_run_and_point_swing_alike(run: Path, place: Path, power: SimulatedPower) -> None:
    of_run, of_point = read_run(run, place / "config"), over_steps(power, 80, None, METER)
    assert of_run.origin == of_point.origin == "simulated"
    assert of_run.period_s == pytest.approx(of_point.period_s)
    found, expected = (swings.swing(one.job_w, one.period_s) for one in (of_run, of_point))
    assert found.mean_w == pytest.approx(expected.mean_w, rel=0.005)
    assert found.fraction == pytest.approx(expected.fraction, abs=0.01)


def test_slower_meters_see_less_of_the_swing(power: SimulatedPower) -> None:
    own, slow = over_steps(power, 30, None, None), over_steps(power, 30, None, METER)
    assert own.period_s < 0.1
    assert swings.swing(own.job_w, own.period_s).fraction > swings.swing(slow.job_w, slow.period_s).fraction


def test_evaluations_lengthen_a_block(power: SimulatedPower) -> None:
    own_s = power.step.length_s
    # Two whole passes for 50 sequences of batches of 32, after every fifth of ten steps.
    found = over_steps(power, 10, Evaluations(5, 50), Meter(own_s / 50, own_s / 50))
    expected_s = 10 * own_s + 4 * power.passed.length_s
    assert found.lasts_s == pytest.approx(expected_s, abs=0.1 * own_s)
    assert power.passed.length_s < own_s


def test_cap_costs_time_and_saves_power(request_of_run: Request, place: Path, power: SimulatedPower) -> None:
    capped = simulate_power(request_of_run, place / "config", cap_w=400.0)
    assert capped.point.power_limit_w == 400.0 < power.point.power_limit_w
    assert capped.step.length_s > 1.02 * power.step.length_s
    assert capped.step.nodes_w.mean() < 0.95 * power.step.nodes_w.mean()


def test_cap_below_what_the_driver_takes_is_refused(request_of_run: Request, place: Path) -> None:
    with pytest.raises((PointError, UserError), match="driver takes limits"):
        simulate_power(request_of_run, place / "config", cap_w=10.0)


def test_run_without_meters_is_told_from_gpus(run: Path, place: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "runs" / run.name)
    table = pq.read_table(copy / "telemetry.parquet")
    at = table.column_names.index("node_power_w")
    nothing = pa.nulls(len(table), table.schema.field(at).type)
    pq.write_table(table.set_column(at, table.schema.field(at), nothing), copy / "telemetry.parquet")
    found = read_run(copy, place / "config")
    assert "GPUs alone" in found.notes[0]
    assert np.mean(found.nodes_w) < 0.9 * np.mean(read_run(run, place / "config").nodes_w)


def test_run_with_average_power_alone_has_its_window(run: Path, place: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "runs" / run.name)
    table = pq.read_table(copy / "telemetry.parquet")
    for name in ("node_power_w", "gpu_power_w"):
        at = table.column_names.index(name)
        table = table.set_column(at, table.schema.field(at), pa.nulls(len(table), table.schema.field(at).type))
    pq.write_table(table, copy / "telemetry.parquet")
    found = read_run(copy, place / "config")
    assert found.window_s == 1.0 and "GPUs alone" in found.notes[0]
    assert np.mean(found.nodes_w) < 0.9 * np.mean(read_run(run, place / "config").nodes_w)


def test_swings_and_passport_of_a_run_without_tables_are_those_of_its_tables(
    run: Path, place: Path, tmp_path: Path
) -> None:
    raw = shutil.copytree(run, tmp_path / "runs" / run.name, ignore=shutil.ignore_patterns("*.parquet"))
    (raw / "raw" / "steps.parquet").write_bytes((run / "raw" / "steps.parquet").read_bytes())
    config = place / "config"
    assert (read_run(raw, config).nodes_w == read_run(run, config).nodes_w).all()
    assert learn(raw, config).passport == learn(run, config).passport
    assert not list(raw.glob("*.parquet")), "the run is left as it is"


def test_run_in_which_no_node_took_a_step_is_refused(run: Path, place: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "runs" / run.name)
    path = copy / "raw" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"nodes": [], "status": "crashed"}))
    with pytest.raises(UserError, match="its status is crashed, no node took a step"):
        read_run(copy, place / "config")


def test_command_on_a_point_tries_caps(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.yaml").write_text("range_fraction: 0.01\n")
    study = place / "config" / "studies" / "mine.yaml"
    words = ["swings", str(study), "--config", str(place / "config"), "--spec", str(tmp_path / "spec.yaml")]
    assert main([*words, "--cap", "500", "--steps", "20", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (cap,) = [one for one in answer["remedies"] if one["name"] == "cap"]
    assert cap["power_limit_w"] == 500.0 and cap["time_fraction"] > 0.0


def test_intervals_of_a_point_hold_drawn_truths(power: SimulatedPower) -> None:
    like = over_steps(power, 20, None, None)
    found = answer_of(like, drawn=drawn_over_steps(power, 0.1, None, None, like)).levels[-1]
    point = power.point
    draws = draw_unknowns(point.job, point.cluster, point.config, point.time_sigma(power), number=20, seed=9)
    truths = [swing_of(power, draw) for draw in draws]
    low, high = found.intervals["range_fraction"]
    assert low < found.range_fraction < high < 2.0 * found.range_fraction
    # At 90 %, fewer than 15 of 20 have a probability of 1 %.
    assert sum(low <= truth <= high for truth in truths) >= 15


def swing_of(power: SimulatedPower, draw: Draw) -> float:
    """Return the range of the job over drawn steps."""
    drawn = over_steps(replace(power, step=power.point.drawn_step(draw, power.warm.start)), 20, None, None)
    return swings.swing(drawn.job_w, drawn.period_s).fraction
