"""Formulas against numbers worked out by hand, and against published ones."""

import math
from collections.abc import Callable

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


def test_robust_sigma_by_hand() -> None:
    # Median 3, deviations 2 1 0 1 97: their median is 1.
    assert metrics.robust_sigma([1, 2, 3, 4, 100]) == pytest.approx(1.4826)


def test_robust_sigma_estimates_normal_deviation_despite_outliers() -> None:
    values = np.random.default_rng(3).normal(50.0, 4.0, 20_000)
    values[:1000] = 1e6
    assert metrics.robust_sigma(values) == pytest.approx(4.0, rel=0.1)


def test_modified_z_scores_by_hand() -> None:
    # Median 3, MAD 1: 100 is 97 / 1.4826 = 65.4 away; Iglewicz and Hoaglin write 0.6745 * 97 / 1.
    assert metrics.modified_z_scores([1, 2, 3, 4, 100]) == pytest.approx(
        0.6745 * np.array([-2, -1, 0, 1, 97]), rel=1e-3
    )


def test_modified_z_scores_equal_majority_uses_mean_deviation() -> None:
    # Deviations 0 0 0 0 5: MAD 0, mean 1, so 5 / 1.2533.
    assert metrics.modified_z_scores([7, 7, 7, 7, 12])[-1] == pytest.approx(5 / 1.2533)


def test_modified_z_scores_all_equal_are_zero() -> None:
    assert metrics.modified_z_scores([4, 4, 4]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("function", [metrics.robust_sigma, metrics.modified_z_scores])
def test_robust_statistics_refuse_no_values(function: Callable[[list[float]], object]) -> None:
    with pytest.raises(ValueError, match="no values"):
        function([])


def test_algorithm_bandwidth_by_hand() -> None:
    assert metrics.algorithm_bandwidth([1e9, 3e9], [0.5, 1.0]).tolist() == [2e9, 3e9]


@pytest.mark.parametrize(
    ("kind", "factor"),
    # Worked out for 8 ranks from the table in nccl-tests: 2*7/8, 7/8, 1.
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("gather", 0.875),
        ("scatter", 0.875),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send_recv", 1.0),
    ],
)
def test_bus_factor_follows_nccl_tests(kind: str, factor: float) -> None:
    assert metrics.bus_factor(kind, 8) == pytest.approx(factor)


def test_bus_factor_of_one_rank_moves_nothing() -> None:
    assert metrics.bus_factor("all_reduce", 1) == 0


def test_bus_factor_of_all_reduce_by_hand() -> None:
    # Two ranks: 2*1/2; four ranks: 2*3/4.
    assert metrics.bus_factor("all_reduce", [2, 4]) == pytest.approx([1.0, 1.5])


@given(st.integers(1, 4096))
def test_bus_factor_of_all_reduce_is_reduce_scatter_then_all_gather(ranks: int) -> None:
    # An all-reduce is both, one after the other.
    both = metrics.bus_factor("reduce_scatter", ranks) + metrics.bus_factor("all_gather", ranks)
    assert metrics.bus_factor("all_reduce", ranks) == pytest.approx(both)


def test_bus_factor_refuses_kind_without_bandwidth() -> None:
    with pytest.raises(ValueError, match="barrier"):
        metrics.bus_factor("barrier", 8)


def test_bus_factor_refuses_empty_group() -> None:
    with pytest.raises(ValueError, match="num_ranks"):
        metrics.bus_factor("all_reduce", [8, 0])


def test_algorithm_bandwidth_refuses_no_time() -> None:
    with pytest.raises(ValueError, match="time_s"):
        metrics.algorithm_bandwidth(1, 0)


def test_t_quantile_of_printed_tables() -> None:
    """Source: NIST/SEMATECH e-Handbook of Statistical Methods, section 1.3.6.7.2."""
    assert metrics.t_quantile(3, 0.95) == pytest.approx(2.353, abs=5e-4)
    assert metrics.t_quantile(math.inf, 0.95) == pytest.approx(1.6449, abs=5e-5)
