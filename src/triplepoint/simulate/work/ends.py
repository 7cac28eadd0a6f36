"""The ends of the model: embedding before the first layer; final norm, output projection and loss after the last."""

from dataclasses import replace

from triplepoint.simulate.operations import Operation
from triplepoint.simulate.work.layer_parts import (
    FP32_BYTES,
    MASK_BYTES,
    Operations,
    Part,
    Share,
    Weights,
    ceil_div,
    communication,
    join,
    reduce_partials,
    repeat,
    streaming,
)
from triplepoint.simulate.work.linear import Linear, linear, norm

VOCABULARY_MULTIPLE = 128
"""The vocabulary rows of a rank are a multiple of this. Source: NVIDIA/Megatron-LM arguments.py,
make_vocab_size_divisible_by."""

_REDUCTIONS_OF_LOSS = 3
"""All-reduces of one fp32 number per token: maximum, logit of the target, sum of exponentials. Source:
NVIDIA/Megatron-LM megatron/core/tensor_parallel/cross_entropy.py."""


_READS_OF_SAMPLING = 3
"""Times that sampling a token reads the logits: for the maximum, the sum of exponentials, and the choice. An
estimate."""


def vocabulary_rows(share: Share) -> int:
    """Return the padded number of vocabulary rows on one rank."""
    return ceil_div(share.job.model.vocab_size, VOCABULARY_MULTIPLE * share.tp) * VOCABULARY_MULTIPLE


def embedding(share: Share) -> Part:
    """Return the look-up of tokens and of learned positions.

    Each rank looks up its vocabulary rows, and the results are reduced over the ranks. The gradient of the table is
    dense: zeroed, written row by row, and added to the accumulated gradient.
    """
    model, table = share.job.model, vocabulary_rows(share) * share.job.model.hidden_size
    tensor_bytes = share.tokens * model.hidden_size * share.element
    num_split = share.split_tokens * model.hidden_size
    mask = MASK_BYTES * share.software.has_dropout
    look_up = streaming("embedding", "forward", 2 * tensor_bytes)
    forward: list[Operation] = [look_up, *reduce_partials(share, tensor_bytes)]
    positions = model.sequence_length * model.hidden_size if model.position_embedding == "learned" else 0
    if model.position_embedding in ("learned", "alibi"):
        # Adding the bias of ALiBi in attention counts as adding learned positions.
        forward.append(streaming("elementwise", "add", 3 * num_split * share.element))
    if mask:
        forward.append(streaming("elementwise", "dropout", num_split * (2 * share.element + mask)))
    return Part(
        tuple(forward),
        backward_weight=() if share.has_adapters else _embedding_gradient(share, tensor_bytes, table),
        saved=float(num_split * mask),
        weights=Weights(split=float(table), shared=float(positions)),
    )


def _embedding_gradient(share: Share, tensor_bytes: float, table: int) -> Operations:
    gathers: Operations = (communication("all_gather", "tp", tensor_bytes),) if share.is_sequence_parallel else ()
    num_bytes = 2 * tensor_bytes + table * (2 * share.element + 2 * share.gradient_element)
    return (*gathers, streaming("embedding", "backward", num_bytes))


def head(share: Share) -> Part:
    """Return final norm, output projection (16 bits also in fp8 training) and cross entropy over the split vocabulary.

    The loss keeps fp32 probabilities; a single kernel on 16-bit logits keeps those logits instead.
    """
    model, rows = share.job.model, vocabulary_rows(share)
    projection = Linear(model.hidden_size, rows, "column", is_wide=True)
    return join((norm(share, is_quantized_output=False), linear(share, projection), _loss(share, share.tokens * rows)))


def multi_token_prediction(share: Share) -> Part:
    """Return what a multi-token prediction layer adds to a layer: embedding, two norms, a projection, the head.

    It uses the model's embedding and output tables. With a pipeline its embedding is another copy of the table.

    Source:
        DeepSeek-V3, arXiv:2412.19437, section 2.2; NVIDIA/Megatron-LM multi_token_prediction.py.
    """
    width = share.job.model.hidden_size
    embedding_part, head_part = embedding(share), head(share)
    table_copy = embedding_part.weights if share.job.layout.pp > 1 else Weights()
    projection = linear(share, Linear(2 * width, width, "none", name="eh_proj"))
    norms = norm(share, is_quantized_output=False, width=2 * width)
    final_norm = Weights(shared=float(width * (2 if share.job.model.normalization == "layernorm" else 1)))
    return join(
        (replace(embedding_part, weights=table_copy), norms, projection, replace(head_part, weights=final_norm))
    )


def next_token(share: Share) -> Part:
    """Return the choice of the next token: final norm, output projection, all-gather of the logits, sampling.

    Args:
        share: Share of a pass with one token per sequence.
    """
    rows = vocabulary_rows(share)
    projection = Linear(share.job.model.hidden_size, rows, "column", is_wide=True)
    logits = share.tokens * rows * share.tp * share.element
    gathers: Operations = (communication("all_gather", "tp", logits),) if share.tp > 1 else ()
    sampling = Part((*gathers, streaming("elementwise", "sample", _READS_OF_SAMPLING * logits)))
    return join((norm(share, is_quantized_output=False), linear(share, projection), sampling))


def _loss(share: Share, num_logits: int) -> Part:
    forward_bytes, backward_bytes = share.software.bytes_of_loss
    reductions: Operations = ()
    if share.tp > 1:
        reductions = (repeat(communication("all_reduce", "tp", share.tokens * FP32_BYTES), _REDUCTIONS_OF_LOSS),)
    return Part(
        (streaming("loss", "forward", num_logits * forward_bytes), *reductions),
        (streaming("loss", "backward", num_logits * backward_bytes),),
        saved=float(num_logits * (FP32_BYTES if forward_bytes > FP32_BYTES else share.element)),
    )
