"""Text through the tokenizer a model is published with: a `tokenizer.json` of Hugging Face's library."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.config.point import BYTES
from triplepoint.errors import UserError

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_INSTEAD = f"give the path of a tokenizer.json, or tokenizer: {BYTES}"


@dataclass(frozen=True)
class Tokenizer:
    """What makes tokens of a text.

    Attributes:
        path: File it was read from.
        sha256: Digest of the file.
        vocab_size: Tokens it may make: one more than the largest, those added to the vocabulary included.
    """

    path: str
    sha256: str
    vocab_size: int
    _library: Any

    def encode(self, text: str, by_line: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a text, none added at ends, and where its documents lie.

        Args:
            text: The text.
            by_line: Whether each line, its end included, is a document; else the whole text is one.

        Returns:
            Tokens, shape (num_tokens,); first token of each document and one after its last, shape (num_documents, 2).
        """
        pieces = _LINE.findall(text) if by_line else [text]
        found = [piece.ids for piece in self._library.encode_batch_fast(pieces, add_special_tokens=False)]
        ends = np.cumsum([len(ids) for ids in found], dtype=np.int64)
        tokens = np.fromiter((token for ids in found for token in ids), np.int32, ends[-1] if len(ends) else 0)
        return tokens, np.stack([ends - [len(ids) for ids in found], ends], axis=1)

    def facts(self) -> dict[str, str | int]:
        """Return what the manifest says of it."""
        return {
            "tokenizer": self.path,
            "tokenizer_sha256": self.sha256,
            "tokenizer_vocab_size": self.vocab_size,
        }


def open_tokenizer(path: str, vocab_size: int) -> Tokenizer:
    """Return the tokenizer of a file.

    Args:
        path: Of the `tokenizer.json`.
        vocab_size: Of the model.

    Raises:
        UserError: If the file is missing or damaged, its vocabulary is larger than the model's, or the library is not
            installed.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"tokenizer {path}: {error.strerror or 'cannot be read'}; {_INSTEAD}") from error
    found = _load(path, content)
    size = 1 + max(found.get_vocab().values(), default=-1)
    if size > vocab_size:
        raise UserError(
            f"tokenizer {path}: {size} tokens, the model's vocab_size is {vocab_size}; use the tokenizer of the model, "
            "or a model with a larger vocabulary"
        )
    return Tokenizer(path, hashlib.sha256(content).hexdigest(), size, found)


def _load(path: str, content: bytes) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UserError(
            f"tokenizer {path} needs the library tokenizers, which is not installed; pip install "
            f"triplepoint[tokenizers], or set tokenizer: {BYTES}"
        ) from error
    try:
        found = tokenizers.Tokenizer.from_buffer(content)
    except ValueError as error:
        raise UserError(f"tokenizer {path}: damaged, {' '.join(str(error).split())}; {_INSTEAD}") from error
    # Samples are cut and padded here.
    found.no_truncation()
    found.no_padding()
    return found
