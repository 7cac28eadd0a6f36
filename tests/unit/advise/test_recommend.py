"""`triplepoint recommend` on two made-up clusters whose truth it does not see, one with bad contact, one sound."""

import json
from pathlib import Path

import pytest

from tests.benchmarks.recommend import CONFIG, draw_cluster, planned, simulate_on, true_step_s
from triplepoint.advise.placement import Placement
from triplepoint.advise.recommend_text import megatron_layout
from triplepoint.cli import main
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.plan import PlannedRun

NUM_NODES = 2


@pytest.fixture(scope="module")
def run() -> PlannedRun:
    """Llama 3 70B, TP8 PP2 on two nodes, as another repeat than the one whose parts the advisor knows."""
    found = planned("llama3-70b_h200x32_tp8-pp2-dp2-sp-zero1_mbs1_act_sim", repeat=5)
    layout = found.point.layout.model_copy(update={"dp": 1, "data_parallel_sharding": "no_shard"})
    update = {"layout": layout, "num_gpus": 16, "global_batch_size": 32}
    point = found.point.model_copy(update=update)
    return found.model_copy(update={"point": point, "digest": point.digest()})


def truth_with(bad_contact: dict[str, float]) -> ClusterConfig:
    cluster = draw_cluster(3, NUM_NODES)
    conditions = cluster.conditions.model_copy(update={"bad_contact": bad_contact})
    return cluster.model_copy(update={"conditions": conditions})


def recommend(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    results = folder.parents[1]
    assert main(["recommend", folder.name, "--results", str(results), "--config", str(CONFIG), *words]) == 0
    return capsys.readouterr().out


def test_bad_contact_is_named_first_and_its_stage_gets_fewer_layers(
    run: PlannedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = truth_with({"node0.gpu6": 4.0})
    folder = simulate_on(truth, run, tmp_path)
    hosts = tmp_path / "hosts"
    answer = json.loads(recommend(folder, capsys, "--json", "--hosts", str(hosts)))
    (outlier,) = answer["outliers"]
    assert (outlier["name"], outlier["kind"]) == ("node0.gpu6", "contact") and outlier["cost_s"] > 0
    assert answer["is_accepted"]
    assert answer["predicted_step_time_s"] == pytest.approx(answer["step_time_s"], rel=0.05)
    layers, order = answer["pipeline_layers"], tuple(int(host.removeprefix("node")) for host in answer["hosts"])
    assert layers[order.index(0)] < 40 < layers[order.index(1)]
    assert answer["megatron_layout"] == f"Et*{layers[0]}|t*{layers[1]}L"
    assert hosts.read_text().split() == answer["hosts"]
    proposed, present = Placement(order, tuple(layers)), Placement((0, 1), (40, 40))
    gain = 1.0 - true_step_s(truth, run, proposed) / true_step_s(truth, run, present)
    assert gain > 0.02 and answer["gain_lo"] <= gain <= answer["gain_hi"]
    kept = json.loads((tmp_path / "results" / "passports" / "h200x32.json").read_text())
    assert [len(one["slots"]) for one in kept["passports"]] == [16]


def test_a_sound_cluster_is_left_as_it_is(run: PlannedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = simulate_on(truth_with({}), run, tmp_path)
    text = recommend(folder, capsys)
    assert "hardware: no GPU or node stands out" in text and "placement: leave it as it is" in text
    worse = recommend(folder, capsys, "--layers", "46,34")
    assert "it would be slower" in worse and "stage 0 with 46 layers is busy longest" in worse


def test_a_run_that_is_not_there_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "nothing", "--results", str(tmp_path), "--config", str(CONFIG)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no such run" in line


def test_layout_of_megatron_has_ends_and_empty_stages() -> None:
    assert megatron_layout((21, 20, 0, 19)) == "Et*21|t*20||t*19L"
    assert megatron_layout(()) is None
