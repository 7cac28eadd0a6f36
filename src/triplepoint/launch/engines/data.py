"""Corpora: the tokens of sample `i` of step `s`, whatever the layout.

Packed samples are cut from the text as it comes; a padded one is a document, cut or filled up with `IGNORED`. Tokens
come from bytes, from a `tokenizer.json` of Hugging Face's library, or from Megatron-LM's indexed format: tokens in
`NAME.bin`, where each sequence lies in `NAME.idx`, read in place.
Source: NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py.
"""

import codecs
import functools
import hashlib
import random
import re
import struct
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triplepoint.config.contents import CORPUS_LIMIT_BYTES
from triplepoint.config.point import BYTES, Point
from triplepoint.errors import UserError

_HEADER = b"MMIDIDX\x00\x00"
_AFTER_HEADER = struct.Struct("<QBQQ")
"""Version, code of the tokens' type, number of sequences, number of ends of documents."""
_VERSION = 1
_TYPES: dict[int, type[np.generic]] = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
"""Types of tokens by their code; 6 and 7 are floating point."""
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_INSTEAD = f"give the path of a tokenizer.json, or tokenizer: {BYTES}"
BYTE_VALUES = 256
"""Tokens of texts without a tokenizer."""

IGNORED = -100
"""Target of padding. Source: torch, `cross_entropy`, default of `ignore_index`."""


@dataclass(frozen=True)
class Corpus:
    """Samples of a text or of random tokens."""

    name: str
    seed: int
    sequence_length: int
    vocab_size: int
    text: Tensor | None = field(repr=False)
    """Tokens; None for random ones."""
    documents: np.ndarray | None = field(default=None, repr=False)
    """First token of each document and one after its last, shape (num_documents, 2); None where samples are packed."""
    made_by: Mapping[str, str | int] = field(default_factory=lambda: {"tokenizer": "none"})
    """What made the tokens, in words of the manifest."""

    def sample(self, step: int, index: int) -> Tensor:
        """Return the tokens of one sample, shape (sequence_length + 1,): inputs and, shifted by one, targets.

        Raises:
            UserError: If a token is not in the vocabulary.
        """
        length = self.sequence_length + 1
        # Python's generator takes a text as its seed and is the same on every machine.
        source = random.Random(f"{self.seed}/{step}/{index}")
        if self.text is None:
            generator = torch.Generator().manual_seed(source.getrandbits(63))
            return torch.randint(self.vocab_size, (length,), generator=generator)
        if self.documents is None:
            start = source.randrange(self.text.numel() - length + 1)
            return self._checked(self.text[start : start + length].long())
        start, end = self.documents[source.randrange(len(self.documents))]
        tokens = self._checked(self.text[start : min(end, start + length)].long())
        return torch.nn.functional.pad(tokens, (0, length - tokens.numel()), value=IGNORED)

    def _checked(self, tokens: Tensor) -> Tensor:
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.vocab_size:
            raise UserError(
                f"corpus {self.name}: token {high if high >= self.vocab_size else low}, the vocabulary has "
                f"{self.vocab_size}; use the model the corpus was tokenized for"
            )
        return tokens

    def padding_share(self) -> float:
        """Return the share of positions that are padding, over all documents alike; 0 where samples are packed."""
        if self.documents is None:
            return 0.0
        length = self.sequence_length + 1
        kept = np.minimum(self.documents[:, 1] - self.documents[:, 0], length)
        return float(1.0 - kept.mean() / length)

    def facts(self) -> dict[str, str | int | float]:
        """Return what the manifest says about the corpus."""
        size = 0 if self.text is None else self.text.numel() * self.text.element_size()
        return {
            "corpus": self.name,
            "corpus_bytes": size,
            **self.made_by,
            "samples": "packed" if self.documents is None else "padded",
            "padding_share": self.padding_share(),
        }


def open_corpus(point: Point) -> Corpus:
    """Return the corpus of the point.

    Raises:
        UserError: If the text is missing, unreadable, cut off or too short, or the vocabulary has no room for bytes.
    """
    open_as = partial(Corpus, point.corpus, point.seed, point.sequence_length, point.model.vocab_size)
    if point.corpus == "random":
        if point.samples == "padded":
            raise UserError("samples: padded needs documents, and random tokens have none; set samples: packed")
        return open_as(None)
    text, documents, made_by = _read_tokens(point)
    if point.samples == "padded":
        kept = documents[documents[:, 1] > documents[:, 0] + 1]
        if not len(kept):
            raise UserError(f"corpus {point.corpus}: has no document of two tokens or more; set samples: packed")
        return open_as(text, kept, made_by)
    if text.numel() <= point.sequence_length:
        raise UserError(
            f"{point.corpus}: {text.numel()} {BYTES if made_by['tokenizer'] == BYTES else 'tokens'} are too few for "
            f"sequence_length {point.sequence_length}; use a longer text or a shorter sequence"
        )
    return open_as(text, None, made_by)


def _read_tokens(point: Point) -> tuple[Tensor, np.ndarray, Mapping[str, str | int]]:
    """Return the tokens of a text, its documents, and what made the tokens."""
    if is_indexed(point.corpus):
        found = read_indexed(point.corpus)
        return torch.from_numpy(found.tokens), np.stack([found.start, found.end], axis=1), {"tokenizer": "as stored"}
    if point.tokenizer == BYTES:
        text = _bytes_of(point)
        return text, _lines(text), {"tokenizer": BYTES}
    tokenizer = open_tokenizer(point.tokenizer, point.model.vocab_size)
    tokens, documents = tokenizer.encode(_text_of(point), by_line=point.samples == "padded")
    return torch.from_numpy(tokens), documents, tokenizer.facts()


def _bytes_of(point: Point) -> Tensor:
    if point.model.vocab_size < BYTE_VALUES:
        raise UserError(
            f"corpus {point.corpus}: tokens are bytes, vocab_size {point.model.vocab_size} of {point.model.name} "
            f"is below {BYTE_VALUES}; use corpus: random or a larger vocabulary"
        )
    data = _data_of(point)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _text_of(point: Point) -> str:
    try:
        # Not final: the limit may cut a character in two.
        return codecs.getincrementaldecoder("utf-8")().decode(_data_of(point))
    except UnicodeDecodeError as error:
        raise UserError(
            f"corpus {point.corpus}: not UTF-8 text at byte {error.start}, a tokenizer reads text; convert it, or set "
            f"tokenizer: {BYTES}"
        ) from error


def _data_of(point: Point) -> bytes:
    return _standard_library() if point.corpus == "stdlib" else _read(Path(point.corpus))


def _lines(text: Tensor) -> np.ndarray:
    """Return first byte and one after the last of every line, its end included; shape (num_lines, 2)."""
    ends = np.flatnonzero(text.numpy() == ord("\n")) + 1
    if text.numel() and (not len(ends) or ends[-1] != text.numel()):
        ends = np.append(ends, text.numel())
    return np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1) if len(ends) else np.empty((0, 2), dtype=np.int64)


@functools.cache
def _standard_library() -> bytes:
    """Return the source of the Python standard library up to the limit: real text every machine has."""
    parts, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(path.read_bytes())
        size += len(parts[-1])
        if size >= CORPUS_LIMIT_BYTES:
            break
    return b"".join(parts)[:CORPUS_LIMIT_BYTES]


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(CORPUS_LIMIT_BYTES)
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise UserError(f"corpus {path}: {reason}; use random, stdlib or the path of a readable file") from error


@dataclass(frozen=True)
class Batcher:
    """The part of each global batch that one data parallel rank trains on."""

    corpus: Corpus
    num_microbatches: int
    micro_batch_size: int
    dp: int
    dp_rank: int

    def batch(self, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, each of shape (num_microbatches * micro_batch_size, sequence), on `device`.

        Padding is token 0 in inputs and `IGNORED` in targets.
        """
        samples = torch.stack([self.corpus.sample(step, index) for index in self._indices()]).to(device)
        return samples[:, :-1].clamp(min=0), samples[:, 1:].contiguous()

    def _indices(self) -> list[int]:
        size = self.micro_batch_size
        return [
            (microbatch * self.dp + self.dp_rank) * size + row
            for microbatch in range(self.num_microbatches)
            for row in range(size)
        ]


@dataclass(frozen=True)
class Indexed:
    """An indexed corpus.

    Attributes:
        tokens: All tokens, in the file; shape (num_tokens,).
        start: First token of each document; shape (num_documents,).
        end: One after its last.
    """

    tokens: np.ndarray
    start: np.ndarray
    end: np.ndarray


def is_indexed(corpus: str) -> bool:
    """Return whether a corpus names indexed files: either of the two is there."""
    return any(Path(f"{corpus}.{end}").is_file() for end in ("idx", "bin"))


def read_indexed(corpus: str) -> Indexed:
    """Return the corpus whose files are `corpus` with `.bin` and `.idx`.

    Raises:
        UserError: If a file is missing, is something else, or is cut off.
    """
    index, binary = Path(f"{corpus}.idx"), Path(f"{corpus}.bin")
    for path in (index, binary):
        if not path.is_file():
            raise UserError(f"{path}: no such file; an indexed corpus has both {index.name} and {binary.name}")
    dtype, lengths, pointers = _read_index(index)
    size, first = np.dtype(dtype).itemsize, pointers // np.dtype(dtype).itemsize
    end = first + lengths
    if (lengths < 0).any() or (pointers % size).any() or (pointers < 0).any():
        raise UserError(f"{index}: damaged, sequences lie at impossible places; write the corpus again")
    needed, found = int(end.max()) * size, binary.stat().st_size
    if found < needed:
        raise UserError(f"{binary}: {found} bytes, {index.name} needs {needed}; cut off, write the corpus again")
    # Copy on write: torch takes no memory that must not be written.
    tokens = np.memmap(binary, dtype, mode="c", shape=(needed // size,))
    return Indexed(tokens, first, end)


def _read_index(path: Path) -> tuple[type[np.generic], np.ndarray, np.ndarray]:
    """Return the type of tokens, and of every sequence its length and its place in bytes."""
    content = path.read_bytes()
    after = len(_HEADER) + _AFTER_HEADER.size
    if not content.startswith(_HEADER):
        raise UserError(f"{path}: not an index of Megatron-LM, it begins with {content[:9]!r}; expected {_HEADER!r}")
    if len(content) < after:
        raise UserError(f"{path}: cut off after {len(content)} bytes; write the corpus again")
    version, code, num_sequences, _ = _AFTER_HEADER.unpack_from(content, len(_HEADER))
    if version != _VERSION or code not in _TYPES:
        raise UserError(
            f"{path}: version {version} with tokens of type {code}; expected version 1 and one of the types "
            f"{', '.join(map(str, _TYPES))}, integers of Megatron-LM's preprocess_data.py"
        )
    if num_sequences == 0 or len(content) < after + 12 * num_sequences:
        raise UserError(f"{path}: {len(content)} bytes for {num_sequences} sequences; cut off, write the corpus again")
    lengths = np.frombuffer(content, "<i4", num_sequences, after).astype(np.int64)
    return _TYPES[code], lengths, np.frombuffer(content, "<i8", num_sequences, after + 4 * num_sequences)


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
            f"tokenizers, or set tokenizer: {BYTES}"
        ) from error
    try:
        found = tokenizers.Tokenizer.from_buffer(content)
    except ValueError as error:
        raise UserError(f"tokenizer {path}: damaged, {' '.join(str(error).split())}; {_INSTEAD}") from error
    # Samples are cut and padded here.
    found.no_truncation()
    found.no_padding()
    return found
