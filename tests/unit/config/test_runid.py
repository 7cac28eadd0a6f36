import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.points import TINY, tiny_point
from tests.unit.config.test_rules import make
from triplepoint.config import RUN_PATTERN
from triplepoint.config.plan import run_id, run_label
from triplepoint.config.point import Layout, Point, Steps

OPTIM = {"data_parallel_sharding": "optim"}

LABELS: list[tuple[dict[str, Any], str]] = [
    (
        {"tp": 4, "pp": 4, "engine": "megatron", "recompute": "full"},
        "llama3-70b_h200x32_tp4-pp4-dp2_mbs1_act_r1",
    ),
    (
        {"tp": 4, "pp": 4, "engine": "megatron", "sequence_parallel": True, "overlap": ["grad", "param", "tp"]} | OPTIM,
        "llama3-70b_h200x32_tp4-pp4-dp2-sp-zero1_mbs1_cc-grad-param-tp_r1",
    ),
    (
        {
            "pp": 4,
            "pipeline_layers": [19, 21, 21, 19],
            "recompute": "full",
            "recompute_layers": 8,
            "engine": "megatron",
        },
        "llama3-70b_h200x32_tp1-pp4-dp8-l19.21x2.19_mbs1_act8_r1",
    ),
    (
        {"model": "mixtral-8x7b", "ep": 8, "micro_batch_size": 4} | OPTIM,
        "mixtral-8x7b_h200x32_tp1-pp1-dp32-ep8-zero1_mbs4_simulated_r1",
    ),
    (
        {"tp": 8, "data_parallel_sharding": "optim_grads_params", "global_batch_size": 64, "sequence_length": 4096},
        "llama3-70b_h200x32_tp8-pp1-dp4-fsdp_mbs1_gbs64_seq4096_simulated_r1",
    ),
    (
        {"pp": 4, "vp": 2, "schedule": "zero_bubble", "precision": "fp8", "seed": 7, "recompute": "selective"},
        "llama3-70b_h200x32_tp1-pp4-dp8-vp2_zero-bubble_mbs1_sel_fp8_seed7_simulated_r1",
    ),
    (
        {"model": "tiny-llama", "cluster": "cpu-local", "engine": "native", "precision": "fp32", "cp": 2},
        "tiny-llama_cpu-local_tp1-pp1-dp4-cp2_mbs1_fp32_r1",
    ),
    (
        {"tp": 8, "engine": "deepspeed", "offload": ["params", "optim"], "global_batch_size": 64} | OPTIM,
        "llama3-70b_h200x32_tp8-pp1-dp4-zero1_mbs1_gbs64_off-optim-params_deepspeed_r1",
    ),
]


@pytest.mark.parametrize(("settings", "label"), LABELS, ids=[label for _, label in LABELS])
def test_run_label_is_readable(settings: dict[str, Any], label: str) -> None:
    assert run_label(make(**settings)) == label


def test_run_label_ends_in_repeat() -> None:
    assert run_label(tiny_point(repeat=12)).endswith("_r12")


def test_run_id_ends_in_the_digest_of_its_point() -> None:
    one, other = tiny_point(steps=Steps(measured=10)), tiny_point(steps=Steps(measured=20))
    assert run_label(one) == run_label(other)
    assert run_id(one) == f"{run_label(one)}_{one.digest()[:6]}"
    assert run_id(one) != run_id(other)


def test_run_id_of_long_names_is_cut_and_stays_apart() -> None:
    long = [
        tiny_point(model=TINY.model_copy(update={"name": "m" * 190 + end}), global_batch_size=2**31 - 1) for end in "ab"
    ]
    assert all(len(run_id(point)) <= 200 for point in long)
    assert run_id(long[0]) != run_id(long[1])


LAYOUTS = st.builds(
    Layout,
    **{name: st.integers(1, 4096) for name in ("tp", "pp", "dp", "cp", "ep", "vp")},
    sequence_parallel=st.booleans(),
    data_parallel_sharding=st.sampled_from(["no_shard", "optim", "optim_grads", "optim_grads_params"]),
    pipeline_layers=st.lists(st.integers(1, 128), max_size=8).map(tuple),
    schedule=st.sampled_from([None, "gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"]),
)
POINTS = st.builds(
    tiny_point,
    layout=LAYOUTS,
    num_gpus=st.integers(1, 8192),
    micro_batch_size=st.integers(1, 999),
    global_batch_size=st.integers(1, 99_999),
    sequence_length=st.integers(1, 10**6),
    overlap=st.lists(st.sampled_from(["grad", "param", "tp"]), unique=True).map(tuple),
    offload=st.sampled_from([(), ("optim",), ("optim", "params")]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    recompute_layers=st.none() | st.integers(1, 128),
    precision=st.sampled_from(["fp32", "bf16", "fp16", "fp8"]),
    engine=st.sampled_from(["native", "megatron", "deepspeed", "simulated"]),
    seed=st.integers(0, 2**32 - 1),
    corpus=st.text(max_size=300),
    repeat=st.integers(1, 999),
)


@given(POINTS)
def test_run_id_is_safe_in_paths_and_shells(point: Point) -> None:
    assert re.fullmatch(RUN_PATTERN, run_id(point))
