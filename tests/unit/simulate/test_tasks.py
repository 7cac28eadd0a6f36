"""Points of LoRA and inference as they are simulated."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triplepoint.config.catalogue import Catalogue
from triplepoint.config.cluster import ConditionsConfig
from triplepoint.config.gpu import GpuConfig
from triplepoint.config.plan import PlannedRun
from triplepoint.config.yaml_file import read
from triplepoint.errors import UserError
from triplepoint.flops import model_flops_per_token, peak_flops
from triplepoint.metrics import mfu, tokens_per_s
from triplepoint.plan import select
from triplepoint.recording import read_recording
from triplepoint.simulate.artefacts.serving import simulate_serving
from triplepoint.simulate.artefacts.simulate_run import job_of, simulate_run
from triplepoint.simulate.inference import (
    Groups,
    Serving,
    batch_of,
    groups_of,
    memory_by_stage,
    memory_of,
    predict_inference,
    serving_of,
    warm_batch,
)
from triplepoint.simulate.job import Job
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.predict.point import allocated_by_rank, predict_point
from triplepoint.tables import STEPS

CONFIG = Path("config")
CATALOGUE = Catalogue(CONFIG)


def planned(study: str, **fields: Any) -> PlannedRun:
    """Return the first simulated run of a study whose point has these fields."""
    plan = select(CONFIG, [study], ["cpu-local"], ["h200x32"])
    runs = (entry.planned for entry in plan.valid)
    return next(run for run in runs if all(getattr(run.point, name) == value for name, value in fields.items()))


def job(run: PlannedRun) -> Job:
    return job_of(run.point, CATALOGUE)


def test_lora_point_is_a_job_with_its_adapters() -> None:
    found = job(planned("lora"))
    assert (found.trainable, found.lora_rank, found.lora_targets) == ("lora", 8, frozenset({"linear_qkv"}))
    whole = replace(found, trainable="all")
    # Adam's state of 70 billion parameters on 8 GPUs is what a frozen model saves.
    assert peak_memory(whole).optimizer > 50 * peak_memory(found).optimizer


def test_lora_all_targets_is_none_in_the_job() -> None:
    plan = select(CONFIG, ["lora"], ["cpu-local"], ["h200x32"])
    assert {job(entry.planned).lora_targets for entry in plan.valid} == {None, frozenset({"linear_qkv"})}


@pytest.mark.parametrize("study", ["lora", "parallelism", "inference"])
def test_mfu_of_a_prediction_is_that_of_points(study: str) -> None:
    point = planned(study).point
    found = predict_point(point, CONFIG)
    gpu = read(GpuConfig, CONFIG / "gpus" / f"{point.cluster.gpu}.yaml")
    throughput = tokens_per_s(point.num_tokens, found.step_time_s)
    peak = peak_flops(gpu, point.precision)
    assert peak is not None
    assert found.mfu == pytest.approx(mfu(throughput, model_flops_per_token(point), point.num_gpus, peak))


def test_simulated_inference_is_what_is_predicted(tmp_path: Path) -> None:
    run = planned("inference", global_batch_size=16)
    manifest = simulate_run(run, tmp_path, CONFIG)
    expected, predicted = (
        predict_inference(job(run), Serving(1024, 128, 16), config=CONFIG),
        predict_point(run.point, CONFIG),
    )
    pace = predicted.step_time_s / expected.whole_s
    assert 0.9 < pace < 1.1, "clocks differ from those it was calibrated with"
    assert manifest.status == "ok" and manifest.facts["is_steady"] is True
    rows = STEPS.read(tmp_path / "steps.parquet").to_pylist()
    assert len(rows) == 8 * 21
    first = rows[0]
    assert (first["t_first_token_ns"] - first["t_start_ns"]) / 1e9 == pytest.approx(predicted.time_to_first_token_s)
    whole_s = predicted.time_to_first_token_s + 127 * predicted.time_per_output_token_s
    assert (first["t_end_ns"] - first["t_start_ns"]) / 1e9 == pytest.approx(whole_s)
    assert {row["num_tokens"] for row in rows} == {16 * 128}
    assert predicted.step_time_s == pytest.approx(whole_s)
    assert predicted.time_per_output_token_s == pytest.approx(pace * expected.time_per_output_token_s, rel=0.02)
    for name in ("step_time", "time_to_first_token", "time_per_output_token"):
        low, high = (getattr(predicted, f"{name}_{end}_s") for end in ("lo", "hi"))
        assert (manifest.facts[f"{name}_lo_s"], manifest.facts[f"{name}_hi_s"]) == (low, high)
        assert low < getattr(predicted, f"{name}_s") < high


def test_simulated_inference_energy_is_power_over_time(tmp_path: Path) -> None:
    run = planned("inference", global_batch_size=64)
    simulate_run(run, tmp_path, CONFIG)
    samples = read_recording(tmp_path / "telemetry" / "node0.arrow").samples.to_pandas()
    gpu = samples[samples["device"] == "gpu3"]
    steps = STEPS.read(tmp_path / "steps.parquet").to_pandas()
    start_ns, end_ns = steps["t_start_ns"].min(), steps["t_end_ns"].max()
    assert (end_ns - start_ns) / 1e9 == pytest.approx(21 * predict_point(run.point, CONFIG).step_time_s, rel=1e-3)
    # Sampling goes on until the energy counter has moved once more.
    assert gpu["t_ns"].iloc[0] == start_ns and gpu["t_ns"].iloc[-1] > end_ns + 200_000_000
    gpu = gpu[gpu["t_ns"] <= end_ns]
    seconds = (gpu["t_ns"].iloc[-1] - gpu["t_ns"].iloc[0]) / 1e9
    mean_w = (gpu["gpu_energy_j"].iloc[-1] - gpu["gpu_energy_j"].iloc[0]) / seconds
    # Two ways to the same mean: a counter, and samples at even times; those at the end of batches are not.
    even = gpu[~gpu["t_ns"].isin(steps["t_end_ns"])]
    assert mean_w == pytest.approx(even["gpu_power_w"].mean(), rel=0.02)


def test_simulated_inference_is_shown_by_the_sensors_of_its_parts(tmp_path: Path) -> None:
    """Sensors of MI250 are off by some degrees, each by its own: in inference as in training."""
    run = planned("inference", global_batch_size=64)
    where = run.point.cluster.model_copy(update={"name": "mi250x32", "gpu": "mi250", "device": "rocm"})
    small = CATALOGUE.model("llama3.2-3b")
    run = run.model_copy(update={"point": run.point.model_copy(update={"cluster": where, "model": small})})
    assert simulate_run(run, tmp_path, CONFIG).status == "ok"
    cluster = CATALOGUE.cluster("mi250x32")
    warm = warm_batch(batch_of(job(run), serving_of(run.point), CONFIG), cluster, CONFIG)
    samples = read_recording(tmp_path / "telemetry" / "node0.arrow").samples.to_pandas()
    shown = samples[samples["device"] != "host"].groupby("device")["gpu_temp_c"].mean()
    offset_k = np.broadcast_to(warm.machine.devices.sensor_k, warm.machine.shape)[0]
    assert np.ptp(offset_k) > 3
    dies_c = warm.trace.temp_c.mean(axis=0)[0]
    assert [shown[f"gpu{number}"] for number in range(8)] == pytest.approx(dies_c + offset_k, abs=0.8)


def test_simulated_inference_where_a_gpu_shuts_down(tmp_path: Path) -> None:
    run = planned("inference", global_batch_size=16)
    hot = ConditionsConfig(inlet_temp_c=60, bad_contact={"node0.gpu6": 20})
    cluster = CATALOGUE.cluster("h200x32").model_copy(update={"conditions": hot})
    with pytest.raises(UserError, match="node0.gpu6 comes to .* and shuts down at 95 degC"):
        simulate_serving(run, job(run), cluster, tmp_path, CONFIG, datetime.now(UTC))


def test_simulated_inference_without_room_is_out_of_memory(tmp_path: Path) -> None:
    run = planned("inference", global_batch_size=256)
    crowded = run.point.model_copy(update={"micro_batch_size": 4096, "global_batch_size": 4096})
    run = run.model_copy(update={"point": crowded, "digest": crowded.digest()})
    assert not memory_of(job(run), Serving(1024, 128, 4096)).fits
    manifest = simulate_run(run, tmp_path, CONFIG)
    assert manifest.status == "oom"
    assert manifest.evidence is not None and "cache" in manifest.evidence.message


def in_stages(pp: int, batch: int = 6, **fields: Any) -> PlannedRun:
    """Return a simulated run of inference on eight GPUs in as many stages."""
    run = planned("inference", global_batch_size=16)
    layout = run.point.layout.model_copy(update={"tp": 8 // pp, "pp": pp})
    changes = {"layout": layout, "micro_batch_size": batch, "global_batch_size": batch} | fields
    point = run.point.model_copy(update=changes)
    return run.model_copy(update={"point": point, "digest": point.digest()})


def test_simulated_pipeline_shows_each_stage_its_own_memory_and_the_last_one_the_first_token(tmp_path: Path) -> None:
    run = in_stages(4)
    simulate_run(run, tmp_path, CONFIG)
    rows = STEPS.read(tmp_path / "steps.parquet").to_pylist()
    stages = memory_by_stage(job(run), serving_of(run.point))
    # The embedding lies in the first stage, the head with its logits in the last.
    assert stages[0].weights > stages[1].weights == stages[2].weights
    assert {row["rank"]: row["peak_memory_bytes"] for row in rows} == {
        rank: round(stages[rank // 2].total) for rank in range(8)
    }
    assert {row["rank"] for row in rows if row["t_first_token_ns"] is not None} == {6, 7}
    predicted = allocated_by_rank(run.point, CONFIG)
    assert list(predicted) == [stages[rank // 2].allocated for rank in range(8)]


@pytest.mark.parametrize(
    ("batch", "prompt_tokens", "expected"),
    [(6, 1024, Groups(2, 3, 2, 3)), (16, 1024, Groups(4, 4, 4, 4)), (64, 1024, Groups(8, 8, 16, 4))],
)
def test_groups_are_one_for_each_stage_and_prompts_no_more_than_go_together(
    batch: int, prompt_tokens: int, expected: Groups
) -> None:
    assert groups_of(job(in_stages(4)), Serving(prompt_tokens, 128, batch)) == expected
