"""Training text: which tokens sample `i` of step `s` is made of, whatever the layout."""

import functools
import random
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from triplepoint.config.point import Point
from triplepoint.errors import UserError
from triplepoint.units import MIB

CORPUS_LIMIT_BYTES = 4 * MIB
"""How much text is kept: far more than the steps of a measurement read, and loaded in a moment."""

BYTE_VALUES = 256
"""Tokens are bytes."""


@dataclass(frozen=True)
class Corpus:
    """Samples of a text or of random tokens."""

    name: str
    seed: int
    sequence_length: int
    vocab_size: int
    text: Tensor | None = field(repr=False)
    """Byte tokens; None for random ones."""

    def sample(self, step: int, index: int) -> Tensor:
        """Return the tokens of one sample, shape (sequence_length + 1,): inputs and, shifted by one, targets."""
        length = self.sequence_length + 1
        # Python's generator takes a text as its seed and is the same on every machine.
        source = random.Random(f"{self.seed}/{step}/{index}")
        if self.text is None:
            generator = torch.Generator().manual_seed(source.getrandbits(63))
            return torch.randint(self.vocab_size, (length,), generator=generator)
        start = source.randrange(self.text.numel() - length + 1)
        return self.text[start : start + length].long()

    def facts(self) -> dict[str, str | int]:
        """Return what the manifest says about the corpus."""
        return {"corpus": self.name, "corpus_bytes": 0 if self.text is None else self.text.numel()}


def open_corpus(point: Point) -> Corpus:
    """Return the corpus of the point.

    Raises:
        UserError: If the text is missing, unreadable or too short, or the vocabulary has no room for bytes.
    """
    text = None
    if point.corpus != "random":
        if point.model.vocab_size < BYTE_VALUES:
            raise UserError(
                f"corpus {point.corpus}: tokens are bytes, vocab_size {point.model.vocab_size} of {point.model.name} "
                f"is below {BYTE_VALUES}; use corpus: random or a larger vocabulary"
            )
        data = _standard_library() if point.corpus == "stdlib" else _read(Path(point.corpus))
        if len(data) <= point.sequence_length:
            raise UserError(
                f"{point.corpus}: {len(data)} bytes are too few for sequence_length {point.sequence_length}; "
                "use a longer text or a shorter sequence"
            )
        text = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return Corpus(point.corpus, point.seed, point.sequence_length, point.model.vocab_size, text)


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
        """Return inputs and targets, each of shape (num_microbatches * micro_batch_size, sequence), on `device`."""
        samples = torch.stack([self.corpus.sample(step, index) for index in self._indices()]).to(device)
        return samples[:, :-1].contiguous(), samples[:, 1:].contiguous()

    def _indices(self) -> list[int]:
        size = self.micro_batch_size
        return [
            (microbatch * self.dp + self.dp_rank) * size + row
            for microbatch in range(self.num_microbatches)
            for row in range(size)
        ]
