"""Stacks of frameworks other than Megatron's, and what each gathers, hides and keeps."""

from pathlib import Path

import pytest

from tests.unit.simulate.jobs import communications, fabric_from, job, llama, operations
from tests.unit.simulate.test_dispatch import ROWS
from tests.unit.simulate.test_launch import LLAMA_8B
from triplepoint.errors import UserError
from triplepoint.published.rows import read_row
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.stacks import check_stack, find_stack, read_stacks, unknown_stack
from triplepoint.simulate.work.blocks import Blocks, split_layers
from triplepoint.simulate.work.layer_parts import Share
from triplepoint.simulate.work.training import stage_work

CONFIG = Path("config")


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("torchtitan 2024-12 compile asyncTP", "torchtitan"),
        ("Megatron-Bridge 26.02.01", "megatron-bridge"),
        ("DeepSeek HAI-LLM", "hai-llm"),
        ("Hugging Face Trainer", "hugging-face"),
        ("accelerate 1.2 FSDP", "hugging-face"),
        ("transformers 4.48", "hugging-face"),
        ("nanotron", "nanotron"),
        ("Colossal-AI 0.4", "colossal-ai"),
        ("Primus Megatron 2026", "primus"),
        ("Megatron-LM ROCm f712ab8", "megatron-lm-rocm"),
        ("MegaScale", "megascale"),
        ("Meta Llama 3", "meta-llama"),
        ("FlagScale 26cd664", "flagscale"),
        ("fms-fsdp 2024 compile", "fms-fsdp"),
        ("InternEvo 2024-03", "internevo"),
        ("PaddleNLP (Paddle 2.5.1) FlagPerf", "paddlenlp"),
        ("MaxText 2025-02", "maxtext"),
        ("Paxml (JAX-Toolbox) TE", "paxml"),
        ("AXLearn 0.1", "axlearn"),
        # A name is the same however its words are joined; a maker's name alone is no stack.
        ("torch titan", "torchtitan"),
        ("megatronlm 2021", "megatron-lm-2021"),
        ("Megatron LM", "megatron-core"),
        ("Megatron DeepSpeed", "megatron-deepspeed"),
        ("LLaMA-Factory by Meta", "hugging-face"),
        ("Meta's Llama 3.1 405B", "meta-llama"),
        ("a trainer by Meta of llamas", "other"),
        ("mcore r0.12", "megatron-core"),
        ("NeMo2", "nemo"),
        ("NeMox", "other"),
    ],
)
def test_find_stack_of_frameworks(framework: str, name: str) -> None:
    assert find_stack(framework, CONFIG).name == name


@pytest.mark.parametrize(
    ("framework", "words"),
    [
        ("torchtitn 2025", "(did you mean torchtitan"),
        ("Mgeatron-LM", "(did you mean megatron"),
        ("a trainer nobody knows", "none that is known"),
        ("Meta", "(did you mean meta llama 3?)"),
    ],
)
def test_unknown_stack_says_so_with_the_nearest(framework: str, words: str) -> None:
    said = unknown_stack(framework, CONFIG)
    assert said.startswith(f"framework {framework!r} is taken as plain PyTorch") and words in said
    assert "\n" not in said and len(said) < 150


@pytest.mark.parametrize("framework", ["PyTorch 2.5 FSDP2", "torch", "DDP", "NeMo 24.12", "torchtitan"])
def test_known_stack_says_nothing(framework: str) -> None:
    assert unknown_stack(framework, CONFIG) == ""


def test_unknown_stack_of_predict_is_refused_with_the_nearest_alone() -> None:
    with pytest.raises(
        UserError, match=r"a row: stack: no known software in 'torchtitn'.*\(did you mean torchtitan"
    ) as caught:
        check_stack("torchtitn", "a row", CONFIG)
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    ("framework", "names"),
    [
        ("NeMo or torchtitan", "nemo and torchtitan"),
        ("torchtitan v0.1 with Megatron", "megatron-core and torchtitan"),
        ("NeMo Megatron Bridge", "nemo and megatron-bridge"),
    ],
)
def test_name_of_several_stacks_is_refused(framework: str, names: str) -> None:
    with pytest.raises(UserError, match=f"names {names}, expected one software stack"):
        check_stack(framework, "a row", CONFIG)
    row = read_row(LLAMA_8B | {"framework": framework}, 1, CONFIG)
    assert (
        row.status == "invalid" and row.reason == f"framework '{framework}' names {names}, expected one software stack"
    )


@pytest.mark.parametrize("framework", ["Megatron-DeepSpeed", "NeMo with Megatron-Core r0.11", "Primus torchtitan"])
def test_name_of_a_stack_and_what_it_is_built_on_is_of_one(framework: str) -> None:
    check_stack(framework, "a row", CONFIG)


def test_every_stack_is_found_by_its_own_words() -> None:
    for stack in read_stacks(CONFIG):
        framework = " ".join(word.split("|")[0] for word in stack.match)
        assert find_stack(framework, CONFIG) == stack


def test_pipelines_of_pytorch_reduce_sharded_gradients_once() -> None:
    fsdp = {"dp": 4, "pp": 2, "data_parallel_sharding": "optim_grads_params"}
    for stack, is_once in (("torchtitan", True), ("DeepSpeed", False)):
        stages = stage_work(job(llama(), stack=stack, **fsdp))
        assert bool(communications(operations(stages), "reduce_scatter", "dp")) != is_once
        assert bool(communications(stages[0].gradient_sync, "reduce_scatter", "dp")) == is_once


LLAMA_70B = LLAMA_8B | {
    "model": "Llama3.1-70B", "n_gpus": "256", "tp": "8", "dp": "32", "mbs": "16", "gbs": "512", "recompute": "full",
    "seq_parallel": "yes",
}  # fmt: skip
ON_64 = LLAMA_8B | {"n_gpus": "64", "tp": "8", "mbs": "12", "gbs": "96", "seq_parallel": "yes"}


@pytest.mark.parametrize(
    ("row", "precision", "published"),
    [
        (LLAMA_70B, "bf16", 652.4 / 597.3),  # What the share that is hidden was fitted to; the others were not.
        (LLAMA_70B, "fp8 tensorwise", 942.4 / 809.8),
        (LLAMA_70B, "fp8 rowwise", 624.8 / 599.6),
        (ON_64, "bf16", 4809.4 / 4378),
        (ON_64, "fp8 tensorwise", 5570.1 / 5078.1),
        (ON_64, "fp8 rowwise", 3914.9 / 3708.5),
    ],
)
def test_asynchronous_tensor_parallelism_gains_what_is_published(
    row: dict[str, str], precision: str, published: float
) -> None:
    # pytorch/torchtitan @b5bcd76 benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md
    tokens = [
        read_row(row | {"precision": precision, "framework": name}, 1, CONFIG).predict(CONFIG).tokens_per_s_per_gpu
        for name in ("torchtitan compile", "torchtitan compile asyncTP")
    ]
    assert tokens[1] / tokens[0] == pytest.approx(published, rel=0.08)


def test_user_buffers_hide_all_gathers() -> None:
    found = {}
    for stack in ("NeMo 24.12", "torchtitan"):
        one = job(
            llama(), tp=8, sequence_parallel=True, overlap=frozenset(["tp"]), stack=stack,
            fabric=fabric_from("h100", 8, 0, CONFIG),
        )  # fmt: skip
        gathers = communications(operations(stage_work(one), "forward"), "all_gather", "tp")
        in_layers = [op for op in gathers if op.count == 8]
        whole = sum(op.num_bytes for op in in_layers)
        found[stack] = sum(op.num_bytes for op in in_layers if op.is_overlapped) / whole
    assert found == {"NeMo 24.12": 1.0, "torchtitan": 0.5}


@pytest.mark.parametrize(
    ("moments", "sharding", "num_bytes"),
    [
        # An fp32 copy and two moments; with FSDP the parameters themselves are that copy.
        ("fp32", "no_shard", 12.0),
        ("bf16", "no_shard", 8.0),
        ("8bit", "no_shard", 4 + 2 * (1 + 4 / 2048)),
        ("bf16", "optim_grads_params", 4.0),
    ],
)
def test_bytes_of_moments(moments: str, sharding: str, num_bytes: float) -> None:
    software = find_stack("Megatron-Core", CONFIG).model_copy(update={"optimizer_moments": moments})
    dp = 2 if sharding != "no_shard" else 1
    one = job(llama(), software=software, dp=dp, data_parallel_sharding=sharding)
    number = sum(Blocks(Share(one)).weights(chunks).total for chunks in split_layers(one))
    assert peak_memory(one).optimizer == pytest.approx(num_bytes * number / dp)


def test_narrower_moments_are_updated_faster() -> None:
    moved = {}
    for moments in ("fp32", "bf16"):
        software = find_stack("Megatron-Core", CONFIG).model_copy(update={"optimizer_moments": moments})
        (stage,) = stage_work(job(llama(), software=software))
        moved[moments] = next(op.num_bytes for op in stage.optimizer if isinstance(op, Kernel) and op.kind == "adam")
    # Seven fp32 arrays and a 16-bit one; four passes of moments are 2 bytes narrower.
    assert moved["bf16"] / moved["fp32"] == pytest.approx((7 * 4 + 2 - 4 * 2) / (7 * 4 + 2))


def test_experts_of_megatron_bridge_are_whole_where_a_table_says_nothing() -> None:
    row = ROWS["bridge-qwen3-235b"]
    found = {
        (etp, name): read_row(row | {"ep": "16", "etp": etp, "framework": name}, 1, CONFIG).job
        for etp in ("", "2")
        for name in ("Megatron-Bridge 26.04", "Megatron-Core r0.8")
    }
    experts = {key: one.layout.expert_tp for key, one in found.items() if one is not None}
    assert experts == {
        ("", "Megatron-Bridge 26.04"): 1,
        ("2", "Megatron-Bridge 26.04"): 2,
        ("", "Megatron-Core r0.8"): 2,
        ("2", "Megatron-Core r0.8"): 2,
    }
