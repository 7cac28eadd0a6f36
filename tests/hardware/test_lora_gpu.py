"""LoRA on a real GPU, through the real launch, also with Transformer Engine: losses as the native engine's there."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.points import planned, tiny_point, write_run
from triplepoint.config.point import Layout, PointCluster, Steps
from triplepoint.config.task import TARGETS, Lora
from triplepoint.launch.launch_run import launch
from triplepoint.manifest import read_manifest
from triplepoint.tables import STEPS

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu_required() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU that torch can use")


def losses(folder: Path, **changes: Any) -> list[float]:
    point = tiny_point(
        cluster=PointCluster(name="one-gpu", device="cuda", gpu="h200", gpus_per_node=1),
        num_gpus=1,
        layout=Layout(),
        corpus="stdlib",
        steps=Steps(warmup=5, measured=20, profiled=1),
        task="lora",
        lora=Lora(rank=4, alpha=256.0, targets=TARGETS),
        **changes,
    )
    run = write_run(folder, planned(point))
    launch(run, print)
    assert read_manifest(run / "raw" / "manifest.json").status == "ok"
    return STEPS.read(run / "raw" / "steps.parquet")["loss"].to_pylist()


@pytest.mark.parametrize("engine", ["megatron", "deepspeed"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 5e-3)])
def test_one_gpu_trains_adapters_as_the_native_engine_does(
    engine: str, recompute: str, precision: str, tolerance: float, tmp_path: Path
) -> None:
    if not importlib.import_module(f"triplepoint.launch.engines.{engine}").is_installed():
        pytest.skip(f"{engine} is not installed")
    expected = losses(tmp_path / "native", recompute=recompute, precision=precision)
    found = losses(tmp_path / engine, engine=engine, recompute=recompute, precision=precision)
    assert found == pytest.approx(expected, rel=tolerance)
    assert found[-1] < found[0]
