"""DeepSpeed trains the same model as the native engine with every ZeRO stage and in its pipeline, and sends what it
says it sends."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
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
from triplepoint.errors import UserError
from triplepoint.launch.engines import deepspeed
from triplepoint.tables import COLLECTIVES
from triplepoint.trace.parsing import TraceFile, parse_traces
from triplepoint.trace.rank_results import read_rank_table
from triplepoint.trace.taxonomy import load_scheme

needs_deepspeed = pytest.mark.skipif(not deepspeed.is_installed(), reason="deepspeed is not installed")

MODELS = {model.name: model for model in (LLAMA, GPT, GQA, MOE, TIED, WIDE)}
OPTIM: dict[str, Any] = {"data_parallel_sharding": "optim"}
GRADS: dict[str, Any] = {"data_parallel_sharding": "optim_grads"}
PARAMS: dict[str, Any] = {"data_parallel_sharding": "optim_grads_params"}
ONE_F: dict[str, Any] = {"schedule": "1f1b"}
STEPS = Steps(warmup=2, measured=1, profiled=1)

LAYOUTS: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    "zero 0": (GPT, {"dp": 4}),
    "zero 1, overlapped": (WIDE, {"dp": 4, **OPTIM, "overlap": ("grad",)}),
    "zero 1, offloaded, recomputed": (GPT, {"dp": 4, **OPTIM, "offload": ("optim",), "recompute": "full"}),
    "zero 2, overlapped": (MOE, {"dp": 4, **GRADS, "overlap": ("grad",)}),
    "zero 2, offloaded": (GPT, {"dp": 4, **GRADS, "offload": ("optim",)}),
    "zero 3": (WIDE, {"dp": 4, **PARAMS}),
    "zero 3, overlapped, recomputed": (WIDE, {"dp": 4, **PARAMS, "overlap": ("grad", "param"), "recompute": "full"}),
    "zero 3, offloaded": (TIED, {"dp": 4, **PARAMS, "offload": ("optim", "params")}),
    "pp": (LLAMA, {"pp": 4, **ONE_F}),
    "pp x dp, recomputed": (GQA, {"pp": 2, "dp": 2, **ONE_F, "recompute": "full"}),
    "pp x dp, zero 1, offloaded": (MOE, {"pp": 2, "dp": 2, **ONE_F, **OPTIM, "offload": ("optim",)}),
    "tied pp x dp": (TIED, {"pp": 2, "dp": 2, **ONE_F}),
    "pp uneven x dp, one layer of each recomputed": (
        GPT,
        {"pp": 2, "dp": 2, **ONE_F, "pipeline_layers": (3, 1), "recompute": "full", "recompute_layers": 1},
    ),
    "zero 3, two layers recomputed": (GPT, {"dp": 4, **PARAMS, "recompute": "full", "recompute_layers": 2}),
}
HALF: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    "bf16, zero 0": (LLAMA, {"dp": 4}),
    "bf16, zero 3": (LLAMA, {"dp": 4, **PARAMS}),
    "bf16, pp x dp": (LLAMA, {"pp": 2, "dp": 2, **ONE_F}),
}
KEPT = {
    *("zero 1, overlapped", "zero 2, offloaded", "zero 3", "zero 3, two layers recomputed"),
    *("pp", "pp uneven x dp, one layer of each recomputed", "bf16, zero 3", "checkpoint"),
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_weights(tmp_path_factory.mktemp("checkpoint") / "weights.pt", seed=7)


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory, checkpoint: str) -> dict[str, Trained]:
    points = {name: make_point(model, steps=STEPS, trace_ranks=()) for name, model in MODELS.items()}
    points["checkpoint"] = make_point(LLAMA, steps=STEPS, trace_ranks=(), weights=checkpoint)
    return train(points, tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, checkpoint: str
) -> dict[str, Trained]:
    points = {name: deepspeed_point(model, **changes) for name, (model, changes) in LAYOUTS.items()}
    for name, (model, changes) in HALF.items():
        points[name] = deepspeed_point(model, **changes, precision="bf16")
    points["checkpoint"] = deepspeed_point(LLAMA, pp=2, dp=2, **ONE_F, weights=checkpoint)
    points = asked_for(request, points, KEPT)
    return train(points, tmp_path_factory.mktemp("deepspeed"), timeout_s=280, gang="engine_gang.py")


def deepspeed_point(model: ModelConfig, **changes: Any) -> Point:
    point = make_point(model, engine="deepspeed", steps=STEPS, trace_ranks=(0,), **changes)
    assert refused(point) is None
    return point


@needs_deepspeed
@pytest.mark.parametrize("layout", parameters(LAYOUTS, KEPT))
def test_layout_trains_as_the_native_engine_does(
    layout: str, references: dict[str, Trained], trained: dict[str, Trained]
) -> None:
    expected, found = references[LAYOUTS[layout][0].name], trained[layout]
    # Measured: 2e-7 at most; a wrong weight or gradient shows in the third digit.
    assert found.losses == pytest.approx(expected.losses, rel=5e-6)
    # Adam makes as much of a small gradient as of a large one, and so of its rounding.
    assert found.facts["gradient_norm"] == pytest.approx(expected.facts["gradient_norm"], rel=1e-4)
    assert found.losses[-1] < found.losses[0]
    for count in ("num_parameters", "num_trained_parameters"):
        assert found.facts[count] == expected.facts["num_parameters"]


@needs_deepspeed
@pytest.mark.parametrize(
    ("layout", "microbatches", "layers", "again"),
    [("pp uneven x dp, one layer of each recomputed", 4, 3, 1), ("zero 3, two layers recomputed", 2, 4, 2)],
)
def test_as_many_layers_are_recomputed_as_asked(
    layout: str, microbatches: int, layers: int, again: int, trained: dict[str, Trained]
) -> None:
    assert trained[layout].count_in_trace(0, "aten::gelu") == microbatches * (layers + again)
    assert trained[layout].count_in_trace(0, "aten::gelu_backward") == microbatches * layers


@needs_deepspeed
@pytest.mark.parametrize("layout", parameters(HALF, KEPT))
def test_bf16_trains(layout: str, references: dict[str, Trained], trained: dict[str, Trained]) -> None:
    assert trained[layout].losses == pytest.approx(references["tiny-llama"].losses, rel=1e-3)
    assert trained[layout].facts["skipped_steps"] == 0


@needs_deepspeed
def test_checkpoint_is_trained_on(references: dict[str, Trained], trained: dict[str, Trained]) -> None:
    expected = references["checkpoint"].losses
    assert trained["checkpoint"].losses == pytest.approx(expected, rel=5e-6)
    assert abs(expected[0] - references["tiny-llama"].losses[0]) > 1e-3


KINDS = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter"}
"""What our tables call the operations of DeepSpeed's logger."""


@needs_deepspeed
@pytest.mark.parametrize("layout", parameters([*LAYOUTS, *HALF], KEPT))
def test_messages_of_the_logger_are_those_of_the_trace(
    layout: str, trained: dict[str, Trained], tmp_path: Path
) -> None:
    found = trained[layout]
    traced = [row for row in collectives(found, tmp_path) if row["group"] != "world" and row["step"] is not None]
    assert Counter(row["kind"] for row in traced) == _sums(
        (KINDS.get(message["op"], message["op"]), message["count"]) for message in logged(found)
    )
    between_stages = Counter((row["kind"], row["size_bytes"]) for row in traced if row["kind"] in ("send", "recv"))
    assert between_stages == _sums(
        ((message["op"], message["bytes"]), message["count"])
        for message in logged(found)
        if message["op"] in ("send", "recv")
    )


@needs_deepspeed
@pytest.mark.parametrize("layout", parameters([*LAYOUTS, *HALF], KEPT))
def test_bytes_of_the_logger_are_those_of_the_flight_recorder(layout: str, trained: dict[str, Trained]) -> None:
    record = json.loads((trained[layout].folder / "traces" / "rank0.groups.json").read_text())
    recorded = Counter((entry["op"], entry["bytes"]) for entry in record["collectives"] if entry["role"] != "world")
    assert recorded == _sums(
        ((GLOO[message["op"]], message["bytes"]), message["count"])
        for message in logged(trained[layout])
        if message["op"] in GLOO
    )


GLOO = {
    "all_gather_into_tensor": "gloo:all_gather",
    "all_reduce": "gloo:all_reduce",
    "broadcast": "gloo:broadcast",
    # Gloo reduces the whole buffer on every rank.
    "reduce_scatter_tensor": "gloo:all_reduce",
}


BY_HAND: dict[str, dict[str, dict[int, int]]] = {
    # Two matrices of the vocabulary, in each of two layers 4 of 128 x 128 and 3 of 128 x 1024; 5 norms of 128, which
    # have an optimizer group of their own. All gradients are reduced once; each rank gives a quarter of each group.
    "zero 1, overlapped": {"all_reduce": {4 * 1_180_288: 1}, "all_gather_into_tensor": {1_179_648: 1, 640: 1}},
    # In each of 2 micro-batches gradients are scattered and the 8 large matrices gathered, once for both passes; the
    # rest stays gathered until the optimizer's step.
    "zero 3": {
        "reduce_scatter_tensor": {4 * 1_180_288: 2},
        "all_gather_into_tensor": {131_072: 16, 16_384: 8, 128: 5},
    },
    # 8 micro-batches of 32 tokens of 32 fp32 numbers leave the first stage, as many gradients come back.
    "pp": {"send": {4096: 8}, "recv": {4096: 8}},
}


@needs_deepspeed
@pytest.mark.parametrize("layout", BY_HAND)
def test_messages_are_those_counted_by_hand(layout: str, trained: dict[str, Trained]) -> None:
    found: dict[str, dict[int, int]] = {}
    for message in logged(trained[layout]):
        if message["bytes"] > 8:
            found.setdefault(message["op"], {})[message["bytes"]] = message["count"]
    expected = BY_HAND[layout]
    assert {op: found[op] for op in expected} == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tp": 2}, "engine: megatron or native"),
        ({"cp": 2}, "engine: megatron"),
        ({"model": MOE, "dp": 2, "ep": 2}, "keeps experts whole"),
        ({"precision": "fp8"}, "engine: megatron"),
        ({"precision": "fp16"}, "needs a GPU"),
        ({"recompute": "selective"}, "recompute: full"),
        ({"samples": "padded"}, "samples: packed"),
        ({"task": "inference"}, "engine: native"),
        ({"vp": 2}, "pp is 1; set vp: 1"),
        ({"pp": 2, "vp": 2, "schedule": "interleaved_1f1b"}, "engine: megatron"),
        ({"pp": 2, "schedule": "zero_bubble"}, "engine: native"),
        ({"pp": 2, "dp": 2, **ONE_F, **GRADS}, "data_parallel_sharding: optim,"),
        ({"pp": 8, **ONE_F}, "set pp: 4"),
        ({"dp": 2, "overlap": ("grad",)}, "plain data parallelism"),
        ({"pp": 2, "dp": 2, **ONE_F, **OPTIM, "overlap": ("grad",)}, "pipeline reduces gradients after"),
        ({"dp": 2, **GRADS, "overlap": ("param",)}, "ZeRO-2 gathers"),
        ({"tp": 1, "overlap": ("tp",)}, "remove tp from overlap"),
        ({"dp": 2, "offload": ("optim",)}, "data_parallel_sharding: optim"),
        ({"dp": 2, **GRADS, "offload": ("optim", "params")}, "this is ZeRO-2"),
    ],
)
def test_refused_says_what_to_do(changes: dict[str, Any], words: str) -> None:
    reason = refused(make_point(engine="deepspeed", **changes))
    assert reason is not None
    assert words in reason and "\n" not in reason


def test_train_without_deepspeed_names_another_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed, "is_installed", lambda: False)
    with pytest.raises(UserError, match="or set engine: native") as refused:
        deepspeed.train(make_point(engine="deepspeed"), None, None)  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)


def _sums(pairs: Iterable[tuple[Any, int]]) -> Counter[Any]:
    total: Counter[Any] = Counter()
    for key, count in pairs:
        total[key] += count
    return total


def logged(found: Trained) -> list[dict[str, Any]]:
    messages = json.loads((found.folder / "logs" / "rank0.deepspeed.json").read_text())["messages"]
    assert found.facts["num_messages"] == sum(message["count"] for message in messages)
    return messages


def collectives(found: Trained, folder: Path) -> list[dict[str, Any]]:
    trace = found.folder / "traces" / "rank0.json.gz"
    parse_traces([TraceFile(trace, 0)], [folder], load_scheme(), lambda line: None, 1)
    return read_rank_table(folder, COLLECTIVES).to_pylist()
