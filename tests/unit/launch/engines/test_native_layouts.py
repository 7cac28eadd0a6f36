"""Every layout trains the same model: losses of four ranks against those of one."""

import gzip
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.points import refused
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
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Point, Steps

TIED = LLAMA.model_copy(update={"name": "tiny-tied", "tie_embeddings": True})
ODD = LLAMA.model_copy(update={"name": "tiny-odd", "num_layers": 5})
FEW = ModelConfig.model_validate(
    {**MOE.model_dump(), "name": "tiny-few", "moe": {"num_experts": 4, "top_k": 2, "capacity_factor": 1.0}}
)
MODELS = {model.name: model for model in (LLAMA, GPT, GQA, MOE, TIED, ODD, FEW)}

FSDP: dict[str, Any] = {"data_parallel_sharding": "optim_grads_params"}
SP: dict[str, Any] = {"sequence_parallel": True, "micro_batch_size": 2}
OVERLAP: dict[str, Any] = {"overlap": ("grad",)}
ZB: dict[str, Any] = {"schedule": "zero_bubble"}
INTERLEAVED: dict[str, Any] = {"schedule": "interleaved_1f1b", "vp": 2}
TRACED: dict[str, Any] = {"steps": Steps(warmup=1, measured=1, profiled=1)}
ONE_RECOMPUTED: dict[str, Any] = {"recompute": "full", "recompute_layers": 1}

LAYOUTS: dict[str, tuple[ModelConfig, dict[str, Any]]] = {
    "traced fsdp x tp": (LLAMA, {"dp": 2, "tp": 2, **FSDP, **SP, **TRACED, "trace_ranks": (0, 3)}),
    "traced ep x pp, zero bubble": (MOE, {"dp": 2, "ep": 2, "pp": 2, "vp": 2, **ZB, **TRACED}),
    "traced uneven stages, one layer of each recomputed": (
        ODD,
        {"dp": 2, "pp": 2, "schedule": "1f1b", "pipeline_layers": (1, 4), **ONE_RECOMPUTED, **TRACED},
    ),
    "dp": (LLAMA, {"dp": 4}),
    "dp, overlapped": (LLAMA, {"dp": 4, **OVERLAP, **TRACED}),
    "fsdp": (LLAMA, {"dp": 4, **FSDP}),
    "fsdp, gradients kept": (LLAMA, {"dp": 4, "data_parallel_sharding": "optim"}),
    "fsdp, parameters kept": (LLAMA, {"dp": 4, "data_parallel_sharding": "optim_grads"}),
    "tp, sequence parallel": (LLAMA, {"tp": 4, "sequence_parallel": True, "micro_batch_size": 4}),
    "dp x tp, overlapped": (LLAMA, {"dp": 2, "tp": 2, "micro_batch_size": 2, **OVERLAP}),
    "pp gpipe": (LLAMA, {"pp": 4, "schedule": "gpipe", "micro_batch_size": 4}),
    "pp 1f1b": (LLAMA, {"pp": 4, "schedule": "1f1b"}),
    "pp zero bubble": (LLAMA, {"pp": 4, **ZB}),
    "dp x pp interleaved, overlapped": (LLAMA, {"dp": 2, "pp": 2, **INTERLEAVED, **OVERLAP}),
    "dp x pp zero bubble, overlapped": (LLAMA, {"dp": 2, "pp": 2, "vp": 2, **ZB, **OVERLAP}),
    "tp x pp": (LLAMA, {"tp": 2, "pp": 2, "schedule": "1f1b", **SP}),
    "fsdp x pp": (LLAMA, {"dp": 2, "pp": 2, "schedule": "1f1b", **FSDP}),
    "fsdp x pp interleaved": (LLAMA, {"dp": 2, "pp": 2, **INTERLEAVED, **FSDP}),
    "zero-2 x pp zero bubble": (LLAMA, {"dp": 2, "pp": 2, **ZB, "data_parallel_sharding": "optim_grads"}),
    "fsdp x tp, recomputed": (LLAMA, {"dp": 2, "tp": 2, **FSDP, **SP, "recompute": "full"}),
    "gpt dp x tp": (GPT, {"dp": 2, "tp": 2, **SP}),
    "gpt tp x pp zero bubble": (GPT, {"tp": 2, "pp": 2, **ZB, **SP}),
    "gpt dp x pp, selectively recomputed": (GPT, {"dp": 2, "pp": 2, "schedule": "1f1b", "recompute": "selective"}),
    "gqa dp x tp, selectively recomputed": (GQA, {"dp": 2, "tp": 2, **SP, "recompute": "selective"}),
    "tied fsdp x tp": (TIED, {"dp": 2, "tp": 2, **FSDP, **SP}),
    "five layers on four stages": (ODD, {"dp": 2, "pp": 2, **INTERLEAVED, "pipeline_layers": (2, 1, 1, 1)}),
    "uneven stages, interleaved": (ODD, {"dp": 2, "pp": 2, **INTERLEAVED, "pipeline_layers": (1, 2, 1, 1)}),
    "experts dp": (MOE, {"dp": 4}),
    "ep": (MOE, {"dp": 4, "ep": 4}),
    "ep x edp, overlapped": (MOE, {"dp": 4, "ep": 2, **OVERLAP}),
    "ep x fsdp": (MOE, {"dp": 4, "ep": 2, **FSDP}),
    "ep x tp": (MOE, {"dp": 2, "ep": 2, "tp": 2, **SP}),
    "ep x tp, experts whole": (MOE, {"dp": 2, "ep": 2, "tp": 2, "etp": 1, **SP}),
    "tp, experts whole": (MOE, {"dp": 2, "tp": 2, "etp": 1, **SP}),
    "ep x tp x fsdp": (MOE, {"dp": 2, "ep": 2, "tp": 2, **SP, **FSDP}),
    "experts split over tp": (MOE, {"dp": 2, "tp": 2, "micro_batch_size": 2}),
    "experts split over tp, sequence parallel": (MOE, {"dp": 2, "tp": 2, **SP, **FSDP}),
    "ep x pp, recomputed": (MOE, {"dp": 2, "ep": 2, "pp": 2, "schedule": "1f1b", "recompute": "full"}),
    "ep with a capacity": (FEW, {"dp": 4, "ep": 2}),
}
BF16: dict[str, dict[str, Any]] = {
    "bf16 dp": {"dp": 4},
    "bf16 fsdp x tp": {"dp": 2, "tp": 2, **FSDP, **SP},
    "bf16 tp x pp zero bubble": {"tp": 2, "pp": 2, **ZB, **SP},
}

KEPT = {
    *(name for name in LAYOUTS if name.startswith("traced")),
    *("dp", "dp, overlapped", "fsdp", "tp, sequence parallel", "pp gpipe", "pp 1f1b"),
    *("dp x pp interleaved, overlapped", "gqa dp x tp, selectively recomputed", "tied fsdp x tp"),
    *("five layers on four stages", "ep x tp x fsdp", "ep with a capacity", "bf16 tp x pp zero bubble"),
}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    points = {name: make_point(model, steps=Steps(warmup=0, measured=3, profiled=0)) for name, model in MODELS.items()}
    for recompute in ("selective", "full"):
        points[recompute] = make_point(MOE, recompute=recompute)
    return train(points, tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def gang(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    points: dict[str, Point] = {name: make_point(model, **changes) for name, (model, changes) in LAYOUTS.items()}
    points |= {name: make_point(LLAMA, precision="bf16", **changes) for name, changes in BF16.items()}
    assert {name: refused(point) for name, point in points.items() if refused(point)} == {}
    return train(asked_for(request, points, KEPT), tmp_path_factory.mktemp("four"))


@pytest.mark.parametrize("name", parameters(LAYOUTS, KEPT))
def test_train_layout_agrees_with_one_rank(name: str, gang: dict[str, Trained], references: dict[str, Trained]) -> None:
    layout, reference = gang[name], references[LAYOUTS[name][0].name]
    assert layout.losses == pytest.approx(reference.losses, rel=1e-5)
    for name_of_norm in ("gradient_norm", "small_gradient_norm"):
        assert layout.facts[name_of_norm] == pytest.approx(reference.facts[name_of_norm], rel=1e-5), name_of_norm
    assert layout.facts["num_parameters"] == reference.facts["num_parameters"]


@pytest.mark.parametrize("name", parameters(BF16, KEPT))
def test_train_bf16_is_near_fp32(name: str, gang: dict[str, Trained], references: dict[str, Trained]) -> None:
    losses, exact = gang[name].losses, references[LLAMA.name].losses
    # bf16 has 8 bits of mantissa; the mean over 256 tokens is far better, but not equal.
    assert losses == pytest.approx(exact, rel=2e-3)
    assert losses != pytest.approx(exact, rel=1e-6)


def test_train_one_rank_learns_from_an_even_guess(references: dict[str, Trained]) -> None:
    for name, model in MODELS.items():
        first, *_, last = references[name].losses
        assert first == pytest.approx(math.log(model.vocab_size), rel=0.03)
        assert last < first


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_train_recomputation_changes_nothing(recompute: str, references: dict[str, Trained]) -> None:
    assert references[recompute].losses == references[MOE.name].losses


@pytest.mark.parametrize(("rank", "layers"), [(0, 1), (3, 4)])
def test_train_recomputes_as_many_layers_as_asked(rank: int, layers: int, gang: dict[str, Trained]) -> None:
    traced = gang["traced uneven stages, one layer of each recomputed"]
    microbatches = 4
    assert traced.count_in_trace(rank, "aten::silu") == microbatches * (layers + 1)
    assert traced.count_in_trace(rank, "aten::silu_backward") == microbatches * layers


def test_train_shares_parameters_out(gang: dict[str, Trained]) -> None:
    total = gang["dp"].facts["num_parameters"]
    assert gang["dp"].facts["num_parameters_rank"] == total
    assert gang["fsdp"].facts["num_parameters_rank"] == total // 4
    # All but the nine normalisations of 32 values is split.
    norms = 9 * 32
    assert gang["tp, sequence parallel"].facts["num_parameters_rank"] == (total - norms) // 4 + norms


def test_train_records_steps(gang: dict[str, Trained]) -> None:
    rows = gang["traced fsdp x tp"].rows
    assert [(row["rank"], row["step"], row["kind"]) for row in rows] == [
        (rank, step, kind) for rank in range(4) for step, kind in enumerate(("warmup", "measured", "profiled"))
    ]
    assert all(row["t_end_ns"] > row["t_start_ns"] and row["peak_memory_bytes"] > 10e6 for row in rows)
    assert {row["num_tokens"] for row in rows} == {8 * 32}


def test_train_loss_is_reported_by_the_last_stage_only(gang: dict[str, Trained]) -> None:
    assert {row["rank"] for row in gang["pp 1f1b"].rows if row["loss"] is not None} == {3}


def test_train_traces_chosen_ranks_whole(gang: dict[str, Trained]) -> None:
    chosen, every = gang["traced fsdp x tp"].folder, gang["traced ep x pp, zero bubble"].folder
    assert _files(chosen) == ["rank0.groups.json", "rank0.json.gz", "rank3.groups.json", "rank3.json.gz"]
    assert len(_files(every)) == 8
    assert all(_annotations(every, rank)["ProfilerStep#2"] == 1 for rank in range(4))
    assert not (gang["dp"].folder / "traces").exists()


def test_train_annotates_phases(gang: dict[str, Trained]) -> None:
    fsdp, zero_bubble = gang["traced fsdp x tp"].folder, gang["traced ep x pp, zero bubble"].folder
    whole = {f"{name} stage=0 microbatch={number}" for name in ("forward", "backward") for number in range(2)}
    assert _phases(_annotations(fsdp, 0)) == Counter([*whole, "optimizer", "grad_sync"])
    names = ("forward", "backward", "backward_weight")
    staged = {f"{n} stage={stage} microbatch={m}" for n in names for stage in (1, 3) for m in range(4)}
    found = _phases(_annotations(zero_bubble, 2))
    # Some backward passes stay whole where splitting gains nothing, so not every micro-batch has a weight phase.
    assert set(found) <= staged | {"optimizer", "grad_sync"}
    assert {name for name in found if "weight" not in name} == {n for n in staged if "weight" not in n} | {
        "optimizer",
        "grad_sync",
    }
    assert any(name.startswith("backward_weight") for name in found)
    assert set(found.values()) == {1}


def test_train_overlaps_gradients_with_the_last_backward_pass(gang: dict[str, Trained]) -> None:
    events = {event["name"]: event for event in _events(gang["dp, overlapped"].folder, 0)}
    syncs = [event for event in _events(gang["dp, overlapped"].folder, 0) if event["name"] == "grad_sync"]
    last = events["backward stage=0 microbatch=1"]
    inside = [event for event in syncs if last["ts"] < event["ts"] < last["ts"] + last["dur"]]
    # One bucket, filled and sent before the pass is over; the other annotation is the wait after it.
    assert (len(syncs), len(inside)) == (2, 1)


def test_train_writes_groups_by_role(gang: dict[str, Trained]) -> None:
    fsdp, zero_bubble = gang["traced fsdp x tp"].folder, gang["traced ep x pp, zero bubble"].folder
    ranks = {"pp": [3], "dp": [1, 3], "tp": [2, 3], "world": [0, 1, 2, 3]}
    assert {group["role"]: group["ranks"] for group in _groups(fsdp, 3)["groups"]} == ranks
    ranks = {"pp": [0, 2], "dp": [2, 3], "tp": [2], "ep": [2, 3], "edp": [2], "world": [0, 1, 2, 3]}
    assert {g["role"]: g["ranks"] for g in _groups(zero_bubble, 2)["groups"]} == {**ranks, "pp": [0, 2]}


def test_train_writes_collectives_of_the_profiled_step(gang: dict[str, Trained]) -> None:
    folder = gang["traced fsdp x tp"].folder
    collectives = _groups(folder, 3)["collectives"]
    kinds = Counter((c["role"], c["op"]) for c in collectives)
    # Per micro-batch: a gather before attention, feed-forward and head, forward and for the weight gradients or back.
    assert kinds["tp", "gloo:all_gather"] == 2 * (4 * 4 + 2)
    # Per micro-batch, forward and backward: four layers and the rest of the stage, which FSDP keeps after the forward.
    assert kinds["dp", "gloo:all_gather"] == 2 * (5 + 5)
    assert kinds["world", "gloo:barrier"] == 1
    times = [c["t_ns"] for c in collectives]
    assert times == sorted(times) and times[-1] - times[0] < 60e9
    hidden = {c["bytes"] for c in collectives if (c["role"], c["op"]) == ("tp", "gloo:all_gather")}
    assert hidden == {2 * 16 * 32 * 4}
    traced = [event for event in _events(folder, 3) if event.get("name", "").startswith("gloo:")]
    assert len(traced) == len(collectives)


def _files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "traces").iterdir())


def _events(folder: Path, rank: int) -> list[dict[str, Any]]:
    with gzip.open(folder / "traces" / f"rank{rank}.json.gz") as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def _annotations(folder: Path, rank: int) -> Counter[str]:
    return Counter(event["name"] for event in _events(folder, rank) if event.get("cat") == "user_annotation")


def _phases(annotations: Counter[str]) -> Counter[str]:
    kinds = ("forward", "backward", "backward_weight", "optimizer", "grad_sync")
    return Counter({name: count for name, count in annotations.items() if name.split(" ")[0] in kinds})


def _groups(folder: Path, rank: int) -> dict[str, Any]:
    return json.loads((folder / "traces" / f"rank{rank}.groups.json").read_text())
