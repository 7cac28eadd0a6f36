"""Tasks in a study: what follows from their settings, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from tests.points import refused, tiny_point
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.model import ModelConfig
from triplepoint.config.plan import run_id
from triplepoint.config.point import Layout, Point
from triplepoint.config.rules import check_corpus, check_experts, check_task, fold
from triplepoint.config.study import Settings, make_points
from triplepoint.config.task import TARGETS, Inference, Lora

CONFIG = Path("config")
CATALOGUE = Catalogue(CONFIG)


def points(**settings: Any) -> list[Point]:
    given = {"model": "tiny-llama", "cluster": "cpu-local", "engine": "native", "num_gpus": 2, "global_batch_size": 8}
    model, cluster = CATALOGUE.model("tiny-llama"), CATALOGUE.cluster("cpu-local")
    return list(make_points(Settings(**(given | settings)), model, cluster))


def test_inference_batch_and_length_follow() -> None:
    (point,) = points(task="inference", prompt_tokens=100, output_tokens=28, sequence_length=4096)
    assert (point.micro_batch_size, point.sequence_length, point.num_microbatches) == (4, 128, 1)
    assert point.num_tokens == 8 * 28
    assert "_in100-out28_" in run_id(point)


def test_inference_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="task: inference needs prompt_tokens and output_tokens"):
        points(task="inference", prompt_tokens=100)


def test_lora_targets_keep_one_order_and_show_in_the_label() -> None:
    (point,) = points(task="lora", lora_targets=("linear_proj", "linear_qkv"), lora_rank=4)
    assert point.lora == Lora(rank=4, alpha=32.0, targets=("linear_qkv", "linear_proj"))
    assert "_lora4-qkv-proj_" in run_id(point)
    assert "_lora16_" in run_id(points(task="lora")[0])


def test_pretraining_passes_settings_of_other_tasks_over() -> None:
    assert points(lora_rank=64, prompt_tokens=3)[0].digest() == points()[0].digest()


def test_fold_takes_training_out_of_inference() -> None:
    asked = {"task": "inference", "inference": Inference(prompt_tokens=16, output_tokens=16)}
    layout = Layout(dp=2, data_parallel_sharding="optim")
    folded = fold(tiny_point(**asked, recompute="full", overlap=("grad",), layout=layout))
    assert folded == fold(tiny_point(**asked))


def test_fold_leaves_one_way_through_a_pipeline_in_inference() -> None:
    asked = {"task": "inference", "inference": Inference(prompt_tokens=16, output_tokens=16)}
    layouts = [
        Layout(pp=2, schedule="1f1b"),
        Layout(pp=2, schedule="gpipe"),
        Layout(pp=2, vp=2, schedule="zero_bubble"),
    ]
    assert {fold(tiny_point(**asked, layout=layout)).layout for layout in layouts} == {Layout(pp=2)}


def test_check_experts_needs_no_sequence_parallelism_in_inference() -> None:
    model = ModelConfig(**(tiny_point().model.model_dump() | {"moe": {"num_experts": 2, "top_k": 1}}))
    asked = {
        "task": "inference",
        "inference": Inference(prompt_tokens=16, output_tokens=16),
        "model": model,
        "num_gpus": 4,
    }
    layout = Layout(tp=2, dp=2, ep=2, sequence_parallel=True)
    folded = fold(tiny_point(**asked, layout=layout))
    assert not folded.layout.sequence_parallel
    assert check_experts(folded) is None and refused(folded) is None
    biased = tiny_point(**(asked | {"model": model.model_copy(update={"add_bias": True})}), layout=layout)
    reason = refused(fold(biased))
    assert reason == "experts with biases are not split over tp; set add_bias: false, or tp: 1"


def test_check_task_adapters_need_a_layer_to_stand_beside() -> None:
    moe = ModelConfig(**(tiny_point().model.model_dump() | {"moe": {"num_experts": 2, "top_k": 1}}))
    lora = Lora(rank=4, alpha=8.0, targets=("linear_fc1",))
    reason = check_task(tiny_point(model=moe, task="lora", lora=lora))
    assert reason is not None and "routed experts have no adapters" in reason
    assert check_task(tiny_point(model=moe, task="lora", lora=Lora(rank=4, alpha=8.0, targets=TARGETS))) is None


def test_check_corpus_padding_needs_documents() -> None:
    reason = check_corpus(tiny_point(samples="padded"))
    assert reason is not None and reason.endswith("set samples: packed")


@pytest.mark.parametrize("engine", ["megatron", "deepspeed"])
def test_refused_tasks_name_the_engine_that_has_them(engine: str) -> None:
    asked = Inference(prompt_tokens=16, output_tokens=16)
    reason = refused(tiny_point(engine=engine, task="inference", inference=asked))
    assert reason == f"the {engine} engine has no task: inference; set engine: native or simulated"


@pytest.mark.parametrize("engine", ["native", "megatron", "deepspeed"])
def test_every_engine_trains_adapters(engine: str) -> None:
    lora = Lora(rank=4, alpha=8.0, targets=TARGETS)
    assert refused(tiny_point(engine=engine, task="lora", lora=lora)) is None


def test_inference_has_a_pipeline_that_layers_fill() -> None:
    asked = {"task": "inference", "inference": Inference(prompt_tokens=16, output_tokens=16)}
    assert refused(fold(tiny_point(**asked, layout=Layout(pp=2, schedule="1f1b")))) is None
    reason = refused(fold(tiny_point(**asked, layout=Layout(pp=64), num_gpus=64)))
    assert reason == "num_layers 2 is not divisible by pp*vp = 64*1 = 64; set pp: 2"
