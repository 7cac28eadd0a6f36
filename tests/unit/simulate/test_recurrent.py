"""Work of layers whose mixers have a state: Mamba-2 and the gated delta rule."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.simulate.jobs import communication_bytes, flops, gpu, job, llama, operations
from tests.unit.simulate.test_run import planned
from triplepoint.config.catalogue import Catalogue
from triplepoint.config.mixers import Mixers
from triplepoint.config.model import LayerKind, MixtureOfExperts, ModelConfig
from triplepoint.config.recurrence import DeltaNet, Mamba2
from triplepoint.config.rules import fold
from triplepoint.config.task import TARGETS, Lora
from triplepoint.flops import lora_flops_per_token, num_adapter_parameters
from triplepoint.metrics import flops_per_token
from triplepoint.simulate.artefacts.simulate_run import simulate_run
from triplepoint.simulate.kernels.times import KernelModel
from triplepoint.simulate.memory.inference import inference_memory
from triplepoint.simulate.memory.training import peak_memory
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.work.blocks import Blocks, split_layers
from triplepoint.simulate.work.inference import decode_work, served
from triplepoint.simulate.work.layer_parts import Share
from triplepoint.simulate.work.training import stage_work
from triplepoint.trace.taxonomy import load_scheme

SCHEME = load_scheme()
TOKENS, WIDTH, VOCAB = 2048, 512, 4096
MAMBA = Mamba2(num_heads=16, head_dim=64, state_dim=32, num_groups=4, chunk_size=128)
INNER, CHANNELS, PROJECTED = 16 * 64, 16 * 64 + 2 * 4 * 32, 2 * 16 * 64 + 2 * 4 * 32 + 16
MLP, ATTENTION = 3 * 512 * 1536, 4 * 512 * 512
MIXER = 512 * (PROJECTED + INNER)


def hybrid(pattern: str = "M-*-", **changes: object) -> ModelConfig:
    return llama(**({"num_layers": 4, "mixers": Mixers(pattern=pattern, mamba=MAMBA)} | changes))


def delta(**changes: object) -> ModelConfig:
    net = DeltaNet(num_key_heads=4, num_value_heads=8, key_head_dim=32, value_head_dim=64)
    return llama(num_layers=4, mixers=Mixers(pattern="GGG*", has_feed_forward=True, delta_net=net), **changes)


def test_parameters_of_a_hybrid_by_hand() -> None:
    # Convolution of four with bias; decay, skip and bias of the time step; the gated norm.
    vectors = CHANNELS * 5 + 3 * 16 + INNER
    assert hybrid().num_parameters == MIXER + vectors + ATTENTION + 2 * MLP + (4 + 1) * WIDTH + 2 * VOCAB * WIDTH


def test_parameters_of_the_delta_rule_by_hand() -> None:
    keys, values = 4 * 32, 8 * 64
    mixer = 512 * (2 * keys + 2 * values + 2 * 8) + values * 512 + 4 * (2 * keys + values) + 2 * 8 + 64
    layers = 3 * (mixer + MLP + 2 * WIDTH) + ATTENTION + MLP + 2 * WIDTH
    assert delta().num_parameters == layers + WIDTH + 2 * VOCAB * WIDTH


def test_layer_kinds_follow_the_pattern() -> None:
    moe = MixtureOfExperts(num_experts=8, top_k=2)
    kinds = hybrid("M*-E", num_layers=5, moe=moe).layer_kinds
    assert [(kind.mixer, kind.has_feed_forward, kind.has_experts) for kind in kinds] == [
        ("M", False, False),
        ("*", False, False),
        ("", True, False),
        ("", True, True),
        ("M", False, False),
    ]
    assert delta().layer_kinds == (LayerKind(mixer="G"),) * 3 + (LayerKind(),)


def test_model_flops_count_states_as_megatron_does() -> None:
    # Seven FLOPs forward for each number of a state.
    macs = MIXER + 3.5 * INNER * 32 + ATTENTION + 2 * MLP + VOCAB * WIDTH + 2 * 1024 * WIDTH
    assert flops_per_token(hybrid(), 1024) == 6 * macs


def test_lora_flops_give_states_gradients_and_matrices_none() -> None:
    lora, states = Lora(rank=4, alpha=1.0, targets=TARGETS), 3.5 * INNER * 32
    adapters = num_adapter_parameters(hybrid(), lora)
    dense = 2 * 3 * (512 + 1536)
    assert adapters == 4 * (512 + PROJECTED + INNER + 512 + dense + 4 * (512 + 512))
    frozen, trained = MIXER + ATTENTION + 2 * MLP + VOCAB * WIDTH, states + 2 * 1024 * WIDTH + adapters
    assert lora_flops_per_token(hybrid(), 1024, lora) == 4 * frozen + 6 * trained


def test_products_of_a_scan_by_hand() -> None:
    found = operations(stage_work(job(hybrid("M", num_layers=1))), "forward")
    # Two of a state, half of a chunk with itself, and one of the vectors of each group.
    each = 2 * INNER * 32 + 64 * INNER + 4 * 128 * 32
    assert flops(found, "attention") == 2 * TOKENS * each
    assert flops(found, "gemm") == 2 * TOKENS * (MIXER + VOCAB * WIDTH)


@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    cp=st.sampled_from([1, 2]),
    model=st.sampled_from([hybrid(), delta()]),
)
def test_sharding_conserves_flops_and_parameters(tp: int, pp: int, cp: int, model: ModelConfig) -> None:
    def products(**layout: object) -> float:
        one = job(model, **layout)
        return flops(operations(stage_work(one)), "gemm", "attention") * one.layout.tp * one.layout.cp

    layout = {"tp": tp, "pp": pp, "cp": cp, "sequence_parallel": True}
    assert products(**layout) == pytest.approx(products(), rel=1e-12)
    one = job(model, **layout)
    weights = [Blocks(Share(one)).weights(stage) for stage in split_layers(one)]
    assert sum(w.split * tp + w.shared for w in weights) == pytest.approx(model.num_parameters, rel=2e-4)


def test_context_parallel_ranks_exchange_pieces_of_the_sequence_for_heads() -> None:
    found = operations(stage_work(job(hybrid("M", num_layers=1), cp=2)), "forward")
    assert communication_bytes(found, "all_to_all", "cp") == TOKENS / 2 * 2 * (PROJECTED + INNER)


def test_memory_grows_with_states_less_than_with_keys() -> None:
    def growth(model: ModelConfig) -> float:
        short, long = (
            inference_memory(served(job(model, sequence_length=512)), tokens, 512, 2)[0].cache
            for tokens in (1024, 4096)
        )
        return long - short

    # Only the one layer of attention grows: keys and values of 512 in 16 bits, of two sequences.
    assert growth(hybrid()) == 2 * 3072 * 2 * 512 * 2
    assert growth(hybrid("M-")) == 0
    states = inference_memory(served(job(hybrid("M-"), sequence_length=512)), 1024, 512, 2)[0].cache
    assert states == 2 * 2 * (INNER * 32 * 4 + CHANNELS * 4 * 2)


def test_decoding_reads_and_writes_states_whatever_came_before() -> None:
    def moved(cached: int) -> float:
        found = decode_work(served(job(hybrid("M", num_layers=1))), cached, 2)[0].operations
        return sum(op.num_bytes for op in found if isinstance(op, Kernel) and op.cls == "attention")

    assert moved(100) == moved(10_000) == 2 * 2 * INNER * 32 * 4


def test_recomputation_keeps_less_of_mixers_and_selective_nothing_less() -> None:
    none, selective, full = (
        peak_memory(job(hybrid("M", num_layers=8), recompute=kind)).activations
        for kind in ("none", "selective", "full")
    )
    assert full < selective == none


def test_times_of_scans_are_less_certain_than_those_of_attention() -> None:
    found = operations(stage_work(job(hybrid("M*"))), "forward")
    kernels = KernelModel.load(gpu(), Path("config"))
    scans, others = [], []
    for op in found:
        if isinstance(op, Kernel):
            (scans if op.kind == "linear" else others).append(kernels.sigma_of(op))
    assert min(scans) >= 0.4 > max(others)


def test_gate_of_attention_widens_its_projection() -> None:
    gated = llama(has_output_gate=True)
    assert gated.num_parameters == llama().num_parameters + 8 * 512 * 512
    products = [flops(operations(stage_work(job(model))), "gemm") for model in (llama(), gated)]
    assert products[1] - products[0] == 6 * TOKENS * 8 * 512 * 512


def test_simulated_run_of_a_hybrid_has_its_kernels(tmp_path: Path) -> None:
    run = planned("llama3-70b_h200x32_tp4-pp4")
    model = Catalogue(Path("config")).model("nemotron-h-8b")
    small = {"model": model, "global_batch_size": 8, "trace_ranks": (0,), "recompute": "none", "recompute_layers": None}
    point = fold(run.point.model_copy(update=small))
    assert simulate_run(run.model_copy(update={"point": point}), tmp_path, Path("config")).status == "ok"
    with gzip.open(tmp_path / "traces" / "rank0.json.gz") as trace:
        names = [event["name"] for event in json.load(trace)["traceEvents"] if event.get("cat") == "kernel"]
    kernels = [SCHEME.device(name) for name in set(names) if "chunk_scan" in name or "conv1d" in name]
    assert {(one.cls, one.kind) for one in kernels} == {("attention", "linear"), ("conv", "forward")}
    # Seven of the thirteen layers of the first of four stages.
    letters = model.mixers.pattern[:13] if model.mixers else ""
    convolutions = [name for name in names if "conv1d" in name]
    assert len(convolutions) == 2 * point.num_microbatches * letters.count("M")
