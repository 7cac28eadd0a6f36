"""Read text files of recordings, which may be compressed, encoded or incomplete, and split them into cells."""

import codecs
import csv
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from triplepoint.errors import UserError, shown
from triplepoint.importers.declaration import Content

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ENCODINGS = (*((mark, "utf-16") for mark in _UTF16), (codecs.BOM_UTF8, "utf-8-sig"))
_MOST_BYTES = 4 << 30
"""Largest text that is read. Unit: byte."""
_MEMORY_PER_BYTE = 15
"""Memory of the cells per byte of text. Measured: 14.6 for 18.5 MB of three columns of nvidia-smi."""
_PACKED = {".gz": gzip.open, ".xz": lzma.open}
_COMMA_SECONDS = re.compile(r"(:\d\d),(\d{1,9}(?:Z|[+-]\d\d:?\d\d))")
"""Seconds with a decimal comma, as `date --iso-8601=ns` prints them; the comma separates no cells of a CSV."""
_HEADER = re.compile(r"^(.*?)\s*[\[(]([^\[\]()]*)[\])]$")


def is_utf16(start: bytes) -> bool:
    """Return whether a file begins with the mark of UTF-16, as PowerShell writes it."""
    return start.startswith(_UTF16)


def read_content(path: Path, most_bytes: int = _MOST_BYTES) -> Content:
    """Return the text of a file, decompressed.

    Args:
        path: The file: plain, `.gz` or `.xz`.
        most_bytes: Largest part of the text to read. Unit: byte.

    Raises:
        UserError: If it is damaged or too large.
    """
    opened: Any = _PACKED.get(path.suffix.lower(), open)
    # A few megabytes of gzip may hold gigabytes.
    room = min(_MOST_BYTES, psutil.virtual_memory().available // _MEMORY_PER_BYTE)
    try:
        with opened(path, "rb") as file:
            data: bytes = file.read(min(most_bytes, room + 1))
    except (gzip.BadGzipFile, lzma.LZMAError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged ({error}); unpack it by hand and import what is whole") from None
    if len(data) > room:
        raise UserError(
            f"{path}: more than {room / 1e6:.0f} MB of text, which is what this machine has memory for; split it by "
            "time and import the part of the job"
        )
    encoding = next((name for mark, name in _ENCODINGS if data.startswith(mark)), "utf-8")
    # A node that loses power leaves zeros at the end of a file.
    text = data.decode(encoding, errors="replace").rstrip("\0")
    return Content(path, text, is_cut=bool(text) and not text.endswith("\n"))


@dataclass
class Grid:
    """A text file as columns of cells."""

    names: list[str]
    """Names of the columns in lower case, without units."""
    units: list[str]
    """Unit of each column in the header; empty if there is none."""
    columns: list[list[str]]
    """Cells of each column; shape (num_columns, num_rows)."""
    notes: list[str]
    """Remarks for the user."""
    lines: Sequence[int] = ()
    """Line of the file of each row; empty if rows are no lines. Shape (num_rows,)."""

    def find(self, names: Iterable[str]) -> int | None:
        """Return the index of the first of several names that is a column; None if none is."""
        return next((self.names.index(name) for name in names if name in self.names), None)


def split_name(cell: str) -> tuple[str, str]:
    """Return name and unit of a column. The unit is the last part in brackets: `Temperature (Sensor edge) (C)`."""
    match = _HEADER.match(cell.strip())
    return (match[1].strip().lower(), match[2].strip()) if match else (cell.strip().lower(), "")


def split_csv(content: Content, header: Sequence[str] | None, skip_bad: bool, messages: str = r"(?!)") -> Grid:
    """Return the cells of a CSV.

    Args:
        content: The file.
        header: Names of the columns if the file has no header; else None.
        skip_bad: Whether lines with a wrong number of cells are left out. An incomplete last line always is.
        messages: Regular expression of error messages that the tool writes between the lines.

    Raises:
        UserError: If a line has a wrong number of cells, or there is no line.
    """
    lines = (_COMMA_SECONDS.sub(r"\1.\2", line.replace("\0", "")) for line in content.text.splitlines())
    return gather(content, csv.reader(lines, skipinitialspace=True), header, skip_bad, messages)


def from_header(content: Content, is_header: Callable[[str], bool]) -> Content:
    """Return a file with empty lines in place of those above its header; unchanged if no line is a header."""
    lines = content.text.splitlines(keepends=True)
    start = next((number for number, line in enumerate(lines) if is_header(line)), 0)
    return Content(content.path, "\n" * start + "".join(lines[start:]), content.is_cut)


def gather(
    content: Content, rows: Iterable[list[str]], header: Sequence[str] | None, skip_bad: bool, messages: str = r"(?!)"
) -> Grid:
    """Return rows of cells, one per line of the file, as columns; arguments and errors as of `split_csv`."""
    numbered = [
        (number, cells) for number, cells in enumerate(rows, 1) if len(cells) > 1 or (cells and cells[0].strip())
    ]
    if header is None and numbered:
        header = numbered.pop(0)[1]
    names = [split_name(cell) for cell in header or ()]
    first, num = [cell.strip() for cell in header or [""]], len(names)
    notes: list[str] = []
    if numbered and content.is_cut:
        notes.append(f"line {numbered.pop()[0]}, the last, has no line end and is left out: it may be half of one")
    bad = [(number, cells) for number, cells in numbered if len(cells) != num]
    errors = [(number, cells) for number, cells in bad if re.search(messages, ",".join(cells))]
    if errors:
        text = shown(",".join(errors[0][1]))
        notes.append(f"{len(errors)} lines of error messages, the first in line {errors[0][0]}: {text}")
        bad = [pair for pair in bad if pair not in errors]
    if bad and bad[-1][0] == numbered[-1][0] and len(bad[-1][1]) < num:
        notes.append(f"line {bad.pop()[0]}, the last, is half a line and is left out")
    if bad and not skip_bad:
        number, cells = bad[0]
        raise UserError(
            f"{content.path}:{number}: {len(cells)} cells, expected {num} as in the header; {shown(','.join(cells))}"
            "; correct the line, or leave such lines out with --skip-bad"
        )
    if bad:
        notes.append(f"{len(bad)} lines with another number of cells left out, the first is line {bad[0][0]}")
    whole, lines = [], []
    for number, cells in numbered:
        if len(cells) != num:
            continue
        stripped = [cell.strip() for cell in cells]
        if stripped[0] != first[0]:
            whole.append(cells)
            lines.append(number)
        elif stripped != first:  # an equal header comes again if a log was appended to
            raise UserError(
                f"{content.path}:{number}: a header other than the first line, {shown(','.join(cells))}; split the "
                "file there, and import both parts"
            )
    columns = [list(column) for column in zip(*whole, strict=True)]
    if not columns:
        raise UserError(
            f"{content.path}: has a header and no whole line below it, so nothing was recorded; move it out of the "
            "folder"
        )
    return Grid([name for name, _ in names], [unit for _, unit in names], columns, notes, lines)
