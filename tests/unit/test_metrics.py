"""Formulas against numbers worked out by hand, and against published ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.synthetic import model_of
from triplepoint import metrics
from triplepoint.config.model import MixtureOfExperts, ModelConfig

SMALL = {
    "name": "small",
    "source": "made up for this test",
    "num_layers": 2,
    "hidden_size": 8,
    "ffn_hidden_size": 16,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "vocab_size": 10,
    "sequence_length": 6,
    "activation": "swiglu",
    "normalization": "rmsnorm",
    "position_embedding": "rope",
}


def test_flops_per_token_dense_by_hand() -> None:
    # Per layer: q and out 2*8*8 = 128, k and v 2*8*4 = 64, three matrices 3*8*16 = 384, scores and values 2*6*8 = 96.
    # Two layers and the output projection 8*10: 2*672 + 80 = 1424 multiply-adds, 2 FLOPs each, three times forward.
    assert metrics.flops_per_token(ModelConfig(**SMALL), 6) == 1424 * 6


def test_flops_per_token_experts_by_hand() -> None:
    model = ModelConfig(**SMALL, moe=MixtureOfExperts(num_experts=4, top_k=2))
    # The feed-forward block counts twice (top 2), and the router 8*4 = 32: per layer 672 + 384 + 32 = 1088.
    assert metrics.flops_per_token(model, 6) == (2 * 1088 + 80) * 6


def test_flops_per_token_follows_megatron_formula() -> None:
    model = model_of("gpt3-175b")
    layers, hidden, sequence, vocab = model.num_layers, model.hidden_size, 2048, model.vocab_size
    # Narayanan et al. 2021, equation 3 without recomputation: 72 B s l h^2 (1 + s/6h + V/12lh).
    expected = 72 * layers * hidden**2 * (1 + sequence / (6 * hidden) + vocab / (12 * layers * hidden))
    assert metrics.flops_per_token(model, sequence) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("model", "active_parameters"),
    [("gpt3-175b", 173.9e9), ("llama3-70b", 68.5e9), ("mixtral-8x7b", 12.6e9), ("mixtral-8x22b", 38.8e9)],
)
def test_flops_per_token_is_six_times_published_active_parameters(model: str, active_parameters: float) -> None:
    config = model_of(model)
    scores_and_head = 6 * (2 * config.num_layers * 2048 + config.vocab_size) * config.hidden_size
    assert metrics.flops_per_token(config, 2048) - scores_and_head == pytest.approx(6 * active_parameters, rel=0.003)


def test_mfu_by_hand() -> None:
    assert metrics.mfu(tokens_per_s=1000, flops_per_token=2e9, num_gpus=4, peak_flops_per_gpu=1e12) == 0.5


def test_mfu_palm_published() -> None:
    # PaLM 540B, table 3 and appendix B: 238.3e3 tokens/s on 6144 TPU v4 of 275 TFLOP/s, 46.2 % with attention.
    flops = 6 * 540.35e9 + 12 * 118 * 48 * 256 * 2048
    assert metrics.mfu(238.3e3, flops, 6144, 275e12) == pytest.approx(0.462, abs=0.002)


@pytest.mark.parametrize("argument", ["tokens_per_s", "flops_per_token", "num_gpus", "peak_flops_per_gpu"])
def test_mfu_refuses_what_is_not_positive(argument: str) -> None:
    good = {"tokens_per_s": 1.0, "flops_per_token": 1.0, "num_gpus": 1, "peak_flops_per_gpu": 1.0}
    with pytest.raises(ValueError, match=argument):
        metrics.mfu(**good | {argument: 0})


def test_energy_per_token_j_by_hand() -> None:
    assert metrics.energy_per_token_j(power_w=600, tokens_per_s=1200) == 0.5


def test_samples_per_s_mj_by_hand() -> None:
    # 128 samples in 16 s are 8 per second; 20 kW over 16 s are 0.32 MJ.
    assert metrics.samples_per_s_mj(128, 16.0, 20_000.0) == pytest.approx(25.0)


def test_samples_per_s_mj_falls_with_the_square_of_time() -> None:
    assert metrics.samples_per_s_mj(128, 10, 500) == pytest.approx(4 * metrics.samples_per_s_mj(128, 20, 500))


def test_spread_by_hand() -> None:
    # Eleven values 0..10: the 10th percentile is at position 1, the 90th at position 9.
    assert metrics.spread(list(range(11))) == metrics.Spread(1.0, 5.0, 9.0)


@pytest.mark.parametrize("values", [[], [1.0, float("nan")], [float("inf")]])
def test_spread_refuses_missing_values(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        metrics.spread(values)


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_spread_lies_in_order_between_extremes(values: list[float]) -> None:
    found = metrics.spread(values)
    edges = [min(values), found.p10, found.median, found.p90, max(values)]
    assert (np.diff(edges) >= -1e-9 * max(1.0, max(values))).all()


@given(st.integers(1, 10**9), st.floats(1e-3, 1e4), st.floats(1, 1e6))
def test_energy_per_token_times_tokens_is_power_times_time(num_tokens: int, step_time_s: float, power_w: float) -> None:
    rate = metrics.tokens_per_s(num_tokens, step_time_s)
    assert metrics.energy_per_token_j(power_w, rate) * num_tokens == pytest.approx(power_w * step_time_s)
