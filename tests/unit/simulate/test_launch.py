"""How the host starts kernels: eager, compiled, CUDA graphs."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.simulate.jobs import job, llama, operations
from triplepoint.published.rows import read_row
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.predict.software import software_use
from triplepoint.simulate.stacks import find_stack
from triplepoint.simulate.work.training import stage_work

CONFIG = Path("config")
LLAMA_8B = {
    "model": "Llama3.1-8B", "seq": "8192", "gpu": "H100-SXM-80GB", "n_gpus": "8", "dp": "8", "fsdp": "FSDP", "mbs": "2",
    "gbs": "16", "precision": "bf16", "recompute": "selective", "framework": "torchtitan",
}  # fmt: skip


def tokens_per_s(**changes: str) -> float:
    return read_row(LLAMA_8B | changes, 1, CONFIG).predict(CONFIG).tokens_per_s_per_gpu


def test_compiling_torchtitan_gains_what_is_published() -> None:
    # pytorch/torchtitan @b5bcd76 benchmarks/llama3_h100_202412_torchtitan.md, table 1: 5,762 and 6,667 tokens/s.
    assert tokens_per_s(launch="compiled") / tokens_per_s(launch="eager") == pytest.approx(6667 / 5762, rel=0.04)


def test_host_of_small_kernels_holds_up_eager_most_and_graphs_least() -> None:
    small = {"model": "", "hidden": "512", "layers": "24", "heads": "8", "vocab": "32000", "seq": "256", "mbs": "1"}
    times = [tokens_per_s(**small, gbs="8", launch=launch) for launch in ("graphs", "compiled", "eager")]
    assert times[0] > 1.5 * times[1] > 3 * times[2]


@pytest.mark.parametrize(
    ("framework", "cell", "launch", "host_us"),
    [
        ("torchtitan", "", "eager", 59.0),
        ("torchtitan + torch.compile", "", "compiled", 20.0),
        ("torchtitan + torch.compile", "eager", "eager", 59.0),
        ("Megatron-Core r0.8", "", "eager", None),
        ("Megatron-Core r0.8", "CUDA graphs", "graphs", 0.5),
    ],
)
def test_launch_is_that_of_the_row_else_of_its_framework(
    framework: str, cell: str, launch: str, host_us: float | None
) -> None:
    read = read_row(LLAMA_8B | {"framework": framework, "launch": cell}, 1, CONFIG).job
    assert read is not None
    assert software_use(read, CONFIG).launch == launch
    stated = read.software.host_time
    assert (stated.value if stated else None) == (pytest.approx(host_us * 1e-6) if host_us else None)


def norms(**changes: Any) -> tuple[float, float]:
    software = find_stack("torchtitan", CONFIG).model_copy(update=changes)
    stages = stage_work(job(llama(), software=software))
    found = [
        sum(op.num_bytes for op in operations(stages, name) if isinstance(op, Kernel) and op.cls == "norm")
        for name in ("forward", "backward_input")
    ]
    return found[0], found[1]


def test_norms_in_steps_move_what_their_steps_move() -> None:
    forward, backward = norms()
    fused_forward, fused_backward = norms(launch="compiled")
    # 16 bits: 6 + 8 + 4 + 8 + 6 + 4 bytes of an element against 2 + 2; backward 14 + 6 + 24 + 20 + 6 against 3 * 2.
    assert forward / fused_forward == pytest.approx(36 / 4)
    assert backward / fused_backward == pytest.approx(70 / 6)
