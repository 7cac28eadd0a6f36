"""Files of Chakra traces: length-prefixed protobuf messages, plain or compressed with gzip or zstd.

A file has no signature. It is recognised by its name, and the version of its schema by the content of its messages.
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
from triplepoint.files import atomic_file
from triplepoint.trace.chakra.schema import SCHEMAS, Schema
from triplepoint.trace.kineto.source import Source

SUFFIXES: Final = (".et", ".eg", ".chakra")
"""Suffixes of Chakra traces, without `.gz` and `.zst`. The second was used until June 2023."""
_LARGEST_MESSAGE = 64 * 2**20
"""Largest message that is read: ten thousand times a node of a recorded trace. Unit: byte."""
_MOST_COMPARED = 10_000
"""Number of messages compared with every schema if the first message does not decide the version."""
_VERSION = re.compile(r"\d+(\.\d+){1,3}")
"""Version in the metadata. A trace with one is read with the newest schema, which keeps unknown fields."""
_PACKED = (".gz", ".zst", ".zstd")


def is_chakra(path: Path) -> bool:
    """Return whether the name of a file is that of a Chakra trace."""
    return unpacked_name(path).endswith(SUFFIXES)


def unpacked_name(path: Path) -> str:
    """Return the name of a file without the suffix of its compression."""
    return path.stem if path.suffix in _PACKED else path.name


@dataclass(frozen=True)
class Trace:
    """A trace whose schema is known.

    Attributes:
        path: File of the trace.
        schema: Newest schema that fits the trace.
        also_fits: Older versions that fit the trace as well.
        metadata: Metadata in the first message, None if the first message is a node.
    """

    path: Path
    schema: Schema
    also_fits: tuple[str, ...]
    metadata: Any | None

    def nodes(self) -> Iterator[Any]:
        """Yield the nodes, messages of class `schema.node_class`.

        Raises:
            UserError: If the file is damaged.
        """
        raw_nodes = messages(self.path)
        if self.metadata is not None:
            next(raw_nodes, None)
        for number, raw in enumerate(raw_nodes):
            node = _parse(self.schema.node_class, raw)
            if node is None:
                raise UserError(f"{self.path}: node {number} does not fit schema {self.schema.version}; copy it again")
            yield node


def open_trace(path: Path) -> Trace:
    """Determine the schema of a trace.

    Raises:
        UserError: If the file is missing, empty, damaged or fits no published version.
    """
    candidates, altered = list(SCHEMAS), set[str]()
    metadata: dict[str, Any] = {}
    number = -1
    for number, raw in enumerate(islice(messages(path), _MOST_COMPARED)):
        if number == 0:
            parsed = {schema.version: _metadata(schema, raw) for schema in candidates}
            metadata = {version: message for version, message in parsed.items() if message is not None}
            if raw and len(metadata) == 1:
                candidates = [schema for schema in candidates if schema.version in metadata]
                break
        fitting = [
            schema
            for schema in candidates
            if (number == 0 and schema.version in metadata) or _fits(schema.node_class, raw)
        ]
        if not fitting:
            raise UserError(
                f"{path}: message {number} of {len(raw)} bytes is neither metadata nor node of any published schema "
                f"({SCHEMAS[0].version} to {SCHEMAS[-1].version}); expected a Chakra trace"
            )
        candidates = fitting
        altered |= {
            schema.version
            for schema in candidates
            if schema.version not in metadata and not _keeps_length(schema.node_class, raw)
        }
    if number < 0:
        raise UserError(f"{path}: the file is empty, expected a Chakra trace")
    # A version that would write a message with another length did not write it: proto3 omits a 0 of plain fields.
    candidates = [schema for schema in candidates if schema.version not in altered] or candidates
    *older, newest = candidates
    return Trace(path, newest, tuple(schema.version for schema in older), metadata.get(newest.version))


def messages(path: Path) -> Iterator[bytes]:
    """Yield the messages of a file.

    Raises:
        UserError: If the file is missing, ends within a message, or states a message larger than 64 MiB.
    """
    source = Source(path)
    pieces = source.unpacked()
    buffer, position, number = bytearray(), 0, 0
    while True:
        size, start = _varint(buffer, position)
        if start < 0 or len(buffer) - start < size <= _LARGEST_MESSAGE:
            piece = next(pieces, None)
            if piece is not None:
                del buffer[:position]
                buffer += piece
                position = 0
                continue
        if start < 0 and position == len(buffer) and not source.is_truncated:
            return
        if size > _LARGEST_MESSAGE:
            raise UserError(
                f"{path}: message {number} claims {size} bytes, expected at most 64 MiB; copy or write it again"
            )
        if start < 0 or len(buffer) - start < size:
            raise UserError(f"{path}: the file ends within message {number}; it is truncated: copy or write it again")
        yield bytes(buffer[start : start + size])
        position, number = start + size, number + 1


def _varint(buffer: bytearray, position: int) -> tuple[int, int]:
    """Return a number stored as 7 bits per byte and the position after it.

    The position is -1 if more bytes are needed. The number is huge if it has more than ten bytes.
    """
    value = 0
    for index, byte in enumerate(buffer[position : position + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    return (value, position) if len(buffer) - position >= 10 else (0, -1)


def _parse(message_class: Any, raw: bytes) -> Any | None:
    """Return a message, None if the bytes are no message of this class."""
    message = message_class()
    try:
        message.ParseFromString(raw)
    except DecodeError:
        return None
    return message if message.IsInitialized() else None


def _fits(message_class: Any, raw: bytes) -> bool:
    """Return whether bytes are a message of a class, without unknown fields."""
    message = _parse(message_class, raw)
    return message is not None and _is_known(message)


def _keeps_length(message_class: Any, raw: bytes) -> bool:
    """Return whether bytes are a message of a class that has the same length when it is written again."""
    message = _parse(message_class, raw)
    return message is not None and len(message.SerializeToString()) == len(raw)


def _metadata(schema: Schema, raw: bytes) -> Any | None:
    """Return the message of metadata, None if the bytes are none in this schema."""
    if schema.metadata_class is None:
        return None
    message = _parse(schema.metadata_class, raw)
    if message is None:
        return None
    return message if _is_known(message) or _VERSION.fullmatch(getattr(message, "version", "")) else None


def _is_known(message: Message) -> bool:
    """Return whether the schema has all fields of a message, and each attribute has a value of its type only."""
    if len(UnknownFieldSet(message)):
        return False
    for field, value in message.ListFields():
        if field.name == "type" and message.DESCRIPTOR.name == "AttributeProto" and not _matches_type(message):
            return False
        if field.message_type is not None:
            parts = [value] if isinstance(value, Message) else value
            if not all(_is_known(part) for part in parts):
                return False
    return True


def _matches_type(attribute: Any) -> bool:
    """Return whether an attribute of proto2 has no value of another type than its own."""
    names = [field.name for field, _ in attribute.ListFields() if field.number > 3]
    return not names or names == [value_field(attribute)]


def value_field(attribute: Any) -> str:
    """Return the name of the field with the value of an attribute of proto2. Types are in the order of the fields."""
    return str(attribute.DESCRIPTOR.fields_by_number[int(attribute.type) + 4].name)


def write_trace(path: Path, metadata: Message | None, nodes: Iterable[Message]) -> int:
    """Write a trace atomically, gzipped if its name ends in `.gz`; return the number of nodes.

    Args:
        path: File to write.
        metadata: First message, None to write nodes only.
        nodes: Nodes. Their unknown fields are written too.
    """
    count = -1 if metadata is not None else 0
    with atomic_file(path) as scratch, scratch.open("wb") as file:
        # Without name and time in the gzip header, the same trace always gives the same bytes.
        out = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if path.suffix == ".gz" else file
        for message in chain([metadata] if metadata is not None else [], nodes):
            proto.serialize_length_prefixed(message, out)
            count += 1
        if out is not file:
            out.close()
    return count
