"""Rows of the embedding."""

VOCAB_MULTIPLE = 128
"""The vocabulary is padded to a multiple of this, so that it splits over tensor parallel ranks.

Source: Megatron-LM, `--make-vocab-size-divisible-by`, default 128. Unlike there it does not grow with tp, so that
every layout trains the same model.
"""


def padded_vocab_size(vocab_size: int) -> int:
    """Return the rows of the embedding: `vocab_size` rounded up to a multiple of `VOCAB_MULTIPLE`."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
