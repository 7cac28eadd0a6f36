"""Inference of the native engine on real GPUs, through the real launch: NCCL between stages."""

import importlib.util
from pathlib import Path

import pytest

from tests.points import planned, tiny_point, write_run
from triplepoint.config.point import Layout, PointCluster, Steps
from triplepoint.config.task import Inference
from triplepoint.launch.launch_run import launch
from triplepoint.manifest import read_manifest
from triplepoint.tables import STEPS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("batch", [1, 8])
def test_launch_serves_in_stages(pp: int, batch: int, tmp_path: Path) -> None:
    assert importlib.util.find_spec("torch")
    import torch

    if torch.cuda.device_count() < pp:
        pytest.skip(f"{pp} stages need as many GPUs")
    point = tiny_point(
        cluster=PointCluster(name="one-node", device="cuda", gpu="h200", gpus_per_node=pp),
        num_gpus=pp,
        layout=Layout(pp=pp),
        precision="bf16",
        task="inference",
        inference=Inference(prompt_tokens=96, output_tokens=32),
        micro_batch_size=batch,
        global_batch_size=batch,
        sequence_length=128,
        steps=Steps(warmup=2, measured=5, profiled=1),
    )
    folder = write_run(tmp_path, planned(point))
    launch(folder, print)
    manifest = read_manifest(folder / "raw" / "manifest.json")
    assert manifest.status == "ok" and manifest.facts["backend"] == "nccl"
    model = point.model
    whole = 2 * 2 * 128 * batch * model.num_layers * model.num_query_groups * model.head_size
    assert manifest.facts["cache_bytes_rank"] == whole / pp
    rows = STEPS.read(folder / "raw" / "steps.parquet").to_pylist()
    sees = [row for row in rows if row["t_first_token_ns"] is not None]
    assert {row["rank"] for row in sees} == {pp - 1} and len(sees) == 8
    assert all(row["t_start_ns"] < row["t_first_token_ns"] < row["t_end_ns"] for row in sees)
