"""Readers of YAML, JSON and CSV files with one-line errors."""

import csv
import io
import math
import pickle
import re
import stat
import sys
from collections.abc import Collection, Hashable
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from triplepoint.config.base import Section, parse
from triplepoint.errors import UserError, kind_of, nearest, not_utf8

STANDARD_INPUT = Path("-")
"""Path that stands for standard input in commands that read a table or configurations."""
MOST_BYTES = 1 << 20
"""Largest YAML file that is read: forty times the largest one of the repository."""
MOST_LEVELS = 100
"""Deepest nesting that is read: libyaml recurses and crashes the process on stack overflow."""
MOST_BITS = 63
"""Largest size of an integer, as in tables."""
_MAX_CACHED = 1 << 17
"""Length of the longest text whose content is cached; all files of the repository are shorter. Unit: character."""

_FILE_KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a FIFO",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        UserError: As `read_any`, or if the file does not hold a mapping.
    """
    content = read_any(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a mapping of keys to values, found {kind_of(content)}")
    return content


def read_any(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """Return the content of a YAML file, or of a JSON file, which is YAML too.

    Args:
        path: The file.
        most_bytes: Largest allowed size. Unit: byte.

    Raises:
        UserError: If the file is missing, too large or no regular file, or is not YAML.
    """
    kind = "JSON" if path.suffix.lower() == ".json" else "YAML"
    try:
        content = _read_regular(path, most_bytes)
    except FileNotFoundError:
        known = sorted(p.stem for p in path.parent.glob("*.yaml"))
        raise UserError(f"{path}: no such file{nearest(path.stem, known, '.yaml') if known else ''}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not readable as {kind}: {not_utf8(error)}") from None
    return load(content, path, kind)


def load(text: str, where: str | Path, kind: str = "YAML") -> Any:
    """Return the content of YAML text.

    Args:
        text: The text.
        where: File or other origin of the text, for the error.
        kind: YAML or JSON, for the error.

    Raises:
        UserError: If the text is not YAML, has a key twice, a number out of range, or is nested too deep.
    """
    try:
        return _load(text)
    except _RefusedError as error:
        raise UserError(f"{where}: line {error.line}, column {error.column}: {error}") from None
    # PyYAML passes on Python's own errors for impossible dates and numbers.
    except (yaml.YAMLError, ValueError, KeyError) as error:
        reason = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise UserError(f"{where}: not readable as {kind}: {reason}") from None


def _read_regular(path: Path, most_bytes: int) -> str:
    """Return the text of a regular file. Opening a FIFO would block until something writes to it."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = next((word for is_kind, word in _FILE_KINDS.items() if is_kind(mode)), "no regular file")
        raise UserError(f"{path}: is {kind}, expected a YAML file; move it elsewhere")
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UserError(
            f"{path}: {path.stat().st_size} bytes, at most {most_bytes} are read; split it into several files"
        )
    return content.decode("utf-8")


def _load(text: str) -> Any:
    """Return the content of YAML text, a new copy for each caller. A text that is read again is parsed only once."""
    return pickle.loads(_parse_pickled(text)) if len(text) <= _MAX_CACHED else _parse(text)


@lru_cache(maxsize=1024)
def _parse_pickled(text: str) -> bytes:
    return pickle.dumps(_parse(text))


def _parse(text: str) -> Any:
    """Parse YAML text after a check of its nesting."""
    level = 0
    for event in yaml.parse(text, Loader=_Loader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise _RefusedError(f"nested more than {MOST_LEVELS} levels deep", event.start_mark)
    return yaml.load(text, Loader=_Loader)


def read(section: type[Section], path: Path) -> Section:
    """Return a validated section from a YAML file. Raises `UserError` as `read_yaml` and `parse`."""
    return parse(section, read_yaml(path), path)


def read_named(section: type[Section], path: Path) -> Section:
    """Return a section whose `name` is that of its file. Raises `UserError` as `read`, and if the names differ."""
    return check_name(read(section, path), path)


def check_name(content: Section, path: Path) -> Section:
    """Return the section if its `name` is that of its file. Raises `UserError` if the names differ."""
    name = getattr(content, "name", None)
    if name != path.stem:
        raise UserError(f"{path}: name is {name!r}, the file is called {path.stem!r}; they must be the same")
    return content


Rows = list[tuple[int, list[str]]]
"""Cells of each row, with the number of its first line."""


def read_csv(path: Path, known: Collection[str], errors: str = "strict", comment: str = "") -> tuple[list[str], Rows]:
    """Return the header and the non-blank rows of a CSV file.

    Args:
        path: The file, or `STANDARD_INPUT`.
        known: Possible columns. The delimiter (comma, semicolon or tab) is the one that gives most of them.
        errors: Handling of bytes that are not UTF-8, as in `open`.
        comment: Prefix of lines to skip; empty for none.

    Raises:
        UserError: If the file is missing, is a folder, or is not CSV.
    """
    try:
        text = read_text(path, errors)
        if comment:
            text = "\n".join("" if line.startswith(comment) else line for line in text.split("\n"))
        return parse_csv(text, path, known)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, expected a CSV file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not readable as CSV: {not_utf8(error)}") from None


def read_measured(path: Path, columns: Collection[str]) -> list[tuple[int, dict[str, str]]]:
    """Return line number and cells, by column, of each row of a table of measurements; lines that begin with # go.

    Args:
        path: The file, or `STANDARD_INPUT`.
        columns: Required columns; the table may have more.

    Raises:
        UserError: If the file is missing or not CSV, a column is missing, or a row is shorter than the header.
    """
    header, rows = read_csv(path, columns, comment="#")
    if missing := [name for name in columns if name not in header]:
        raise UserError(f"{path}: no column {', '.join(missing)} in its first line; expected {', '.join(columns)}")
    for line, cells in rows:
        if len(cells) < len(header):
            raise UserError(f"{path}:{line}: {len(cells)} cells, the header has {len(header)}")
    return [(line, dict(zip(header, cells, strict=False))) for line, cells in rows]


def read_text(path: Path, errors: str = "strict") -> str:
    """Return the text of a file, or of standard input, with Unix line ends.

    Args:
        path: The file, or `STANDARD_INPUT`.
        errors: Handling of bytes that are not UTF-8, as in `open`.

    Raises:
        OSError: If the file cannot be read.
        UnicodeDecodeError: If it is not UTF-8.
    """
    content = sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes()
    return content.decode("utf-8-sig", errors).replace("\r\n", "\n").replace("\r", "\n")


def parse_csv(text: str, where: Path, known: Collection[str]) -> tuple[list[str], Rows]:
    """Return header and rows of CSV text, as `read_csv`. Raises `UserError` if it is not CSV."""
    csv.field_size_limit(sys.maxsize)
    try:
        delimiter = max(",;\t", key=lambda delimiter: len({*_header(text, delimiter)} & {*known}))
        reader, rows, line = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [], 1
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append((line, row))
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{where}: not readable as CSV: {error}") from None
    return _header(text, delimiter), rows[1:]


def _header(text: str, delimiter: str) -> list[str]:
    """Return the names in the first non-blank line."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    return next((names for row in rows if any(names := [name.strip() for name in row])), [])


class _RefusedError(Exception):
    """Content that YAML allows but Triplepoint refuses, with its line and column."""

    def __init__(self, text: str, mark: Any) -> None:
        super().__init__(text)
        self.line: int = mark.line + 1
        self.column: int = mark.column + 1


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """YAML loader that refuses duplicate keys, which plain YAML overwrites silently, and numbers out of range."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping. Raises `_RefusedError` if it has a key twice."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            # The base class refuses a key that cannot be hashed.
            if isinstance(key, Hashable):
                if key in seen:
                    raise _RefusedError(f"key {key!r} given twice", key_node.start_mark)
                seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Return the number. Raises `_RefusedError` if tables and files cannot hold it."""
        is_integer = node.tag.endswith(":int")
        number: int | float = self.construct_yaml_int(node) if is_integer else self.construct_yaml_float(node)
        # `.inf` and `.nan` are no quantities, and YAML reads 1e400 as `.inf`.
        if number.bit_length() > MOST_BITS if isinstance(number, int) else not math.isfinite(number):
            shown = node.value if len(node.value) <= 40 else f"{node.value[:20]}... of {len(node.value)} characters"
            expected = f"an integer of at most {MOST_BITS} bits" if is_integer else "a finite number"
            raise _RefusedError(f"{shown} is out of range, expected {expected}", node.start_mark)
        return number


# YAML 1.1 reads 989.4e12 as text, because its floats require a signed exponent.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*)(?:\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
for _tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
    _Loader.add_constructor(_tag, _Loader.construct_number)
