"""Training data: the samples of each step, which depend on the point's seed and never on the layout.

A packed sample is a piece of the text, across documents. A padded sample is one document, truncated or filled up with
`IGNORED`. Tokens are the bytes of a text, come from a `tokenizer.json` of Hugging Face's library, or are read in place
from Megatron-LM's indexed format: tokens in `NAME.bin`, position and length of each sequence in `NAME.idx`.
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

_INDEX_MAGIC = b"MMIDIDX\x00\x00"
"""First bytes of a `.idx` file."""
_INDEX_HEADER = struct.Struct("<QBQQ")
"""Version, code of the token type, number of sequences, number of document ends; after the magic bytes."""
_INDEX_VERSION = 1
_TOKEN_TYPES: dict[int, type[np.generic]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
}
"""Token types by their code in the index; codes 6 and 7 are floating point."""
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_TOKENIZER_ADVICE = f"give the path of a tokenizer.json, or tokenizer: {BYTES}"
BYTE_VALUES = 256
"""Size of the vocabulary of a text read as bytes."""

IGNORED = -100
"""Target at padded positions. Source: torch, `cross_entropy`, default of `ignore_index`."""


@dataclass(frozen=True)
class Corpus:
    """Samples of a text, or of random tokens."""

    name: str
    seed: int
    sequence_length: int
    vocab_size: int
    text: Tensor | None = field(repr=False)
    """All tokens of the text, shape (num_tokens,); None for random tokens."""
    documents: np.ndarray | None = field(default=None, repr=False)
    """Start and end (exclusive) of each document in `text`, shape (num_documents, 2); None for packed samples."""
    tokenizer_facts: Mapping[str, str | int] = field(default_factory=lambda: {"tokenizer": "none"})
    """What the manifest says about the tokenizer."""

    def sample(self, step: int, index: int) -> Tensor:
        """Return the tokens of one sample, shape (sequence_length + 1,): inputs and, shifted by one, targets.

        Raises:
            UserError: If a token is not in the vocabulary.
        """
        length = self.sequence_length + 1
        # Python's generator takes a text as its seed and gives the same numbers on every machine.
        rng = random.Random(f"{self.seed}/{step}/{index}")
        if self.text is None:
            generator = torch.Generator().manual_seed(rng.getrandbits(63))
            return torch.randint(self.vocab_size, (length,), generator=generator)
        if self.documents is None:
            start = rng.randrange(self.text.numel() - length + 1)
            return self._check_vocabulary(self.text[start : start + length].long())
        start, end = self.documents[rng.randrange(len(self.documents))]
        tokens = self._check_vocabulary(self.text[start : min(end, start + length)].long())
        return torch.nn.functional.pad(tokens, (0, length - tokens.numel()), value=IGNORED)

    def _check_vocabulary(self, tokens: Tensor) -> Tensor:
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.vocab_size:
            raise UserError(
                f"corpus {self.name}: token {high if high >= self.vocab_size else low}, the vocabulary has "
                f"{self.vocab_size}; use the model the corpus was tokenized for"
            )
        return tokens

    def padding_share(self) -> float:
        """Return the expected share of padded positions, 0-1: documents are drawn alike; 0 for packed samples."""
        if self.documents is None:
            return 0.0
        length = self.sequence_length + 1
        tokens_used = np.minimum(self.documents[:, 1] - self.documents[:, 0], length)
        return float(1.0 - tokens_used.mean() / length)

    def facts(self) -> dict[str, str | int | float]:
        """Return what the manifest says about the corpus."""
        size = 0 if self.text is None else self.text.numel() * self.text.element_size()
        return {
            "corpus": self.name,
            "corpus_bytes": size,
            **self.tokenizer_facts,
            "samples": "packed" if self.documents is None else "padded",
            "padding_share": self.padding_share(),
        }


def open_corpus(point: Point) -> Corpus:
    """Return the corpus of the point.

    Raises:
        UserError: If the text is missing, unreadable, truncated or too short, or the vocabulary has no room for bytes.
    """
    corpus_of = partial(Corpus, point.corpus, point.seed, point.sequence_length, point.model.vocab_size)
    if point.corpus == "random":
        if point.samples == "padded":
            raise UserError("samples: padded needs documents, and random tokens have none; set samples: packed")
        return corpus_of(None)
    text, documents, tokenizer_facts = _read_tokens(point)
    if point.samples == "padded":
        # A sample has an input and a target: a document of one token is neither.
        usable = documents[documents[:, 1] > documents[:, 0] + 1]
        if not len(usable):
            raise UserError(f"corpus {point.corpus}: has no document of two tokens or more; set samples: packed")
        return corpus_of(text, usable, tokenizer_facts)
    if text.numel() <= point.sequence_length:
        unit = BYTES if tokenizer_facts["tokenizer"] == BYTES else "tokens"
        raise UserError(
            f"{point.corpus}: {text.numel()} {unit} are too few for sequence_length {point.sequence_length}; use a "
            "longer text or a shorter sequence"
        )
    return corpus_of(text, None, tokenizer_facts)


def _read_tokens(point: Point) -> tuple[Tensor, np.ndarray, Mapping[str, str | int]]:
    """Return the tokens of the point's text, its documents, and facts about the tokenizer, as `Corpus` has them."""
    if is_indexed(point.corpus):
        indexed = read_indexed(point.corpus)
        documents = np.stack([indexed.start, indexed.end], axis=1)
        return torch.from_numpy(indexed.tokens), documents, {"tokenizer": "as stored"}
    if point.tokenizer == BYTES:
        text = _byte_tokens(point)
        return text, _lines(text), {"tokenizer": BYTES}
    tokenizer = open_tokenizer(point.tokenizer, point.model.vocab_size)
    tokens, documents = tokenizer.encode(_read_text(point), by_line=point.samples == "padded")
    return torch.from_numpy(tokens), documents, tokenizer.facts()


def _byte_tokens(point: Point) -> Tensor:
    if point.model.vocab_size < BYTE_VALUES:
        raise UserError(
            f"corpus {point.corpus}: tokens are bytes, vocab_size {point.model.vocab_size} of {point.model.name} "
            f"is below {BYTE_VALUES}; use corpus: random or a larger vocabulary"
        )
    data = _read_bytes(point)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _read_text(point: Point) -> str:
    try:
        # An incremental decoder accepts a last character that the size limit has cut in two.
        return codecs.getincrementaldecoder("utf-8")().decode(_read_bytes(point))
    except UnicodeDecodeError as error:
        raise UserError(
            f"corpus {point.corpus}: not UTF-8 text at byte {error.start}, a tokenizer reads text; convert it, or set "
            f"tokenizer: {BYTES}"
        ) from error


def _read_bytes(point: Point) -> bytes:
    return _standard_library() if point.corpus == "stdlib" else _read_file(Path(point.corpus))


def _lines(text: Tensor) -> np.ndarray:
    """Return start and end (exclusive) of every line, its newline included; shape (num_lines, 2)."""
    ends = np.flatnonzero(text.numpy() == ord("\n")) + 1
    if text.numel() and (not len(ends) or ends[-1] != text.numel()):
        ends = np.append(ends, text.numel())
    return np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1) if len(ends) else np.empty((0, 2), dtype=np.int64)


@functools.cache
def _standard_library() -> bytes:
    """Return the source of Python's standard library, up to the size limit: real text that every machine has."""
    parts, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(path.read_bytes())
        size += len(parts[-1])
        if size >= CORPUS_LIMIT_BYTES:
            break
    return b"".join(parts)[:CORPUS_LIMIT_BYTES]


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(CORPUS_LIMIT_BYTES)
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise UserError(f"corpus {path}: {reason}; use random, stdlib or the path of a readable file") from error


@dataclass(frozen=True)
class Batcher:
    """Selects the samples of each global batch that belong to one data parallel rank."""

    corpus: Corpus
    num_microbatches: int
    micro_batch_size: int
    dp: int
    dp_rank: int

    def batch(self, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of a step on `device`.

        Padding is token 0 in inputs and `IGNORED` in targets.

        Returns:
            Two tensors, each of shape (num_microbatches * micro_batch_size, sequence).
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
    """A corpus in Megatron-LM's indexed format.

    Attributes:
        tokens: All tokens, mapped from the file; shape (num_tokens,).
        start: Index of the first token of each document; shape (num_documents,).
        end: Index after its last token; shape (num_documents,).
    """

    tokens: np.ndarray
    start: np.ndarray
    end: np.ndarray


def is_indexed(corpus: str) -> bool:
    """Return whether the corpus is an indexed one: `.idx` or `.bin` of that name exists."""
    return any(Path(f"{corpus}.{end}").is_file() for end in ("idx", "bin"))


def read_indexed(corpus: str) -> Indexed:
    """Return the corpus whose files are `corpus` with `.bin` and `.idx`.

    Raises:
        UserError: If a file is missing, truncated, or has another format.
    """
    index, binary = Path(f"{corpus}.idx"), Path(f"{corpus}.bin")
    for path in (index, binary):
        if not path.is_file():
            raise UserError(f"{path}: no such file; an indexed corpus has both {index.name} and {binary.name}")
    dtype, lengths, offsets_bytes = _read_index(index)
    token_bytes = np.dtype(dtype).itemsize
    start = offsets_bytes // token_bytes
    end = start + lengths
    if (lengths < 0).any() or (offsets_bytes % token_bytes).any() or (offsets_bytes < 0).any():
        raise UserError(f"{index}: damaged, sequences lie at impossible places; write the corpus again")
    needed_bytes, file_bytes = int(end.max()) * token_bytes, binary.stat().st_size
    if file_bytes < needed_bytes:
        raise UserError(
            f"{binary}: {file_bytes} bytes, {index.name} needs {needed_bytes}; cut off, write the corpus again"
        )
    # Copy on write: torch refuses memory that is read-only.
    tokens = np.memmap(binary, dtype, mode="c", shape=(needed_bytes // token_bytes,))
    return Indexed(tokens, start, end)


def _read_index(path: Path) -> tuple[type[np.generic], np.ndarray, np.ndarray]:
    """Return the token type, the length of every sequence in tokens, and its offset in the `.bin` file in bytes."""
    content = path.read_bytes()
    header_end = len(_INDEX_MAGIC) + _INDEX_HEADER.size
    if not content.startswith(_INDEX_MAGIC):
        raise UserError(
            f"{path}: not an index of Megatron-LM, it begins with {content[:9]!r}; expected {_INDEX_MAGIC!r}"
        )
    if len(content) < header_end:
        raise UserError(f"{path}: cut off after {len(content)} bytes; write the corpus again")
    version, code, num_sequences, _ = _INDEX_HEADER.unpack_from(content, len(_INDEX_MAGIC))
    if version != _INDEX_VERSION or code not in _TOKEN_TYPES:
        raise UserError(
            f"{path}: version {version} with tokens of type {code}; expected version 1 and one of the types "
            f"{', '.join(map(str, _TOKEN_TYPES))}, integers of Megatron-LM's preprocess_data.py"
        )
    # 4 bytes of length and 8 of offset a sequence.
    if num_sequences == 0 or len(content) < header_end + 12 * num_sequences:
        raise UserError(f"{path}: {len(content)} bytes for {num_sequences} sequences; cut off, write the corpus again")
    lengths = np.frombuffer(content, "<i4", num_sequences, header_end).astype(np.int64)
    offsets_bytes = np.frombuffer(content, "<i8", num_sequences, header_end + 4 * num_sequences)
    return _TOKEN_TYPES[code], lengths, offsets_bytes


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of Hugging Face's library.

    Attributes:
        path: Its `tokenizer.json`.
        sha256: Digest of that file.
        vocab_size: Largest token id plus one, added tokens included.
    """

    path: str
    sha256: str
    vocab_size: int
    _library: Any

    def encode(self, text: str, by_line: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a text, without special tokens, and its documents.

        Args:
            text: The text.
            by_line: Whether each line, its newline included, is a document; else the whole text is one.

        Returns:
            Tokens, shape (num_tokens,); start and end (exclusive) of each document, shape (num_documents, 2).
        """
        documents = _LINE.findall(text) if by_line else [text]
        encoded = [document.ids for document in self._library.encode_batch_fast(documents, add_special_tokens=False)]
        lengths = [len(ids) for ids in encoded]
        ends = np.cumsum(lengths, dtype=np.int64)
        tokens = np.fromiter((token for ids in encoded for token in ids), np.int32, ends[-1] if len(ends) else 0)
        return tokens, np.stack([ends - lengths, ends], axis=1)

    def facts(self) -> dict[str, str | int]:
        """Return what the manifest says about the tokenizer."""
        return {
            "tokenizer": self.path,
            "tokenizer_sha256": self.sha256,
            "tokenizer_vocab_size": self.vocab_size,
        }


def open_tokenizer(path: str, vocab_size: int) -> Tokenizer:
    """Read a `tokenizer.json`.

    Args:
        path: The file.
        vocab_size: Size of the model's vocabulary.

    Raises:
        UserError: If the file is missing or damaged, its vocabulary is larger than the model's, or the library is not
            installed.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"tokenizer {path}: {error.strerror or 'cannot be read'}; {_TOKENIZER_ADVICE}") from error
    tokenizer = _load_tokenizer(path, content)
    size = 1 + max(tokenizer.get_vocab().values(), default=-1)
    if size > vocab_size:
        raise UserError(
            f"tokenizer {path}: {size} tokens, the model's vocab_size is {vocab_size}; use the tokenizer of the model, "
            "or a model with a larger vocabulary"
        )
    return Tokenizer(path, hashlib.sha256(content).hexdigest(), size, tokenizer)


def _load_tokenizer(path: str, content: bytes) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UserError(
            f"tokenizer {path} needs the library tokenizers, which is not installed; pip install "
            f"tokenizers, or set tokenizer: {BYTES}"
        ) from error
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except ValueError as error:
        raise UserError(f"tokenizer {path}: damaged, {' '.join(str(error).split())}; {_TOKENIZER_ADVICE}") from error
    # `Corpus.sample` truncates and pads.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
