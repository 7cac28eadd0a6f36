"""Megatron-LM's indexed format: tokens in `NAME.bin`, where each sequence lies in `NAME.idx`; read in place.

Source: NVIDIA/Megatron-LM, megatron/core/datasets/indexed_dataset.py. Its own reader comes with Megatron-Core, which
the native engine does without.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.errors import UserError

_HEADER = b"MMIDIDX\x00\x00"
_AFTER_HEADER = struct.Struct("<QBQQ")
"""Version, code of the tokens' type, number of sequences, number of ends of documents."""
_VERSION = 1
_TYPES: dict[int, type[np.generic]] = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}
"""Types of tokens by their code; 6 and 7 are floating point."""


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
        raise UserError(f"{path}: no index of Megatron-LM, it begins with {content[:9]!r}; expected {_HEADER!r}")
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
