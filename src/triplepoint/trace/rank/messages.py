"""How much a collective moves and among whom, from its message."""

import re
from typing import Any

from triplepoint.trace.kineto.reader import Message

_BYTES = {
    "byte": 1, "char": 1, "signed char": 1, "unsigned char": 1, "bool": 1,
    "half": 2, "bfloat16": 2, "short": 2, "short int": 2,
    "float": 4, "int": 4, "complexhalf": 4,
    "double": 8, "long": 8, "long int": 8, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
"""Size of an element by its name in the profiler: c10 scalar types and the C types behind them. Unit: byte."""


def message_bytes(kind: str, message: Message, num_ranks: int) -> int:
    """Return the size of a collective as nccl-tests counts it; -1 where not known. Unit: byte.

    Args:
        kind: all_reduce, all_gather, ...: of a gather the gathered buffer counts, of all others what the rank gives.
        message: What its event says.
        num_ranks: Size of the process group; 0 where not known.

    Source:
        nccl-tests, doc/PERFORMANCE.md.
    """
    given, gathered = message.in_elements, message.out_elements
    element = _element_bytes(message.dtype)
    if element and isinstance(given, int) and isinstance(gathered, int):
        return element * (gathered if kind in ("all_gather", "gather", "recv") else given)
    shape = _first(message.input_dims)
    element = _element_bytes(_first_text(message.input_types))
    if not shape or not element:
        return -1
    if kind in ("all_gather", "gather"):
        return element * sum(shape) * num_ranks if num_ranks else -1
    return element * sum(shape)


def group_ranks(message: Message) -> tuple[int, ...]:
    """Return the global ranks of the process group, empty where not said in full."""
    text = message.group_ranks
    if isinstance(text, list):
        return tuple(rank for rank in text if isinstance(rank, int))
    if not isinstance(text, str) or not re.fullmatch(r"\[\s*\d+(\s*,\s*\d+)*\s*\]", text):
        return ()
    return tuple(int(rank) for rank in re.findall(r"\d+", text))


def group_size(message: Message) -> int:
    """Return the number of ranks in the process group, 0 where not known."""
    size = message.group_size
    return size if isinstance(size, int) and size > 0 else len(group_ranks(message))


def tensor_sizes(dims: Any) -> list[int]:
    """Return the number of elements of every tensor in `Input Dims`, however deep the lists."""
    if not isinstance(dims, list) or not dims:
        return []
    if all(isinstance(size, int) for size in dims):
        product = 1
        for size in dims:
            product *= size
        return [product]
    return [size for part in dims for size in tensor_sizes(part)]


def _first(dims: Any) -> list[int]:
    """Return the sizes of the tensors in the first argument: the others repeat them or are options."""
    return tensor_sizes(dims[0]) if isinstance(dims, list) and dims else []


def _first_text(types: Any) -> str | None:
    return types[0] if isinstance(types, list) and types and isinstance(types[0], str) else None


def _element_bytes(name: Any) -> int:
    text = str(name).removeprefix("c10::").lower()
    return 1 if text.startswith("float8") else _BYTES.get(text, 0)
