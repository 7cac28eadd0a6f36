"""Model FLOPs per token of pre-training, LoRA and inference, and the peak that an MFU is taken against."""

from triplepoint.config.gpu import GpuConfig
from triplepoint.config.model import ModelConfig
from triplepoint.config.point import Point, Precision
from triplepoint.config.task import TARGETS, Inference, Lora
from triplepoint.metrics import FLOPS_PER_MAC, FORWARD_AND_BACKWARD, flops_per_token

FORMULAS = {
    "pretrain": "6 W + 6 S per token: W weights of matrix products (top-k experts, output layer), S multiply-adds of "
    "scores and values over the whole sequence; nothing for recomputation; Chowdhery et al. 2022, arXiv:2204.02311",
    "lora": "4 W + 6 S + 6 A per token: as in training, but frozen weights have no gradient; A parameters of adapters; "
    "Hu et al. 2021, arXiv:2106.09685",
    "inference": "2 W + 2 S over every token read or made, logits of tokens made only, over the tokens made; "
    "Kaplan et al. 2020, arXiv:2001.08361, table 1",
}
"""How model FLOPs are counted, by task, with the source."""


def model_flops_per_token(point: Point) -> float:
    """Return the model FLOPs of a point over the tokens of its steps, see `FORMULAS`. Unit: FLOP/token."""
    if point.inference is not None:
        return inference_flops_per_token(point.model, point.inference)
    return training_flops_per_token(point.model, point.sequence_length, point.lora)


def training_flops_per_token(model: ModelConfig, sequence_length: int, lora: Lora | None) -> float:
    """Return the model FLOPs of training over the tokens of its steps. Unit: FLOP/token.

    Args:
        model: The architecture.
        sequence_length: Tokens per sequence.
        lora: Its adapters; None where all parameters are trained.
    """
    if lora is None:
        return flops_per_token(model, sequence_length)
    return lora_flops_per_token(model, sequence_length, lora)


def peak_flops(gpu: GpuConfig, precision: Precision) -> float | None:
    """Return the dense peak of one GPU at a number format; None where it has none. Unit: FLOP/s."""
    # Matrix units run bf16 and fp16 at one rate on every GPU here.
    peaks = {"fp32": gpu.peak_fp32_flops, "fp8": gpu.peak_fp8_flops, "nvfp4": gpu.peak_nvfp4_flops}
    peak = peaks.get(precision, gpu.peak_bf16_flops)
    return None if peak is None else peak.value


def lora_flops_per_token(model: ModelConfig, sequence_length: int, lora: Lora) -> float:
    """Return model FLOPs per token of training adapters on a frozen model.

    The gradient of an input costs as much as the forward GEMM, also through the lowest layer; what
    states of mixers are written and read with has gradients too, as scores have.
    """
    frozen, scores = _weights(model), _scores(model, sequence_length)
    states = sum(mixer.scan_macs for kind in model.layer_kinds if (mixer := model.recurrent(kind)))
    trained = scores + states + num_adapter_parameters(model, lora)
    frozen -= states
    return float(FLOPS_PER_MAC * ((FORWARD_AND_BACKWARD - 1) * frozen + FORWARD_AND_BACKWARD * trained))


def inference_flops_per_token(model: ModelConfig, asked: Inference) -> float:
    """Return model FLOPs of a sequence, from its prompt to its end, over the tokens made of it.

    The causal mask gives no discount in the prompt, as in training; a token made later has as many scores as there are
    tokens so far.
    """
    model = model.model_copy(update={"num_mtp_layers": 0})
    prompt, made = asked.prompt_tokens, asked.output_tokens
    head = model.hidden_size * model.vocab_size
    scores = prompt * _scores(model, prompt) + _sum_of_scores(model, prompt + 1, prompt + made - 1)
    macs = (_weights(model) - head) * (prompt + made - 1) + scores + head * made
    return float(FLOPS_PER_MAC * macs / made)


def num_adapter_parameters(model: ModelConfig, lora: Lora) -> int:
    """Return the parameters of all adapters: of every linear layer two matrices of its own, routed experts none.

    Latent attention counts without adapters in its projections. Mixers with a state have them in both of theirs where
    all linear layers are asked for.
    """
    hidden, inner = model.hidden_size, model.dense_ffn_hidden_size
    groups = model.num_query_groups * model.head_size
    heads = model.num_attention_heads * model.head_size
    query = (1 + model.has_output_gate) * heads
    into = 2 if model.activation == "swiglu" else 1
    widths = {
        "linear_qkv": 0 if model.latent else (hidden + query) + 2 * (hidden + groups),
        "linear_proj": heads + hidden,
        "linear_fc1": into * (hidden + inner),
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
    """Return multiply-adds per token of weights: scores of no token are none."""
    return flops_per_token(model, 0) / (FLOPS_PER_MAC * FORWARD_AND_BACKWARD)


def _scores(model: ModelConfig, num_keys: int) -> float:
    """Return multiply-adds per token of scores and their product with the values."""
    return flops_per_token(model, num_keys) / (FLOPS_PER_MAC * FORWARD_AND_BACKWARD) - _weights(model)


def _sum_of_scores(model: ModelConfig, first: int, last: int) -> float:
    """Return the scores of tokens with `first` to `last` keys: between the lengths of windows they grow evenly."""
    if last < first:
        return 0.0
    windows = {kind.window for kind in model.layer_kinds if kind.window and first < kind.window < last}
    knots = [first, *sorted(windows), last]
    at = [_scores(model, num_keys) for num_keys in knots]
    sums = ((b - a) * (at_a + at_b) / 2 for a, b, at_a, at_b in zip(knots, knots[1:], at, at[1:], strict=False))
    return sum(sums) + (at[0] + at[-1]) / 2
