"""The native engine on a real GPU, through the real launch: the same code as on the CPU."""

import importlib.util
from pathlib import Path

import pytest

from tests.points import planned, tiny_point, write_run
from triplepoint.config.point import Layout, PointCluster, Steps
from triplepoint.launch.launch_run import launch
from triplepoint.manifest import read_manifest
from triplepoint.tables import STEPS

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu_required() -> None:
    assert importlib.util.find_spec("torch")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU that torch can use")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_launch_one_gpu_trains(tmp_path: Path, precision: str) -> None:
    point = tiny_point(
        cluster=PointCluster(name="one-gpu", device="cuda", gpu="h200", gpus_per_node=1),
        num_gpus=1,
        layout=Layout(),
        precision=precision,
        corpus="stdlib",
        steps=Steps(warmup=5, measured=20, profiled=1),
    )
    folder = write_run(tmp_path, planned(point))
    launch(folder, print)
    manifest = read_manifest(folder / "raw" / "manifest.json")
    assert manifest.status == "ok"
    assert manifest.facts["backend"] == "nccl"
    losses = STEPS.read(folder / "raw" / "steps.parquet")["loss"].to_pylist()
    assert losses[-1] < losses[0]
