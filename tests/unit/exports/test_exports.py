"""Exports of a study: what MLflow, W&B, Prometheus and Chakra read is what the tables and traces have."""

import importlib
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.synthetic import build
from tests.synthetic_studies import cpu_smoke
from triplepoint.aggregate import aggregate_study
from triplepoint.cli import main
from triplepoint.errors import UserError
from triplepoint.exports import mlflow, prometheus, read_runs, wandb
from triplepoint.tables.studies import read_joined
from triplepoint.trace.chakra.summary import summarise_graph

CONFIG = Path(__file__).parents[3] / "config"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    aggregate_study(build(folder, cpu_smoke(), ("smoke",)), "smoke", folder, CONFIG)
    return folder


@pytest.fixture(scope="module")
def points(results: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_joined(results, ("smoke",), "points").to_pylist()
    return rows


def test_read_runs_has_settings_numbers_and_measured_steps(results: Path, points: list[dict[str, Any]]) -> None:
    runs = read_runs("smoke", results)
    assert [run.run for run in runs] == [row["run"] for row in points]
    run, row = runs[0], points[0]
    assert run.settings["micro_batch_size"] == str(row["micro_batch_size"]) and run.settings["model"] == "tiny-llama"
    assert run.results["step_time_s"] == row["step_time_s"] and "micro_batch_size" not in run.results
    assert run.tags["status"] == "ok" and run.tags["origin"] == "measured"
    assert [step.step for step in run.steps] == [1, 2, 3, 4, 5], "warm-up and profiled steps are left out"
    times = sorted(step.step_time_s for step in run.steps)
    assert times[2] == pytest.approx(row["step_time_s"])
    assert run.started_ns is not None and run.ended_ns is not None


def test_read_runs_of_what_ran_out_of_memory(results: Path) -> None:
    (lost,) = (run for run in read_runs("smoke", results) if run.tags["status"] == "oom")
    assert not lost.is_ok and lost.steps == () and lost.tags["reason"]


def test_read_runs_of_an_unknown_study_names_the_nearest(results: Path) -> None:
    with pytest.raises(UserError, match=r"no tables of a study 'smoek' \(did you mean 'smoke'\?\)"):
        read_runs("smoek", results)


def test_mlflow_store_has_an_experiment_with_the_runs(results: Path, tmp_path: Path) -> None:
    runs = read_runs("smoke", results)
    folders = mlflow.write("smoke", runs, tmp_path)
    experiment = yaml.safe_load((folders[0].parent / "meta.yaml").read_text())
    assert experiment["name"] == "smoke" and experiment["experiment_id"] == folders[0].parent.name
    assert re.fullmatch(r"\d{18}", experiment["experiment_id"])
    about = yaml.safe_load((folders[0] / "meta.yaml").read_text())
    assert (about["run_name"], about["status"], about["run_id"]) == (runs[0].run, 3, folders[0].name)
    assert (folders[0] / "params" / "tp").read_text() == runs[0].settings["tp"]
    assert (folders[0] / "tags" / "triplepoint.origin").read_text() == "measured"
    stamp, value, step = (folders[0] / "metrics" / "step_time_s").read_text().split()
    assert (int(stamp) * 10**6 <= runs[0].ended_ns, float(value), step) == (True, runs[0].results["step_time_s"], "0")
    lines = (folders[0] / "metrics" / "steps" / "step_time_s").read_text().splitlines()
    assert [int(line.split()[2]) for line in lines] == [step.step for step in runs[0].steps]
    (lost,) = (folder for folder, run in zip(folders, runs, strict=True) if not run.is_ok)
    assert yaml.safe_load((lost / "meta.yaml").read_text())["status"] == 4


def test_mlflow_export_again_writes_over_the_first_and_leaves_others(results: Path, tmp_path: Path) -> None:
    runs = read_runs("smoke", results)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "meta.yaml").write_text("name: theirs\nexperiment_id: '7'\n")
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "meta.yaml").write_text("name: smoke\nexperiment_id: '8'\n")
    first = mlflow.write("smoke", runs, tmp_path)
    assert first == mlflow.write("smoke", runs, tmp_path) and first[0].parent.name == "8"
    assert len(list((tmp_path / "8").glob("*/meta.yaml"))) == len(runs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7", "8"]


def test_mlflow_itself_reads_the_store(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    runs = read_runs("smoke", results)
    mlflow.write("smoke", runs, tmp_path)
    client = importlib.import_module("mlflow.tracking").MlflowClient(tmp_path.as_uri())
    found = client.search_runs([client.get_experiment_by_name("smoke").experiment_id])
    assert {run.info.run_name: run.data.metrics.get("step_time_s") for run in found} == {
        run.run: run.results.get("step_time_s") for run in runs
    }


def test_prometheus_text_has_the_values_in_base_units(results: Path, points: list[dict[str, Any]]) -> None:
    lines = prometheus.metrics_text("smoke", read_runs("smoke", results), results).splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    row = points[0]
    labels = f'study="smoke",run="{row["run"]}",origin="measured",model="tiny-llama",cluster="cpu-local"'
    assert float(values[f"triplepoint_run_step_time_seconds{{{labels}}}"]) == row["step_time_s"]
    assert float(values[f"triplepoint_run_tokens_per_second{{{labels}}}"]) == row["tokens_per_s"]
    names = [line.split("{")[0] for line in lines if not line.startswith("#")]
    assert names == sorted(names, key=names.index) and len(values) == len(names), "each value once, metrics together"
    for line in lines:
        assert re.fullmatch(r"# (HELP|TYPE) triplepoint_\w+ .+|triplepoint_\w+\{(\w+=\"[^\"]*\",?)+\} [-+.e\d]+", line)
    described = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(described) == len(set(described)) and set(described) == set(names)


def test_prometheus_labels_are_escaped() -> None:
    assert prometheus._escape('a"b\\c\nd') == 'a\\"b\\\\c\\nd'


def test_wandb_without_its_library_is_one_line(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["export", "smoke", "--to", "wandb", "--results", str(results), "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "install it with 'pip install wandb'" in line


def test_wandb_is_given_settings_steps_and_results_offline(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    class FakeRun:
        dir = str(tmp_path / "wandb" / "offline-run-1" / "files")

        def __init__(self, **options: Any) -> None:
            self.summary: dict[str, float] = {}
            self.found: dict[str, Any] = options | {"steps": [], "summary": self.summary}
            made.append(self.found)

        def log(self, values: dict[str, float], step: int) -> None:
            self.found["steps"].append((step, values))

        def finish(self, exit_code: int) -> None:
            self.found["exit_code"] = exit_code

    fake = types.ModuleType("wandb")
    fake.init, fake.Settings = FakeRun, dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    runs = read_runs("smoke", results)
    assert wandb.write("smoke", runs, tmp_path)[0] == tmp_path / "wandb" / "offline-run-1"
    assert {one["mode"] for one in made} == {"offline"} and len({one["id"] for one in made}) == len(runs)
    first = made[0]
    assert first["config"]["tp"] == runs[0].settings["tp"] and first["summary"] == runs[0].results
    assert [step for step, _ in first["steps"]] == [1, 2, 3, 4, 5] and first["exit_code"] == 0
    assert [one["exit_code"] for one, run in zip(made, runs, strict=True) if not run.is_ok] == [1]


def test_chakra_traces_stand_by_run(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "export",
        "smoke",
        "--to",
        "chakra",
        "--results",
        str(tmp_path / "results"),
        "--out",
        str(tmp_path / "out"),
    ]
    shutil.copytree(results, tmp_path / "results")
    for path in (tmp_path / "results").glob("runs/*/raw/traces/*"):
        path.unlink()
    assert main(words) == 2
    assert "no run of smoke has traces" in capsys.readouterr().err
    run = read_runs("smoke", results)[0].run
    traces = tmp_path / "results" / "runs" / run / "raw" / "traces"
    traces.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).parents[2] / "data/traces/ddp_mi300x_rank0.json.gz", traces / "rank3.json.gz")
    assert main(words) == 0
    (written,) = (tmp_path / "out").glob("*/*")
    assert (written.parent.name, written.name) == (run, "chakra.3.et")
    assert summarise_graph(written).num_nodes["COMM_COLL_NODE"] > 0


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_run_is_exported_by_its_name(
    is_folder: bool, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (one.run for one in read_runs("smoke", results)[:2])
    shutil.copytree(results, tmp_path / "results")
    trace = Path(__file__).parents[2] / "data/traces/ddp_mi300x_rank0.json.gz"
    for run in (first, second):
        traces = tmp_path / "results" / "runs" / run / "raw" / "traces"
        shutil.rmtree(traces, ignore_errors=True)
        traces.mkdir()
        shutil.copy(trace, traces / "rank0.json.gz")
    name = str(tmp_path / "results" / "runs" / second) if is_folder else second
    words = ["export", name, "--results", str(tmp_path / "results")]
    assert main([*words, "--to", "chakra", "--out", str(tmp_path / "out")]) == 0
    assert [path.parent.name for path in (tmp_path / "out").glob("*/*.et")] == [second]
    assert capsys.readouterr().out.startswith(f"Run {second} is in ")
    assert main([*words, "--to", "prometheus", "--out", str(tmp_path / "one.prom")]) == 0
    text = (tmp_path / "one.prom").read_text()
    assert second in text and first not in text
