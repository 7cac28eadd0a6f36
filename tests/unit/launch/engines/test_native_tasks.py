"""LoRA, inference and padded samples: every layout does the same, and one rank does what the definition says."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.launch.engines.native_points import (
    GPT,
    GQA,
    LLAMA,
    MOE,
    Trained,
    asked_for,
    make_point,
    parameters,
    train,
)
from tests.unit.simulate.jobs import job
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Point, Steps
from triplepoint.config.task import TARGETS, Inference, Lora
from triplepoint.simulate.inference import memory_by_stage, serving_of

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
    "serve gqa 3": serve(GQA, 3),
    "serve moe": serve(MOE, 4),
}
TOGETHER: dict[str, tuple[str, Point]] = {
    "lora dp": ("lora", make_point(LLAMA, dp=2, **LORA)),
    "lora fsdp": ("lora", make_point(LLAMA, dp=2, **LORA, **FSDP)),
    "lora fsdp bf16": ("lora bf16", make_point(LLAMA, dp=2, **LORA, **FSDP, precision="bf16")),
    "lora tp": ("lora", make_point(LLAMA, tp=2, **LORA, **SP)),
    "lora tp, recomputed": ("lora", make_point(LLAMA, tp=2, **LORA, recompute="full")),
    "lora pp": ("lora", make_point(LLAMA, pp=2, schedule="1f1b", **LORA)),
    "lora pp, uneven, one layer recomputed": (
        "lora",
        make_point(LLAMA, pp=2, schedule="1f1b", **LORA, pipeline_layers=(1, 3), recompute="full", recompute_layers=1),
    ),
    "lora ep": ("lora moe", make_point(MOE, dp=2, ep=2, **QKV)),
    "padded tp": ("padded", make_point(LLAMA, tp=2, samples="padded")),
    "padded dp": ("padded", make_point(LLAMA, dp=2, samples="padded")),
    "serve gqa tp": ("serve gqa", serve(GQA, 4, tp=2)),
    "serve gqa dp": ("serve gqa", serve(GQA, 4, dp=2)),
    "serve gqa pp": ("serve gqa", serve(GQA, 4, pp=2)),
    "serve gqa pp, uneven": ("serve gqa", serve(GQA, 4, pp=2, pipeline_layers=(3, 1))),
    # Two groups, of two sequences and one.
    "serve gqa 3 pp": ("serve gqa 3", serve(GQA, 3, pp=2)),
    "serve gpt pp": ("serve gpt", serve(GPT, 1, pp=2)),
    "serve moe tp": ("serve moe", serve(MOE, 4, tp=2)),
    "serve moe ep": ("serve moe", serve(MOE, 4, dp=2, ep=2)),
    "serve moe pp": ("serve moe", serve(MOE, 4, pp=2)),
}
FOUR: dict[str, tuple[str, Point]] = {
    "serve gqa pp4": ("serve gqa", serve(GQA, 4, pp=4)),
    "serve gqa 3 pp4": ("serve gqa 3", serve(GQA, 3, pp=4)),
    "serve gqa pp tp": ("serve gqa", serve(GQA, 4, pp=2, tp=2)),
    "serve gqa pp dp": ("serve gqa", serve(GQA, 4, pp=2, dp=2)),
    "serve moe pp ep": ("serve moe", serve(MOE, 4, pp=2, dp=2, ep=2)),
    "serve moe pp tp": ("serve moe", serve(MOE, 4, pp=2, tp=2)),
    "serve moe tp ep": ("serve moe", serve(MOE, 4, tp=2, dp=2, ep=2)),
}
KEPT = {
    *("lora fsdp", "lora tp", "lora pp, uneven, one layer recomputed", "padded tp"),
    *("serve gqa pp, uneven", "serve moe ep", "serve gqa 3 pp4", "serve gqa pp tp", "serve moe tp ep"),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    return train(ALONE, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    points = asked_for(request, {name: point for name, (_, point) in TOGETHER.items()}, KEPT)
    return train(points, tmp_path_factory.mktemp("together"))


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest,
    alone: dict[str, Trained],
    together: dict[str, Trained],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Trained]:
    points = asked_for(request, {name: point for name, (_, point) in FOUR.items()}, KEPT)
    return alone | together | train(points, tmp_path_factory.mktemp("four"))


def test_lora_first_loss_is_that_of_the_base_model(alone: dict[str, Trained]) -> None:
    # The second matrix of an adapter starts at zero.
    assert alone["lora"].losses[0] == alone["base"].losses[0]
    assert alone["lora"].losses[2] != alone["base"].losses[2]


def test_lora_counts_trained_parameters(alone: dict[str, Trained]) -> None:
    facts = alone["lora"].facts
    # 4 layers: query, key, value and output rank 4 times (32 + 32) each; gate, up and down 4 times (32 + 64).
    assert facts["num_trained_parameters"] == 4 * (4 * 256 + 3 * 384)
    assert facts["num_parameters"] == alone["base"].facts["num_parameters"] + facts["num_trained_parameters"]


@pytest.mark.parametrize("name", parameters([name for name in TOGETHER if not name.startswith("serve")], KEPT))
def test_layouts_agree(name: str, alone: dict[str, Trained], together: dict[str, Trained]) -> None:
    tolerance = 2e-3 if "bf16" in name else 1e-4
    reference = alone[TOGETHER[name][0]]
    assert together[name].losses == pytest.approx(reference.losses, rel=tolerance)
    assert together[name].facts["gradient_norm"] == pytest.approx(reference.facts["gradient_norm"], rel=50 * tolerance)
    assert together[name].facts["num_parameters"] == reference.facts["num_parameters"]


SERVED = {name: layout for name, layout in (TOGETHER | FOUR).items() if name.startswith("serve")}


@pytest.mark.parametrize("name", ["serve gqa", "serve gpt", *parameters(SERVED, KEPT)])
def test_inference_steps_have_a_first_token_and_count_those_made(name: str, served: dict[str, Trained]) -> None:
    point = ALONE.get(name) or SERVED[name][1]
    rows = served[name].rows
    assert len(rows) == 2 * point.num_gpus
    assert {row["num_tokens"] for row in rows} == {point.global_batch_size * 8}
    assert {row["loss"] for row in rows} == {None}
    sees = [row for row in rows if row.get("t_first_token_ns") is not None]
    assert all(row["t_start_ns"] < row["t_first_token_ns"] < row["t_end_ns"] for row in sees)
    # Ranks of the last stage, and no others.
    assert sorted({row["rank"] for row in sees}) == last_stage(point)


@pytest.mark.parametrize("name", parameters(SERVED, KEPT))
def test_inference_makes_the_same_text_in_every_layout(name: str, served: dict[str, Trained]) -> None:
    reference, point = SERVED[name]
    whole, tp = text(served[reference], 0), point.layout.tp
    assert len(whole) == point.global_batch_size and {len(row) for row in whole} == {8}
    replicas = [text(served[name], rank) for rank in last_stage(point)]
    # Of tensor parallel ranks, which are neighbours, each has all of it.
    for peer in range(tp):
        assert [row for replica in replicas[peer::tp] for row in replica] == whole


@pytest.mark.parametrize("name", ["serve gqa", *parameters(SERVED, KEPT)])
def test_inference_has_a_cache_of_this_stage(name: str, served: dict[str, Trained]) -> None:
    point = ALONE.get(name) or SERVED[name][1]
    model, layout = point.model, point.layout
    # Keys and values of 24 + 8 tokens in fp32, heads of 8 numbers, 4 layers in all.
    layers = layout.pipeline_layers[0] if layout.pipeline_layers else 4 / layout.pp
    of_stage = 2 * 32 * 4 * 8 * model.num_query_groups * layers * point.global_batch_size
    assert served[name].facts["cache_bytes_rank"] == of_stage / (layout.tp * layout.dp)


@pytest.mark.parametrize("name", ["serve gqa", "serve gpt", *parameters(SERVED, KEPT)])
def test_inference_keeps_what_the_simulator_says(name: str, served: dict[str, Trained]) -> None:
    point = ALONE.get(name) or SERVED[name][1]
    here = {"layout": point.layout, "micro_batch_size": point.micro_batch_size, "precision": "fp32"}
    predicted = memory_by_stage(replace(job(point.model), **here), serving_of(point))[0]
    assert served[name].facts["cache_bytes_rank"] == predicted.cache
    assert served[name].facts["num_parameters_rank"] * 4 == predicted.weights


def last_stage(point: Point) -> list[int]:
    return list(range(point.num_gpus - point.layout.tp * point.layout.dp, point.num_gpus))


def text(trained: Trained, rank: int) -> list[list[int]]:
    return json.loads((trained.folder / f"facts{rank}.json").read_text())["text"]


def test_losses_are_finite(alone: dict[str, Trained]) -> None:
    assert all(math.isfinite(loss) for name in ("lora", "lora moe", "lora bf16") for loss in alone[name].losses)
