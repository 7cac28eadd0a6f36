"""Formulas for FLOPs, throughput, utilisation, bandwidth, energy and spread, without files or tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.units import MEGA

if TYPE_CHECKING:
    # Pydantic is slow to import, and most users of this module need no model.
    from triplepoint.config.model import LayerKind, ModelConfig

Floats = npt.NDArray[np.float64]

FLOPS_PER_MAC = 2
"""FLOPs of a multiply-add."""

FORWARD_AND_BACKWARD = 3
"""FLOPs of forward and backward pass over those of the forward pass: a GEMM has two of its size in the backward pass.
"""

Z90 = 1.645
"""Half width of the interval with 90 % of a normal distribution, in standard deviations."""

MAD_TO_SIGMA = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution: 1 / 0.6745, its third quartile."""

MEAN_TO_SIGMA = 1.2533
"""Standard deviation over mean absolute deviation of a normal distribution: sqrt(pi / 2)."""

_BUS_FACTORS = (
    dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"), (1, -1))
    | dict.fromkeys(("broadcast", "reduce", "send", "recv", "send_recv"), (1, 0))
    | {"all_reduce": (2, -2)}
)
"""Bus bandwidth over algorithm bandwidth: a + b / n for n ranks, as (a, b) by kind of collective."""

BUS_KINDS = frozenset(_BUS_FACTORS)
"""Kinds of collectives with a bus bandwidth."""


class Interval(NamedTuple):
    """Lower and upper end of a 90 % interval."""

    lo: float
    hi: float


@dataclass(frozen=True)
class Spread:
    """Median and 10th and 90th percentile, in the unit of the values."""

    p10: float
    median: float
    p90: float


def spread(values: Sequence[float] | np.ndarray) -> Spread:
    """Return the median and the 10th and 90th percentile, linearly interpolated between the nearest values.

    Raises:
        ValueError: If there is no value, or one is not finite.

    Source:
        Hyndman and Fan 1996, definition 7; the default of NumPy and R.
    """
    array = np.asarray(values, dtype=float)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"expected finite values, found {array.tolist()}")
    p10, median, p90 = (float(value) for value in np.percentile(array, [10, 50, 90]))
    return Spread(p10, median, p90)


def robust_sigma(values: npt.ArrayLike) -> float:
    """Return the standard deviation estimated from the median absolute deviation, which is robust to outliers.

    Raises:
        ValueError: If there is no value.

    Source:
        Hampel 1974, doi:10.1080/01621459.1974.10482962.
    """
    array = _non_empty(values)
    return MAD_TO_SIGMA * float(np.median(np.abs(array - np.median(array))))


def modified_z_scores(values: npt.ArrayLike) -> Floats:
    """Return the signed distance of each value from the median, in robust standard deviations.

    If over half of the values are equal, the median deviation is 0, and the mean deviation replaces it.

    Raises:
        ValueError: If there is no value.

    Source:
        Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, chapter 3.
    """
    array = _non_empty(values)
    deviations = array - np.median(array)
    sigma = robust_sigma(array) or MEAN_TO_SIGMA * float(np.mean(np.abs(deviations)))
    scores: Floats = deviations / sigma if sigma else np.zeros_like(array)
    return scores


def algorithm_bandwidth(num_bytes: npt.ArrayLike, time_s: npt.ArrayLike) -> Floats:
    """Return the algorithm bandwidth of collectives: size over time.

    Args:
        num_bytes: Size as defined in `bus_factor`. Unit: byte.
        time_s: Time from the last rank's start to the end. Unit: s.

    Returns:
        Bandwidth, of the broadcast shape of both. Unit: byte/s.

    Raises:
        ValueError: If a time is not positive.

    Source:
        NVIDIA/nccl-tests, doc/PERFORMANCE.md.
    """
    time = np.asarray(time_s, dtype=float)
    if not (time > 0).all():
        raise ValueError(f"time_s is {time.min()} at its smallest, expected positive numbers")
    bandwidth: Floats = np.asarray(num_bytes, dtype=float) / time
    return bandwidth


def bus_factor(kind: str, num_ranks: npt.ArrayLike) -> Floats:
    """Return bus bandwidth over algorithm bandwidth.

    The size of a collective is that of the largest buffer of a rank: the tensor for all_reduce, broadcast, reduce, send
    and recv; the output of all ranks for all_gather and gather; the input for all ranks for reduce_scatter and scatter;
    everything a rank sends, its own part included, for all_to_all. In-network reduction is not considered.

    Returns:
        Factor, of the shape of `num_ranks`.

    Raises:
        ValueError: If the kind has no bandwidth (barrier), or a group is empty.

    Source:
        NVIDIA/nccl-tests, doc/PERFORMANCE.md and src/{gather,scatter,sendrecv}.cu.
    """
    if kind not in _BUS_FACTORS:
        raise ValueError(f"no bus bandwidth for {kind}, expected one of {', '.join(_BUS_FACTORS)}")
    ranks = np.asarray(num_ranks, dtype=float)
    if not (ranks >= 1).all():
        raise ValueError(f"num_ranks is {ranks.min()} at its smallest, expected 1 or more")
    whole, per_rank = _BUS_FACTORS[kind]
    return whole + per_rank / ranks


def flops_per_token(model: ModelConfig, sequence_length: int) -> float:
    """Return model FLOPs per token, forward and backward, without recomputation.

    Counted: the GEMMs of attention and feed-forward blocks (top-k and shared experts, router), scores and their product
    with the values over the whole sequence or window, recurrences of mixers as in Megatron-LM, the output projection.
    The causal mask gives no discount, as in PaLM and Megatron-LM 2021, so that MFU compares with published numbers; it
    is therefore higher for kernels that skip the masked half. Not counted: norms, activations, softmax, biases,
    embedding look-up, optimizer.

    Returns:
        Model FLOPs of a step over its tokens. Unit: FLOP/token.

    Source:
        Chowdhery et al. 2022 (PaLM), appendix B, arXiv:2204.02311; Narayanan et al. 2021, appendix, arXiv:2104.04473.
    """
    kinds = (*model.layer_kinds, *[model.mtp_kind] * model.num_mtp_layers)
    layers = sum(_layer_macs(model, kind, sequence_length) * count for kind, count in Counter(kinds).items())
    mtp_projections = 2 * model.num_mtp_layers * model.hidden_size**2
    macs = layers + mtp_projections + (1 + model.num_mtp_layers) * model.hidden_size * model.vocab_size
    return float(FORWARD_AND_BACKWARD * FLOPS_PER_MAC * macs)


def tokens_per_s(num_tokens: int, step_time_s: float) -> float:
    """Return the throughput. Unit: token/s.

    Args:
        num_tokens: Tokens of the global batch.
        step_time_s: Time of one step. Unit: s.

    Raises:
        ValueError: If the time is not positive.
    """
    _check_positive(step_time_s=step_time_s)
    return num_tokens / step_time_s


def mfu(tokens_per_s: float, flops_per_token: float, num_gpus: int, peak_flops_per_gpu: float) -> float:
    """Return model FLOP/s utilisation (MFU).

    Args:
        tokens_per_s: Tokens of the global batch over the step time. Unit: token/s.
        flops_per_token: Forward and backward model FLOPs, no recomputation. Unit: FLOP/token.
        num_gpus: World size.
        peak_flops_per_gpu: Dense peak at the run's number format. Unit: FLOP/s.

    Returns:
        Fraction of peak, 0-1, not percent.

    Raises:
        ValueError: If an argument is not positive.

    Source:
        Chowdhery et al. 2022 (PaLM), appendix B, arXiv:2204.02311.
    """
    _check_positive(
        tokens_per_s=tokens_per_s,
        flops_per_token=flops_per_token,
        num_gpus=num_gpus,
        peak_flops_per_gpu=peak_flops_per_gpu,
    )
    return tokens_per_s * flops_per_token / (num_gpus * peak_flops_per_gpu)


def energy_per_token_j(power_w: float, tokens_per_s: float) -> float:
    """Return the energy per token.

    Args:
        power_w: Mean power of all GPUs, or of all nodes, over measured steps. Unit: W.
        tokens_per_s: Tokens of the global batch over the step time. Unit: token/s.

    Returns:
        Energy. Unit: J/token.

    Raises:
        ValueError: If the throughput is not positive.
    """
    _check_positive(tokens_per_s=tokens_per_s)
    return power_w / tokens_per_s


def samples_per_s_mj(num_samples: int, step_time_s: float, power_w: float) -> float:
    """Return the efficiency metric of the reference study: samples per second over the energy of the step.

    It falls with the square of the step time, so it is an inverse energy-delay product. It serves only for comparison
    with the published figures.

    Args:
        num_samples: Sequences of the global batch.
        step_time_s: Time of one step. Unit: s.
        power_w: Mean power of all GPUs. Unit: W.

    Returns:
        Efficiency. Unit: sample/(s*MJ).

    Raises:
        ValueError: If an argument is not positive.

    Source:
        sitar-lab/CharLLM-PPT at dad5f27, plotting scripts of figures 4, 8 and 13; arXiv:2509.10371.
    """
    _check_positive(num_samples=num_samples, step_time_s=step_time_s, power_w=power_w)
    energy_mj = power_w * step_time_s / MEGA
    return num_samples / step_time_s / energy_mj


def _layer_macs(model: ModelConfig, kind: LayerKind, sequence_length: int) -> float:
    """Return multiply-adds per token of one layer: matrices, scores and their product with the values, or recurrence.

    Those of a recurrence do not depend on the sequence length, so they count even for a length of 0.
    """
    feed_forward = _feed_forward_macs(model, kind.has_experts) if kind.has_feed_forward else 0
    if mixer := model.recurrent(kind):
        shared = model.num_shared_weights(kind, is_counted_again=True)
        scores = _scores(model, sequence_length) if kind.has_shared_block else 0
        return mixer.num_weights(model.hidden_size) + mixer.scan_macs + shared + scores + feed_forward
    if not kind.has_attention:
        return feed_forward
    keys = min(kind.window or sequence_length, sequence_length)
    return model.num_attention_weights + _scores(model, keys) + feed_forward


def _scores(model: ModelConfig, keys: int) -> int:
    """Return multiply-adds per token of scores and their product with the values."""
    return keys * model.num_attention_heads * (model.head_size + model.value_head_size)


def _feed_forward_macs(model: ModelConfig, has_experts: bool) -> int:
    """Return multiply-adds per token of one layer's feed-forward block; with experts: top-k, shared and router."""
    matrices = 3 if model.activation == "swiglu" else 2
    if model.moe is None or not has_experts:
        return matrices * model.hidden_size * model.dense_ffn_hidden_size
    routed = matrices * model.expert_width * model.moe.top_k * model.ffn_hidden_size
    shared = matrices * model.hidden_size * (model.moe.shared_ffn_hidden_size or 0)
    latent = 2 * model.hidden_size * (model.moe.latent_size or 0)
    return routed + shared + latent + model.hidden_size * model.moe.num_experts


def _non_empty(values: npt.ArrayLike) -> Floats:
    """Return values as an array. Raises `ValueError` if there are none."""
    array = np.asarray(values, dtype=float)
    if array.size == 0:
        raise ValueError("no values, expected at least one")
    return array


def _check_positive(**arguments: float) -> None:
    for name, value in arguments.items():
        if not value > 0:
            raise ValueError(f"{name} is {value}, expected a positive number")


def t_quantile(freedom: float, probability: float) -> float:
    """Return a quantile of Student's t distribution.

    Args:
        freedom: Degrees of freedom, above 0.
        probability: From 0 to 1, both excluded.
    """
    from scipy.special import stdtrit  # importing it takes 0.3 s of CPU, and few figures need it

    return float(stdtrit(freedom, probability))
