"""Predictions in the record of launched runs, beside what was measured."""

import shutil
from pathlib import Path

import pytest

from tests.synthetic import CONFIG, H200, Spec, build, read_tables
from triplepoint.aggregate import aggregate
from triplepoint.aggregate import predicted as module
from triplepoint.simulate.predict.point import allocated_by_rank, predict_if_configured, predict_point
from triplepoint.simulate.predict.prediction import Prediction

GIB = 1 << 30
ONE_NODE = Spec("llama3-70b", {"tp": 4, "pp": 2, "schedule": "1f1b"}, cluster=H200, step_ms=100_000)
KEYS = ("predicted_step_time_s", "step_time_error", "predicted_memory_bytes", "memory_error")


def rows(folder: Path, spec: Spec) -> tuple[dict, list[dict]]:
    aggregate(build(folder, [spec]), folder, CONFIG)
    points, gpus = (read_tables(folder)[name].to_pylist() for name in ("points", "gpus"))
    return points[0], gpus


def test_prediction_stands_beside_the_measurement_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Prediction("ok", step_time_s=90.9, step_time_lo_s=80.0, step_time_hi_s=100.0)
    # Ranks 0 to 3 are of the first stage, 4 to 7 of the second.
    allocated_bytes = (1.5 * GIB,) * 4 + (0.5 * GIB,) * 4
    monkeypatch.setattr(module, "predict_if_configured", lambda point, config: step)
    monkeypatch.setattr(module, "allocated_by_rank", lambda point, config: allocated_bytes)
    point, gpus = rows(tmp_path, ONE_NODE)
    # Measured: 101 s (the median of the made-up steps), and 1 GiB and a few bytes.
    assert point["step_time_error"] == pytest.approx(90.9 / 101 - 1)
    assert (point["predicted_step_time_lo_s"], point["predicted_step_time_hi_s"]) == (80.0, 100.0)
    assert point["memory_error"] == pytest.approx(0.5, abs=1e-6)
    assert [row["memory_error"] for row in gpus] == pytest.approx([0.5] * 4 + [-0.5] * 4, abs=1e-6)
    assert point["prediction_absent"] is None


def test_prediction_of_a_run_out_of_memory_is_kept(tmp_path: Path) -> None:
    point, _ = rows(tmp_path, Spec("llama3-70b", {"tp": 8}, cluster=H200, status="oom"))
    assert point["predicted_memory_bytes"] > 100 * GIB
    assert (point["step_time_error"], point["memory_error"]) == (None, None)


def test_prediction_of_processors_is_absent_and_says_why(tmp_path: Path) -> None:
    point, gpus = rows(tmp_path, Spec("tiny-llama", {"dp": 2}))
    assert point["prediction_absent"] == "processors are not simulated"
    assert [point[key] for key in KEYS] == [None] * 4
    assert {row["predicted_memory_bytes"] for row in gpus} == {None}


def test_prediction_of_a_simulated_run_is_the_run_itself(tmp_path: Path) -> None:
    point, _ = rows(tmp_path, Spec("llama3-70b", {"tp": 8}, cluster=H200, engine="simulated", step_ms=100_000))
    assert [point[key] for key in (*KEYS, "prediction_absent")] == [None] * 5


def test_prediction_beside_a_measurement_on_unknown_hardware_says_why_in_one_line(tmp_path: Path) -> None:
    shutil.copytree(CONFIG, tmp_path / "config")
    (tmp_path / "config/gpus/h200.yaml").unlink()
    found = predict_if_configured(ONE_NODE.point(), tmp_path / "config")
    assert found.status == "unsupported"
    assert "h200" in found.reason
    assert "\n" not in found.reason


def test_allocated_by_rank_is_that_of_each_ranks_stage() -> None:
    found = allocated_by_rank(ONE_NODE.point(), CONFIG)
    assert len(found) == 8
    # The first of two stages keeps activations of two micro-batches in flight, the second of one.
    assert len(set(found[:4])) == len(set(found[4:])) == 1
    assert found[0] > found[4]


def test_predict_point_knows_offload_but_for_parameters() -> None:
    sharded = {"dp": 8, "data_parallel_sharding": "optim"}
    plain = Spec("llama3-70b", sharded, cluster=H200, engine="deepspeed").point()
    assert predict_point(plain, CONFIG).status == "oom"
    with_moments, without = plain, plain.model_copy(update={"offload": ("optim",)})
    gib = [predict_point(point, CONFIG).memory_gib for point in (with_moments, without)]
    # Twelve bytes of a parameter, an eighth of them on a rank, and what the allocator loses of them.
    assert gib[0] - gib[1] == pytest.approx(12 * plain.model.num_parameters / 8 / 2**30, rel=0.05)
    found = predict_point(plain.model_copy(update={"offload": ("optim", "params")}), CONFIG)
    assert found.status == "unsupported"
    assert found.reason == "offload: params is not simulated in pretrain; set offload: [] for a prediction"
