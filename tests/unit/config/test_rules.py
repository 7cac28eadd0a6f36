from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.config.conftest import REPOSITORY
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.point import Point
from triplepoint.config.rules import fold, refusal
from triplepoint.config.study import Settings, make_points

CONFIG = Catalogue(REPOSITORY / "config")


def make(**settings: Any) -> Point:
    given_ = {"model": "llama3-70b", "cluster": "h200x32", "engine": "simulated", "global_batch_size": 128} | settings
    checked = Settings.model_validate(given_)
    return fold(next(make_points(checked, CONFIG.model(checked.model), CONFIG.cluster(checked.cluster))))


def reason(**settings: Any) -> str | None:
    point = make(**settings)
    cluster = CONFIG.cluster(point.cluster.name)
    return refusal(point, cluster, CONFIG.gpu_of(cluster))


MOE = {"model": "mixtral-8x7b"}

FULL: dict[str, Any] = {"recompute": "full"}

CASES: list[tuple[dict[str, Any], str]] = [
    (
        {"tp": 4, "pp": 4, "dp": 4},
        "tp*pp*cp*dp = 4*4*1*4 = 64, cluster h200x32 has 32 GPUs; set dp: 2",
    ),
    (
        {"tp": 4, "num_gpus": 16, "dp": 1},
        "tp*pp*cp*dp = 4*1*1*1 = 4, num_gpus is 16; set dp: 4",
    ),
    (
        {"pp": 5},
        "tp*pp*cp*dp = 1*5*1*6 = 30, cluster h200x32 has 32 GPUs; choose tp, pp and cp whose product divides 32",
    ),
    (
        {"model": "tiny-llama", "cluster": "cpu-local", "dp": 3, "global_batch_size": 3},
        "tp*pp*cp*dp = 1*1*1*3 = 3, cluster cpu-local has 8 ranks; set dp: 8",
    ),
    ({"num_gpus": 64}, "num_gpus: 64, cluster h200x32 has 32 GPUs; set num_gpus: 32"),
    ({"num_gpus": 12}, "num_gpus: 12 does not fill whole nodes of 8 GPUs; set num_gpus: 8"),
    ({"model": "gpt3-30b", "tp": 32}, "num_attention_heads 56 is not divisible by tp: 32; set tp: 28"),
    ({"tp": 16}, "num_query_groups 8 is not divisible by tp: 16; set tp: 8"),
    ({"pp": 32}, "num_layers 80 is not divisible by pp*vp = 32*1 = 32; set pp: 16 or give pipeline_layers"),
    ({"pp": 4, "vp": 3}, "num_layers 80 is not divisible by pp*vp = 4*3 = 12; set vp: 1 or give pipeline_layers"),
    (
        {"tp": 4, "cp": 4, "context_exchange": "all_to_all"},
        "context_exchange: all_to_all splits heads, 8 is not divisible by tp*cp = 16; set ring",
    ),
    (
        {"cp": 4, "context_exchange": "all_to_all", "engine": "megatron"},
        "context_exchange: all_to_all, the megatron engine has none; set context_exchange: ring or engine: simulated",
    ),
    (
        {"pp": 4, "pipeline_ends": ["embedding"]},
        "num_layers 80 with embedding is 81, not divisible by pp*vp = 4; change pipeline_ends or give pipeline_layers",
    ),
    (
        {"pp": 2, "pipeline_ends": ["embedding", "loss"], "pipeline_layers": [39, 41]},
        "pipeline_ends and pipeline_layers both say how layers are split; leave one out",
    ),
    (
        {"model": "gpt3-3.6b", "pp": 8, "vp": 4},
        "num_layers 30 is not divisible by pp*vp = 8*4 = 32; set vp: 1, or pipeline_ends: [embedding, loss]",
    ),
    (
        {"pp": 2, "pipeline_layers": [40]},
        "pipeline_layers has length 1, pp*vp = 2*1 = 2; give the layers of each stage",
    ),
    ({"pp": 2, "pipeline_layers": [40, 41]}, "pipeline_layers: 81 layers in all, num_layers is 80; let the sum be 80"),
    (
        FULL | {"recompute_layers": 81},
        "recompute_layers: 81, the largest model has 80; set at most 80, or none for all",
    ),
    (
        FULL | {"pp": 2, "pipeline_layers": [30, 50], "recompute_layers": 51},
        "recompute_layers: 51, the largest stage has 50; set at most 50",
    ),
    ({"vp": 2}, "vp: 2 needs pipeline parallelism, pp is 1; set vp: 1"),
    (
        {"micro_batch_size": 8},
        "global_batch_size 128 is not divisible by micro_batch_size*dp = 8*32 = 256; set micro_batch_size: 4",
    ),
    (
        {"global_batch_size": 100},
        "global_batch_size 100 is not divisible by micro_batch_size*dp = 1*32 = 32; set global_batch_size: 96",
    ),
    (
        {"pp": 4, "vp": 2, "schedule": "1f1b"},
        "schedule: 1f1b has one stage per rank, vp is 2; set schedule: interleaved_1f1b",
    ),
    (
        {"pp": 4, "schedule": "interleaved_1f1b"},
        "schedule: interleaved_1f1b needs vp above 1; set vp: 2 or schedule: 1f1b",
    ),
    (
        {"pp": 16, "vp": 5, "micro_batch_size": 8},
        "schedule: interleaved_1f1b needs num_microbatches 8 divisible by pp: 16; set vp: 1",
    ),
    (
        {"tp": 8, "sequence_parallel": True, "sequence_length": 2049},
        "sequence_parallel needs sequence_length 2049 divisible by tp*cp = 8; set a multiple of it",
    ),
    ({"cp": 4, "sequence_length": 8196}, "sequence_length 8196 is not divisible by 2*cp = 8; set a multiple of it"),
    ({"ep": 2}, "ep: 2, model llama3-70b has no experts; set ep: 1"),
    (MOE | {"ep": 16}, "num_experts 8 is not divisible by ep: 16; set ep: 8"),
    (MOE | {"pp": 8, "ep": 8}, "dp 4 is not divisible by ep: 8; set ep: 4"),
    (MOE | {"tp": 4, "etp": 3}, "etp: 3 does not divide tp: 4; set etp: 1"),
    (MOE | {"tp": 8, "pp": 4, "etp": 2, "ep": 8}, "dp*tp/etp = 1*8/2 = 4 is not divisible by ep: 8; set ep: 4"),
    (MOE | {"tp": 4, "etp": 2}, "etp: 2 with tp: 4 needs sequence parallelism; set sequence_parallel: true"),
    (
        MOE | {"tp": 4, "etp": 2, "task": "inference", "prompt_tokens": 8, "output_tokens": 8},
        "etp: 2 needs sequence parallelism, which inference has none; set etp: 4",
    ),
    (
        MOE | {"tp": 4, "ep": 8},
        "ep: 8 with tp: 4 needs sequence parallelism; set sequence_parallel: true",
    ),
    ({"precision": "fp8", "model": "tiny-llama", "cluster": "cpu-local"}, "precision: fp8, cpu has no fp8 units; set "),
    ({"precision": "fp8", "cluster": "mi250x32"}, "precision: fp8, mi250 has no fp8 units; set precision: bf16"),
    ({"offload": ["optim"], "engine": "native"}, "offload: [optim], the native engine has none; set offload: [] or "),
    ({"trace_ranks": [0, 32]}, "trace_ranks: 32 is not a rank, they go from 0 to 31"),
]


@pytest.mark.parametrize(("settings", "expected"), CASES, ids=[case[1][:40] for case in CASES])
def test_refusal_says_what_and_how_to_mend(settings: dict[str, Any], expected: str) -> None:
    found = reason(**settings)
    assert found is not None
    assert found.startswith(expected)
    assert "\n" not in found


def test_refusal_vocabulary_below_bytes() -> None:
    point = make(model="tiny-llama", cluster="cpu-local", corpus="stdlib")
    small = point.model_copy(update={"model": point.model.model_copy(update={"vocab_size": 128})})
    assert refusal(small, CONFIG.cluster("cpu-local"), None) == (
        "corpus: stdlib has byte tokens, vocab_size 128 is below 256"
    )


def test_refusal_ffn_not_divisible() -> None:
    point = make(model="tiny-llama", cluster="cpu-local", tp=4)
    odd = point.model_copy(update={"model": point.model.model_copy(update={"ffn_hidden_size": 382})})
    assert refusal(odd, CONFIG.cluster("cpu-local"), None) == (
        "ffn_hidden_size 382 is not divisible by tp: 4; set tp: 2"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"tp": 8, "pp": 4, "sequence_parallel": True},
        {"pp": 4, "vp": 2, "data_parallel_sharding": "optim"},
        {"pp": 4, "data_parallel_sharding": "optim_grads_params"},
        {"pp": 2, "pipeline_layers": [39, 41], "recompute": "full", "recompute_layers": 41},
        {"pp": 2, "vp": 3, "pipeline_layers": [13, 13, 14, 14, 13, 13]},
        {"num_gpus": 4, "tp": 2},
        {"precision": "fp8"},
        MOE | {"tp": 2, "ep": 8, "sequence_parallel": True},
        # Tensor parallelism may leave the node.
        {"model": "gpt3-175b", "tp": 32},
    ],
)
def test_refusal_none_for_what_can_run(settings: dict[str, Any]) -> None:
    assert reason(**settings) is None


DEGREE = st.sampled_from([1, 1, 2, 2, 4, 8, 3, 16])


@given(
    model=st.sampled_from(["gpt3-175b", "llama3-70b", "mixtral-8x7b", "mixtral-8x22b"]),
    degrees=st.fixed_dictionaries(dict.fromkeys(("tp", "pp", "micro_batch_size"), DEGREE)),
    rare=st.fixed_dictionaries({}, optional=dict.fromkeys(("dp", "cp", "ep", "vp"), DEGREE)),
    batch=st.sampled_from([64, 128, 192, 256, 100]),
    sequence_parallel=st.booleans(),
)
def test_valid_point_splits_without_remainder(
    model: str, degrees: dict[str, int], rare: dict[str, int], batch: int, sequence_parallel: bool
) -> None:
    settings = degrees | rare | {"model": model, "global_batch_size": batch, "sequence_parallel": sequence_parallel}
    assume(reason(**settings) is None)
    point = make(**settings)
    layout, shape = point.layout, point.model
    assert layout.tp * layout.pp * layout.cp * layout.dp == point.num_gpus == 32
    assert point.num_microbatches * point.micro_batch_size * layout.dp == point.global_batch_size
    assert point.num_microbatches >= 1
    assert shape.num_layers % (layout.pp * layout.vp) == 0
    assert shape.num_attention_heads % layout.tp == shape.num_query_groups % layout.tp == 0
    assert (shape.moe.num_experts if shape.moe else 1) % layout.ep == 0


@given(st.sampled_from([case[0] for case in CASES]), st.lists(st.sampled_from(["grad", "param", "tp"])))
def test_fold_twice_is_fold_once(settings: dict[str, Any], overlap: list[str]) -> None:
    point = make(**settings | {"overlap": overlap})
    assert fold(point) == point


LAYERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"pp": 2, "pipeline_layers": [40, 40]}, {"pp": 2}),
    ({"pp": 2, "vp": 2, "pipeline_layers": [20] * 4}, {"pp": 2, "vp": 2}),
    ({"pipeline_layers": [80]}, {}),
    ({"pipeline_ends": ["loss"]}, {}),
    ({"context_exchange": "all_to_all"}, {}),
    (
        {"model": "gpt3-3.6b", "pp": 8, "vp": 4, "pipeline_ends": ["loss", "embedding"]},
        {"model": "gpt3-3.6b", "pp": 8, "vp": 4, "pipeline_layers": [0, *[1] * 30, 0]},
    ),
    (
        {"model": "gpt3-3.6b", "pp": 8, "pipeline_ends": ["loss", "embedding"], "pipeline_layers": [3, *[4] * 6, 3]},
        {"model": "gpt3-3.6b", "pp": 8, "pipeline_layers": [3, *[4] * 6, 3]},
    ),
    (
        {"model": "gpt2-small", "pp": 13, "pipeline_ends": ["loss"]},
        {"model": "gpt2-small", "pp": 13, "pipeline_layers": [*[1] * 12, 0]},
    ),
    (FULL | {"pp": 2, "recompute_layers": 40}, FULL | {"pp": 2}),
    ({"recompute": "selective", "recompute_layers": 3}, {"recompute": "selective"}),
    ({"recompute_layers": 3}, {}),
]


@pytest.mark.parametrize(("said", "plain"), LAYERS)
def test_fold_takes_out_numbers_of_layers_that_change_nothing(said: dict[str, Any], plain: dict[str, Any]) -> None:
    assert make(**said) == make(**plain)


@pytest.mark.parametrize("recompute_layers", [None, 40, 41])
def test_fold_keeps_numbers_of_layers_that_count(recompute_layers: int | None) -> None:
    point = make(pp=2, pipeline_layers=[39, 41], recompute="full", recompute_layers=recompute_layers)
    assert (point.layout.pipeline_layers, point.recompute_layers) == ((39, 41), recompute_layers)


FOLDS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    # No data parallel ranks, so neither gradients nor parameters to communicate.
    ({"tp": 8, "pp": 4, "sequence_parallel": True, "data_parallel_sharding": "optim"}, ("tp",)),
    ({"tp": 8, "pp": 4}, ()),
    # Parameters are gathered only where they, or the optimizer state that changes them, are shared out.
    ({"tp": 4, "pp": 4}, ("grad",)),
    ({"tp": 4, "pp": 4, "data_parallel_sharding": "optim"}, ("grad", "param")),
    ({"tp": 4, "pp": 4, "data_parallel_sharding": "optim", "sequence_parallel": True}, ("grad", "param", "tp")),
    ({"pp": 16, "data_parallel_sharding": "optim", "sequence_parallel": True}, ("grad", "param")),
    ({"tp": 8, "data_parallel_sharding": "optim_grads_params", "sequence_parallel": True}, ()),
    ({"data_parallel_sharding": "optim_grads_params", "engine": "deepspeed"}, ("grad", "param")),
]


@pytest.mark.parametrize(("settings", "kept"), FOLDS)
def test_fold_keeps_only_overlap_of_what_happens(settings: dict[str, Any], kept: tuple[str, ...]) -> None:
    assert make(**settings, overlap=["tp", "grad", "param"]).overlap == kept


def test_fold_removes_sequence_parallel_at_tp_1() -> None:
    assert make(pp=16, sequence_parallel=True).digest() == make(pp=16).digest()


def test_fold_removes_schedule_at_pp_1() -> None:
    assert make(tp=8, schedule="zero_bubble").digest() == make(tp=8).digest()


def test_fold_removes_sharding_at_dp_1() -> None:
    assert make(tp=8, pp=4, data_parallel_sharding="optim").digest() == make(tp=8, pp=4).digest()


def test_fold_keeps_sharding_that_says_what_is_offloaded() -> None:
    point = make(num_gpus=1, engine="deepspeed", data_parallel_sharding="optim_grads", offload=["optim"])
    assert (point.layout.dp, point.layout.data_parallel_sharding) == (1, "optim_grads")


def test_make_points_order_of_overlap_is_no_difference() -> None:
    common = {"tp": 4, "sequence_parallel": True}
    assert make(**common, overlap=["tp", "grad"]).digest() == make(**common, overlap=["grad", "tp", "tp"]).digest()


def test_make_points_one_per_repeat() -> None:
    settings = Settings(model="llama3-70b", cluster="h200x32", engine="simulated", global_batch_size=128, repeats=3)
    points = list(make_points(settings, CONFIG.model("llama3-70b"), CONFIG.cluster("h200x32")))
    assert [point.repeat for point in points] == [1, 2, 3]
    assert len({point.digest() for point in points}) == 3


def test_selective_recomputation_of_the_native_engine_is_a_point_of_its_own() -> None:
    point = make(engine="native", recompute="selective")
    assert point.engine_revision == 2
    before = point.model_copy(update={"engine_revision": 1})
    assert before.digest() != point.digest()
    assert refusal(before) == (
        "engine_revision: 1, for these settings the native engine has 2 in this version; write the plan again with "
        "'triplepoint plan --write'"
    )


def test_tensor_parallel_steps_of_the_native_engine_are_not_those_of_before() -> None:
    point = make(engine="native", tp=2, dp=2, num_gpus=4)
    assert point.engine_revision == 4


@pytest.mark.parametrize("settings", [{"engine": "megatron", "recompute": "selective"}, {"engine": "native"}, {}])
def test_points_whose_meaning_did_not_change_keep_their_digest(settings: dict[str, Any]) -> None:
    assert "engine_revision" not in make(**settings).model_dump()
