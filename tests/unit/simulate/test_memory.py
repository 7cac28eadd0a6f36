"""Peak memory against published measurements and formulas, and by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.published_figures import point_of
from tests.unit.simulate.jobs import LLAMA_LAYER, gpt, gpu, job, llama, mixtral
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.model import LayerKind, ModelConfig
from triplepoint.published.rows import read_row, settle
from triplepoint.published.table import read_table
from triplepoint.simulate.artefacts.simulate_run import job_of
from triplepoint.simulate.memory.activations import passes_in_flight
from triplepoint.simulate.memory.training import MemoryUse, memory_by_stage, peak_memory
from triplepoint.simulate.stacks import find_stack
from triplepoint.simulate.work.blocks import Blocks
from triplepoint.simulate.work.layer_parts import Share
from triplepoint.units import GIB

PEAK_ERROR = 0.08
STATE_ERROR = 0.02
LLAMA3 = {"vocab_size": 128256, "sequence_length": 4096}
LLAMA3_70B_12_LAYERS = llama(
    num_layers=12,
    hidden_size=8192,
    ffn_hidden_size=28672,
    num_attention_heads=64,
    num_query_groups=8,
    **LLAMA3,
)
LLAMA3_405B_4_LAYERS = llama(
    num_layers=4,
    hidden_size=16384,
    ffn_hidden_size=53248,
    num_attention_heads=128,
    num_query_groups=16,
    **LLAMA3,
)

# Largest max_memory_allocated of all ranks, Megatron-Core on 8 B200, bf16, micro-batch 1, distributed optimizer, fp32
# gradients, sequence parallelism. Source: MooreThreads/SimuMax docs/b200/b200_release_v1.2_summary.md at 1b8ca90,
# set-up in simu_tools/megatron_scripts/scripts/run_pretrain_llama3.sh.
MEASURED = [
    (LLAMA3_70B_12_LAYERS, {"tp": 1, "pp": 2, "dp": 4}, 4096, 66.55),
    (LLAMA3_70B_12_LAYERS, {"tp": 2, "dp": 4}, 4096, 60.68),
    (LLAMA3_70B_12_LAYERS, {"tp": 4, "dp": 2}, 4096, 39.07),
    (LLAMA3_70B_12_LAYERS, {"tp": 8}, 4096, 28.29),
    (LLAMA3_405B_4_LAYERS, {"tp": 1, "pp": 2, "dp": 4}, 4096, 87.08),
    (LLAMA3_405B_4_LAYERS, {"tp": 2, "dp": 4}, 4096, 81.59),
    (LLAMA3_405B_4_LAYERS, {"tp": 4, "dp": 2}, 4096, 52.89),
    (LLAMA3_405B_4_LAYERS, {"tp": 8}, 4096, 38.57),
    (LLAMA3_70B_12_LAYERS, {"tp": 2, "cp": 4}, 32768, 68.43),
    (LLAMA3_70B_12_LAYERS, {"cp": 8}, 32768, 104.51),
    (LLAMA3_405B_4_LAYERS, {"tp": 2, "cp": 4}, 32768, 87.03),
    (LLAMA3_405B_4_LAYERS, {"cp": 8}, 32768, 139.22),
    (LLAMA3_70B_12_LAYERS, {"tp": 2, "cp": 4}, 131072, 112.67),
    (LLAMA3_70B_12_LAYERS, {"cp": 8}, 131072, 147.99),
    (LLAMA3_405B_4_LAYERS, {"tp": 2, "cp": 4}, 131072, 118.13),
]


@pytest.mark.parametrize(("model", "layout", "length", "measured_gib"), MEASURED)
def test_peak_memory_is_what_was_measured(
    model: ModelConfig, layout: dict[str, int], length: int, measured_gib: float
) -> None:
    one = job(
        model,
        micro_batch_size=1,
        global_batch_size=32,
        sequence_length=length,
        sequence_parallel=True,
        data_parallel_sharding="optim",
        stack="Megatron-Core",
        **layout,
    )
    assert peak_memory(one).allocated / GIB == pytest.approx(measured_gib, rel=PEAK_ERROR)


@pytest.mark.parametrize(
    ("sharding", "published_gb"),
    [("no_shard", 120), ("optim", 31.4), ("optim_grads", 16.6), ("optim_grads_params", 1.9)],
)
def test_model_states_are_those_of_the_zero_paper(sharding: str, published_gb: float) -> None:
    # Rajbhandari et al. 2020, arXiv:1910.02054, figure 1: 7.5e9 parameters, 64 ranks, fp16, 16 bytes per parameter.
    model = gpt(num_layers=37, hidden_size=4096, ffn_hidden_size=16384, num_attention_heads=32, num_query_groups=32)
    use = peak_memory(job(model, dp=64, precision="fp16", stack="deepspeed", data_parallel_sharding=sharding))
    states = (use.weights + use.gradients + use.optimizer) / 1e9
    assert states * 7.5e9 / model.num_parameters == pytest.approx(published_gb, rel=STATE_ERROR)


def test_model_states_are_18_bytes_with_fp32_gradients() -> None:
    # NVIDIA/Megatron-LM megatron/training/theoretical_memory_usage.py; with a distributed optimizer 6 + 12/dp.
    count = llama().num_parameters
    plain = peak_memory(job(llama(), dp=4, stack="Megatron-Core"))
    shared = peak_memory(job(llama(), dp=4, stack="Megatron-Core", data_parallel_sharding="optim"))
    assert plain.weights + plain.gradients + plain.optimizer == 18 * count
    assert shared.weights + shared.gradients + shared.optimizer == (6 + 12 / 4) * count


SBH, SCORES = 2 * 1024 * 512, 5 * 8 * 1024**2 * 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 34 * SBH + SCORES),
        ({"tp": 4}, (10 + 24 / 4) * SBH + SCORES / 4),
        ({"tp": 4, "sequence_parallel": True}, (34 * SBH + SCORES) / 4),
    ],
)
def test_activations_of_a_layer_are_those_of_the_recomputation_paper(changes: dict[str, Any], expected: float) -> None:
    # Korthikanti et al. 2022, arXiv:2205.05198, table 2, with h 512, s 1024, b 2, a 8.
    assert Blocks(Share(job(stack="Megatron-LM 2022", **changes))).layer(LayerKind()).whole.saved == expected


@pytest.mark.parametrize(
    ("changes", "per_layer"),
    [
        ({"recompute": "selective"}, 34 / 4),
        ({"recompute": "full"}, 2 / 4),
    ],
)
def test_recomputation_keeps_what_the_paper_says(changes: dict[str, Any], per_layer: float) -> None:
    def saved(num_layers: int) -> float:
        one = job(gpt(num_layers=num_layers), tp=4, sequence_parallel=True, stack="Megatron-LM 2022", **changes)
        return peak_memory(one).activations

    assert saved(9) - saved(8) == per_layer * SBH


def test_selective_recomputation_saves_what_the_paper_says() -> None:
    # Ibid., section 5: 5as/h is 80 for GPT-3 and 64 for MT-NLG; activations shrink by 70 % and 65 %.
    for width, heads, ratio in ((12288, 96, 0.70), (20480, 128, 0.65)):
        model = gpt(
            hidden_size=width,
            ffn_hidden_size=4 * width,
            num_attention_heads=heads,
            num_query_groups=heads,
            num_layers=1,
        )
        settings = {"sequence_length": 2048, "micro_batch_size": 1, "stack": "Megatron-LM 2022"}
        whole = Blocks(Share(job(model, **settings))).layer(LayerKind()).whole.saved
        core = 5 * heads * 2048**2
        assert core / whole == pytest.approx(ratio, abs=0.01)


def test_passes_in_flight_by_hand() -> None:
    def passes(**changes: Any) -> list[int]:
        one = job(pp=4, **changes)
        return [passes_in_flight(one, stage) for stage in range(4)]

    assert passes(schedule="1f1b") == [4, 3, 2, 1]
    assert passes(schedule="gpipe") == [32, 32, 32, 32]
    assert passes(schedule="zero_bubble") == [4, 3, 2, 1]
    # Of two chunks a micro-batch: warm-up of 2*(stages after) + pp, and one more.
    assert passes(schedule="interleaved_1f1b", vp=2) == [11, 9, 7, 5]
    assert passes(schedule="1f1b", global_batch_size=4) == [2, 2, 2, 1]


def test_interleaving_keeps_what_the_recomputation_paper_says() -> None:
    # Korthikanti et al., section 4.2.3: L layers times 1 + (p-1)/(p*m) on the first stage.
    one = job(pp=4, vp=2, schedule="interleaved_1f1b")
    assert passes_in_flight(one, 0) / 2 / 4 == pytest.approx(1 + 3 / (4 * 2))


@given(
    tp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([2, 4]),
    size=st.sampled_from([1, 2, 4]),
    recompute=st.sampled_from(["selective", "full"]),
)
def test_splitting_and_recomputing_never_need_more(tp: int, dp: int, size: int, recompute: str) -> None:
    def total(**changes: Any) -> float:
        return peak_memory(job(llama(), micro_batch_size=size, dp=dp, tp=tp, **changes)).allocated

    plain = total()
    assert total(data_parallel_sharding="optim") <= plain
    assert total(sequence_parallel=True) <= plain * (1.02 if tp > 1 else 1)
    kept = peak_memory(job(llama(), micro_batch_size=size, dp=dp, tp=tp, recompute=recompute)).activations
    assert kept <= peak_memory(job(llama(), micro_batch_size=size, dp=dp, tp=tp)).activations


def test_experts_are_shared_out() -> None:
    one, eight = (peak_memory(job(mixtral(), dp=8, ep=ep)) for ep in (1, 8))
    experts = 8 * 8 * 3 * 512 * 1536
    assert one.weights - eight.weights == 2 * experts * 7 / 8


def test_adapters_have_no_gradients_of_frozen_weights() -> None:
    use = peak_memory(job(llama(), trainable="lora", lora_rank=16))
    widths = (512 + 3 * 512) + (512 + 512) + (512 + 2 * 1536) + (1536 + 512)
    adapters = 8 * 16 * widths
    assert use.gradients == 4 * adapters
    assert use.optimizer == 12 * adapters
    assert use.weights == 2 * (llama().num_parameters + adapters)


def test_explain_names_the_parts_the_sum_and_the_stage() -> None:
    use = MemoryUse(
        weights=21.9 * GIB,
        gradients=43.8 * GIB,
        optimizer=10.9 * GIB,
        activations=38.2 * GIB,
        buffers=4.0 * GIB,
        runtime=1.5 * GIB,
        fragmentation=3.6 * GIB,
        stage=0,
        num_stages=4,
        capacity=79.6 * GIB,
    )
    assert use.explain() == (
        "weights 21.9 + gradients 43.8 + optimizer 10.9 + activations 38.2 + buffers 4.0 + runtime 1.5"
        " + fragmentation 3.6 = 123.9 GiB of 79.6 GiB (stage 0 of 4)"
    )
    assert not use.fits


def test_a_need_within_its_width_of_the_capacity_is_not_decided() -> None:
    use = peak_memory(job())
    half = use.half_width
    assert not peak_memory(job(mixtral())).is_like_measured
    assert replace(use, is_like_measured=False).half_width == pytest.approx(
        use.allocated * (0.046**2 + 0.022**2) ** 0.5
    )
    assert half == pytest.approx(use.allocated * (0.023**2 + 0.022**2) ** 0.5)
    cases = [(1.01 * half, True, False), (0.99 * half, False, False), (-0.99 * half, False, False)]
    for room, is_decided, is_out in [*cases, (-1.01 * half, True, True)]:
        one = replace(use, capacity=use.total + room)
        assert (one.is_decided, one.is_out_of_memory, one.undecided is None) == (is_decided, is_out, is_decided)
    near = replace(use, capacity=use.total)
    assert f" GiB +- {half / GIB:.1f} of " in str(near.undecided)


FITS = [
    *((f"TP{tp}-PP{32 // tp}", micro, "full") for tp in (8, 4, 2, 1) for micro in (1, 2, 4, 8)),
    *((f"TP{tp}-PP{32 // tp}", 1, "none") for tp in (8, 4, 2)),
    *(("TP8-FSDP", micro, "full") for micro in (1, 2, 4)),
    ("TP8-FSDP", 1, "none"),
]
DOES_NOT_FIT = [("TP1-PP32", 1, "none"), ("TP8-FSDP", 8, "full")]


def test_no_published_point_is_decided_wrongly() -> None:
    """arXiv:2509.10371, figures 10 and 13: GPT-3 175B on 32 H200."""
    wrong, undecided = [], []
    for words, micro, recompute in (*FITS, *DOES_NOT_FIT):
        need = peak_memory(job_of(point_of("gpt3-175b", words, micro, recompute), Catalogue(Path("config"))))
        if not need.is_decided:
            undecided.append((words, micro, recompute))
        elif need.fits != ((words, micro, recompute) in FITS):
            wrong.append((words, micro, recompute, need.explain()))
    assert wrong == [] and undecided == [("TP8-FSDP", 8, "full")]


def test_a_job_that_needs_more_than_there_is_does_not_fit() -> None:
    assert peak_memory(job(gpu=gpu(80))).fits
    assert not peak_memory(job(gpu=gpu(1))).fits


def test_the_stage_named_is_the_worst() -> None:
    use = peak_memory(job(gpt(tie_embeddings=False), pp=4, micro_batch_size=1, schedule="1f1b"))
    assert (use.stage, use.num_stages) == (0, 4)
    heavy = job(gpt(tie_embeddings=False), pp=4, pipeline_layers=(1, 1, 5, 1), schedule="1f1b", micro_batch_size=8)
    assert peak_memory(heavy).stage == 2


def test_fp8_copies_are_kept_beside_parameters_or_in_their_place() -> None:
    count, products = llama().num_parameters, llama().num_parameters - (2 * 8 + 1) * 512
    assert peak_memory(job(llama(), precision="fp8", stack="Megatron-Core")).weights == 2 * count + 2 * products
    assert peak_memory(job(llama(), precision="fp8", stack="NeMo")).weights == 2 * count


def test_parameters_gathered_once_are_kept_with_whole_gradients() -> None:
    changes = {"dp": 8, "data_parallel_sharding": "optim_grads_params"}
    use = peak_memory(job(mixtral(), stack="NeMo AutoModel", **changes))
    number = mixtral().num_parameters
    # 16 bits of parameters, gradients and two moments, shared out; 16-bit parameters and fp32 gradients whole.
    assert use.weights + use.gradients + use.optimizer == pytest.approx(8 * number / 8)
    assert use.buffers >= 6 * number
    dense = peak_memory(job(llama(), stack="NeMo AutoModel", **changes))
    assert dense.buffers < 6 * llama().num_parameters


def test_hybrid_sharding_holds_a_share_of_the_group_not_of_all() -> None:
    changes = {"dp": 16, "data_parallel_sharding": "optim_grads_params"}
    whole, hybrid = (peak_memory(job(llama(), shard_size=size, **changes)) for size in (None, 4))
    for part in ("weights", "gradients", "optimizer"):
        assert getattr(hybrid, part) == 4 * getattr(whole, part)


def test_parameters_kept_from_forward_to_backward_take_their_room() -> None:
    changes = {"dp": 8, "data_parallel_sharding": "optim_grads_params"}
    let_go, kept = (peak_memory(job(llama(), keeps_gathered=keeps, **changes)) for keeps in (False, True))
    # Six layers more than the two that are there anyway, the norm at the end is of the root unit.
    assert kept.buffers - let_go.buffers == 2 * 6 * LLAMA_LAYER


def test_memory_by_stage_falls_with_the_activations_kept() -> None:
    found = memory_by_stage(job(llama(tie_embeddings=False), pp=4))
    kept = [use.activations for use in found]
    assert kept[0] > kept[1] > kept[2] and len(found) == 4
    assert max(found, key=lambda use: use.total) == peak_memory(job(llama(tie_embeddings=False), pp=4))


def software(**changes: Any) -> Any:
    return find_stack("DeepSeek HAI-LLM", Path("config")).model_copy(update=changes)


def experts_kept(**changes: Any) -> float:
    """Return what one layer of experts keeps. Unit: byte."""
    one = job(mixtral(None), software=software(**changes), precision="fp8", dp=8, ep=8)
    return Blocks(Share(one)).layer(LayerKind(has_experts=True)).whole.saved


COPIES = 2 * 2 * 1024 * 1.04
"""Tokens of a micro-batch times experts of each, on the fullest rank."""


def test_results_of_experts_are_kept_where_they_are_weighed() -> None:
    plain, weighed = experts_kept(saves_fp8=()), experts_kept(saves_fp8=(), weighs_results=True)
    assert weighed - plain == pytest.approx(COPIES * 512 * 2, rel=1e-3)


def test_inputs_of_the_activation_in_fp8_take_half_and_their_scales() -> None:
    wide, narrow = experts_kept(saves_fp8=()), experts_kept(saves_fp8=("expert_activation",))
    assert wide - narrow == pytest.approx(COPIES * 2 * 1536 * (2 - 1 - 4 / 128), rel=1e-3)


def test_outputs_of_attention_in_12_bits_are_kept_once() -> None:
    # In 16 bits for the gradient of attention and in 8 for the projection: 3 bytes; in 12 bits for both: 1.5.
    wide, narrow = experts_kept(saves_fp8=()), experts_kept(saves_fp8=("attention",))
    assert wide - narrow == pytest.approx(2 * 1024 * 512 * 1.5)


def test_pipeline_from_both_ends_holds_two_stages() -> None:
    settings: dict[str, Any] = {"pp": 4, "dp": 2, "micro_batch_size": 1, "data_parallel_sharding": "optim"}
    one, two = (
        memory_by_stage(job(llama(), software=software(has_two_directions=way), **settings)) for way in (False, True)
    )
    assert two[0].weights == pytest.approx(one[0].weights + one[3].weights)
    assert two[1].gradients == pytest.approx(2 * one[1].gradients)
    assert two[1].optimizer == pytest.approx(one[1].optimizer)
    # Of 1F1B the second stage has 3 micro-batches, of both directions there are 5, rounded up to 3 for each.
    assert two[1].activations == pytest.approx(2 * one[1].activations)


def test_deepseek_v3_fits_as_it_was_trained() -> None:
    rows = read_table(Path("tests/data/throughput/experts_over_nodes.csv"))
    row = read_row(next(cells for cells in rows if cells["id"] == "deepseek-v3"), 1, Path("config"))
    use = peak_memory(settle(row))
    assert use.fits and not use.is_out_of_memory
