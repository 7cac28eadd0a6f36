"""Rows of tables of training runs, and the jobs they mean."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.published.cells import NEMOTRON
from triplepoint.published.rows import COLUMNS, Row, read_row
from triplepoint.simulate.work.blocks import split_layers

CONFIG = Path("config")


def read(**changes: str) -> Row:
    return read_row(NEMOTRON | changes, 1, CONFIG)


def test_read_row_makes_the_job() -> None:
    job = read().job
    assert job is not None
    assert (job.model.num_layers, job.model.hidden_size, job.model.num_query_groups) == (32, 6144, 8)
    assert (job.layout.tp, job.layout.dp, job.layout.sequence_parallel) == (4, 4, True)
    assert (job.num_gpus, job.num_microbatches, job.gpu.name, job.precision) == (16, 4, "h100", "bf16")
    assert job.layout.data_parallel_sharding == "optim"
    assert job.overlap == {"grad", "param", "tp"}
    assert job.fabric.levels[-1].bandwidth == 50e9


def test_read_row_takes_the_variant_whose_size_fits() -> None:
    # 32 layers of 2*6144^2 + 2*6144*1024 + 2 or 3 times 6144*24576, two tables of 256000*6144: 15.6 or 20.5 billion.
    two, three = read().job, read(params_B="20.5", model="unheard of").job
    assert two and three
    assert (two.model.activation, three.model.activation) == ("gelu", "swiglu")
    assert two.model.num_parameters == pytest.approx(15.6e9, rel=0.01)
    assert three.model.num_parameters == pytest.approx(20.5e9, rel=0.01)


def test_read_row_proxy_with_fewer_layers_follows_its_family() -> None:
    cells = {"model": "Grok1-314B", "layers": "2", "experts": "8", "topk": "2", "moe_ffn": "32768", "params_B": "314"}
    job = read(**cells).job
    assert job and job.model.moe
    assert (job.model.activation, job.model.ffn_hidden_size, job.model.moe.top_k) == ("swiglu", 32768, 2)


def test_read_row_heads_wider_than_the_quotient() -> None:
    cells = {"model": "Qwen3-30B-A3B", "hidden": "2048", "layers": "48", "heads": "32", "kv_heads": "4", "ffn": "6144"}
    experts = {"experts": "128", "topk": "8", "moe_ffn": "768", "vocab": "151936", "params_B": "30.5"}
    job = read(**cells, **experts).job
    assert job
    assert job.model.head_size == 128
    assert job.model.num_parameters == pytest.approx(30.5e9, rel=0.01)


@pytest.mark.parametrize("dp", ["", "n/a", "4"])
def test_read_row_derives_data_parallel_from_gpus(dp: str) -> None:
    job = read(dp=dp).job
    assert job and job.layout.dp == 4


def test_read_row_leaves_open_what_is_not_stated() -> None:
    row = read(mbs="not stated", recompute="see recipe")
    assert row.job and row.open_choices == {"micro_batch", "recompute"}


def test_read_row_follows_memory_in_the_gpu_name() -> None:
    big, small = (read(gpu=gpu, interconnect="").job for gpu in ("A100-SXM (single 8-GPU node)", "A100-SXM4-40GB"))
    assert big and small
    assert small.gpu.memory_capacity.value == big.gpu.memory_capacity.value / 2


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"hidden": "", "model": "unheard of"}, "unsupported", "hidden blank"),
        ({"seq": "", "model": "unheard of"}, "invalid", "seq is blank"),
        ({"model": "Zamba-7B-v1", "hidden": ""}, "unsupported", "Mamba-1 in heads, which are not simulated"),
        ({"trainable": "QLoRA"}, "unsupported", "QLoRA"),
        ({"trainable": "LoRA 0"}, "invalid", "trainable is 'lora 0', expected LoRA with a rank of 1 to 65535"),
        ({"trainable": "LoRA rank -8"}, "invalid", "trainable is 'lora rank -8', expected LoRA with a rank"),
        ({"trainable": "LoRA rank 99999"}, "invalid", "expected LoRA with a rank of 1 to 65535"),
        ({"gpu": "TPU v5p"}, "unsupported", "gpu 'TPU v5p' is not known"),
        ({"precision": "MXFP4"}, "unsupported", "MXFP4"),
        (
            {"gpu": "H100-SXM-80GB", "precision": "NVFP4"},
            "invalid",
            "nvfp4, h100 has no units for it; set precision: fp8",
        ),
        ({"offload": "weights"}, "invalid", "offload is 'weights', expected none, or some of optim activations"),
        (
            {"gpu": "MI300X", "interconnect": "", "offload": "optim"},
            "unsupported",
            "offload: the host of GPU type mi300x is not known",
        ),
        ({"layers": "many"}, "invalid", "layers is 'many', expected a number"),
        ({"n_gpus": "17"}, "invalid", "tp*pp*cp*dp = 4*1*1*4 = 16, num_gpus is 17; choose"),
        ({"dp": "", "n_gpus": "18"}, "invalid", "tp*pp*cp*dp = 4*1*1*4 = 16, num_gpus is 18; choose"),
        ({"gbs": ""}, "invalid", "gbs is blank"),
        ({"gbs": "63"}, "invalid", "global_batch_size 63 is not divisible by micro_batch_size*dp = 4*4"),
        ({"heads": "47"}, "invalid", "hidden 6144 is not divisible by heads 47"),
        ({"tp": "0"}, "invalid", "tp is 0"),
        ({"pipeline_layers": "3 5"}, "invalid", "pipeline_layers has length 2, pp*vp = 1*1 = 1"),
        ({"pipeline_layers": "3 many"}, "invalid", "pipeline_layers is '3 many', expected the layers of each stage"),
        (
            {"gpu": "A100-SXM-80GB", "precision": "FP8", "interconnect": ""},
            "invalid",
            "precision: fp8, a100 has no fp8 units",
        ),
        (
            {"tp": "5", "dp": "", "n_gpus": "20"},
            "invalid",
            "num_attention_heads 48 is not divisible by tp: 5; set tp: 4",
        ),
        ({"ep": "2"}, "invalid", "ep: 2, model nemotron4-15b has no experts"),
        ({"fsdp": "voodoo"}, "invalid", "fsdp is 'voodoo'"),
        ({"fsdp": "FSDP2 shard=3"}, "invalid", "fsdp shards over 3 ranks, which do not divide dp 4"),
        ({"fsdp": "ZeRO-3 CPU offload"}, "unsupported", "offload of shards to the host's memory"),
    ],
)
def test_read_row_says_why_there_is_no_job(changes: dict[str, str], status: str, reason: str) -> None:
    row = read(**changes)
    assert (row.job, row.status) == (None, status)
    assert reason in row.reason and "\n" not in row.reason


@pytest.mark.parametrize(
    ("fsdp", "size"),
    [("HSDP", 2), ("FSDP2 shard=2", 2), ("FSDP2 shard=4", None), ("FSDP2 shard=8", None), ("FSDP", None)],
)
def test_read_row_hybrid_sharding_is_inside_a_node(fsdp: str, size: int | None) -> None:
    job = read(fsdp=fsdp).job
    assert job and job.shard_size == size


@pytest.mark.parametrize("text", ["20 28", "[20, 28]", "20;28"])
def test_read_row_takes_the_layers_of_each_stage(text: str) -> None:
    row = read(pp="2", dp="2", layers="48", model="", pipeline_layers=text)
    assert row.job is not None
    assert row.job.layout.pipeline_layers == (20, 28)


def test_read_row_without_id_is_known_by_its_number() -> None:
    assert read_row({}, 7, CONFIG).id == "7"


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(st.sampled_from(COLUMNS), st.text(max_size=30) | st.integers().map(str), max_size=6))
def test_read_row_never_fails(changes: dict[str, str]) -> None:
    row = read_row(NEMOTRON | changes, 1, CONFIG)
    assert (row.job is None) == bool(row.status)
    assert bool(row.reason) == bool(row.status)


def test_ends_of_a_pipeline_may_have_no_layer() -> None:
    row = read(pp="8", vp="4", tp="1", dp="1", n_gpus="8", layers="30", model="", gbs="64", mbs="1")
    assert row.job, row.reason
    found = [chunk.num_layers for stage in split_layers(row.job) for chunk in stage]
    assert sorted(found) == [0, 0] + [1] * 30
    assert read(pp="8", vp="4", tp="1", dp="1", n_gpus="8", layers="29", model="", gbs="64").status == "invalid"


@pytest.mark.parametrize("said", ["PCIe Gen5", "PCIe 5.0", "PCIe 5"])
def test_a_generation_of_pcie_does_not_make_a_card_of_a_module(said: str) -> None:
    (card, module) = (read(gpu="H100", interconnect=text).job for text in ("PCIe", said))
    assert card is not None and module is not None
    assert (card.gpu.name, module.gpu.name) == ("h100-pcie", "h100")
