"""Megatron-Core trains the same model as the native engine, in every layout that gloo allows."""

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
    Trained,
    asked_for,
    make_point,
    parameters,
    train,
)
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Point, Steps
from triplepoint.launch.engines import megatron

pytestmark = pytest.mark.skipif(not megatron.is_installed(), reason="megatron-core is not installed")

DEEP = LLAMA.model_copy(update={"name": "tiny-deep", "num_layers": 6})
MODELS = {model.name: model for model in (LLAMA, GPT, GQA, MOE, TIED, DEEP)}
SP: dict[str, Any] = {"sequence_parallel": True}
OPTIM: dict[str, Any] = {"data_parallel_sharding": "optim"}
V: dict[str, Any] = {"schedule": "interleaved_1f1b", "vp": 2}
ONE_F: dict[str, Any] = {"schedule": "1f1b"}
TRACED: dict[str, Any] = {"steps": Steps(warmup=1, measured=1, profiled=1), "trace_ranks": (0, 2)}

LAYOUTS: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    "dp": (LLAMA, {"dp": 4}),
    "distributed optimizer, overlapped": (GPT, {"dp": 4, **OPTIM, "overlap": ("grad", "param")}),
    "tp": (LLAMA, {"tp": 4}),
    "gqa tp x dp": (GQA, {"tp": 2, "dp": 2}),
    "tp x dp, sequence parallel, distributed optimizer": (LLAMA, {"tp": 2, "dp": 2, **SP, **OPTIM}),
    "pp": (LLAMA, {"pp": 4, **ONE_F}),
    "pp interleaved x dp, overlapped": (LLAMA, {"pp": 2, "dp": 2, **V, **OPTIM, "overlap": ("grad",)}),
    "tp x pp, sequence parallel": (GPT, {"tp": 2, "pp": 2, **ONE_F, **SP}),
    "tied pp x dp": (TIED, {"pp": 2, "dp": 2, **ONE_F, **OPTIM}),
    "tp x pp, attention recomputed": (GQA, {"tp": 2, "pp": 2, **ONE_F, "recompute": "selective"}),
    "ep x edp, distributed optimizer": (MOE, {"dp": 4, "ep": 2, **OPTIM}),
    "ep x tp, sequence parallel": (MOE, {"dp": 2, "ep": 2, "tp": 2, **SP}),
    "experts split by half": (MOE, {"tp": 4, "ep": 2, "etp": 2, **SP}),
    "ep over tp, experts whole": (MOE, {"dp": 2, "ep": 4, "tp": 2, "etp": 1, **SP, **OPTIM}),
    "pp uneven x dp, one layer of each recomputed": (
        GPT,
        {"pp": 2, "dp": 2, **ONE_F, "pipeline_layers": (1, 3), "recompute": "full", "recompute_layers": 1, **TRACED},
    ),
    "pp uneven interleaved x dp, overlapped": (
        DEEP,
        {"pp": 2, "dp": 2, **V, **OPTIM, "overlap": ("grad",), "pipeline_layers": (2, 1, 1, 2)},
    ),
    "ep x pp, recomputed": (MOE, {"dp": 2, "ep": 2, "pp": 2, **ONE_F, "recompute": "full"}),
}
KEPT = {
    *("distributed optimizer, overlapped", "gqa tp x dp", "pp interleaved x dp, overlapped", "tied pp x dp"),
    *("ep x tp, sequence parallel", "pp uneven x dp, one layer of each recomputed", "bf16", "padded"),
}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    points = {name: make_point(model) for name, model in MODELS.items()}
    points["padded"] = make_point(LLAMA, samples="padded")
    return train(points, tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    points = {name: megatron_point(model, **changes) for name, (model, changes) in LAYOUTS.items()}
    traced = {"steps": Steps(warmup=1, measured=1, profiled=1), "trace_ranks": (0,)}
    points["bf16"] = megatron_point(LLAMA, tp=2, dp=2, precision="bf16", **SP, **OPTIM, **traced)
    points["padded"] = megatron_point(LLAMA, tp=2, dp=2, samples="padded")
    points = asked_for(request, points, KEPT)
    return train(points, tmp_path_factory.mktemp("megatron"), timeout_s=280, gang="engine_gang.py")


def megatron_point(model: ModelConfig, **changes: Any) -> Point:
    point = make_point(model, engine="megatron", **changes)
    assert refused(point) is None
    return point


@pytest.mark.parametrize("layout", parameters(LAYOUTS, KEPT))
def test_layout_trains_as_the_native_engine_does(
    layout: str, references: dict[str, Trained], trained: dict[str, Trained]
) -> None:
    expected, found = references[LAYOUTS[layout][0].name], trained[layout]
    # Measured: 4e-6 at most; a wrong weight or gradient shows in the third digit.
    assert found.losses == pytest.approx(expected.losses, rel=2e-5)
    assert found.facts["gradient_norm"] == pytest.approx(expected.facts["gradient_norm"], rel=5e-4)
    assert found.losses[-1] < found.losses[0]
    for count in ("num_parameters", "num_trained_parameters"):
        assert found.facts[count] == expected.facts["num_parameters"]


@pytest.mark.parametrize(("rank", "layers"), [(0, 1), (2, 3)])
def test_as_many_layers_are_recomputed_as_asked(rank: int, layers: int, trained: dict[str, Trained]) -> None:
    traced, microbatches = trained["pp uneven x dp, one layer of each recomputed"], 4
    assert traced.count_in_trace(rank, "aten::gelu") == microbatches * (layers + 1)
    assert traced.count_in_trace(rank, "aten::gelu_backward") == microbatches * layers


def test_padding_counts_for_nothing_as_in_the_native_engine(
    references: dict[str, Trained], trained: dict[str, Trained]
) -> None:
    assert trained["padded"].losses == pytest.approx(references["padded"].losses, rel=2e-5)
    assert trained["padded"].losses != references[LLAMA.name].losses


def test_bf16_trains_and_traces(references: dict[str, Trained], trained: dict[str, Trained]) -> None:
    assert trained["bf16"].losses == pytest.approx(references["tiny-llama"].losses, rel=2e-3)
    folder = trained["bf16"].folder / "traces"
    assert (folder / "rank0.json.gz").stat().st_size > 10_000
    assert not (folder / "rank1.json.gz").exists()
    groups = json.loads((folder / "rank0.groups.json").read_text())
    assert {"tp", "dp", "pp", "world"} <= {group["role"] for group in groups["groups"]}
    assert {"tp", "dp"} <= {collective["role"] for collective in groups["collectives"]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cp": 2}, "Transformer Engine"),
        ({"precision": "fp8"}, "needs a GPU"),
        ({"pp": 4, "schedule": "zero_bubble"}, "no schedule zero_bubble"),
        ({"pp": 4, "schedule": "interleaved_1f1b", "vp": 2}, "set pp: 2"),
        ({"dp": 2, "data_parallel_sharding": "optim_grads_params"}, "engine: native"),
        ({"dp": 2, "overlap": ("param",)}, "data_parallel_sharding: optim"),
        ({"model": MOE, "tp": 2}, "sequence_parallel"),
        ({"model": MOE, "tp": 2, "etp": 1, **SP}, "set ep: 2 or more, or etp: 2"),
        ({"tp": 3}, "set tp: 2"),
    ],
)
def test_refused_says_what_to_do(changes: dict[str, Any], words: str) -> None:
    reason = refused(make_point(engine="megatron", **changes))
    assert reason is not None
    assert words in reason
