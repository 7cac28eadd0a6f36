"""What aggregate refuses: one line that names the run, and no table written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.synthetic import CONFIG, H200, Spec, build, write_run
from triplepoint.aggregate import aggregate
from triplepoint.config.plan import Plan
from triplepoint.errors import UserError
from triplepoint.manifest import read_manifest, write_manifest
from triplepoint.tables import CATEGORIES, STEPS, TELEMETRY, Table

CPU_SPEC = Spec("tiny-llama", {"dp": 2})
GPU_SPEC = Spec("llama3-70b", {"tp": 8}, cluster=H200, step_ms=100_000)


def refusal(plan: Plan, results: Path, config: Path = CONFIG) -> str:
    with pytest.raises(UserError) as caught:
        aggregate(plan, results, config)
    assert not (results / "tables").exists()
    message = str(caught.value)
    assert "\n" not in message
    return message


def change(path: Path, table: Table, keep: Callable[[dict], bool], update: Callable[[dict], dict] = dict) -> None:
    rows = [update(row) for row in table.read(path).to_pylist() if keep(row)]
    table.write(path, table.from_rows(rows))


def built(folder: Path, spec: Spec) -> tuple[Plan, Path]:
    plan = build(folder, [spec])
    return plan, folder / "runs" / plan.entries[0].run


def test_aggregate_refuses_run_without_manifest(tmp_path: Path) -> None:
    plan = build(tmp_path, [CPU_SPEC, Spec("tiny-llama", {"tp": 2})])
    for entry in plan.entries:
        (tmp_path / "runs" / entry.run / "raw/manifest.json").unlink()
    message = refusal(plan, tmp_path)
    assert message.startswith(f"run {plan.entries[0].run}: no manifest")
    assert "and 1 more runs" in message
    assert "snakemake all" in message


def test_aggregate_refuses_run_of_another_point(tmp_path: Path) -> None:
    plan, folder = built(tmp_path, CPU_SPEC)
    manifest = read_manifest(folder / "raw/manifest.json")
    write_manifest(folder / "raw/manifest.json", manifest.model_copy(update={"digest": "0" * 64}))
    message = refusal(plan, tmp_path)
    assert "measured for another point" in message
    assert "launch it again" in message


@pytest.mark.parametrize("status", ["crashed", "timeout"])
def test_aggregate_refuses_failure_and_names_it(tmp_path: Path, status: str) -> None:
    plan, folder = built(tmp_path, CPU_SPEC)
    write_run(folder, Spec("tiny-llama", {"dp": 2}, status=status), plan.entries[0].planned)
    message = refusal(plan, tmp_path)
    assert f"{status}: rank 3 on node0" in message
    assert "out of memory" not in message


def test_aggregate_refuses_missing_ranks(tmp_path: Path) -> None:
    plan, folder = built(tmp_path, GPU_SPEC)
    change(folder / "raw/steps.parquet", STEPS, lambda row: row["rank"] not in (1, 6))
    assert "lacks ranks 1, 6 (the run has 8 ranks)" in refusal(plan, tmp_path)


def test_aggregate_refuses_missing_step_of_one_rank(tmp_path: Path) -> None:
    plan, folder = built(tmp_path, GPU_SPEC)
    change(folder / "raw/steps.parquet", STEPS, lambda row: (row["rank"], row["step"]) != (5, 3))
    assert "ranks 5 do not have the 5 measured steps" in refusal(plan, tmp_path)


def test_aggregate_refuses_other_batch(tmp_path: Path) -> None:
    plan, folder = built(tmp_path, CPU_SPEC)
    change(folder / "raw/steps.parquet", STEPS, lambda row: True, lambda row: row | {"num_tokens": 1024})
    assert "steps of 1024 tokens" in refusal(plan, tmp_path)


def test_aggregate_refuses_lost_gpu(tmp_path: Path) -> None:
    plan, folder = built(tmp_path, GPU_SPEC)
    change(folder / "telemetry.parquet", TELEMETRY, lambda row: row["device"] != "gpu3")
    message = refusal(plan, tmp_path)
    assert "no power samples in measured steps for node 0 gpu3" in message


def test_aggregate_refuses_missing_trace_of_one_rank(tmp_path: Path) -> None:
    plan, folder = built(tmp_path, GPU_SPEC)
    change(folder / "categories.parquet", CATEGORIES, lambda row: row["rank"] != 7)
    assert "lacks profiled steps of ranks 7" in refusal(plan, tmp_path)


def test_aggregate_refuses_missing_devices(tmp_path: Path) -> None:
    plan, folder = built(tmp_path, GPU_SPEC)
    manifest = read_manifest(folder / "raw/manifest.json")
    node = manifest.nodes[0].model_copy(update={"devices": manifest.nodes[0].devices[:-1]})
    write_manifest(folder / "raw/manifest.json", manifest.model_copy(update={"nodes": (node,)}))
    assert "the manifest has devices for ranks 0, 1, 2, 3, 4, 5, 6, expected one for each of 8" in refusal(
        plan, tmp_path
    )


@pytest.mark.parametrize("name", ["raw/steps", "telemetry", "categories", "kernels", "timeline"])
def test_aggregate_refuses_truncated_table(tmp_path: Path, name: str) -> None:
    plan, folder = built(tmp_path, CPU_SPEC)
    path = folder / f"{name}.parquet"
    path.write_bytes(path.read_bytes()[:100])
    assert f"{name}.parquet: not a whole Parquet file" in refusal(plan, tmp_path)


def test_aggregate_refuses_more_than_the_peak(tmp_path: Path) -> None:
    plan, _ = built(tmp_path, Spec("llama3-70b", {"tp": 8}, cluster=H200, step_ms=100))
    assert "times the bf16 peak of h200" in refusal(plan, tmp_path)


def test_aggregate_refuses_gpu_without_configuration(tmp_path: Path) -> None:
    plan, _ = built(tmp_path, GPU_SPEC)
    (tmp_path / "gpus").mkdir()
    assert "h200.yaml: no such file" in refusal(plan, tmp_path, tmp_path)


def test_aggregate_both_dies_of_a_package_may_share_one_sensor(tmp_path: Path) -> None:
    mi250 = H200.model_copy(update={"name": "mi250x32", "gpu": "mi250"})
    spec = Spec("llama3-70b", {"tp": 8}, cluster=mi250, step_ms=400_000)
    plan, folder = built(tmp_path, spec)
    change(folder / "telemetry.parquet", TELEMETRY, lambda row: row["device"] not in ("gpu1", "gpu3", "gpu5", "gpu7"))
    aggregate(plan, tmp_path, CONFIG)
