"""Model FLOPs per token of pre-training, LoRA and inference, and the peak FLOP/s for an MFU."""

from triplepoint.config.gpu import GpuConfig
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Point, Precision
from triplepoint.config.task import TARGETS, Inference, Lora
from triplepoint.metrics import FLOPS_PER_MAC, FORWARD_AND_BACKWARD, flops_per_token

FORMULAS = {
    "pretrain": "6 W + 6 S per token: W weights of GEMMs (top-k experts, output layer), S multiply-adds of scores and "
    "values over the whole sequence; recomputation does not count; Chowdhery et al. 2022, arXiv:2204.02311",
    "lora": "4 W + 6 S + 6 A per token: as in pre-training, but frozen weights have no gradient; A parameters of "
    "adapters; Hu et al. 2021, arXiv:2106.09685",
    "inference": "2 W + 2 S of every prompt and generated token, logits of generated tokens only, over the generated "
    "tokens; Kaplan et al. 2020, arXiv:2001.08361, table 1",
}
"""Formula of the model FLOPs by task, with its source."""


def model_flops_per_token(point: Point) -> float:
    """Return the model FLOPs of a point per token, see `FORMULAS`. Unit: FLOP/token."""
    if point.inference is not None:
        return inference_flops_per_token(point.model, point.inference)
    return training_flops_per_token(point.model, point.sequence_length, point.lora)


def training_flops_per_token(model: ModelConfig, sequence_length: int, lora: Lora | None) -> float:
    """Return the model FLOPs of pre-training or LoRA per token. Unit: FLOP/token.

    Args:
        model: The architecture.
        sequence_length: Tokens per sequence.
        lora: Adapters; None if all parameters are trained.
    """
    if lora is None:
        return flops_per_token(model, sequence_length)
    return lora_flops_per_token(model, sequence_length, lora)


def peak_flops(gpu: GpuConfig, precision: Precision) -> float | None:
    """Return the dense peak of one GPU at a number format; None if it does not support that. Unit: FLOP/s."""
    # Every GPU in `config/gpus/` has the same peak at bf16 and fp16.
    peaks = {"fp32": gpu.peak_fp32_flops, "fp8": gpu.peak_fp8_flops, "nvfp4": gpu.peak_nvfp4_flops}
    peak = peaks.get(precision, gpu.peak_bf16_flops)
    return None if peak is None else peak.value


def lora_flops_per_token(model: ModelConfig, sequence_length: int, lora: Lora) -> float:
    """Return model FLOPs per token of training adapters on a frozen model. Unit: FLOP/token.

    The input gradient of a frozen weight costs as much as its forward GEMM, and counts in the lowest layer too. The
    recurrences of mixers count like scores, with gradients of all their inputs.
    """
    frozen, scores = _weights(model), _scores(model, sequence_length)
    states = sum(mixer.scan_macs for kind in model.layer_kinds if (mixer := model.recurrent(kind)))
    trained = scores + states + num_adapter_parameters(model, lora)
    frozen -= states
    return float(FLOPS_PER_MAC * ((FORWARD_AND_BACKWARD - 1) * frozen + FORWARD_AND_BACKWARD * trained))


def inference_flops_per_token(model: ModelConfig, inference: Inference) -> float:
    """Return model FLOPs of a whole sequence over its generated tokens. Unit: FLOP/token.

    The causal mask gives no discount in the prompt, as in training. A generated token has as many scores as the
    sequence has tokens at that time.
    """
    model = model.model_copy(update={"num_mtp_layers": 0})
    prompt, generated = inference.prompt_tokens, inference.output_tokens
    output_layer = model.hidden_size * model.vocab_size
    scores = prompt * _scores(model, prompt) + _sum_of_scores(model, prompt + 1, prompt + generated - 1)
    macs = (_weights(model) - output_layer) * (prompt + generated - 1) + scores + output_layer * generated
    return float(FLOPS_PER_MAC * macs / generated)


def num_adapter_parameters(model: ModelConfig, lora: Lora) -> int:
    """Return the parameters of all adapters: two matrices for each target layer, none for routed experts.

    The projections of latent attention have no adapters. The projections of recurrent mixers have them if all linear
    layers are targets.
    """
    hidden, inner = model.hidden_size, model.dense_ffn_hidden_size
    groups = model.num_query_groups * model.head_size
    heads = model.num_attention_heads * model.head_size
    query = (1 + model.has_output_gate) * heads
    num_first = 2 if model.activation == "swiglu" else 1
    # Inputs plus outputs of each adapted layer; times the rank they are its adapter's parameters.
    widths = {
        "linear_qkv": 0 if model.latent else (hidden + query) + 2 * (hidden + groups),
        "linear_proj": heads + hidden,
        "linear_fc1": num_first * (hidden + inner),
        "linear_fc2": inner + hidden,
    }
    total = 0
    for kind in model.layer_kinds:
        has_dense = kind.has_feed_forward and not kind.has_experts
        total += sum(widths[name] for name in lora.targets if (has_dense if "_fc" in name else kind.has_attention))
        if lora.targets == TARGETS and (mixer := model.recurrent(kind)):
            total += 2 * hidden + mixer.projected + mixer.inner
    return lora.rank * total


def _weights(model: ModelConfig) -> float:
    """Return multiply-adds per token of weights, which are those of a sequence without scores."""
    return flops_per_token(model, 0) / (FLOPS_PER_MAC * FORWARD_AND_BACKWARD)


def _scores(model: ModelConfig, num_keys: int) -> float:
    """Return multiply-adds per token of scores and their product with the values."""
    return flops_per_token(model, num_keys) / (FLOPS_PER_MAC * FORWARD_AND_BACKWARD) - _weights(model)


def _sum_of_scores(model: ModelConfig, first: int, last: int) -> float:
    """Return multiply-adds of scores and values summed over tokens with `first` to `last` keys.

    They grow linearly with the keys between the window sizes of the layers, so the sum is exact by trapezoids.
    """
    if last < first:
        return 0.0
    windows = {kind.window for kind in model.layer_kinds if kind.window and first < kind.window < last}
    knots = [first, *sorted(windows), last]
    macs = [_scores(model, num_keys) for num_keys in knots]
    areas = (
        (right - left) * (at_left + at_right) / 2
        for left, right, at_left, at_right in zip(knots, knots[1:], macs, macs[1:], strict=False)
    )
    return sum(areas) + (macs[0] + macs[-1]) / 2
