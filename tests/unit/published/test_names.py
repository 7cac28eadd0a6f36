"""Models that rows mean by name, and by name and columns together."""

from pathlib import Path

import pytest

from tests.unit.published.cells import NEMOTRON
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.model import LayerKind, ModelConfig
from triplepoint.errors import UserError
from triplepoint.published.architecture import Unsupported, find_model, read_names
from triplepoint.published.rows import Row, read_row, settle
from triplepoint.published.table import read_table
from triplepoint.simulate.memory.training import peak_memory

CONFIG = Path("config")
CATALOGUE = Catalogue(CONFIG)
NAMES = read_names(CONFIG)
BLANK = dict.fromkeys(
    ("hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "experts", "topk", "moe_ffn", "seq"), ""
)


def named(model: str, **changes: str) -> Row:
    alone = {"tp": "1", "dp": "", "n_gpus": "16", "mbs": "1", "params_B": ""}
    return read_row(NEMOTRON | BLANK | alone | {"model": model} | changes, 1, CONFIG)


def model_of(row: Row) -> ModelConfig:
    assert row.job, row.reason
    return row.job.model


@pytest.mark.parametrize(("model", "names"), NAMES.models.items())
def test_every_name_finds_its_own_model(model: str, names: list[str]) -> None:
    assert CATALOGUE.model(model).name == model
    assert [find_model(name.replace(" ", "-").upper(), CONFIG) for name in names] == [model] * len(names)


def test_no_name_is_of_two_models() -> None:
    names = [name for spelled in NAMES.models.values() for name in spelled]
    names += [name for entry in NAMES.unsupported for name in entry.names]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("entry", NAMES.unsupported, ids=lambda entry: entry.names[0])
def test_models_that_are_not_simulated_say_why(entry: Unsupported) -> None:
    row = named(entry.names[0])
    assert (row.status, row.job) == ("unsupported", None)
    assert entry.because in row.reason


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3-8b"),
        ("Llama2 7B Chat", "llama2-7b"),
        ("Llama3.2_1B", "llama3.2-1b"),
        ("Qwen2.5-7B", "qwen2.5-7b"),
        ("DeepSeek-V2-Lite", "deepseek-v2-lite"),
        ("OLMo-2-1124-7B", "olmo2-7b"),
        ("GPT-OSS-20B", "gpt-oss-20b"),
        ("GPT3-13.5B", None),
        ("Llama-3-80B", None),
        ("Llama-33B", "llama-30b"),
        ("Llama-3-8B.5", None),
        ("StarCoderBase-3B", None),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("DeepSeek-V3 671B", "deepseek-v3"),
        ("DeepSeek-R1-Distill-Llama-8B", "llama3-8b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b"),
        ("DeepSeek-R1-Distill-Gemma-9B", None),
        ("DeepSeek-R1-Distill", None),
        ("DeepSeek-R1-8B", None),
        ("DeepSeek-R1-0528-Qwen3-8B", "qwen3-8b"),
        ("Qwen3-Coder-30B-A3B", "qwen3-30b"),
        ("Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("DeepSeek-Coder-V2-Lite", "deepseek-v2-lite"),
        ("Qwen2.5-VL-7B", None),
        ("Llama-4-Scout-17B-16E", "llama4-scout"),
        ("Phi-4-multimodal", None),
        ("CodeLlama-7B", None),
        ("Code-Llama-7B", None),
        ("CodeLlama-34B", "codellama-34b"),
        ("Llama-70B", None),
        ("Llama-7B Mistral-7B", None),
        ("", None),
    ],
)
def test_find_model_by_words_in_order(name: str, expected: str | None) -> None:
    assert find_model(name, CONFIG) == expected


def test_a_name_alone_is_enough() -> None:
    row = named("DeepSeek-V3")
    model = model_of(row)
    assert model.latent and model.moe
    assert (model.num_layers, model.num_expert_layers, model.moe.shared_ffn_hidden_size) == (61, 58, 2048)
    assert row.job and row.job.sequence_length == 4096


def test_columns_win_over_the_name() -> None:
    model = model_of(named("DeepSeek-V3", layers="4", vocab="1024", experts="64", topk="4", ffn="9216", seq="2048"))
    assert model.moe and model.latent
    assert (model.num_layers, model.vocab_size, model.moe.num_experts, model.moe.top_k) == (4, 1024, 64, 4)
    assert (model.moe.dense_ffn_hidden_size, model.ffn_hidden_size) == (9216, 2048)
    assert model.layer_kinds == (LayerKind(False),) * 3 + (LayerKind(True),)


def test_another_width_is_another_model() -> None:
    model = model_of(named("DeepSeek-V3", hidden="4096", layers="4", heads="32", kv_heads="8", ffn="8192", seq="2048"))
    assert (model.latent, model.moe, model.hidden_size) == (None, None, 4096)


def test_windows_alternate() -> None:
    model = model_of(named("GPT-OSS-20B"))
    assert model.layer_kinds[:2] == (LayerKind(True, 128), LayerKind(True, None))
    assert (model.head_size, model.hidden_size // model.num_attention_heads) == (64, 45)


def test_lora_in_the_notes_counts_where_no_column_says() -> None:
    found = [named("Llama3-8B", notes=text).job for text in ("LoRA rank=8; other", "pretrain; not of LoRA", "")]
    assert [(job.trainable, job.lora_rank) for job in found if job] == [("lora", 8), ("all", 16), ("all", 16)]
    ranks = [named("Llama3-8B", trainable=text).job for text in ("LoRA 8", "LoRA r=32", "LoRA-64", "LoRA 70B")]
    assert [job.lora_rank for job in ranks if job] == [8, 32, 64, 16]
    stated = named("Llama3-8B", notes="LoRA", trainable="all").job
    assert stated and stated.trainable == "all"


@pytest.mark.parametrize(
    ("cell", "framework", "targets"),
    [
        ("LoRA", "Megatron-Core r0.8", None),
        ("LoRA", "NeMo dgxc v25.04", {"linear_qkv"}),
        ("LoRA", "NeMo AutoModel", None),
        ("LoRA rank 8 on linear_qkv, linear_proj", "NeMo dgxc v25.04", {"linear_qkv", "linear_proj"}),
        ("LoRA r=16 q_proj v_proj", "PyTorch", {"linear_qkv"}),
        ("LoRA of attention", "PyTorch", {"linear_qkv", "linear_proj"}),
        ("LoRA gate_proj up_proj down_proj", "PyTorch", {"linear_fc1", "linear_fc2"}),
        ("LoRA all linear", "NeMo dgxc v25.04", None),
    ],
)
def test_layers_with_adapters_are_those_named_or_usual(cell: str, framework: str, targets: set[str] | None) -> None:
    job = named("Llama3-8B", trainable=cell, framework=framework).job
    assert job and job.trainable == "lora"
    assert job.lora_targets == targets


def test_rows_that_ran_are_not_out_of_memory() -> None:
    # NeMo AutoModel: adapters of a frozen base, experts shared out, parameters gathered once a step.
    rows = read_table(Path(__file__).parents[2] / "data" / "throughput" / "training_throughput.csv")
    read = [read_row(cells, 1, CONFIG) for cells in rows if "AutoModel" in cells["framework"]]
    assert [row.id for row in read if row.job and not peak_memory(settle(row)).fits] == []
    assert [row.id for row in read if not row.job] == []


def test_capacity_of_experts_in_a_study_is_none_of_a_published_run() -> None:
    known = CATALOGUE.model("mixtral-8x7b").moe
    found = model_of(named("Mixtral-8x7B")).moe
    assert known and found and known.capacity_factor == 1.0
    assert found == known.model_copy(update={"capacity_factor": None})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{models: {a-1b: []}, unsupported: []}", "models.a-1b"),
        ("{models: {}, unsupported: [{names: [b]}]}", "unsupported.0.because"),
        ("{models: {}}", "'unsupported' is missing"),
    ],
)
def test_wrong_file_is_told_in_one_line(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "models.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=told) as caught:
        read_names(tmp_path)
    assert "\n" not in str(caught.value)
