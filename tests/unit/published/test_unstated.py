"""What rows say of recomputation and sharding, and what memory is said to be where they do not."""

from pathlib import Path

import pytest

from tests.unit.published.cells import NEMOTRON
from triplepoint.published.rows import Row, read_row

CONFIG = Path("config")
DEEPSEEK = {
    "id": "D1", "model": "DeepSeek-V3", "seq": "4096", "gpu": "H800-SXM-80GB", "n_gpus": "2048", "tp": "1", "pp": "16",
    "cp": "1", "ep": "64", "dp": "128", "fsdp": "ZeRO-1", "mbs": "1", "gbs": "15360", "precision": "FP8",
    "framework": "HAI-LLM",
}  # fmt: skip
LLAMA_70B = {
    "id": "L1", "model": "Llama2-70B", "seq": "4096", "gpu": "H100-SXM-80GB", "n_gpus": "96", "tp": "1", "pp": "1",
    "dp": "96", "fsdp": "FSDP", "mbs": "2", "gbs": "192", "precision": "BF16", "framework": "fms-fsdp 2024 compile",
}  # fmt: skip


def read(cells: dict[str, str], **changes: str) -> Row:
    return read_row(cells | changes, 1, CONFIG)


@pytest.mark.parametrize(
    ("cell", "modules"),
    [
        ("selective (RMSNorm, MLA up-projection)", ("mla_up_proj", "layernorm")),
        ("selective (moe, layernorm, core_attn, moe_act)", ("core_attn", "layernorm", "moe_act", "moe")),
        ("Selective: SwiGLU and core attention", ("core_attn", "moe_act")),
        ("selective (mlp moe)", ("mlp", "moe")),
    ],
)
def test_modules_of_selective_recomputation_are_read(cell: str, modules: tuple[str, ...]) -> None:
    job = read(DEEPSEEK, recompute=cell).job
    assert job and (job.recompute, job.software.recompute_modules) == ("selective", modules)


@pytest.mark.parametrize("cell", ["selective (garbage)", "selective (mlp, garbage)", "selective garbage mlp"])
def test_modules_nobody_knows_are_refused(cell: str) -> None:
    row = read(DEEPSEEK, recompute=cell)
    assert row.status == "invalid" and "expected selective of some of core_attn mla_up_proj" in row.reason


def test_modules_that_are_recomputed_are_not_kept() -> None:
    # A token of a layer: two norms of 7,168 and the up-projections, 128 heads of 192 + 256, in 16 bits, 140 KiB; 4,096
    # tokens, and four layers of each of 17 micro-batches, 37 GiB.
    of_attention = read(DEEPSEEK, recompute="selective (core_attn)").predict(CONFIG, with_power=False)
    of_norms = read(DEEPSEEK, recompute="selective (RMSNorm, MLA up-projection)").predict(CONFIG, with_power=False)
    assert of_attention.status == "oom" and of_norms.status == "undecided"
    assert of_attention.memory_gib - of_norms.memory_gib > 30


@pytest.mark.parametrize(
    ("cell", "status"), [("selective (some whole blocks)", "undecided"), ("none", "oom"), ("full", "ok")]
)
def test_memory_is_undecided_where_recomputation_is_not_said_exactly(cell: str, status: str) -> None:
    found = read(LLAMA_70B, recompute=cell).predict(CONFIG, with_power=False)
    assert found.status == status
    assert ("may fit with full recomputation" in found.reason) == (status == "undecided")


@pytest.mark.parametrize(("cell", "status"), [("", "undecided"), ("DDP", "oom")])
def test_memory_is_undecided_where_sharding_is_not_said(cell: str, status: str) -> None:
    # 18 bytes of each of 15.6 billion parameters over tp 4 are 65 GiB, and activations; sharded over 4, 29 GiB.
    found = read(NEMOTRON, fsdp=cell, mbs="4", recompute="none").predict(CONFIG, with_power=False)
    assert found.status == status and ("a distributed optimizer" in found.reason) == (status == "undecided")


def test_experts_beside_tensor_parallelism_split_the_sequence_unless_a_row_says_no() -> None:
    experts = {"model": "Mixtral-8x7B", "tp": "4", "ep": "8", "dp": "8", "n_gpus": "32", "gbs": "256", "mbs": "1"}
    cells = {key: DEEPSEEK[key] for key in ("id", "seq", "fsdp", "precision")} | {"gpu": "H100-SXM-80GB"} | experts
    blank, dense = read(cells, seq_parallel="").job, read(cells, seq_parallel="", model="Llama2-70B", ep="1").job
    assert blank and blank.layout.sequence_parallel
    assert dense and not dense.layout.sequence_parallel
    assert "needs sequence parallelism" in read(cells, seq_parallel="no").reason
    assert read(cells, seq_parallel="maybe").reason == "seq_parallel is 'maybe', expected yes or no"


def test_experts_on_context_parallel_ranks_are_unsupported() -> None:
    changes = {"pp": "1", "cp": "8", "ep": "16", "dp": "8", "n_gpus": "64", "gbs": "1024"}
    row = read(DEEPSEEK, **changes)
    assert row.status == "unsupported" and "ep 16 on cp*dp*tp/etp = 64 ranks" in row.reason
    assert read(DEEPSEEK, **changes | {"ep": "3"}).status == "invalid"


def test_capacity_factor_of_a_row_is_read() -> None:
    job = read(DEEPSEEK, capacity_factor="1.5").job
    assert job and job.model.moe and job.model.moe.capacity_factor == 1.5
