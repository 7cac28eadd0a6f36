"""Read a trace file piece by piece, compressed or not."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
from isal import isal_zlib

from triplepoint.errors import UserError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PIECE = 1 << 18
"""Bytes of text in a piece: few enough that it is in the processor's cache when it is scanned."""
_PACKED_PIECE = 1 << 14
"""Compressed bytes that are read at once."""
_ZSTD_PIECE = 1 << 14
"""Bytes of text in a piece of a zstd file. If the stream ends early, the last piece is lost."""
_BLANKS = b"\0 \t\r\n"
_MOST_BLANKS = 64_000_000
"""Most blanks or zeros at one place; a few kilobytes of a compressed file may hold gigabytes of them. Our choice: sixty
times the longest damage that the tests try. There is no bound on the ratio of compression: it is 17 for the traces in
tests/data, but 1,032 is what gzip reaches (https://zlib.net/zlib_tech.html), and equal events may come near. Unit:
byte."""
_EXPORTS = {
    ".nsys-rep": "or its export by 'nsys export --type sqlite'",
    ".qdrep": "or its export by 'nsys export --type sqlite'",
    ".pftrace": "or what 'rocprofv3 --output-format csv' writes",
    ".csv": "or a kernel trace of rocprof (*_kernel_trace.csv, results.csv)",
}
"""Advice on other files of profilers, by suffix."""
_ADVICE = "launch the run again, or remove the file"


class Source:
    """A trace file being read.

    Attributes:
        size: Size of the file. Unit: byte.
        done: Bytes of the file read so far.
        is_truncated: Whether a compressed file ended early; valid after the last piece.
    """

    def __init__(self, path: Path) -> None:
        """Remember the path. `pieces` opens the file.

        Args:
            path: Chrome JSON: plain, gzip with one member or several, or zstd.
        """
        self.path = path
        self.size = 0
        self.done = 0
        self.is_truncated = False

    def pieces(self) -> Iterator[bytes]:
        """Yield the text in pieces of at most a quarter of a megabyte.

        Raises:
            UserError: If the file is missing, empty, or no trace at all.
        """
        is_first = True
        for piece in self.unpacked():
            if is_first and piece.strip():
                _check_is_json(self.path, piece)
                is_first = False
            yield piece
        if is_first:
            raise UserError(f"{self.path.name}: the file is empty, expected a Kineto trace; {_ADVICE}")

    def unpacked(self) -> Iterator[bytes]:
        """Yield the decompressed content of the file, whatever it is.

        Raises:
            UserError: If the file is missing, or has more blanks at one place than a trace.
        """
        num_blanks = 0
        for piece in self._unpacked():
            # The first byte of a piece of a trace is nearly always no blank: no more is looked at.
            is_blank = piece[:1] in _BLANKS and not piece.strip(_BLANKS)
            num_blanks = num_blanks + len(piece) if is_blank else 0
            if num_blanks > _MOST_BLANKS:
                raise UserError(
                    f"{self.path.name}: more than {_MOST_BLANKS / 1e6:.0f} MB of blanks or zeros at one place, which "
                    f"no profiler writes; {_ADVICE}"
                )
            yield piece

    def _unpacked(self) -> Iterator[bytes]:
        try:
            self.size = self.path.stat().st_size
            with self.path.open("rb") as file:
                start = file.read(len(_ZSTD))
                file.seek(0)
                if start.startswith(_GZIP):
                    yield from self._gunzip(file)
                elif start == _ZSTD:
                    yield from self._unzstd(file)
                else:
                    yield from self._read(file, _PIECE)
        except (FileNotFoundError, IsADirectoryError):
            raise UserError(f"{self.path}: no such trace file") from None

    def _read(self, file: BinaryIO, size: int) -> Iterator[bytes]:
        while piece := file.read(size):
            self.done += len(piece)
            yield piece

    def _gunzip(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the content of all members, up to the end of the stream or to damage."""
        member = isal_zlib.decompressobj(wbits=31)
        try:
            for packed in self._read(file, _PACKED_PIECE):
                while packed:
                    if member.eof:
                        packed = packed.lstrip(b"\0")  # padding between members, by tape and some loggers
                        if not packed:
                            break
                        member = isal_zlib.decompressobj(wbits=31)
                    yield member.decompress(packed, _PIECE)
                    packed = member.unused_data if member.eof else member.unconsumed_tail
            self.is_truncated = not member.eof
        except isal_zlib.error:  # type: ignore[misc]
            self.is_truncated = True

    def _unzstd(self, file: BinaryIO) -> Iterator[bytes]:
        with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd") as stream:
            try:
                while piece := stream.read(_ZSTD_PIECE):
                    self.done = file.tell()
                    yield piece
            except OSError:
                self.is_truncated = True


def is_packed(content: bytes) -> bool:
    """Return whether content begins as gzip or zstd."""
    return content.startswith((_GZIP, _ZSTD))


def head(path: Path, size: int) -> bytes:
    """Return the first bytes of a file, decompressed.

    Raises:
        UserError: If the file is missing.
    """
    start = b""
    for piece in Source(path).unpacked():
        start += piece
        if len(start) >= size:
            break
    return start[:size]


def _check_is_json(path: Path, text: bytes) -> None:
    start = text.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"<"):
        raise UserError(f"{path.name}: this is an HTML or XML page, expected a Kineto trace in JSON; download it again")
    if not start.startswith((b"{", b"[")):
        first = start[:12].decode("ascii", "backslashreplace")
        advice = _EXPORTS.get(path.suffix, "or a file of Nsight Systems or rocprof as docs/traces.md lists them")
        raise UserError(f"{path.name}: starts with {first!r}, expected a Kineto trace in JSON (`{{` or `[`), {advice}")
