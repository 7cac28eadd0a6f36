"""DeepSpeed on a real GPU, through the real launch: losses as the native engine's on the same GPU."""

from pathlib import Path
from typing import Any

import pytest

from tests.points import planned, tiny_point, write_run
from triplepoint.config.point import Layout, PointCluster, Steps
from triplepoint.launch.engines import deepspeed
from triplepoint.launch.launch_run import launch
from triplepoint.manifest import read_manifest
from triplepoint.tables import STEPS

pytestmark = pytest.mark.gpu

OFFLOADED = {
    "nothing": ("no_shard", ()),
    "optimizer": ("optim_grads", ("optim",)),
    "optimizer and parameters": ("optim_grads_params", ("optim", "params")),
}


@pytest.fixture(autouse=True)
def gpu_required() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU that torch can use")
    if not deepspeed.is_installed():
        pytest.skip("deepspeed is not installed")


def losses(folder: Path, **changes: Any) -> list[float]:
    point = tiny_point(
        cluster=PointCluster(name="one-gpu", device="cuda", gpu="h200", gpus_per_node=1),
        num_gpus=1,
        corpus="stdlib",
        steps=Steps(warmup=5, measured=20, profiled=1),
        **changes,
    )
    run = write_run(folder, planned(point))
    launch(run, print)
    assert read_manifest(run / "raw" / "manifest.json").status == "ok"
    return STEPS.read(run / "raw" / "steps.parquet")["loss"].to_pylist()


@pytest.mark.parametrize("offloaded", OFFLOADED)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 5e-3)])
def test_one_gpu_trains_as_the_native_engine_does(
    offloaded: str, precision: str, tolerance: float, tmp_path: Path
) -> None:
    sharding, offload = OFFLOADED[offloaded]
    expected = losses(tmp_path / "native", layout=Layout(), precision=precision)
    layout = Layout(data_parallel_sharding=sharding)
    found = losses(tmp_path / "deepspeed", engine="deepspeed", layout=layout, offload=offload, precision=precision)
    assert found == pytest.approx(expected, rel=tolerance)
    assert found[-1] < found[0]
