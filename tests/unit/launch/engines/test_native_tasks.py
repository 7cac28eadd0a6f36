"""LoRA, inference and padded samples: every layout does the same, and one rank does what the definition says."""

import json
import math
from typing import Any

import pytest

from tests.unit.launch.engines.native_points import GPT, GQA, LLAMA, MOE, Trained, make_point, train
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Point, Steps
from triplepoint.config.task import TARGETS, Inference, Lora

LORA: dict[str, Any] = {"task": "lora", "lora": Lora(rank=4, alpha=8.0, targets=TARGETS)}
QKV: dict[str, Any] = {"task": "lora", "lora": Lora(rank=4, alpha=8.0, targets=("linear_qkv",))}
SP: dict[str, Any] = {"sequence_parallel": True, "micro_batch_size": 2}
FSDP: dict[str, Any] = {"data_parallel_sharding": "optim_grads_params"}


def serve(model: ModelConfig, batch: int, **changes: Any) -> Point:
    return make_point(
        model,
        task="inference",
        inference=Inference(prompt_tokens=24, output_tokens=8),
        global_batch_size=batch,
        micro_batch_size=batch // changes.get("dp", 1),
        steps=Steps(warmup=0, measured=2, profiled=0),
        **changes,
    )


ALONE = {
    "base": make_point(LLAMA),
    "lora": make_point(LLAMA, **LORA),
    "lora moe": make_point(MOE, **QKV),
    "lora bf16": make_point(LLAMA, **LORA, precision="bf16"),
    "padded": make_point(LLAMA, samples="padded"),
    "serve gqa": serve(GQA, 4),
    "serve gpt": serve(GPT, 1),
}
TOGETHER: dict[str, tuple[str, Point]] = {
    "lora dp": ("lora", make_point(LLAMA, dp=2, **LORA)),
    "lora fsdp": ("lora", make_point(LLAMA, dp=2, **LORA, **FSDP)),
    "lora fsdp bf16": ("lora bf16", make_point(LLAMA, dp=2, **LORA, **FSDP, precision="bf16")),
    "lora tp": ("lora", make_point(LLAMA, tp=2, **LORA, **SP)),
    "lora tp, recomputed": ("lora", make_point(LLAMA, tp=2, **LORA, recompute="full")),
    "lora pp": ("lora", make_point(LLAMA, pp=2, schedule="1f1b", **LORA)),
    "lora ep": ("lora moe", make_point(MOE, dp=2, ep=2, **QKV)),
    "padded tp": ("padded", make_point(LLAMA, tp=2, samples="padded")),
    "padded dp": ("padded", make_point(LLAMA, dp=2, samples="padded")),
    "serve gqa tp": ("serve gqa", serve(GQA, 4, tp=2)),
    "serve gqa dp": ("serve gqa", serve(GQA, 4, dp=2)),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    return train(ALONE, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    return train({name: point for name, (_, point) in TOGETHER.items()}, tmp_path_factory.mktemp("together"))


def test_lora_first_loss_is_that_of_the_base_model(alone: dict[str, Trained]) -> None:
    # The second matrix of an adapter starts at zero.
    assert alone["lora"].losses[0] == alone["base"].losses[0]
    assert alone["lora"].losses[2] != alone["base"].losses[2]


def test_lora_counts_trained_parameters(alone: dict[str, Trained]) -> None:
    facts = alone["lora"].facts
    # 4 layers: query, key, value and output rank 4 times (32 + 32) each; gate, up and down 4 times (32 + 64).
    assert facts["num_trained_parameters"] == 4 * (4 * 256 + 3 * 384)
    assert facts["num_parameters"] == alone["base"].facts["num_parameters"] + facts["num_trained_parameters"]


@pytest.mark.parametrize("name", [name for name in TOGETHER if not name.startswith("serve")])
def test_layouts_agree(name: str, alone: dict[str, Trained], together: dict[str, Trained]) -> None:
    tolerance = 2e-3 if "bf16" in name else 1e-4
    reference = alone[TOGETHER[name][0]]
    assert together[name].losses == pytest.approx(reference.losses, rel=tolerance)
    assert together[name].facts["gradient_norm"] == pytest.approx(reference.facts["gradient_norm"], rel=50 * tolerance)
    assert together[name].facts["num_parameters"] == reference.facts["num_parameters"]


@pytest.mark.parametrize("name", ["serve gqa", "serve gpt", "serve gqa tp", "serve gqa dp"])
def test_inference_steps_have_a_first_token_and_count_those_made(
    name: str, alone: dict[str, Trained], together: dict[str, Trained]
) -> None:
    point = ALONE.get(name) or TOGETHER[name][1]
    rows = (alone | together)[name].rows
    assert len(rows) == 2 * point.num_gpus
    assert {row["num_tokens"] for row in rows} == {point.global_batch_size * 8}
    assert all(row["t_start_ns"] < row["t_first_token_ns"] < row["t_end_ns"] for row in rows)
    assert {row["loss"] for row in rows} == {None}


def test_inference_makes_the_same_text_in_every_layout(alone: dict[str, Trained], together: dict[str, Trained]) -> None:
    whole = text(alone["serve gqa"], 0)
    assert len(whole) == 4
    assert text(together["serve gqa tp"], 0) == text(together["serve gqa tp"], 1) == whole
    assert text(together["serve gqa dp"], 0) + text(together["serve gqa dp"], 1) == whole


def text(trained: Trained, rank: int) -> list[list[int]]:
    return json.loads((trained.folder / f"facts{rank}.json").read_text())["text"]


def test_losses_are_finite(alone: dict[str, Trained]) -> None:
    assert all(math.isfinite(loss) for name in ("lora", "lora moe", "lora bf16") for loss in alone[name].losses)
