"""Mamba-1, Kimi delta attention, blocks that layers share, and experts behind a narrower projection."""

from pathlib import Path

import pytest

from tests.unit.config.test_rules import make
from tests.unit.simulate.jobs import communication_bytes, flops, gpu, job, llama, operations
from triplepoint.config.mixers import Mixers, SharedBlock
from triplepoint.config.model import MixtureOfExperts, ModelConfig
from triplepoint.config.recurrence import KimiDelta, Mamba1, Mamba2
from triplepoint.config.rules import check_pipeline
from triplepoint.metrics import flops_per_token
from triplepoint.simulate.kernels.times import KernelModel
from triplepoint.simulate.memory.inference import inference_memory
from triplepoint.simulate.operations import Kernel
from triplepoint.simulate.work.blocks import Blocks, split_layers
from triplepoint.simulate.work.layer_parts import Share
from triplepoint.simulate.work.training import stage_work

WIDTH, VOCAB, LAYERS, FFN = 512, 4096, 4, 1536
MLP, ATTENTION, NORM = 3 * WIDTH * FFN, 4 * WIDTH * WIDTH, WIDTH
ENDS = 2 * VOCAB * WIDTH + NORM


def selective() -> ModelConfig:
    mixer = Mamba1(intermediate_size=1024, state_dim=16, time_step_rank=32)
    return llama(num_layers=LAYERS, mixers=Mixers(pattern="S", selective=mixer))


def kimi() -> ModelConfig:
    mixers = Mixers(pattern="KKK*", has_feed_forward=True, kimi_delta=KimiDelta(num_heads=4, head_dim=64))
    return llama(num_layers=LAYERS, mixers=mixers)


def shared(**changes: object) -> ModelConfig:
    mamba = Mamba2(num_heads=16, head_dim=64, state_dim=32, num_groups=4)
    block = SharedBlock(num_blocks=1, adapter_rank=8)
    return llama(num_layers=LAYERS, mixers=Mixers(pattern="MH", mamba=mamba, shared=block), **changes)


def latent(**changes: object) -> ModelConfig:
    settings = {"num_experts": 8, "top_k": 2, "latent_size": 128, "shared_ffn_hidden_size": 256} | changes
    return llama(num_layers=LAYERS, moe=MixtureOfExperts.model_validate(settings))


def on_rank(model: ModelConfig, tp: int = 1) -> float:
    """Return the parameters of a rank as the blocks have them."""
    asked = job(model=model, tp=tp)
    return Blocks(Share(asked)).weights(split_layers(asked)[0]).total


@pytest.mark.parametrize("make", [selective, kimi, shared, latent])
def test_blocks_hold_the_parameters_of_the_model(make: object) -> None:
    model = make()  # type: ignore[operator]
    assert on_rank(model) == pytest.approx(model.num_parameters)


def test_parameters_of_mamba_1_by_hand() -> None:
    inner, rank, state = 1024, 32, 16
    matrices = WIDTH * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner * WIDTH
    vectors = inner * (4 + 1) + inner * state + inner + inner
    assert selective().num_parameters == LAYERS * (matrices + vectors + NORM) + ENDS


def test_parameters_of_kimi_delta_attention_by_hand() -> None:
    inner, head = 4 * 64, 64
    matrices = WIDTH * (3 * inner + 4) + 2 * (WIDTH * head + head * inner) + inner * WIDTH
    vectors = 4 * 3 * inner + 4 + inner + head
    assert kimi().num_parameters == 3 * (matrices + vectors) + ATTENTION + LAYERS * (MLP + 2 * NORM) + ENDS


def test_shared_block_counts_once_and_runs_in_each_layer() -> None:
    heads = shared().num_attention_heads * shared().head_size
    block = 2 * WIDTH * 3 * heads + heads * WIDTH + MLP
    own = 8 * (WIDTH + 2 * FFN) + WIDTH * WIDTH
    mixer = shared().recurrent(shared().layer_kinds[0])
    assert mixer
    each = mixer.num_weights(WIDTH) + mixer.num_vectors + NORM
    assert shared().num_parameters == LAYERS * each + 2 * own + block + 3 * NORM + ENDS
    macs = LAYERS * (mixer.num_weights(WIDTH) + mixer.scan_macs) + 2 * (own + block + 2 * heads * 1024) + VOCAB * WIDTH
    assert flops_per_token(shared(), 1024) == 6 * macs


def test_shared_block_runs_as_many_products_where_its_weights_are_another_layers() -> None:
    blocks = Blocks(Share(job(model=shared())))
    first, second = (blocks.layer(shared().layer_kinds[place]).whole for place in (1, 3))
    assert flops(first.forward) == flops(second.forward)
    assert flops(first.backward_weight) == flops(second.backward_weight)
    assert first.weights.total > second.weights.total > 0


def test_layers_that_share_weights_are_on_one_stage() -> None:
    point = make(model="mistral-7b", cluster="h200x32", global_batch_size=64, pp=2)
    asked = point.model_copy(update={"model": shared()})
    assert check_pipeline(asked) == "pp: 2, layers of model llama share the weights of blocks; set pp: 1"


def test_latent_experts_are_narrow_and_the_router_is_not() -> None:
    routed = 8 * 3 * 128 * FFN
    layer = ATTENTION + routed + 8 * WIDTH + 2 * 128 * WIDTH + 3 * 256 * WIDTH + 2 * NORM
    assert latent().num_parameters == LAYERS * layer + ENDS
    macs = 2 * 3 * 128 * FFN + 8 * WIDTH + 2 * 128 * WIDTH + 3 * 256 * WIDTH
    scores = 2 * 1024 * WIDTH
    assert flops_per_token(latent(), 1024) == 6 * (LAYERS * (ATTENTION + scores + macs) + VOCAB * WIDTH)


def test_latent_experts_exchange_narrow_tokens() -> None:
    sent = [
        communication_bytes(
            operations(stage_work(job(model=latent(latent_size=width), dp=2, ep=2))), "all_to_all", "ep"
        )
        for width in (128, None)
    ]
    assert sent[0] / sent[1] == pytest.approx(128 / WIDTH)


def test_scan_of_mamba_1_takes_what_its_exponentials_do() -> None:
    model = KernelModel.load(gpu(), Path("config"))
    one = Kernel("elementwise", "scan", 1e12, 1e6, (), "fp32")
    assert model.time_s(one) == pytest.approx(1e12 / 6e13, rel=0.01)
    assert model.time_s(one, 0.5) == pytest.approx(2 * model.time_s(one), rel=0.01)
    assert model.sigma_of(one) >= 0.4


def test_shared_block_caches_keys_and_a_state() -> None:
    two = [inference_memory(job(model=shared()), tokens, tokens, 2)[0].cache for tokens in (1024, 2048)]
    heads = shared().num_query_groups * shared().head_size
    assert two[1] - two[0] == 2 * 1024 * 2 * heads * 2 * job(model=shared()).micro_batch_size
