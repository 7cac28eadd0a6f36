"""`triplepoint recommend` on two made-up clusters whose truth it does not see, one with bad contact, one sound."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.benchmarks.recommend import CONFIG, draw_cluster, planned, simulate_on, true_step_s
from triplepoint.advise.recommend.placement import Placement
from triplepoint.advise.recommend.to_type import megatron_layout
from triplepoint.cli import main
from triplepoint.config.cluster import ClusterConfig
from triplepoint.config.plan import PlannedRun, read_planned_run
from triplepoint.config.study import Study, expand, settings_of_study
from triplepoint.files import write_text

pytestmark = pytest.mark.timeout(900)
"""A fit or a search of a minute takes many beside other tests."""

NUM_NODES = 2
PAGE = Path(__file__).parents[4] / "docs" / "recommend.md"


@pytest.fixture(scope="module")
def run() -> PlannedRun:
    """Llama 3 70B, TP8 PP2 on two nodes, as another repeat than the one whose parts the advisor knows."""
    found = planned("llama3-70b_h200x32_tp8-pp2-dp2-sp-zero1_mbs1_act_sim", repeat=5)
    layout = found.point.layout.model_copy(update={"dp": 1, "data_parallel_sharding": "no_shard"})
    update = {"layout": layout, "num_gpus": 16, "global_batch_size": 32}
    point = found.point.model_copy(update=update)
    name = found.run.replace("dp2-sp-zero1", "dp1-sp")
    return found.model_copy(update={"run": name, "point": point, "digest": point.digest()})


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
    study = tmp_path / "again.yaml"
    answer = json.loads(recommend(folder, capsys, "--json", "--hosts", str(hosts), "--study", str(study)))
    (outlier,) = answer["outliers"]
    assert (outlier["name"], outlier["kind"]) == ("node0.gpu6", "contact") and outlier["cost_s"] > 0
    sound_s = true_step_s(truth_with({}), run, Placement((0, 1), (40, 40)))
    assert outlier["cost_lo_s"] < answer["step_time_s"] - sound_s < outlier["cost_hi_s"]
    assert outlier["cost_s"] == pytest.approx(answer["step_time_s"] - sound_s, rel=0.01)
    assert answer["is_accepted"] and answer["unexplained"] is None
    assert answer["predicted_step_time_s"] == pytest.approx(answer["step_time_s"], rel=0.005)
    layers, order = answer["pipeline_layers"], tuple(int(host.removeprefix("node")) for host in answer["hosts"])
    assert layers[order.index(0)] < 40 < layers[order.index(1)]
    assert answer["megatron_layout"] == f"Et*{layers[0]}|t*{layers[1]}L"
    assert hosts.read_text().split() == answer["hosts"]
    proposed, present = Placement(order, tuple(layers)), Placement((0, 1), (40, 40))
    gain = 1.0 - true_step_s(truth, run, proposed) / true_step_s(truth, run, present)
    assert gain > 0.02 and answer["gain_lo"] <= gain <= answer["gain_hi"]
    kept = json.loads((tmp_path / "results" / "passports" / "h200x32.json").read_text())
    assert [len(one["slots"]) for one in kept["passports"]] == [16]
    assert answer["limits"] == [], "hardware is to be mended first"
    assert answer["answer"].startswith("Repair node0.gpu6 first: "), "a simulated host has no other name"
    assert answer["answer"] in " ".join(PAGE.read_text().split()), "the sample of the page is this run"
    assert f"run {folder.name.partition('_mbs')[0]}_..." in PAGE.read_text()
    check_follow_up(folder, study, answer, capsys)
    check_cluster(folder, answer, capsys)


def check_follow_up(folder: Path, study: Path, answer: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """The study plans as pairs in the order that is written; the ledger has the promise, and what a pair found."""
    planned_study = Study.model_validate(yaml.safe_load(study.read_text()))
    settings = expand(planned_study, study)
    assert [one.repeats for one in settings] == [answer["study"]["pairs"]] * 2
    assert settings[1].pipeline_layers == tuple(answer["pipeline_layers"])
    assert settings[0].hosts == ("node0", "node1") and settings[1].hosts == tuple(answer["hosts"])
    assert {one.parts_of_repeat for one in settings} == {5}, "the GPUs of the run"
    assert all(f" {run}\n" in study.read_text() for run in answer["study"]["order"])
    (row,) = json.loads(recommend(folder, capsys, "--json", "--ledger"))["ledger"]
    assert row["gain"] == answer["gain"] and row["num_pairs"] == 0
    assert len(row["first"]) == len(row["other"]) == answer["study"]["pairs"]


def check_cluster(folder: Path, answer: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """By the kept passport, the same point on the cluster has the same faults and the same placement."""
    point = read_planned_run(folder / "point.json").point
    words = [
        f"--set={name}={json.dumps(value)}" for name, value in settings_of_study(point).items() if name != "cluster"
    ]
    results = folder.parents[1]
    assert main(["recommend", "h200x32", *words, "--results", str(results), "--config", str(CONFIG), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in again["outliers"]] == ["node0.gpu6"]
    assert (again["pipeline_layers"], again["hosts"]) == (answer["pipeline_layers"], answer["hosts"])
    assert again["gain"] == pytest.approx(answer["gain"], abs=0.02) and again["step_time_s"] is None


def test_a_sound_cluster_is_left_as_it_is(run: PlannedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = simulate_on(truth_with({}), run, tmp_path)
    script = tmp_path / "limits.sh"
    text = recommend(folder, capsys, "--caps", str(script))
    assert "Hardware: no GPU or node stands out." in text and "Placement: leave it as it is" in text
    assert text.startswith("Set power limits of ") and "nvidia-smi -i" in script.read_text()
    worse = recommend(folder, capsys, "--layers", "46,34")
    assert worse.startswith("Leave the placement as it is: layers 46,34 would make a step ")
    assert "It would be slower." in worse and "stage 0 with 46 layers is busy longest" in worse


def test_power_to_spare_raises_limits(run: PlannedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster at limits of 600 W: text, JSON, script, study and ledger state the power to spare."""
    truth = truth_with({})
    truth = truth.model_copy(update={"conditions": truth.conditions.model_copy(update={"power_limit_w": 600.0})})
    folder = simulate_on(truth, run, tmp_path)
    script, study, words = tmp_path / "limits.sh", tmp_path / "again.yaml", ("--spare-watts", "200")
    words = (*words, "--config", str(tmp_path / "truth"))
    text = " ".join(recommend(folder, capsys, *words, "--caps", str(script), "--study", str(study)).split())
    assert "W more a node: a step takes " in text and "with 200 W to spare a node: set these." in text
    assert "Limits of a node add up to at most " in text and "unless its CPUs or other parts draw" in text
    assert "lower those of its CPUs first." in script.read_text() and "(200 W to spare a node)" in study.read_text()
    (row,) = json.loads(recommend(folder, capsys, "--json", "--ledger"))["ledger"]
    (one,) = [each for each in json.loads(recommend(folder, capsys, *words, "--json"))["limits"] if each["spare_w"]]
    assert one["goal"] == row["kind"] == "move" and row["spare_w"] == 200 and row["gain"] == one["gain"] > 0.02
    limits_w = [(each["host"], each["limit_w"]) for each in one["limits_w"]]
    added_w = [sum(limit_w - 600 for host, limit_w in limits_w if host == name) for name in ("node0", "node1")]
    assert max(added_w) == 200 - one["left_over_w"] and one["gpu_power_w"] > one["gpu_power_before_w"]
    none = ["recommend", folder.name, "--results", str(tmp_path / "results"), "--spare-watts", "5"]
    assert main([*none, "--config", str(CONFIG)]) == 2
    assert "no power limit below the 700 W" in capsys.readouterr().err.splitlines()[-1]
    assert main([*none, "--goal", "save", "--config", str(CONFIG)]) == 2
    assert "limits that save energy use no more power" in capsys.readouterr().err.splitlines()[-1]
    saving = json.loads(recommend(folder, capsys, "--goal", "save", *words[2:], "--caps", str(script), "--json"))
    (one,) = saving["limits"]
    assert one["goal"] == "save" and all(f"-pl {each['limit_w']} " in script.read_text() for each in one["limits_w"])


def test_a_run_that_is_not_there_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "nothing", "--results", str(tmp_path), "--config", str(CONFIG)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no such run" in line


def test_a_folder_is_read_itself_and_not_a_run_of_its_name(
    run: PlannedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path / "results/runs", tmp_path / "else"):
        write_text(folder / run.run / "point.json", run.model_dump_json())
    write_text(tmp_path / "results/runs" / run.run / "raw/manifest.json", "{}")  # read, it would be refused otherwise
    words = ["--results", str(tmp_path / "results"), "--config", str(CONFIG)]
    assert main(["recommend", str(tmp_path / "else" / run.run), *words]) == 2
    assert "no telemetry, the run has not finished" in capsys.readouterr().err


def test_a_run_without_telemetry_is_refused_with_what_can_be_asked(
    run: PlannedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tmp_path / "runs" / run.run / "point.json", run.model_dump_json())
    for command, instead in (("recommend", "recommend CLUSTER' with --set"), ("swings", "a point file is simulated")):
        assert main([command, run.run, "--results", str(tmp_path), "--config", str(CONFIG)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "no telemetry, the run has not finished" in line and instead in line


def test_where_nothing_is_recommended_the_answer_comes_without_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("model=llama3-8b", "global_batch_size=16", "micro_batch_size=2", "num_gpus=16", "tp=8", "pp=2")
    words = [f"--set={word}" for word in settings]
    study = tmp_path / "again.yaml"
    assert main(["recommend", "h200x32", *words, "--study", str(study), "--config", str(CONFIG)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("Leave the placement") and "nothing is to verify" in told.err
    assert not study.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no run; name a run"),
        (["h200x32"], "h200x32 is a cluster; name the job"),
        (["h200x32", "--set", "modl=3"], "did you mean 'model'"),
        (
            ["h200x32", "--set", "model=llama3-70b", "--set", "global_batch_size=128", "--set", "tp=3"],
            "invalid|split|3",
        ),
        (
            ["h200x32", *(f"--set={word}" for word in ("model=llama3-405b", "global_batch_size=128", "tp=8", "pp=2"))],
            "does not fit on a rank of stage 0: weights",
        ),
        (["nothing", "--set", "tp=3"], "--set goes with a cluster"),
        (["h200x32", "--restart-minutes", "-3"], "expected minutes above 0"),
        (["h200x32", "--spare-watts", "-3"], "found '-3', expected watts from 0"),
        (["h200x32", "--spare-watts", "nan"], "found 'nan', expected watts from 0"),
        (["h200x32", "--set", "model=llama3-8b", "--spare-watts", "9"], "need the clocks of a run, found cluster"),
        (["h200x32", "--set", "model=llama3-8b", "--goal", "move"], "need the clocks of a run, found cluster"),
        (["--found", "a", "b"], "has no promise"),
        (["h200x32", "--study", "x.txt"], "ends in .yaml"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recommend", *words, "--results", str(tmp_path), "--config", str(CONFIG)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.search(says, line), line


def test_an_empty_ledger_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "--ledger", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("No gain was promised yet")


def test_options_that_the_ledger_does_not_use_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tmp_path / "hosts.txt"
    assert main(["recommend", "--ledger", "--hosts", str(hosts), "--layers", "2,2", "--results", str(tmp_path)]) == 0
    assert "--layers and --hosts not used, as the ledger alone is shown" in capsys.readouterr().err
    assert not hosts.exists()


def test_layout_of_megatron_has_ends_and_empty_stages() -> None:
    assert megatron_layout((21, 20, 0, 19)) == "Et*21|t*20||t*19L"
    assert megatron_layout(()) is None
