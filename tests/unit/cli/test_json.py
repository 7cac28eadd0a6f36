"""`--json` of every command: one object with command, version and the keys that its help names."""

import argparse
import importlib
import json
import math
import shutil
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.commands import triplepoint
from tests.synthetic import build
from tests.synthetic_studies import cpu_smoke
from triplepoint import __version__
from triplepoint.aggregate import aggregate_study
from triplepoint.cli import COMMANDS, main
from triplepoint.cli.answer import Answer, plain
from triplepoint.cli.reference import parser_of
from triplepoint.tables.claims import CLAIMS

ROOT = Path(__file__).parents[3]
TRACE = ROOT / "tests" / "data" / "traces" / "dlrm_v100_rank0.json.gz"
STUDY = """\
description: Two layouts that are simulated.
defaults: {cluster: h200x32, engine: simulated, model: llama3-8b, num_gpus: 8, global_batch_size: 16}
sweeps: [{axes: {tp: [2, 4]}}]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a configuration of one simulated study, and results of another."""
    folder = tmp_path_factory.mktemp("place")
    shutil.copytree(ROOT / "config", folder / "config", ignore=shutil.ignore_patterns("studies"))
    (folder / "config" / "studies").mkdir()
    (folder / "config" / "studies" / "mine.yaml").write_text(STUDY)
    (folder / "config" / "config.yaml").write_text("studies: null\nsimulated: [h200x32]\n")
    plan = build(folder / "done", cpu_smoke(), ("smoke",))
    aggregate_study(plan, "smoke", folder / "done", ROOT / "config")
    CLAIMS.write(folder / "done" / "tables" / "claims.parquet", CLAIMS.from_rows([]))
    return folder


@pytest.fixture
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(place)
    yield place


def answer(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert list(found)[:2] == ["command", "version"]
    assert (found["command"], found["version"]) == (words[0], __version__)
    keys = set(found) - {"command", "version"}
    assert keys and keys <= set(parser_of(words[0]).answer), "keys that the parser does not declare"
    return found


def test_plan_answers_points_before_and_after_they_are_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = answer(capsys, "plan")["points"]
    assert [point["have"] for point in points] == ["missing", "missing"]
    assert points[0]["step_time_s"] > 0 and points[0]["gpu_hours"] == 0 and points[0]["studies"] == ["mine"]
    written = answer(capsys, "plan", "--write")
    assert [point["run"] for point in written["points"]] == [point["run"] for point in points]
    assert written["summary"] == ["2 points, 2 runs to have"]


def test_stages_of_a_run_answer_what_they_wrote(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = answer(capsys, "plan", "--write")["points"][0]["run"]
    assert answer(capsys, "simulate", run)["status"] == "ok"
    assert Path(answer(capsys, "telemetry", run)["file"]).is_file()
    assert Path(answer(capsys, "parse", run, "0-7", "--jobs", "1")["folder"]).is_dir()
    found = answer(capsys, "whatif", run, "-f", "network", "--no-shapley")
    row = found["rows"][0]
    assert row["factor"] == "network" and math.isfinite(row["effect"])
    assert found["measured"] == {}, "a simulated run is not measured"
    monkeypatch.setattr("triplepoint.aggregate.steps.read_manifest", lambda path: SimpleNamespace(origin="measured"))
    asked = argparse.Namespace(points=run, other=None, results=Path("results"))
    whatif = importlib.import_module("triplepoint.cli.whatif")
    assert whatif._measured(asked) == {run: pytest.approx(row["base"], rel=0.05)}


def test_results_answer_files_and_rows(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = answer(capsys, "figure", "smoke/microbatch_power", "--results", "done", "--out", "figs")["files"]
    assert all(Path(path).is_file() for path in files) and len(files) == 4
    for kind in ("mlflow", "prometheus"):
        found = answer(capsys, "export", "smoke", "--to", kind, "--results", "done")
        assert found["num_runs"] == 22 and all(Path(path).exists() for path in found["files"])
    claims = answer(capsys, "claims", "--results", "done")
    assert Path(claims["table"]).is_file() and claims["num_rows"] >= 0
    assert answer(capsys, "aggregate", "smoke", "--results", "done")["studies"] == {"smoke": "done/tables/smoke"}


def test_predict_answers_numbers_and_null(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "predict", "config/studies/mine.yaml", "out.csv", "--time-only", "--rank")
    fast, slow = sorted(found["rows"], key=lambda row: row["rank"])
    assert fast["step_time_s"] < slow["step_time_s"] and fast["tied_with_first"] is True
    assert slow["slower_fraction"] == pytest.approx(slow["step_time_s"] / fast["step_time_s"] - 1, rel=1e-4)
    assert fast["gpu_power_w"] is None and fast["reason"] is None and fast["status"] == "ok"
    assert found["out"] == "out.csv" and Path("out.csv").is_file()


def test_others_answer(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks = answer(capsys, "doctor", "--files", "h200")["files"]
    assert {check["status"] for check in checks} <= {"ok", "missing"}
    assert answer(capsys, "doctor", "--results", "doctor")["has_failed"] is False
    assert "triplepoint" in answer(capsys, "completion", "zsh")["script"]
    assert answer(capsys, "trace", str(TRACE), "--out", "traced", "--jobs", "1")


def test_error_leaves_standard_output_empty(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "nowhere.yaml", "--json"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_json_and_says_what_it_answers(command: str) -> None:
    parser = parser_of(command)
    assert "--json" in parser._option_string_actions and parser.answer
    assert not {"command", "version"} & set(parser.answer)


class Colour(StrEnum):
    RED = "red"


def test_plain_has_null_for_what_is_no_number_and_text_for_paths() -> None:
    value = {"a": math.nan, "b": -math.inf, "c": Path("x/y"), "d": Colour.RED, "e": np.array([1.0, np.nan]), 1: (True,)}
    assert plain(value) == {"a": None, "b": None, "c": "x/y", "d": "red", "e": [1.0, None], "1": [True]}
    with pytest.raises(TypeError, match="no JSON for object"):
        plain(object())


def test_answer_of_a_command_that_only_prints_has_its_lines_or_its_object() -> None:
    assert Answer.of_printed("one\ntwo\n", 1) == Answer({"lines": ["one", "two"]}, "one\ntwo\n", 1)
    assert Answer.of_printed('{"rows": []}', 0).content == {"rows": []}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("model,cluster,num_gpus,tp,global_batch_size\nllama3-8b,h200x32,8,4,64\n", "CSV"),
        ("- {model: llama3-8b, cluster: h200x32, num_gpus: 8, tp: 4, global_batch_size: 64}\n", "YAML"),
        ('{"model": "llama3-8b", "cluster": "h200x32", "num_gpus": 8, "tp": 4, "global_batch_size": 64}', "JSON"),
    ],
)
def test_predict_reads_standard_input_and_writes_standard_output(here: Path, text: str, kind: str) -> None:
    done = triplepoint(here, "predict", "-", "-", "--time-only", stdin=text)
    header, row = done.stdout.splitlines()
    assert done.returncode == 0 and header.startswith("id,run,status"), kind
    assert row.startswith("1,llama3-8b_h200x32_tp4-pp1-dp2_mbs1_gbs64_simulated_r1_")


def test_published_table_of_standard_input(here: Path) -> None:
    text = "model,gpu,n_gpus,tp,gbs\nllama3-8b,H200,8,4,64\n"
    done = triplepoint(here, "predict", "--published", "-", "--json", "--time-only", stdin=text)
    assert [row["status"] for row in json.loads(done.stdout)["rows"]] == ["ok"]
