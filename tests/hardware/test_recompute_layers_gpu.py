"""Recomputing some of the layers on a real GPU: memory between all and none, the same losses, on every engine."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.points import TINY, planned, tiny_point, write_run
from triplepoint.config.point import Layout, PointCluster, Steps
from triplepoint.launch.launch_run import launch
from triplepoint.manifest import read_manifest
from triplepoint.tables import STEPS

pytestmark = pytest.mark.gpu

WIDE = TINY.model_copy(
    update={"num_layers": 8, "hidden_size": 1024, "ffn_hidden_size": 4096, "num_attention_heads": 16}
)


@pytest.fixture(autouse=True)
def gpu_required() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU that torch can use")


def trained(folder: Path, **changes: Any) -> tuple[list[float], int]:
    """Losses, and the peak of what the allocator handed out. Unit: byte."""
    point = tiny_point(
        model=WIDE,
        cluster=PointCluster(name="one-gpu", device="cuda", gpu="h200", gpus_per_node=1),
        num_gpus=1,
        layout=Layout(),
        corpus="stdlib",
        sequence_length=2048,
        micro_batch_size=4,
        precision="bf16",
        steps=Steps(warmup=2, measured=3, profiled=0),
        **changes,
    )
    run = write_run(folder, planned(point))
    launch(run, print)
    assert read_manifest(run / "raw" / "manifest.json").status == "ok"
    steps = STEPS.read(run / "raw" / "steps.parquet")
    return steps["loss"].to_pylist(), max(steps["peak_memory_bytes"].to_pylist())


@pytest.mark.parametrize("engine", ["native", "megatron", "deepspeed"])
def test_more_recomputed_layers_take_less_memory(engine: str, tmp_path: Path) -> None:
    if engine != "native" and not importlib.import_module(f"triplepoint.launch.engines.{engine}").is_installed():
        pytest.skip(f"{engine} is not installed")
    ways: list[dict[str, Any]] = [{}, *({"recompute": "full", "recompute_layers": number} for number in (2, 4, 6))]
    found = [trained(tmp_path / str(number), engine=engine, **way) for number, way in enumerate(ways)]
    memory = [peak for _, peak in found]
    assert memory == sorted(memory, reverse=True) and len(set(memory)) == len(memory)
    for losses, _ in found[1:]:
        assert losses == pytest.approx(found[0][0], rel=1e-3)
