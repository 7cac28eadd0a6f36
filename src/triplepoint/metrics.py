"""Pure formulas: FLOPs, throughput, utilisation, energy and spread. No files, no tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triplepoint.config.model import ModelConfig
from triplepoint.units import MEGA

FLOPS_PER_MAC = 2
"""A multiply and an add."""

FORWARD_AND_BACKWARD = 3
"""Forward FLOPs of a whole step: the backward pass of a matrix product is two products of the same size."""


@dataclass(frozen=True)
class Spread:
    """Median with the 10th and 90th percentile around it, in the unit of the values."""

    p10: float
    median: float
    p90: float


def spread(values: Sequence[float] | np.ndarray) -> Spread:
    """Return median, 10th and 90th percentile, linearly interpolated between the nearest values.

    Raises:
        ValueError: If there is no value, or one is not finite.

    Source:
        Hyndman and Fan 1996, definition 7; the default of NumPy and R.
    """
    found = np.asarray(values, dtype=float)
    if found.size == 0 or not np.isfinite(found).all():
        raise ValueError(f"expected finite values, found {found.tolist()}")
    p10, median, p90 = (float(value) for value in np.percentile(found, [10, 50, 90]))
    return Spread(p10, median, p90)


def flops_per_token(model: ModelConfig, sequence_length: int) -> float:
    """Return model FLOPs per token, forward and backward, whatever is recomputed.

    Counted: the matrix products of attention and feed-forward (the top-k experts and the router), attention scores and
    their product with the values over the whole sequence, and the output projection. The causal mask gives no discount,
    as in PaLM and Megatron-LM 2021, so that MFU compares with published numbers; a kernel that skips the masked half
    gains by it. Not counted: norms, activations, softmax, biases, embedding look-up, optimizer.

    Args:
        model: The architecture.
        sequence_length: Tokens per sequence.

    Returns:
        FLOPs of one token's share of a step. Unit: FLOP/token.

    Source:
        Chowdhery et al. 2022 (PaLM), appendix B, arXiv:2204.02311; Narayanan et al. 2021, appendix, arXiv:2104.04473.
    """
    matrices = _attention_macs(model) + _feed_forward_macs(model)
    scores = 2 * sequence_length * model.hidden_size
    output_projection = model.hidden_size * model.vocab_size
    macs = model.num_layers * (matrices + scores) + output_projection
    return float(FORWARD_AND_BACKWARD * FLOPS_PER_MAC * macs)


def tokens_per_s(num_tokens: int, step_time_s: float) -> float:
    """Return throughput.

    Args:
        num_tokens: Tokens of the global batch.
        step_time_s: Time of one step. Unit: s.

    Raises:
        ValueError: If the time is not positive.
    """
    _positive(step_time_s=step_time_s)
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
    _positive(
        tokens_per_s=tokens_per_s,
        flops_per_token=flops_per_token,
        num_gpus=num_gpus,
        peak_flops_per_gpu=peak_flops_per_gpu,
    )
    return tokens_per_s * flops_per_token / (num_gpus * peak_flops_per_gpu)


def energy_per_token_j(power_w: float, tokens_per_s: float) -> float:
    """Return energy per token.

    Args:
        power_w: Mean power of what is counted (all GPUs, or all nodes) over measured steps. Unit: W.
        tokens_per_s: Tokens of the global batch over the step time. Unit: token/s.

    Returns:
        Energy. Unit: J/token.

    Raises:
        ValueError: If the throughput is not positive.
    """
    _positive(tokens_per_s=tokens_per_s)
    return power_w / tokens_per_s


def samples_per_s_mj(num_samples: int, step_time_s: float, power_w: float) -> float:
    """Return the efficiency of the reference study: samples per second, over the energy of the step.

    It falls with the square of the step time, so it is an energy-delay product and no plain efficiency; it is kept for
    comparison with the published figures only.

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
    _positive(num_samples=num_samples, step_time_s=step_time_s, power_w=power_w)
    energy_mj = power_w * step_time_s / MEGA
    return num_samples / step_time_s / energy_mj


def _attention_macs(model: ModelConfig) -> int:
    """Return multiply-adds per token of one layer's query, key, value and output projection."""
    key_value_size = model.num_query_groups * model.head_size
    return model.hidden_size * (2 * model.hidden_size + 2 * key_value_size)


def _feed_forward_macs(model: ModelConfig) -> int:
    """Return multiply-adds per token of one layer's feed-forward block: of the top-k experts and the router."""
    num_matrices = 3 if model.activation == "swiglu" else 2
    one_expert = num_matrices * model.hidden_size * model.ffn_hidden_size
    if model.moe is None:
        return one_expert
    return model.moe.top_k * one_expert + model.hidden_size * model.moe.num_experts


def _positive(**arguments: float) -> None:
    for name, value in arguments.items():
        if not value > 0:
            raise ValueError(f"{name} is {value}, expected a positive number")
