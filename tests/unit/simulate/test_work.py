"""Work of a step against counts by hand, the model's own formulas, and what sharding must not change."""

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.simulate.jobs import communication_bytes, communications, flops, gpt, job, llama, mixtral, operations
from triplepoint.config.model import ModelConfig
from triplepoint.metrics import flops_per_token
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.work.blocks import Blocks, split_layers
from triplepoint.simulate.work.layer_parts import Share
from triplepoint.simulate.work.training import stage_work

BATCH, LENGTH, WIDTH, LAYERS = 2, 1024, 512, 8
TOKENS = BATCH * LENGTH


def total_flops(**changes: Any) -> float:
    """FLOPs of a micro-batch over all ranks that share it."""
    one = job(**changes)
    return flops(operations(stage_work(one))) * one.layout.tp * one.layout.cp


def flash_flops_per_token(model: ModelConfig, length: int) -> float:
    """Model FLOPs with the causal half skipped and one more product in backward: 3.5 products in place of 6."""
    scores = 12 * model.num_layers * length * model.hidden_size
    return flops_per_token(model, length) - scores * (1 - 3.5 / 6)


@pytest.mark.parametrize("model", [gpt(), llama(), llama(num_query_groups=2), mixtral()], ids=lambda m: m.name)
def test_flops_are_the_model_formula(model: ModelConfig) -> None:
    assert total_flops(model=model) / TOKENS == pytest.approx(flash_flops_per_token(model, LENGTH), rel=1e-12)


def test_flops_of_unfused_attention_are_the_formula_without_discount() -> None:
    assert total_flops(stack="Megatron-LM 2021") / TOKENS == pytest.approx(flops_per_token(gpt(), LENGTH), rel=1e-12)


@settings(deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 4]),
    sequence_parallel=st.booleans(),
    is_moe=st.booleans(),
)
def test_sharding_conserves_flops(tp: int, pp: int, cp: int, sequence_parallel: bool, is_moe: bool) -> None:
    model = mixtral() if is_moe else llama()
    # Without sequence parallelism every tensor parallel rank routes all tokens: the router is not split.
    sequence_parallel = sequence_parallel or is_moe
    sharded = total_flops(model=model, tp=tp, pp=pp, cp=cp, sequence_parallel=sequence_parallel)
    assert sharded == pytest.approx(total_flops(model=model), rel=1e-12)


def test_expert_parallel_conserves_flops() -> None:
    model = mixtral()
    assert total_flops(model=model, ep=4, dp=4) == pytest.approx(total_flops(model=model), rel=1e-12)
    assert total_flops(model=model, ep=4, dp=4, tp=2, sequence_parallel=True, etp=1) == pytest.approx(
        total_flops(model=model), rel=1e-12
    )


@pytest.mark.parametrize("model", [gpt(), llama(), mixtral()], ids=lambda m: m.name)
def test_products_of_a_training_pass_are_three_forward_passes(model: ModelConfig) -> None:
    stages = stage_work(job(model))
    forward = flops(operations(stages, "forward"), "gemm")
    assert flops(operations(stages, "backward_input"), "gemm") == forward
    assert flops(operations(stages, "backward_weight"), "gemm") == forward


def test_flash_attention_backward_is_two_and_a_half_times_forward() -> None:
    stages = stage_work(job())
    forward, backward = operations(stages, "forward"), operations(stages, "backward_input")
    assert flops(forward, "attention") == LAYERS * 4 * BATCH * LENGTH * LENGTH * WIDTH / 2
    assert flops(backward, "attention") == 2.5 * flops(forward, "attention")


@pytest.mark.parametrize(("model", "tp", "pp"), [*itertools.product([gpt(), llama()], [1, 4], [1, 2, 8])], ids=str)
def test_parameters_of_all_ranks_are_those_of_the_model(model: ModelConfig, tp: int, pp: int) -> None:
    one = job(model, tp=tp, pp=pp)
    blocks = Blocks(Share(one))
    weights = [blocks.weights(stage) for stage in split_layers(one)]
    copies = model.vocab_size * model.hidden_size if model.tie_embeddings and pp > 1 else 0
    assert sum(w.split * tp + w.shared for w in weights) == model.num_parameters + copies


@pytest.mark.parametrize(("ep", "etp"), [(1, 2), (4, 2), (8, 1)])
def test_parameters_of_experts_are_those_of_the_model(ep: int, etp: int) -> None:
    one = job(mixtral(), tp=2, dp=8, ep=ep, etp=etp, sequence_parallel=True)
    (stage,) = split_layers(one)
    weights = Blocks(Share(one)).weights(stage)
    assert weights.split * 2 + weights.shared + weights.experts * ep * etp == mixtral().num_parameters


def test_tensor_parallel_messages_of_a_layer_by_hand() -> None:
    activation = TOKENS * WIDTH * 2
    found = stage_work(job(tp=4, stack="Megatron-LM 2021"))
    forward, backward = operations(found, "forward"), operations(found, "backward_input")
    # Two of a layer, one of the embedding; three numbers per token of the loss. Backward: two, and of the projection.
    assert communication_bytes(forward, "all_reduce", "tp") == (2 * LAYERS + 1) * activation + 3 * 4 * TOKENS
    assert communication_bytes(backward, "all_reduce", "tp") == (2 * LAYERS + 1) * activation
    assert not communications(forward + backward, "all_gather", "tp")


def test_sequence_parallel_sends_as_much_as_tensor_parallel_forward() -> None:
    activation = TOKENS * WIDTH * 2
    found = stage_work(job(tp=4, sequence_parallel=True))
    forward, backward = operations(found, "forward"), operations(found, "backward_input")
    assert communication_bytes(forward, "all_gather", "tp") == (2 * LAYERS + 1) * activation
    assert communication_bytes(forward, "reduce_scatter", "tp") == (2 * LAYERS + 1) * activation
    # Gradients are gathered before the two row-parallel products, inputs once more for the column-parallel ones.
    exposed = sum(m.num_bytes * m.count for m in communications(backward, "all_gather", "tp") if not m.is_overlapped)
    assert exposed == 2 * LAYERS * activation
    assert communication_bytes(backward, "all_gather", "tp") == exposed + (2 * LAYERS + 1) * activation
    assert communication_bytes(backward, "reduce_scatter", "tp") == (2 * LAYERS + 1) * activation


def test_overlap_of_tensor_parallel_leaves_a_quarter_of_scatters_exposed() -> None:
    forward = operations(stage_work(job(tp=4, sequence_parallel=True, overlap=frozenset({"tp"}))), "forward")
    scatters = communications(forward, "reduce_scatter", "tp")
    exposed = sum(m.num_bytes * m.count for m in scatters if not m.is_overlapped)
    assert exposed == communication_bytes(forward, "reduce_scatter", "tp") / 4
    assert all(m.is_overlapped for m in communications(forward, "all_gather", "tp"))


def test_context_parallel_ring_by_hand() -> None:
    cp, size = 4, WIDTH // 8
    found = stage_work(job(llama(num_query_groups=2), cp=cp))
    pair = 2 * (TOKENS // cp) * 2 * size * 2
    forward, backward = operations(found, "forward"), operations(found, "backward_input")
    assert communication_bytes(forward, "send_recv", "cp") == LAYERS * (cp - 1) * pair
    assert communication_bytes(backward, "send_recv", "cp") == LAYERS * (2 * cp - 1) * pair
    steps = [op for op in forward if isinstance(op, Kernel) and op.cls == "attention"]
    assert [(op.is_causal, op.count) for op in steps] == [(True, LAYERS), (False, LAYERS * (cp - 1))]
    assert steps[0].flops == steps[1].flops


def test_expert_exchange_by_hand() -> None:
    found = operations(stage_work(job(mixtral(), ep=8, dp=8)))
    assert communication_bytes(found, "all_to_all", "ep") == LAYERS * 4 * TOKENS * 2 * WIDTH * 2
    grouped = next(op for op in found if isinstance(op, Kernel) and op.kind == "grouped")
    # Eight ranks send two copies of each token to eight experts, one on each rank.
    assert grouped.shape == (1, 2 * TOKENS, 2 * 1536, WIDTH)


def test_dropless_routing_loads_the_fullest_rank_more() -> None:
    balanced = total_flops(model=mixtral(), ep=8, dp=8)
    dropless = total_flops(model=mixtral(capacity_factor=None), ep=8, dp=8)
    assert 1.02 < dropless / balanced < 1.04
    assert total_flops(model=mixtral(capacity_factor=None)) == total_flops(model=mixtral())


def test_full_recomputation_repeats_the_layers_and_their_messages_first() -> None:
    plain, whole = stage_work(job(tp=2)), stage_work(job(tp=2, recompute="full"))
    layers = flops(operations(plain, "forward")) - 2 * TOKENS * WIDTH * 4096 / 2
    assert flops(operations(whole)) - flops(operations(plain)) == layers
    extra = communication_bytes(operations(whole), "all_reduce", "tp") - communication_bytes(
        operations(plain), "all_reduce", "tp"
    )
    assert extra == 2 * LAYERS * TOKENS * WIDTH * 2


def test_recomputed_layers_are_counted_by_chunk() -> None:
    def extra(**changes: Any) -> float:
        whole = flops(operations(stage_work(job(pp=2, recompute="full", **changes))))
        return whole - flops(operations(stage_work(job(pp=2, **changes))))

    assert extra(recompute_layers=1) == extra() / 4
    # As in Megatron-LM: two chunks of two layers each.
    assert extra(recompute_layers=1, vp=2) == extra() / 2
    assert extra(recompute_layers=3, vp=2) == extra()


def test_selective_recomputation_repeats_the_core_of_attention() -> None:
    found = stage_work(job(recompute="selective"))
    forward = operations(found, "forward")
    extra = flops(operations(found)) - flops(operations(stage_work(job())))
    assert extra == flops(forward, "attention")


def test_layers_split_unevenly() -> None:
    def counts(num_layers: int, **changes: Any) -> list[list[int]]:
        stages = split_layers(job(gpt(num_layers=num_layers), **changes))
        return [[chunk.num_layers for chunk in stage] for stage in stages]

    assert counts(8, pp=4) == [[2], [2], [2], [2]]
    assert counts(7, pp=4) == [[2], [2], [2], [1]]
    assert counts(6, pp=4) == [[1], [2], [2], [1]]
    assert counts(14, pp=4, vp=2) == [[1, 2], [2, 2], [2, 2], [2, 1]]
    assert counts(8, pp=4, pipeline_layers=(3, 2, 2, 1)) == [[3], [2], [2], [1]]


@given(num_layers=st.integers(1, 130), pp=st.integers(1, 16), vp=st.integers(1, 8))
def test_split_layers_loses_none(num_layers: int, pp: int, vp: int) -> None:
    chunks = [chunk for stage in split_layers(job(gpt(num_layers=num_layers), pp=pp, vp=vp)) for chunk in stage]
    counts = [chunk.num_layers for chunk in chunks]
    assert sum(counts) == num_layers
    assert max(counts) - min(counts) <= 1
    assert sum(chunk.is_first for chunk in chunks) == sum(chunk.is_last for chunk in chunks) == 1


def test_pipeline_sends() -> None:
    whole = TOKENS * WIDTH * 2

    def sends(**changes: Any) -> list[float]:
        return [chunk.send_bytes for stage in stage_work(job(pp=2, **changes)) for chunk in stage.chunks]

    assert sends() == [whole, 0]
    assert sends(vp=2) == [whole, whole, whole, 0]
    assert sends(tp=4) == [whole, 0]
    assert sends(tp=4, sequence_parallel=True) == [whole / 4, 0]
    # The scatter/gather optimisation sends a quarter and gathers it on arrival.
    assert sends(tp=4, stack="Megatron-LM 2021") == [whole / 4, 0]
    arrived = operations(stage_work(job(pp=2, tp=4, stack="Megatron-LM 2021"))[1:], "forward")
    assert communication_bytes(arrived, "all_gather", "tp") == whole


def test_fp8_halves_what_products_read_and_gathers_carry() -> None:
    def gathered(precision: str) -> float:
        one = job(llama(), tp=4, sequence_parallel=True, precision=precision)
        return communication_bytes(operations(stage_work(one), "forward"), "all_gather", "tp")

    # The output projection stays in 16 bits.
    activation = TOKENS * WIDTH * 2
    assert gathered("bf16") - gathered("fp8") == LAYERS * activation
    found = operations(stage_work(job(llama(), precision="fp8")))
    kernels = [op for op in found if isinstance(op, Kernel)]
    assert {op.precision for op in kernels if op.cls == "gemm" and op.count == LAYERS} == {"fp8"}
    assert {op.precision for op in kernels if op.cls == "attention"} == {"bf16"}
    assert any(op.kind == "cast" for op in kernels)


def test_adapters_leave_out_gradients_of_frozen_weights() -> None:
    rank = 16
    found = stage_work(job(llama(), trainable="lora", lora_rank=rank))
    widths = (WIDTH + 3 * WIDTH) + (WIDTH + WIDTH) + (WIDTH + 2 * 1536) + (1536 + WIDTH)
    assert flops(operations(found, "backward_weight")) == LAYERS * 2 * TOKENS * rank * widths
    (sync,) = stage_work(job(llama(), trainable="lora", lora_rank=rank, dp=2))[0].gradient_sync
    assert sync.num_bytes * sync.count == LAYERS * rank * widths * 4


def test_equal_stages_are_one_object() -> None:
    stages = stage_work(job(pp=8))
    assert all(stage is stages[1] for stage in stages[1:7])
    assert stages[0] is not stages[1]
    assert stages[7] is not stages[1]


def test_bytes_and_flops_are_positive_numbers() -> None:
    for model, precision in itertools.product((gpt(), llama(), mixtral(None)), ("bf16", "fp8", "fp32")):
        one = job(model, tp=2, ep=2, dp=2, cp=2, sequence_parallel=True, precision=precision, recompute="full")
        (stage,) = stage_work(one)
        for op in (*operations([stage]), *stage.gradient_sync, *stage.optimizer):
            values = dataclasses.asdict(op)
            assert values["num_bytes"] > 0
            assert values["count"] >= 1
            assert values.get("flops", 0) >= 0
