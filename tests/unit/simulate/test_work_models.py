"""Work of what plain transformers lack: latent and windowed attention, shared experts, dense first layers, adapters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.simulate.jobs import communication_bytes, communications, flops, job, llama, mixtral, operations
from triplepoint.config.model import LatentAttention, LayerKind, MixtureOfExperts, ModelConfig, SlidingWindow
from triplepoint.metrics import flops_per_token
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.work.blocks import Blocks, LayerParts, split_layers
from triplepoint.simulate.work.layer_parts import Share
from triplepoint.simulate.work.training import stage_work

TOKENS, LENGTH, WIDTH, HEADS, VOCAB = 2048, 1024, 512, 8, 4096
LATENT = LatentAttention(q_lora_rank=64, kv_lora_rank=32, qk_head_dim=48, qk_pos_emb_head_dim=16, v_head_dim=32)
ATTENTION = 512 * 64 + 64 * 8 * 64 + 512 * (32 + 16) + 32 * 8 * (48 + 32) + 8 * 32 * 512
DENSE, ROUTED, SHARED, ROUTER = 3 * 512 * 1024, 3 * 512 * 128, 3 * 512 * 256, 512 * 8


def deep(**changes: object) -> ModelConfig:
    """Three layers as DeepSeek-V3 has them, the first dense."""
    moe = MixtureOfExperts(
        num_experts=8,
        top_k=2,
        capacity_factor=1.0,
        shared_ffn_hidden_size=256,
        num_dense_layers=1,
        dense_ffn_hidden_size=1024,
    )
    return llama(**({"num_layers": 3, "ffn_hidden_size": 128, "latent": LATENT, "moe": moe} | changes))


def windowed(full_interval: int | None = 2, size: int = 256) -> ModelConfig:
    return llama(window=SlidingWindow(size=size, full_interval=full_interval))


def gemm_flops(model: ModelConfig, **changes: object) -> float:
    one = job(model, **changes)
    return flops(operations(stage_work(one)), "gemm") * one.layout.tp * one.layout.cp


_CHANGES: dict[str, list[object]] = {
    "tp": [1, 2], "pp": [1, 2, 4], "cp": [1, 2], "ep": [1, 2], "dp": [2, 4], "vp": [1, 2],
    "sequence_parallel": [False, True],
    "data_parallel_sharding": ["no_shard", "optim", "optim_grads_params"], "micro_batch_size": [1, 2],
    "global_batch_size": [32, 64], "recompute": ["none", "selective", "full"], "precision": ["bf16", "fp8"],
    "overlap": [frozenset(), frozenset({"tp", "grad"}), frozenset({"ep", "param"})], "trainable": ["all", "lora"],
    "expert_imbalance": [None, 1.5], "keeps_gathered": [False, True], "draw": [0, 1],
}  # fmt: skip


@pytest.mark.parametrize("model", [llama(), mixtral(), deep(num_mtp_layers=1), windowed()], ids=lambda one: one.name)
@given(st.fixed_dictionaries({name: st.sampled_from(values) for name, values in _CHANGES.items()}))
@settings(max_examples=examples(25), deadline=None)
def test_layers_are_the_same_without_what_they_do_not_depend_on(model: ModelConfig, changes: dict[str, object]) -> None:
    one = job(model, stack="Megatron-Core v0.13", **changes)
    own, shared = (LayerParts(Share(each)) for each in (one, one.of_layers))
    for kind in dict.fromkeys(model.layer_kinds):
        assert own.layer(kind) == shared.layer(kind)
    assert (own.embedding, own.head) == (shared.embedding, shared.head)


def test_products_of_latent_attention_and_shared_experts_by_hand() -> None:
    active = 3 * ATTENTION + DENSE + 2 * (ROUTER + 2 * ROUTED + SHARED) + VOCAB * WIDTH
    assert gemm_flops(deep()) == 6 * TOKENS * active


def test_parameters_of_latent_attention_and_shared_experts_by_hand() -> None:
    norms = 3 * (64 + 32) + 7 * WIDTH
    expected = 3 * ATTENTION + DENSE + 2 * (ROUTER + 8 * ROUTED + SHARED) + norms + 2 * VOCAB * WIDTH
    assert deep().num_parameters == expected


def test_scores_of_latent_attention_by_hand() -> None:
    # Forward one product as wide as a key (64), one as a value (32); backward three and two; half under the mask.
    pairs = TOKENS * LENGTH / 2 * HEADS
    assert flops(operations(stage_work(job(deep()))), "attention") == 3 * 2 * pairs * (4 * 64 + 3 * 32)


def test_model_flops_have_the_same_parts() -> None:
    active = 3 * ATTENTION + DENSE + 2 * (ROUTER + 2 * ROUTED + SHARED) + VOCAB * WIDTH
    assert flops_per_token(deep(), LENGTH) == 6 * (active + 3 * LENGTH * HEADS * (64 + 32))
    assert flops_per_token(windowed(), LENGTH) == flops_per_token(llama(), LENGTH) - 6 * 4 * 2 * WIDTH * (LENGTH - 256)


@given(
    tp=st.sampled_from([1, 2, 4]), pp=st.sampled_from([1, 3]), cp=st.sampled_from([1, 2]), ep=st.sampled_from([1, 4])
)
def test_sharding_conserves_flops_and_parameters(tp: int, pp: int, cp: int, ep: int) -> None:
    layout = {"tp": tp, "pp": pp, "cp": cp, "ep": ep, "dp": 4, "sequence_parallel": True}
    assert gemm_flops(deep(), **layout) == pytest.approx(gemm_flops(deep()), rel=1e-12)
    one = job(deep(), **layout)
    weights = [Blocks(Share(one)).weights(stage) for stage in split_layers(one)]
    held = sum(w.split * tp + w.shared + w.experts * ep * tp for w in weights)
    assert held == deep().num_parameters


def test_latents_are_gathered_not_the_hidden_state() -> None:
    found = operations(stage_work(job(deep(num_layers=1), tp=2, sequence_parallel=True)), "forward")
    # Up-projections gather both latents, the dense block and the output projection the hidden state.
    assert communication_bytes(found, "all_gather", "tp") == TOKENS * 2 * (64 + 32 + 2 * WIDTH)


def test_layers_of_a_chunk_are_counted_by_kind() -> None:
    kinds = deep(num_layers=4).layer_kinds
    assert kinds == (LayerKind(False),) + (LayerKind(True),) * 3
    stages = split_layers(job(deep(num_layers=4), pp=2, recompute="full", recompute_layers=1))
    assert [chunk.layers for (chunk,) in stages] == [
        ((LayerKind(False), 1), (LayerKind(True), 1)),
        ((LayerKind(True), 2),),
    ]
    assert [chunk.recomputed for (chunk,) in stages] == [((LayerKind(False), 1),), ((LayerKind(True), 1),)]


def test_experts_in_every_second_layer() -> None:
    moe = MixtureOfExperts(num_experts=8, top_k=1, layer_interval=2, dense_ffn_hidden_size=1024)
    model = llama(num_layers=4, moe=moe)
    assert [kind.has_experts for kind in model.layer_kinds] == [False, True, False, True]
    plain = 4 * (4 * WIDTH * WIDTH + 2 * WIDTH) + WIDTH + 2 * VOCAB * WIDTH
    assert model.num_parameters == plain + 2 * DENSE + 2 * (ROUTER + 8 * 3 * WIDTH * 1536)


def test_window_skips_what_is_further_back() -> None:
    # Under the mask half of a window's first block is empty, as half of the sequence is without one: mean of 256 - 32.
    alone = flops(operations(stage_work(job(windowed(None))), "forward"), "attention")
    assert alone == 8 * 4 * TOKENS * (256 - 32) * WIDTH
    both = flops(operations(stage_work(job(windowed(2))), "forward"), "attention")
    assert both == 4 * 4 * TOKENS * (256 - 32 + LENGTH / 2) * WIDTH


def test_window_longer_than_the_sequence_is_none() -> None:
    assert operations(stage_work(job(windowed(None, 1024)))) == operations(stage_work(job(llama())))


@pytest.mark.parametrize("model", [llama(), windowed()], ids=["full", "windowed"])
@pytest.mark.parametrize("exchange", ["ring", "all_gather", "all_to_all"])
def test_context_parallel_ranks_share_the_scores_out(model: ModelConfig, exchange: str) -> None:
    whole = flops(operations(stage_work(job(model))), "attention")
    split = job(model, cp=4, context_exchange=exchange)
    assert 4 * flops(operations(stage_work(split)), "attention") == pytest.approx(whole, rel=1e-12)


def test_gathered_context_by_hand() -> None:
    found = operations(stage_work(job(llama(), cp=4, context_exchange="all_gather")))
    pairs = TOKENS * 2 * WIDTH * 2
    assert communication_bytes(found, "all_gather", "cp") == 8 * 2 * pairs
    assert communication_bytes(found, "reduce_scatter", "cp") == 8 * pairs
    assert not communications(found, "send_recv", "cp")


def test_sequence_exchanged_for_heads_by_hand() -> None:
    found = operations(stage_work(job(llama(), cp=4, context_exchange="all_to_all")))
    # Queries, keys and values there, the output back; gradients in backward: of a fourth of the tokens, in 16 bits.
    assert communication_bytes(found, "all_to_all", "cp") == 8 * 2 * TOKENS / 4 * 4 * WIDTH * 2
    assert not communications(found, "send_recv", "cp")
    kernels = [op for op in found if isinstance(op, Kernel) and op.cls == "attention"]
    assert {op.shape for op in kernels} == {(2, 2, 2, LENGTH, LENGTH, 64)}
    assert all(op.is_causal for op in kernels)


def test_query_and_key_norms_by_hand() -> None:
    with_norms, without = job(llama(qk_norm=True)), job(llama())
    extra = (
        Blocks(Share(with_norms)).layer(LayerKind()).whole.saved - Blocks(Share(without)).layer(LayerKind()).whole.saved
    )
    assert extra == TOKENS * 2 * WIDTH * 2
    assert llama(qk_norm=True).num_parameters - llama().num_parameters == 8 * 2 * 64


def test_bias_of_queries_keys_and_values_only() -> None:
    assert llama(add_qkv_bias=True).num_parameters - llama().num_parameters == 8 * 3 * WIDTH


def test_multi_token_prediction_adds_a_layer_a_projection_and_a_head() -> None:
    layer = ATTENTION + ROUTER + 2 * ROUTED + SHARED
    extra = gemm_flops(deep(num_mtp_layers=1)) - gemm_flops(deep())
    assert extra == 6 * TOKENS * (layer + 2 * WIDTH * WIDTH + VOCAB * WIDTH)
    one = job(deep(num_mtp_layers=1))
    weights = Blocks(Share(one)).weights(split_layers(one)[0])
    assert weights.total == deep(num_mtp_layers=1).num_parameters
    assert flops_per_token(deep(num_mtp_layers=1), LENGTH) == pytest.approx(
        flops_per_token(deep(), LENGTH) + 6 * (layer + 2 * WIDTH**2 + VOCAB * WIDTH + LENGTH * HEADS * 96)
    )


def test_multi_token_prediction_keeps_a_copy_of_the_embedding_on_the_last_stage() -> None:
    one = job(deep(num_mtp_layers=1), pp=3)
    weights = sum(Blocks(Share(one)).weights(stage).total for stage in split_layers(one))
    assert weights == deep(num_mtp_layers=1).num_parameters + VOCAB * WIDTH


def test_adapters_stand_on_the_layers_asked_for() -> None:
    targets = frozenset({"linear_qkv", "linear_fc2"})
    one = job(llama(), trainable="lora", lora_rank=4, lora_targets=targets)
    (stage,) = split_layers(one)
    assert Blocks(Share(one)).adapters(stage) == 8 * 4 * ((WIDTH + 3 * WIDTH) + (1536 + WIDTH))
    everywhere = job(llama(), trainable="lora", lora_rank=4)
    assert Blocks(Share(everywhere)).adapters(stage) == 8 * 4 * (4 * WIDTH + 2 * WIDTH + 7 * WIDTH + 4 * WIDTH)


def test_inputs_of_frozen_layers_are_not_kept() -> None:
    some = job(llama(), trainable="lora", lora_targets=frozenset({"linear_fc2"}))
    # Inputs of the three other layers: hidden state twice, attention's output; and what their adapters keep.
    inputs = TOKENS * 2 * 3 * WIDTH + TOKENS * 2 * 3 * 16
    everywhere = job(llama(), trainable="lora")
    kept = [Blocks(Share(one)).layer(LayerKind()).whole.saved for one in (some, everywhere)]
    assert kept[1] - kept[0] == inputs


def test_adapters_alone_are_reduced_and_updated() -> None:
    one = job(llama(), dp=8, trainable="lora", lora_rank=4, data_parallel_sharding="optim")
    (stage,) = stage_work(one)
    adapters = Blocks(Share(one)).adapters(split_layers(one)[0])
    assert communication_bytes(stage.gradient_sync, "reduce_scatter", "dp") == 4 * adapters
    assert communication_bytes(stage.gradient_sync, "all_gather", "dp") == 2 * adapters


def test_imbalance_may_be_stated() -> None:
    def rows(imbalance: float | None) -> int:
        one = job(mixtral(None), dp=8, ep=8, expert_imbalance=imbalance)
        found = operations(stage_work(one), "forward")
        return max(op.shape[1] for op in found if isinstance(op, Kernel) and op.kind == "grouped")

    assert (rows(1.0), rows(1.5)) == (2 * TOKENS, 3 * TOKENS)


def test_latent_attention_keeps_less_than_its_heads_would() -> None:
    plain = llama(num_layers=3, kv_channels=64)
    latent = llama(
        num_layers=3, latent=LatentAttention(kv_lora_rank=32, qk_head_dim=48, qk_pos_emb_head_dim=16, v_head_dim=32)
    )
    assert peak_memory(job(latent)).activations < peak_memory(job(plain)).activations


def test_frozen_layers_in_fp8_cast_no_transposed_gradient() -> None:
    def cast(trainable: str) -> float:
        found = operations(stage_work(job(llama(), precision="fp8", trainable=trainable)), "backward_input")
        return sum(op.num_bytes * op.count for op in found if isinstance(op, Kernel) and op.kind == "cast")

    # Gradients of the outputs of four linear layers in each of eight layers: a byte less for each number.
    widths = 3 * WIDTH + WIDTH + 2 * 1536 + WIDTH
    assert cast("all") - cast("lora") == 8 * TOKENS * widths


@pytest.mark.parametrize(("norms", "gathered"), [(None, 2), (1, 1), (2, 2)])
def test_blocks_side_by_side_are_added_up_once(norms: int | None, gathered: int) -> None:
    def sizes(kind: str, **layout: object) -> float:
        one = job(llama(parallel_norms=norms, num_layers=1), tp=2, pp=1, **layout)
        found = operations(stage_work(one), "forward")
        # Of the embedding and, split along the sequence, the output projection there is one each.
        return communication_bytes(found, kind, "tp") / (TOKENS * WIDTH * 2)

    reductions = 2 if norms is None else 1
    assert round(sizes("all_reduce")) == 1 + reductions
    assert sizes("reduce_scatter", sequence_parallel=True) == 1 + reductions
    assert sizes("all_gather", sequence_parallel=True) == 1 + gathered


def test_norm_of_both_blocks_counts_once() -> None:
    plain, one, two = (llama(parallel_norms=norms) for norms in (None, 1, 2))
    assert plain.num_parameters == two.num_parameters == one.num_parameters + 8 * WIDTH
    held = Blocks(Share(job(one))).layer(LayerKind()).whole
    assert held.weights.total * 8 + WIDTH + 2 * VOCAB * WIDTH == one.num_parameters
    # The input of both is kept once, and that of one norm less.
    assert Blocks(Share(job(two))).layer(LayerKind()).whole.saved - held.saved == 2 * TOKENS * WIDTH * 2
