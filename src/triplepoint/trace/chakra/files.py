"""Files of Chakra traces: protobuf messages with their length before each, plain, gzip or zstd.

A file has no signature. It is known by its name, and the version of its schema by what its messages hold.
"""

import gzip
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from google.protobuf import proto
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from triplepoint.errors import UserError
from triplepoint.files import whole
from triplepoint.trace.chakra.schema import SCHEMAS, Schema
from triplepoint.trace.kineto.source import Source

SUFFIXES: Final = (".et", ".eg", ".chakra")
"""Ends of names of Chakra traces, `.gz` and `.zst` left out; the second until June 2023."""
_LARGEST_MESSAGE = 64 * 2**20
"""Largest message that is read: ten thousand times a node of a recorded trace. Unit: byte."""
_MOST_COMPARED = 10_000
"""Messages by which the version is judged where nothing tells it."""
_VERSION = re.compile(r"\d+(\.\d+){1,3}")
"""As metadata state it: such a trace is read by the newest schema, and what that does not know is kept."""
_PACKED = (".gz", ".zst", ".zstd")


def is_chakra(path: Path) -> bool:
    """Return whether a file is a Chakra trace by its name."""
    return unpacked_name(path).endswith(SUFFIXES)


def unpacked_name(path: Path) -> str:
    """Return the name of a file without the end that says how it is packed."""
    return path.stem if path.suffix in _PACKED else path.name


@dataclass(frozen=True)
class Trace:
    """A trace while it is read.

    Attributes:
        path: Its file.
        schema: Version of its schema, the newest of those that fit.
        also_fits: Older versions that fit all of it too.
        metadata: Its first message, None where it begins with a node.
    """

    path: Path
    schema: Schema
    also_fits: tuple[str, ...]
    metadata: Any | None

    def nodes(self) -> Iterator[Any]:
        """Yield its nodes, messages of `schema.node_class`.

        Raises:
            UserError: If the file is damaged.
        """
        found = messages(self.path)
        if self.metadata is not None:
            next(found, None)
        for number, raw in enumerate(found):
            node = _parsed(self.schema.node_class, raw)
            if node is None:
                raise UserError(f"{self.path}: node {number} does not fit schema {self.schema.version}; copy it again")
            yield node


def open_trace(path: Path) -> Trace:
    """Return a trace, once the version of its schema is known.

    Raises:
        UserError: If the file is missing, empty, damaged or of no published version.
    """
    left, altered = list(SCHEMAS), set[str]()
    heads: dict[str, Any] = {}
    number = -1
    for number, raw in enumerate(islice(messages(path), _MOST_COMPARED)):
        if number == 0:
            heads = {one.version: head for one in left if (head := _metadata(one, raw)) is not None}
            if raw and len(heads) == 1:
                left = [one for one in left if one.version in heads]
                break
        fitting = [one for one in left if (number == 0 and one.version in heads) or _fits(one.node_class, raw)]
        if not fitting:
            raise UserError(
                f"{path}: message {number} of {len(raw)} bytes is neither metadata nor node of any published schema "
                f"({SCHEMAS[0].version} to {SCHEMAS[-1].version}); expected a Chakra trace"
            )
        left = fitting
        altered |= {one.version for one in left if one.version not in heads and not _is_kept(one.node_class, raw)}
    if number < 0:
        raise UserError(f"{path}: the file is empty, expected a Chakra trace")
    # What a version would write otherwise was written by another, such as a 0 that proto3 leaves out.
    left = [one for one in left if one.version not in altered] or left
    return Trace(path, left[-1], tuple(one.version for one in left[:-1]), heads.get(left[-1].version))


def messages(path: Path) -> Iterator[bytes]:
    """Yield the messages of a file, one after the other.

    Raises:
        UserError: If the file is missing, ends within a message, or says of one that it is larger than 64 MiB.
    """
    source = Source(path)
    pieces = source.unpacked()
    held, at, number = bytearray(), 0, 0
    while True:
        size, head = _varint(held, at)
        if head < 0 or len(held) - head < size <= _LARGEST_MESSAGE:
            more = next(pieces, None)
            if more is not None:
                del held[:at]
                held += more
                at = 0
                continue
        if head < 0 and at == len(held) and not source.is_truncated:
            return
        if size > _LARGEST_MESSAGE:
            raise UserError(
                f"{path}: message {number} claims {size} bytes, expected at most 64 MiB; copy or write it again"
            )
        if head < 0 or len(held) - head < size:
            raise UserError(f"{path}: the file ends within message {number}; it is truncated: copy or write it again")
        yield bytes(held[head : head + size])
        at, number = head + size, number + 1


def _varint(held: bytearray, at: int) -> tuple[int, int]:
    """Return a number of 7 bits a byte and where it ends; -1 where more bytes are needed, a huge number where it is."""
    value = 0
    for index, byte in enumerate(held[at : at + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    return (value, at) if len(held) - at >= 10 else (0, -1)


def _parsed(kind: Any, raw: bytes) -> Any | None:
    message = kind()
    try:
        message.ParseFromString(raw)
    except DecodeError:
        return None
    return message if message.IsInitialized() else None


def _fits(kind: Any, raw: bytes) -> bool:
    message = _parsed(kind, raw)
    return message is not None and _is_known(message)


def _is_kept(kind: Any, raw: bytes) -> bool:
    message = _parsed(kind, raw)
    return message is not None and len(message.SerializeToString()) == len(raw)


def _metadata(schema: Schema, raw: bytes) -> Any | None:
    if schema.metadata_class is None:
        return None
    message = _parsed(schema.metadata_class, raw)
    if message is None:
        return None
    return message if _is_known(message) or _VERSION.fullmatch(getattr(message, "version", "")) else None


def _is_known(message: Message) -> bool:
    """Return whether a message has no field that its schema lacks, and its attributes the values of their types."""
    if len(UnknownFieldSet(message)):
        return False
    for field, value in message.ListFields():
        if field.name == "type" and message.DESCRIPTOR.name == "AttributeProto" and not _agrees(message):
            return False
        if field.message_type is not None:
            parts = [value] if isinstance(value, Message) else value
            if not all(_is_known(part) for part in parts):
                return False
    return True


def _agrees(attribute: Any) -> bool:
    """Return whether an attribute of proto2 has no other value than its type says."""
    names = [field.name for field, _ in attribute.ListFields() if field.number > 3]
    return not names or names == [value_field(attribute)]


def value_field(attribute: Any) -> str:
    """Return which field an attribute of proto2 has its value in: types stand in the order of the fields."""
    return str(attribute.DESCRIPTOR.fields_by_number[int(attribute.type) + 4].name)


def write_trace(path: Path, metadata: Message | None, nodes: Iterable[Message]) -> int:
    """Write a trace in one piece, gzipped where its name ends in `.gz`; return the number of its nodes.

    Args:
        path: File to write.
        metadata: First message; None for none.
        nodes: Nodes; what they carry beyond their schema is written too.
    """
    count = -1 if metadata is not None else 0
    with whole(path) as scratch, scratch.open("wb") as file:
        # No name and no time in the gzip header: the same trace gives the same bytes.
        out = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if path.suffix == ".gz" else file
        for message in chain([metadata] if metadata is not None else [], nodes):
            proto.serialize_length_prefixed(message, out)
            count += 1
        if out is not file:
            out.close()
    return count
