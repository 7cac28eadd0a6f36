"""What is predicted of a point is what a simulated run of it comes to: in time, power, heat and clocks."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.simulate.test_heated import CONFIG
from triplepoint.config.plan import PlannedRun
from triplepoint.manifest import Manifest
from triplepoint.plan import select
from triplepoint.simulate.artefacts.simulate_run import simulate_run
from triplepoint.simulate.predict.point import predict_point
from triplepoint.simulate.predict.prediction import Prediction

CLUSTERS = ("h200x32", "h100x64", "mi250x32", "h200x1")
EVERY = 20
"""Every 20th simulated point of the studies, and one of each kind of task."""
LLAMA = "llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_act_sim"
CONDITIONS: list[dict[str, Any]] = [
    {"conditions": {"inlet_temp_c": 45, "power_limit_w": 600}},
    {"conditions": {"bad_contact": {"node1.gpu6": 4}}},
    {"conditions": {"braked_nodes": [2]}},
    {"slow_gpus": {"node0.gpu3": 0.9}},
]


def simulated_points(config: Path = CONFIG) -> list[PlannedRun]:
    plan = select(config, None, ["cpu-local"], CLUSTERS)
    return [entry.planned for entry in plan.valid if entry.planned.point.engine == "simulated"]


def sampled() -> list[PlannedRun]:
    points = simulated_points()
    tasks = [[run for run in points if run.point.task == task] for task in ("pretrain", "lora", "inference")]
    return tasks[0][::EVERY] + [run for of_task in tasks[1:] for run in of_task[:2]]


def assert_same(run: PlannedRun, predicted: Prediction, simulated: Manifest) -> None:
    facts = {name: value for name, value in simulated.facts.items() if isinstance(value, (int, float))}
    # A run whose memory is too near the GPU's to be certain is simulated as one that fits.
    assert simulated.status == ("ok" if predicted.status == "undecided" else predicted.status), run.run
    if simulated.status != "ok":
        return
    assert predicted.step_time_s == pytest.approx(facts["step_time_s"], rel=0.005), run.run
    for name in ("gpu_power_w", "gpu_power_lo_w", "gpu_power_hi_w", "gpu_power_peak_w", "node_power_w"):
        assert getattr(predicted.power, name) == pytest.approx(facts[name], rel=0.01), (run.run, name)
    assert predicted.power.gpu_temp_max_c == pytest.approx(facts["gpu_temp_max_c"], abs=0.5), run.run
    assert predicted.power.throttle_fraction == pytest.approx(facts["throttle_fraction"], abs=0.01), run.run


@pytest.mark.long
def test_points_of_the_studies(tmp_path: Path) -> None:
    for run in sampled():
        assert_same(run, predict_point(run.point, CONFIG), simulate_run(run, tmp_path / run.run, CONFIG))


@pytest.mark.parametrize("changes", CONDITIONS, ids=lambda changes: "-".join(next(iter(changes.values()))))
@pytest.mark.parametrize("text", [LLAMA, "_gbs64_in1024-out128"])
def test_conditions_and_slow_gpus_count_in_both(text: str, changes: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(CONFIG, tmp_path / "config")
    path = tmp_path / "config" / "clusters" / "h200x32.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))
    run = next(run for run in simulated_points(tmp_path / "config") if text in run.run and "h200x32" in run.run)
    usual, predicted = predict_point(run.point, CONFIG), predict_point(run.point, tmp_path / "config")
    assert_same(run, predicted, simulate_run(run, tmp_path / "raw", tmp_path / "config"))
    if run.point.task == "pretrain":
        assert predicted.step_time_s > 1.01 * usual.step_time_s
    without = predict_point(run.point, tmp_path / "config", with_power=False)
    # Without power a step takes what it does at calibrated clocks, where no limit or fault holds them down.
    assert without.step_time_s == pytest.approx(predicted.step_time_s, rel=0.06)
    assert math.isnan(without.power.gpu_power_w)
