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
    repeat,
    scatter,
    streaming,
)
from triplepoint.simulate.work.linear import Linear, linear, norm

VOCABULARY_MULTIPLE = 128
"""Rows of the vocabulary on a rank are a multiple of this. Source: NVIDIA/Megatron-LM arguments.py,
make_vocab_size_divisible_by."""

_REDUCTIONS_OF_LOSS = 3
"""All-reduces of one fp32 number per token: maximum, logit of the target, sum of exponentials. Source:
NVIDIA/Megatron-LM megatron/core/tensor_parallel/cross_entropy.py."""


_READS_OF_CHOICE = 3
"""Logits are read for the maximum, for the sum of exponentials, and for the choice. An estimate."""


def vocabulary(share: Share) -> int:
    """Return rows of the vocabulary on one rank, padded."""
    return ceil_div(share.job.model.vocab_size, VOCABULARY_MULTIPLE * share.tp) * VOCABULARY_MULTIPLE


def embedding(share: Share) -> Part:
    """Return look-up of tokens and learned positions.

    Each rank looks up its rows and the results are added up. The gradient of the table is dense: zeroed, written row by
    row, and added to the accumulated one.
    """
    model, table = share.job.model, vocabulary(share) * share.job.model.hidden_size
    whole = share.tokens * model.hidden_size * share.element
    split = share.split_tokens * model.hidden_size
    mask = MASK_BYTES * share.software.has_dropout
    forward: list[Operation] = [streaming("embedding", "forward", 2 * whole), *scatter(share, whole)]
    positions = model.sequence_length * model.hidden_size if model.position_embedding == "learned" else 0
    if model.position_embedding in ("learned", "alibi"):
        # The bias of ALiBi, which attention adds, counts as the addition of learned positions.
        forward.append(streaming("elementwise", "add", 3 * split * share.element))
    if mask:
        forward.append(streaming("elementwise", "dropout", split * (2 * share.element + mask)))
    return Part(
        tuple(forward),
        (),
        () if share.has_adapters else _embedding_gradient(share, whole, table),
        float(split * mask),
        Weights(split=float(table), shared=float(positions)),
    )


def _embedding_gradient(share: Share, whole: float, table: int) -> Operations:
    gathered: Operations = (communication("all_gather", "tp", whole),) if share.is_sequence_parallel else ()
    written = 2 * whole + table * (2 * share.element + 2 * share.gradient_element)
    return (*gathered, streaming("embedding", "backward", written))


def head(share: Share) -> Part:
    """Return final norm, output projection (16 bits also in fp8 training) and cross entropy over the split vocabulary.

    The loss keeps fp32 probabilities, but for a single kernel on 16-bit logits, which keeps those.
    """
    model, rows = share.job.model, vocabulary(share)
    projection = Linear(model.hidden_size, rows, "column", is_wide=True)
    return join((norm(share, is_quantized_output=False), linear(share, projection), _loss(share, share.tokens * rows)))


def prediction(share: Share) -> Part:
    """Return what a layer of multi-token prediction has besides a layer: embedding, two norms, a projection, the head.

    The tables are those of the model; with a pipeline the embedding is another copy of it.

    Source:
        DeepSeek-V3, arXiv:2412.19437, section 2.2; NVIDIA/Megatron-LM multi_token_prediction.py.
    """
    width = share.job.model.hidden_size
    looked_up, last = embedding(share), head(share)
    copied = looked_up.weights if share.job.layout.pp > 1 else Weights()
    projection = linear(share, Linear(2 * width, width, "none", name="eh_proj"))
    norms = norm(share, is_quantized_output=False, width=2 * width)
    final = Weights(shared=float(width * (2 if share.job.model.normalization == "layernorm" else 1)))
    return join((replace(looked_up, weights=copied), norms, projection, replace(last, weights=final)))


def next_token(share: Share) -> Part:
    """Return what makes a token of the last layer's output: final norm, output projection, logits gathered, a choice.

    Args:
        share: Of a pass with one token for each sequence.
    """
    rows = vocabulary(share)
    projection = Linear(share.job.model.hidden_size, rows, "column", is_wide=True)
    logits = share.tokens * rows * share.tp * share.element
    gathered: Operations = (communication("all_gather", "tp", logits),) if share.tp > 1 else ()
    chosen = Part((*gathered, streaming("elementwise", "sample", _READS_OF_CHOICE * logits)))
    return join((norm(share, is_quantized_output=False), linear(share, projection), chosen))


def _loss(share: Share, num_logits: int) -> Part:
    forward_bytes, backward_bytes = share.software.bytes_of_loss
    sums: Operations = ()
    if share.tp > 1:
        sums = (repeat(communication("all_reduce", "tp", share.tokens * FP32_BYTES), _REDUCTIONS_OF_LOSS),)
    return Part(
        (streaming("loss", "forward", num_logits * forward_bytes), *sums),
        (streaming("loss", "backward", num_logits * backward_bytes),),
        (),
        float(num_logits * (FP32_BYTES if forward_bytes > FP32_BYTES else share.element)),
    )
