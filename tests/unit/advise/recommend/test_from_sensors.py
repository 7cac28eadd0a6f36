"""`recommend` of a recorded run that nobody described: sensors and hardware, no placement."""

import json
from pathlib import Path

import pytest

from tests.synthetic import CONFIG
from tests.unit.why.test_recorded import node
from triplepoint.cli import main
from triplepoint.recorded.description import Description
from triplepoint.recorded.run import write_run


@pytest.fixture
def run(tmp_path: Path) -> str:
    return write_run(tmp_path / "runs", Description(), [node("a"), node("b", hot=3)], {}, [], source="test")


def recommend(run: str, results: Path, *words: str) -> int:
    return main(["recommend", run, "--results", str(results), "--config", str(CONFIG), *words])


def test_hot_gpu_is_named_and_placement_refused_in_a_line(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recommend(run, tmp_path, "--spare-watts", "9", "--caps", str(tmp_path / "limits.sh")) == 0
    answer = capsys.readouterr()
    assert "--spare-watts and --caps not used, as cluster and job are not described" in answer.err
    lines = answer.out.splitlines()
    said = " ".join(" ".join(lines).split())
    assert "What sensors show of 16 GPUs:" in said and "temperature 60 60 86 degC" in said
    assert said.startswith(
        "Repair gpu3 of b (rank 11) first: contact, it costs up to 29.3 % of a step. Placement is not"
    )
    assert said.count("Placement is not judged: cluster, model, tp") == 1 and f"run {run} on " in said


def test_json_has_slots_and_outliers(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recommend(run, tmp_path, "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert len(content["passport"]["slots"]) == 16
    assert content["passport"]["slots"][11]["temp_c"] == pytest.approx(86)
    assert content["passport"]["slots"][11]["rise_k_per_w"] is None  # no inlet was recorded
    assert [one["kind"] for one in content["outliers"]] == ["contact"]
    assert (content["gain"], content["is_accepted"]) == (None, False)
