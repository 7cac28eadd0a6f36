"""LoRA on Megatron-Core and DeepSpeed trains the native engine's adapters in every kind of layout, and nothing else."""

import json
from typing import Any

import pytest

from tests.points import refused
from tests.unit.launch.engines.native_points import (
    GPT,
    GQA,
    LLAMA,
    MOE,
    TIED,
    WIDE,
    Trained,
    asked_for,
    make_point,
    parameters,
    save_weights,
    train,
)
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Point, Steps
from triplepoint.config.task import TARGETS, Lora, Target
from triplepoint.flops import num_adapter_parameters
from triplepoint.launch.engines import deepspeed, megatron

needs_megatron = pytest.mark.skipif(not megatron.is_installed(), reason="megatron-core is not installed")
needs_deepspeed = pytest.mark.skipif(not deepspeed.is_installed(), reason="deepspeed is not installed")

SP: dict[str, Any] = {"sequence_parallel": True}
OPTIM: dict[str, Any] = {"data_parallel_sharding": "optim"}
GRADS: dict[str, Any] = {"data_parallel_sharding": "optim_grads"}
PARAMS: dict[str, Any] = {"data_parallel_sharding": "optim_grads_params"}
ONE_F: dict[str, Any] = {"schedule": "1f1b"}
V: dict[str, Any] = {"schedule": "interleaved_1f1b", "vp": 2}
TRACED: dict[str, Any] = {"trace_ranks": (0,)}

OUTPUTS: tuple[Target, ...] = ("linear_proj", "linear_fc2")
MODELS: dict[str, tuple[ModelConfig, tuple[Target, ...]]] = {
    **{model.name: (model, TARGETS) for model in (LLAMA, GPT, GQA, TIED, WIDE)},
    "tiny-moe": (MOE, ("linear_qkv", "linear_proj")),
    "outputs alone": (LLAMA, OUTPUTS),
    "checkpoint": (LLAMA, TARGETS),
    "bf16": (LLAMA, TARGETS),
}
"""Models and the layers that have adapters."""

MEGATRON: dict[str, tuple[str, dict[str, Any]]] = {
    "dp": ("tiny-llama", {"dp": 4, **TRACED}),
    "tp x dp, distributed optimizer, overlapped": (
        "tiny-gqa",
        {"tp": 2, "dp": 2, **OPTIM, "overlap": ("grad", "param")},
    ),
    "tp x dp, sequence parallel, distributed optimizer": ("tiny-llama", {"tp": 2, "dp": 2, **SP, **OPTIM}),
    "tp x pp, sequence parallel, recomputed": ("tiny-gpt", {"tp": 2, "pp": 2, **SP, **ONE_F, "recompute": "full"}),
    "tp x pp, attention recomputed": ("tiny-gqa", {"tp": 2, "pp": 2, **ONE_F, "recompute": "selective"}),
    "pp interleaved x dp, overlapped": ("tiny-llama", {"pp": 2, "dp": 2, **V, **OPTIM, "overlap": ("grad",)}),
    "tied pp x dp": ("tiny-tied", {"pp": 2, "dp": 2, **ONE_F}),
    "ep x tp, sequence parallel": ("tiny-moe", {"dp": 2, "ep": 2, "tp": 2, **SP}),
    "outputs alone, tp x dp, recomputed": ("outputs alone", {"tp": 2, "dp": 2, "recompute": "full"}),
    "checkpoint, tp x pp": ("checkpoint", {"tp": 2, "pp": 2, **ONE_F}),
    "bf16, tp x dp": ("bf16", {"tp": 2, "dp": 2, **SP, **OPTIM}),
}
DEEPSPEED: dict[str, tuple[str, dict[str, Any]]] = {
    "zero 0": ("tiny-gpt", {"dp": 4}),
    "zero 1, overlapped": ("tiny-llama", {"dp": 4, **OPTIM, "overlap": ("grad",)}),
    "zero 2, offloaded": ("tiny-moe", {"dp": 4, **GRADS, "offload": ("optim",)}),
    "zero 3, overlapped, recomputed": ("wide", {"dp": 4, **PARAMS, "overlap": ("grad", "param"), "recompute": "full"}),
    "zero 3, offloaded": ("tiny-tied", {"dp": 4, **PARAMS, "offload": ("optim", "params")}),
    "pp x dp, recomputed": ("tiny-gqa", {"pp": 2, "dp": 2, **ONE_F, "recompute": "full"}),
    "outputs alone, pp": ("outputs alone", {"pp": 4, **ONE_F}),
    "checkpoint, pp x dp, zero 1": ("checkpoint", {"pp": 2, "dp": 2, **ONE_F, **OPTIM}),
    "bf16, zero 3": ("bf16", {"dp": 4, **PARAMS}),
    "bf16, tied pp x dp": ("tiny-tied", {"pp": 2, "dp": 2, **ONE_F, "precision": "bf16"}),
}

KEPT = {
    *("dp", "tp x pp, sequence parallel, recomputed", "checkpoint, tp x pp"),
    *("zero 1, overlapped", "zero 3, overlapped, recomputed"),
}


def lora_point(name: str, weights: str, **changes: Any) -> Point:
    """Return a point whose adapters, scaled by 64, soon matter: they make up 0.2 to 1.3 % of the fifth loss."""
    model, targets = MODELS[name]
    changes = {"trace_ranks": (), "precision": "bf16" if name == "bf16" else "fp32", **changes}
    point = make_point(
        model,
        task="lora",
        lora=Lora(rank=4, alpha=256.0, targets=targets),
        weights=weights if name == "checkpoint" else "random",
        steps=Steps(warmup=2, measured=2, profiled=1),
        **changes,
    )
    assert refused(point) is None
    return point


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_weights(tmp_path_factory.mktemp("checkpoint") / "weights.pt", seed=7)


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory, checkpoint: str) -> dict[str, Trained]:
    points = {name: lora_point(name, checkpoint) for name in MODELS}
    return train(points, tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def on_megatron(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, checkpoint: str
) -> dict[str, Trained]:
    points = {
        name: lora_point(of, checkpoint, engine="megatron", **changes) for name, (of, changes) in MEGATRON.items()
    }
    points = asked_for(request, points, KEPT)
    return train(points, tmp_path_factory.mktemp("megatron"), timeout_s=280, gang="engine_gang.py")


@pytest.fixture(scope="module")
def on_deepspeed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, checkpoint: str
) -> dict[str, Trained]:
    points = {
        name: lora_point(of, checkpoint, engine="deepspeed", **changes) for name, (of, changes) in DEEPSPEED.items()
    }
    points = asked_for(request, points, KEPT)
    return train(points, tmp_path_factory.mktemp("deepspeed"), timeout_s=280, gang="engine_gang.py")


@needs_megatron
@pytest.mark.parametrize("layout", parameters(MEGATRON, KEPT))
def test_megatron_trains_the_native_adapters(
    layout: str, references: dict[str, Trained], on_megatron: dict[str, Trained]
) -> None:
    assert_same(on_megatron[layout], references[MEGATRON[layout][0]], 2e-4 if "bf16" in layout else 2e-6)
    assert_only_adapters_changed(on_megatron[layout])


@needs_deepspeed
@pytest.mark.parametrize("layout", parameters(DEEPSPEED, KEPT))
def test_deepspeed_trains_the_native_adapters(
    layout: str, references: dict[str, Trained], on_deepspeed: dict[str, Trained]
) -> None:
    assert_same(on_deepspeed[layout], references[DEEPSPEED[layout][0]], 2e-4 if "bf16" in layout else 2e-6)
    assert_only_adapters_changed(on_deepspeed[layout])


def assert_same(found: Trained, expected: Trained, tolerance: float) -> None:
    assert found.losses == pytest.approx(expected.losses, rel=tolerance)
    assert found.facts["gradient_norm"] == pytest.approx(expected.facts["gradient_norm"], rel=50 * tolerance)
    for count in ("num_parameters", "num_trained_parameters"):
        assert found.facts[count] == expected.facts[count]


def assert_only_adapters_changed(found: Trained) -> None:
    files = sorted(found.folder.glob("weights*.json"))
    assert len(files) == 4
    for file in files:
        digests = json.loads(file.read_text())
        changed = {name for name, (before, after) in digests.items() if before != after}
        assert changed == {name for name in digests if ".adapter." in name}
        assert changed and changed != set(digests)


@pytest.mark.parametrize("name", MODELS)
def test_trained_parameters_are_those_of_the_formula(name: str, references: dict[str, Trained]) -> None:
    model, targets = MODELS[name]
    lora = Lora(rank=4, alpha=256.0, targets=targets)
    assert references[name].facts["num_trained_parameters"] == num_adapter_parameters(model, lora)


def test_adapters_and_checkpoint_matter(references: dict[str, Trained]) -> None:
    losses = references["tiny-llama"].losses
    assert references["outputs alone"].losses[0] == losses[0]
    assert abs(references["outputs alone"].losses[-1] / losses[-1] - 1) > 1e-3
    assert abs(references["checkpoint"].losses[0] / losses[0] - 1) > 1e-3


# Of 4 layers: query, key, value and output rank 4 times (32 + 32) each; gate, up and down rank 4 times (32 + 64).
ADAPTERS = 4 * 4 * (4 * 64 + 3 * 96)


@needs_megatron
def test_megatron_reduces_gradients_of_adapters_alone(on_megatron: dict[str, Trained]) -> None:
    record = json.loads((on_megatron["dp"].folder / "traces" / "rank0.groups.json").read_text())
    sent = [entry["bytes"] for entry in record["collectives"] if entry["role"] == "dp" and entry["bytes"] > 8]
    assert sent == [4 * ADAPTERS]


@needs_deepspeed
def test_deepspeed_reduces_gradients_of_adapters_alone(on_deepspeed: dict[str, Trained]) -> None:
    messages = json.loads((on_deepspeed["zero 1, overlapped"].folder / "logs" / "rank0.deepspeed.json").read_text())
    reduced = [(m["bytes"], m["count"]) for m in messages["messages"] if m["op"] == "all_reduce" and m["bytes"] > 8]
    assert reduced == [(4 * ADAPTERS, 1)]


@needs_megatron
@pytest.mark.filterwarnings("ignore")  # that Transformer Engine is not here
@pytest.mark.parametrize(
    ("num_experts", "target", "replaced"),
    [
        (None, "linear_qkv", {"input_layernorm", "linear_qkv"}),
        (None, "linear_fc1", {"pre_mlp_layernorm", "linear_fc1"}),
        (None, "linear_fc2", set()),
        (4, "linear_fc1", set()),  # routed experts have no adapters
    ],
)
def test_norms_stand_apart_from_layers_with_adapters(
    num_experts: int | None, target: Target, replaced: set[str]
) -> None:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    from triplepoint.launch.engines.megatron.build import separate_norms

    spec = get_gpt_layer_local_spec(num_experts, False)
    before = modules(spec)
    after = modules(separate_norms(spec, Lora(rank=4, alpha=8.0, targets=(target,))))
    assert set(after) == set(before)
    assert {name for name in after if after[name] != before[name]} == replaced


def modules(spec: Any) -> dict[str, Any]:
    """Return the modules of a layer's specification by name, down to those of attention and feed-forward."""
    parts = vars(spec.submodules)
    inside = [vars(parts[name].submodules) for name in ("self_attention", "mlp")]
    return {**parts, **inside[0], **inside[1], "self_attention": None, "mlp": None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dp": 2, **PARAMS}, "engine: native or deepspeed"),
        ({"tp": 2, "overlap": ("tp",)}, "remove tp from overlap"),
    ],
)
def test_refused_says_what_to_do(changes: dict[str, Any], words: str) -> None:
    lora = Lora(rank=4, alpha=8.0, targets=TARGETS)
    reason = refused(make_point(engine="megatron", task="lora", lora=lora, **changes))
    assert reason is not None
    assert words in reason
