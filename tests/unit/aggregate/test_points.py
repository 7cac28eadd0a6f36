"""Numbers of the tables, worked out by hand from the made-up runs in `tests.synthetic`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.synthetic import CONFIG, CPU, H200, NO_RAPL, PEAK_OF_MODEL_W, Spec, build, read_tables
from triplepoint.aggregate import aggregate
from triplepoint.aggregate.samples import sample_weights_ns
from triplepoint.manifest import Interruption, SlowStep, SlowSteps, read_manifest, write_manifest
from triplepoint.tables import STEPS, TELEMETRY

ONE_NODE = Spec("llama3-70b", {"tp": 8}, cluster=H200, step_ms=100_000)


def tables_of(folder: Path, *specs: Spec) -> dict[str, list[dict]]:
    aggregate(build(folder, specs), folder, CONFIG)
    return {name: table.to_pylist() for name, table in read_tables(folder).items()}


def test_aggregate_step_time_by_hand(tmp_path: Path) -> None:
    (point,) = tables_of(tmp_path, Spec("tiny-llama", {"dp": 2}))["points"]
    # Measured steps are 1.0, 1.04, 0.98, 1.1 and 1.01 times 200 ms: sorted 196, 200, 202, 208, 220.
    assert point["step_time_s"] == pytest.approx(0.202)
    assert point["step_time_p10_s"] == pytest.approx(0.1976)
    assert point["step_time_p90_s"] == pytest.approx(0.2152)
    assert point["num_measured_steps"] == 5
    assert point["tokens_per_s"] == pytest.approx(16 * 128 / 0.202)
    assert point["tokens_per_s_per_gpu"] == pytest.approx(16 * 128 / 0.202 / 2)


def interrupt(folder: Path, run: str, step: int) -> None:
    """Let the manifest of a run say that a rank stood still in a measured step."""
    path = folder / "runs" / run / "raw" / "manifest.json"
    manifest = read_manifest(path)
    found = Interruption(host="node0", rank=1, duration_s=8.0, steps=(step,), measured_steps=(step,))
    longest = (SlowStep(step=2, rank=0, time_s=1.0),)
    slow = SlowSteps(num=1, num_measured=4, median_s=0.2, longest=longest)
    write_manifest(path, manifest.model_copy(update={"interruptions": (found,), "slow_steps": slow}))


def test_aggregate_step_in_which_a_rank_stood_still_is_left_out(tmp_path: Path) -> None:
    plan = build(tmp_path, [Spec("tiny-llama", {"dp": 2})])
    interrupt(tmp_path, plan.entries[0].run, step=4)
    aggregate(plan, tmp_path, CONFIG)
    (point,) = read_tables(tmp_path)["points"].to_pylist()
    # Without the step of 220 ms: 196, 200, 202, 208.
    assert point["step_time_s"] == pytest.approx(0.201)
    assert (point["num_measured_steps"], point["num_interrupted_steps"]) == (4, 1)
    assert point["step_notes"] == (
        "rank 1 on node0 stood still for 8.0 s or more in step 4; measured step 4 left out; "
        "1 of 4 measured steps took over 3 times the median of 0.2 s, longest 2 (1 s, rank 0); they count"
    )


def test_aggregate_power_of_an_interrupted_step_is_left_out(tmp_path: Path) -> None:
    plan = build(tmp_path, [ONE_NODE])
    interrupt(tmp_path, plan.entries[0].run, step=5)
    aggregate(plan, tmp_path, CONFIG)
    tables = {name: table.to_pylist() for name, table in read_tables(tmp_path).items()}
    # GPU k draws 490 - 5 (k + 1) + 10 step W in steps 1 to 4.
    assert [row["gpu_power_w"] for row in tables["gpus"]] == pytest.approx([510 - 5 * k for k in range(8)])
    assert {row["step"] for row in tables["step_energy"]} == {1, 2, 3, 4}


def test_aggregate_without_interruptions_says_nothing_of_them(tmp_path: Path) -> None:
    (point,) = tables_of(tmp_path, Spec("tiny-llama", {"dp": 2}))["points"]
    assert (point["num_interrupted_steps"], point["step_notes"]) == (None, None)


def test_aggregate_in_processes_writes_the_same(tmp_path: Path) -> None:
    specs = (Spec("tiny-llama", {"dp": 2}), Spec("tiny-llama", {"tp": 2}), ONE_NODE)
    plans = {jobs: build(tmp_path / str(jobs), specs) for jobs in (1, 2)}
    for jobs, plan in plans.items():
        aggregate(plan, tmp_path / str(jobs), CONFIG, num_jobs=jobs)
    alone, shared = (read_tables(tmp_path / str(jobs)) for jobs in (1, 2))
    for name, table in alone.items():
        assert table.equals(shared[name]), name
    assert shared["points"].num_rows == len(specs)


def test_aggregate_cpu_has_no_power_and_says_why(tmp_path: Path) -> None:
    (point,) = tables_of(tmp_path, Spec("tiny-llama", {"dp": 2}))["points"]
    assert point["power_absent"] == NO_RAPL
    assert [point[name] for name in ("job_gpu_power_w", "job_host_power_w", "mfu", "gpu")] == [None] * 4
    assert point["cpu_utilisation"] == pytest.approx(0.9)


def test_aggregate_loss_and_memory(tmp_path: Path) -> None:
    (point,) = tables_of(tmp_path, Spec("tiny-llama", {"pp": 2, "schedule": "1f1b"}))["points"]
    assert (point["loss_first"], point["loss_last"]) == (5.5, pytest.approx(4.9))
    assert point["peak_memory_bytes"] == (1 << 30) + 1


def test_aggregate_gpu_power_by_hand(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, ONE_NODE)
    (point,) = tables["points"]
    # GPU k draws 490 - 5 (k + 1) + 10 step W in steps 1 to 5: 515, 510, ..., 480 on average.
    assert [row["gpu_power_w"] for row in tables["gpus"]] == pytest.approx([515 - 5 * k for k in range(8)])
    assert point["job_gpu_power_w"] == pytest.approx(3980)
    assert point["gpu_power_w"] == pytest.approx(3980 / 8)
    assert point["gpu_power_p90_w"] == pytest.approx(4108 / 8)
    tokens = point["tokens_per_s"] * point["step_time_s"]
    assert point["tokens_per_s_p10"] == pytest.approx(tokens / point["step_time_p90_s"])
    assert point["tokens_per_s_per_gpu_p90"] == pytest.approx(tokens / 8 / point["step_time_p10_s"])
    assert point["gpu_energy_per_token_p10_j"] == pytest.approx(3852 * point["step_time_p10_s"] / tokens)
    assert point["gpu_energy_per_token_lo_j"] is None, "measured runs have no interval of the model"
    # Sums of the steps: 3820, 3900, 3980, 4060, 4140.
    assert point["job_gpu_power_p10_w"] == pytest.approx(3852)
    assert point["job_gpu_power_p90_w"] == pytest.approx(4108)
    assert point["gpu_energy_per_token_j"] == pytest.approx(3980 * 101 / (128 * 8192))
    assert point["job_gpu_samples_per_s_mj"] == pytest.approx(128 / 101 / (3980 * 101 / 1e6))
    assert point["power_absent"] is None
    assert [row["gpu_temp_c"] for row in tables["gpus"]] == pytest.approx([52 + 2 * k for k in range(8)])


def test_aggregate_host_power_is_energy_over_time(tmp_path: Path) -> None:
    plan = build(tmp_path, [Spec("tiny-llama", {"dp": 2})])
    path = tmp_path / "runs" / plan.entries[0].run / "telemetry.parquet"
    rows = TELEMETRY.read(path).to_pylist()
    for row in rows:
        # Counters of 50 W and 5 W.
        row |= {"cpu_energy_j": 50 * row["t_ns"] / 1e9, "dram_energy_j": 5 * row["t_ns"] / 1e9}
    TELEMETRY.write(path, TELEMETRY.from_rows(rows))
    aggregate(plan, tmp_path, CONFIG)
    (point,) = read_tables(tmp_path)["points"].to_pylist()
    assert point["job_host_power_w"] == pytest.approx(55)
    assert point["job_host_power_p90_w"] == pytest.approx(55)
    assert point["host_energy_per_token_j"] == pytest.approx(55 * 0.202 / 2048)
    assert point["power_absent"] is None


def test_aggregate_power_at_the_plug_of_too_few_readings_has_no_swing(tmp_path: Path) -> None:
    plan = build(tmp_path, [Spec("tiny-llama", {"dp": 2})])
    path = tmp_path / "runs" / plan.entries[0].run / "telemetry.parquet"
    rows = TELEMETRY.read(path).to_pylist()
    for row in rows:
        row["node_power_w"] = 300.0 if row["device"] == "host" else None
    TELEMETRY.write(path, TELEMETRY.from_rows(rows))
    aggregate(plan, tmp_path, CONFIG)
    (point,) = read_tables(tmp_path)["points"].to_pylist()
    assert point["node_power_w"] == pytest.approx(300.0)
    assert point["job_power_swing_fraction"] is point["job_power_line_hz"] is point["job_power_seen_hz"] is None


def test_aggregate_split_of_the_profiled_step_adds_up(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, Spec("tiny-llama", {"tp": 2, "pp": 2, "schedule": "1f1b"}))
    (point,) = tables["points"]
    parts = [point[name] for name in ("compute_s", "exposed_comm_s", "exposed_memory_s", "idle_s")]
    assert sum(parts) == pytest.approx(0.26, rel=1e-6)
    # Every phase spends 0.05 + 0.03 tp + 0.01 dp = 0.12 of its time in communication.
    assert point["exposed_comm_s"] == pytest.approx(0.26 * 0.12, rel=1e-6)
    assert {row["rank"] for row in tables["phases"]} == {0, 1, 2, 3}


def test_aggregate_kernel_sums_by_hand(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, Spec("tiny-llama", {"dp": 2}))
    (gemm,) = [row for row in tables["kernels"] if row["class"] == "gemm"]
    # 0.42 of 200 ms on rank 0, one per cent more on rank 1.
    assert (gemm["sum_min_s"], gemm["sum_s"], gemm["sum_max_s"]) == pytest.approx((0.084, 0.08442, 0.08484))
    assert (gemm["num_ranks"], gemm["count_per_rank"]) == (2, 20)
    (point,) = tables["points"]
    total = sum(row["sum_s"] for row in tables["kernels"])
    assert point["kernel_sum_s"] == pytest.approx(total)
    assert point["kernel_sum_max_s"] == pytest.approx(total * 1.01 / 1.005, rel=1e-6)


def test_aggregate_keeps_oom_and_invalid_as_results(tmp_path: Path) -> None:
    oom = Spec("tiny-llama", {"dp": 2}, status="oom")
    invalid = Spec("tiny-llama", {"dp": 2}, 2, status="invalid")
    tables = tables_of(tmp_path, oom, invalid, Spec("tiny-llama", {"dp": 2}, 4))
    found = [(row["status"], row["reason"], row["step_time_s"] is None) for row in tables["points"]]
    assert found == [
        ("oom", "rank 3 on node0: CUDA out of memory. Tried to allocate 2.25 GiB", True),
        ("invalid", "80 layers do not divide into 32 pipeline stages", True),
        ("ok", None, False),
    ]
    assert {row["run"] for row in tables["gpus"]} == {tables["points"][2]["run"]}


def test_aggregate_ranks_in_numeric_order(tmp_path: Path) -> None:
    tables = tables_of(
        tmp_path, Spec("llama3-70b", {"pp": 16, "dp": 2, "schedule": "1f1b"}, cluster=H200, step_ms=30_000)
    )
    assert [row["rank"] for row in tables["gpus"]] == list(range(32))
    assert [row["slot"] for row in tables["gpus"]] == list(range(8)) * 4


def test_aggregate_several_nodes_take_the_longest_rank(tmp_path: Path) -> None:
    spec = Spec("llama3-70b", {"tp": 8, "dp": 2}, cluster=H200, step_ms=50_000)
    plan = build(tmp_path, [spec])
    path = tmp_path / "runs" / plan.entries[0].run / "raw/steps.parquet"
    rows = STEPS.read(path).to_pylist()
    for row in rows:
        # The second node's clock began a day earlier; its rank 9 is 20 ms slower in every step.
        shift = 86_400 * 10**9 if row["rank"] >= 8 else 0
        row["t_start_ns"] += shift
        row["t_end_ns"] += shift + (20_000_000 if row["rank"] == 9 else 0)
    STEPS.write(path, STEPS.from_rows(rows))
    manifest = read_manifest(path.with_name("manifest.json"))
    first, second = manifest.nodes
    earlier = second.model_copy(update={"monotonic_ns": second.monotonic_ns + 86_400 * 10**9})
    write_manifest(path.with_name("manifest.json"), manifest.model_copy(update={"nodes": (first, earlier)}))
    aggregate(plan, tmp_path, CONFIG)
    (point,) = read_tables(tmp_path)["points"].to_pylist()
    # Rank 9 starts 9 us after rank 0.
    assert point["step_time_s"] == pytest.approx(50.52 - 9e-6)


def test_aggregate_without_profiled_steps_needs_no_traces(tmp_path: Path) -> None:
    spec = Spec("tiny-llama", {"dp": 2})
    plan = build(tmp_path, [spec])
    entry = plan.entries[0]
    point = entry.planned.point.model_copy(
        update={"steps": entry.planned.point.steps.model_copy(update={"profiled": 0})}
    )
    planned = entry.planned.model_copy(update={"point": point})
    plan = plan.model_copy(update={"entries": (entry.model_copy(update={"planned": planned}),)})
    folder = tmp_path / "runs" / entry.run
    rows = [row for row in STEPS.read(folder / "raw/steps.parquet").to_pylist() if row["kind"] != "profiled"]
    STEPS.write(folder / "raw/steps.parquet", STEPS.from_rows(rows))
    for name in ("categories", "kernels", "timeline"):
        (folder / f"{name}.parquet").unlink()
    aggregate(plan, tmp_path, CONFIG)
    (row,) = read_tables(tmp_path)["points"].to_pylist()
    assert row["compute_s"] is None
    assert row["step_time_s"] is not None


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.randoms())
def test_aggregate_does_not_depend_on_row_order(tmp_path: Path, seed: object) -> None:
    plan = build(tmp_path, [Spec("tiny-llama", {"pp": 2, "dp": 2, "schedule": "1f1b"}, cluster=CPU)])
    path = tmp_path / "runs" / plan.entries[0].run / "raw/steps.parquet"
    aggregate(plan, tmp_path, CONFIG)
    before = (tmp_path / "tables/synthetic/points.csv").read_bytes()
    table = STEPS.read(path)
    order = list(range(table.num_rows))
    seed.shuffle(order)  # type: ignore[attr-defined]
    STEPS.write(path, table.take(pa.array(order)))
    aggregate(plan, tmp_path, CONFIG)
    assert (tmp_path / "tables/synthetic/points.csv").read_bytes() == before


def test_aggregate_highest_power_of_measured_gpus_is_their_highest_sample(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, ONE_NODE)
    # GPU k reaches 485 - 5 k + 50 W in step 5.
    assert [row["gpu_power_peak_w"] for row in tables["gpus"]] == pytest.approx([535 - 5 * k for k in range(8)])
    assert tables["points"][0]["gpu_power_peak_w"] == pytest.approx(535)
    assert tables["points"][0]["package_power_peak_w"] is None


def test_aggregate_highest_power_of_a_simulated_run_is_the_models(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, replace(ONE_NODE, engine="simulated"))
    assert tables["points"][0]["gpu_power_peak_w"] == PEAK_OF_MODEL_W
    assert (tables["points"][0]["stack"], tables["points"][0]["memory_undecided"]) == ("NeMo b70681c", None)
    assert {row["gpu_power_peak_w"] for row in tables["gpus"]} == {None}


def test_aggregate_highest_power_of_a_shared_sensor_is_of_a_package(tmp_path: Path) -> None:
    mi250 = H200.model_copy(update={"name": "mi250x32", "gpu": "mi250"})
    tables = tables_of(tmp_path, replace(ONE_NODE, cluster=mi250, step_ms=400_000))
    (point,) = tables["points"]
    assert point["gpu_power_peak_w"] is None and point["package_power_peak_w"] == pytest.approx(535)
    assert {row["gpu_power_peak_w"] for row in tables["gpus"]} == {None}


def test_sample_weights_ns_by_hand() -> None:
    """Measured from 10 to 30 and from 40 to 60; a sample stands for half of the way to its neighbours in there."""
    t_ns, windows_ns = np.array([0, 10, 20, 24, 34, 44]), np.array([[10, 30], [40, 60]])
    # 15 to 22 of the third, 22 to 29 of the fourth, 29 to 30 of the next, 40 to 44 of the last.
    assert sample_weights_ns(t_ns, windows_ns).tolist() == [0, 5, 7, 7, 1, 4]
    # Half of a gap would be 50; what lies in it was not measured.
    assert sample_weights_ns(np.array([0, 10, 20, 30, 130, 140]), np.array([[0, 200]])).tolist() == [
        5,
        10,
        10,
        15,
        15,
        5,
    ]
