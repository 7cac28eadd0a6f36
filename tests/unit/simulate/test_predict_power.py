"""Power and heat of predictions: what they must be by hand, and that simulated runs say the same."""

import math
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.simulate.test_heated import CATALOGUE, CONFIG, heated, planned
from triplepoint.published.table import predict_table
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.calibration import Calibration
from triplepoint.simulate.heat.warm import warm_up_anywhere
from triplepoint.simulate.power.load import Training
from triplepoint.simulate.predict.power import PowerPrediction
from triplepoint.simulate.predict.prediction import COLUMNS, predict, predict_job
from triplepoint.simulate.step import simulate_step

CALIBRATION = Calibration.load(CONFIG)
LAYOUTS = [
    ("gpt3-175b_h200x32_tp8-pp4-dp1-sp_mbs1_act_sim", "h200x32"),
    ("gpt3-175b_h200x32_tp2-pp16-dp1-sp_mbs1_act_sim", "h200x32"),
    ("llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_act_sim", "h200x32"),
    ("gpt3-175b_h200x32_tp8-pp1-dp4-fsdp_mbs1_act_sim", "h200x32"),
    ("gpt3-30b_mi250x32_tp2-pp16-dp1-sp_mbs1_act_sim", "mi250x32"),
]


@pytest.mark.parametrize(("text", "cluster"), LAYOUTS)
def test_usual_nodes_come_to_what_those_of_a_cluster_do(text: str, cluster: str) -> None:
    """Equal parts and a few stages, the step as long as calibrated; against all parts of a cluster in a usual room."""
    run = planned(text, cluster)
    found = predict(job_of(run.point, CATALOGUE), CALIBRATION, CONFIG).power
    simulated = heated(run, airflow=None, inlet_temp_c=24)[1].facts()
    assert found.gpu_power_w == pytest.approx(simulated["gpu_power_w"], rel=0.05)
    assert found.node_power_w == pytest.approx(simulated["node_power_w"], rel=0.04)
    # The hottest part is taken to stand in the hottest place; drawn parts rarely do.
    assert -1.0 < found.gpu_temp_max_c - float(str(simulated["gpu_temp_max_c"])) < 5.0
    assert found.throttle_fraction == pytest.approx(float(str(simulated["throttle_fraction"])), abs=0.15)


def test_energy_is_power_over_throughput_and_intervals_hold_it() -> None:
    job = job_of(planned("llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_act_sim").point, CATALOGUE)
    found = predict(job, CALIBRATION, CONFIG)
    per_gpu = found.power.gpu_power_w / found.tokens_per_s_per_gpu
    assert found.power.gpu_energy_per_token_j == pytest.approx(per_gpu, rel=1e-9)
    for name in ("gpu_power{}_w", "gpu_temp_max{}_c", "gpu_energy_per_token{}_j"):
        low, middle, high = (getattr(found.power, name.format(end)) for end in ("_lo", "", "_hi"))
        assert low < middle < high
    assert found.power.gpu_power_w < 700 < found.power.gpu_power_peak_w, "limits hold means, not bursts"
    assert found.power.node_power_w > 8 * found.power.gpu_power_w / 0.94


def test_usual_nodes_stand_for_whole_ones() -> None:
    """Front: die and sink, 0.035 + 0.011 K/W; rear: 0.0124 K/W of preheat more, where all draw the same."""
    job = job_of(planned(LAYOUTS[0][0]).point, CATALOGUE)
    warm = warm_up_anywhere(Training(simulate_step(job, CALIBRATION.constants(job), CONFIG)), CONFIG)
    shape = warm.machine.shape
    assert shape == (4, 2) and warm.num_alike.tolist() == [4, 4] and warm.seats.weight.sum() == pytest.approx(32)
    rise_k = warm.machine.network.steady(np.ones(shape))[:, : shape[1]]
    assert rise_k == pytest.approx(np.tile([0.046, 0.0584], (4, 1)))


def test_gpu_type_without_a_model_has_no_power() -> None:
    job = job_of(planned("llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_act_sim").point, CATALOGUE)
    found = predict(replace(job, gpu=CATALOGUE.gpu("a100")), CALIBRATION, CONFIG)
    assert found.step_time_s > 0 and all(math.isnan(value) for value in astuple(found.power))


@pytest.mark.parametrize("gpu", ["a100", "b200", "mi300x"])
def test_gpu_type_without_a_model_says_so(gpu: str) -> None:
    job = replace(job_of(planned(LAYOUTS[0][0]).point, CATALOGUE), gpu=CATALOGUE.gpu(gpu), precision="bf16")
    job = replace(job, model=CATALOGUE.model("llama3-8b"))
    found = predict_job(job, None, CONFIG)
    assert found.status == "ok"
    assert found.reason == f"power, heat and clocks of {gpu} are not known"
    assert predict_job(job, None, CONFIG, with_power=False).reason == ""


def test_table_has_the_columns_behind_the_others(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("id,model,gpu,n_gpus,tp,pp,gbs,mbs,seq\na,Llama3-70B,H200,32,4,4,128,1,8192\n")
    ((_, found),) = predict_table(source, CONFIG, print)
    assert COLUMNS[-len(PowerPrediction.__dataclass_fields__) :] == tuple(PowerPrediction.__dataclass_fields__)
    assert 300 < float(str(found.cells()["gpu_power_w"])) < 720
