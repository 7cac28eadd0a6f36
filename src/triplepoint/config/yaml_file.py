"""Sections in YAML files, and rows of CSV files, read with one-line errors."""

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
from triplepoint.errors import UserError, nearest

STANDARD_INPUT = Path("-")
"""Name of standard input where a table or a file of configurations is read."""
MOST_BYTES = 1 << 20
"""Largest file that is read: forty times the largest one here."""
MOST_LEVELS = 100
"""Deepest nesting that is read: libyaml recurses, and ends the process where its stack does."""
MOST_BITS = 63
"""Of an integer: what tables hold."""
_MOST_KEPT = 1 << 17
"""Longest text whose content is kept: no file of ours is longer. Unit: character."""

_KINDS = {
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
        raise UserError(f"{path}: expected a mapping of keys to values, found {type(content).__name__}")
    return content


def read_any(path: Path, most_bytes: int = MOST_BYTES) -> Any:
    """Return what a YAML file holds, or a JSON file, which is YAML too.

    Args:
        path: The file.
        most_bytes: Largest size that is read. Unit: byte.

    Raises:
        UserError: If the file is missing, is no regular file or a large one, or is not YAML.
    """
    kind = "JSON" if path.suffix.lower() == ".json" else "YAML"
    try:
        content = _read_regular(path, most_bytes)
    except FileNotFoundError:
        known = sorted(p.stem for p in path.parent.glob("*.yaml"))
        raise UserError(f"{path}: no such file{nearest(path.stem, known) if known else ''}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: not readable as {kind}: {' '.join(str(error).split())}") from None
    return load(content, path, kind)


def load(text: str, where: str | Path, kind: str = "YAML") -> Any:
    """Return what YAML text holds; `where` it stands and its `kind` are named in the `UserError` if it is not YAML."""
    try:
        return _load(text)
    except _RefusedError as error:
        raise UserError(f"{where}: line {error.line}, column {error.column}: {error}") from None
    # PyYAML lets through what Python says of a date or a number that there is none like.
    except (yaml.YAMLError, ValueError, KeyError) as error:
        said = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise UserError(f"{where}: not readable as {kind}: {said}") from None


def _read_regular(path: Path, most_bytes: int) -> str:
    """Return the text of a regular file; opening a FIFO would wait for whoever writes to it."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        found = next((word for is_kind, word in _KINDS.items() if is_kind(mode)), "no regular file")
        raise UserError(f"{path}: is {found}, expected a YAML file; move it elsewhere")
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UserError(
            f"{path}: {path.stat().st_size} bytes, at most {most_bytes} are read; split it into several files"
        )
    return content.decode("utf-8")


def _load(text: str) -> Any:
    """Return what text holds, a copy for whoever asks: what is read again and again is parsed once."""
    return pickle.loads(_pickled(text)) if len(text) <= _MOST_KEPT else _parsed(text)


@lru_cache(maxsize=1024)
def _pickled(text: str) -> bytes:
    return pickle.dumps(_parsed(text))


def _parsed(text: str) -> Any:
    level = 0
    for event in yaml.parse(text, Loader=_Loader):
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise _RefusedError(f"nested more than {MOST_LEVELS} levels deep", event.start_mark)
    return yaml.load(text, Loader=_Loader)


def read(section: type[Section], path: Path) -> Section:
    """Read, check and return one section from a YAML file. Raises `UserError` as `read_yaml` and `parse` do."""
    return parse(section, read_yaml(path), path)


def read_named(section: type[Section], path: Path) -> Section:
    """Read a section that is called as its file. Raises `UserError` as `read` does, and if the names differ."""
    return check_name(read(section, path), path)


def check_name(content: Section, path: Path) -> Section:
    """Return a section that is called as its file. Raises `UserError` if the names differ."""
    name = getattr(content, "name", None)
    if name != path.stem:
        raise UserError(f"{path}: name is {name!r}, the file is called {path.stem!r}; they must be the same")
    return content


Rows = list[tuple[int, list[str]]]
"""Cells of rows, each with the line the row begins in."""


def read_csv(path: Path, known: Collection[str], errors: str = "strict", comment: str = "") -> tuple[list[str], Rows]:
    """Return the header of a CSV file and its rows; blank ones are left out.

    Args:
        path: The file, or `STANDARD_INPUT`.
        known: Columns there may be. The delimiter, of comma, semicolon and tab, is the one that gives most of them.
        errors: What becomes of bytes that are not UTF-8, as of `open`.
        comment: What lines begin with that are left out; empty for none.

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
        raise UserError(f"{path}: not readable as CSV: {error}") from None


def read_measured(path: Path, columns: Collection[str]) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a table of measurements as text by column, each with its line; lines that begin with # go.

    Args:
        path: The file, or `STANDARD_INPUT`.
        columns: Columns there must be; others are passed over.

    Raises:
        UserError: If it is missing or no CSV, lacks a column, or a row is shorter than the header.
    """
    header, rows = read_csv(path, columns, comment="#")
    if missing := [name for name in columns if name not in header]:
        raise UserError(f"{path}: no column {', '.join(missing)} in its first line; expected {', '.join(columns)}")
    for line, cells in rows:
        if len(cells) < len(header):
            raise UserError(f"{path}:{line}: {len(cells)} cells, the header has {len(header)}")
    return [(line, dict(zip(header, cells, strict=False))) for line, cells in rows]


def read_text(path: Path, errors: str = "strict") -> str:
    """Return the text of a file, or of standard input; `errors` is what becomes of bytes that are not UTF-8.

    Raises:
        OSError: If the file cannot be read.
        UnicodeDecodeError: If it is not UTF-8.
    """
    content = sys.stdin.buffer.read() if path == STANDARD_INPUT else path.read_bytes()
    return content.decode("utf-8-sig", errors).replace("\r\n", "\n").replace("\r", "\n")


def parse_csv(text: str, where: Path, known: Collection[str]) -> tuple[list[str], Rows]:
    """Return header and rows of the text of a CSV file, as `read_csv`. Raises `UserError` if it is not CSV."""
    csv.field_size_limit(sys.maxsize)
    try:
        delimiter = max(",;\t", key=lambda found: len({*_header(text, found)} & {*known}))
        reader, rows, line = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [], 1
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append((line, row))
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{where}: not readable as CSV: {error}") from None
    return _header(text, delimiter), rows[1:]


def _header(text: str, delimiter: str) -> list[str]:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    return next((names for row in rows if any(names := [name.strip() for name in row])), [])


class _RefusedError(Exception):
    """What YAML allows and no file of ours may hold, with where it stands."""

    def __init__(self, text: str, mark: Any) -> None:
        super().__init__(text)
        self.line: int = mark.line + 1
        self.column: int = mark.column + 1


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """YAML that refuses a key given twice, which plain YAML settles silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the mapping, or raise if a key stands in it twice."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            # One that cannot be hashed is refused below.
            if isinstance(key, Hashable):
                if key in seen:
                    raise _RefusedError(f"key {key!r} given twice", key_node.start_mark)
                seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Return a number that tables and files can hold, or raise."""
        is_integer = node.tag.endswith(":int")
        number: int | float = self.construct_yaml_int(node) if is_integer else self.construct_yaml_float(node)
        # YAML's `.inf` and `.nan` are no quantities, and 1e400 is read as the first of them.
        if number.bit_length() > MOST_BITS if isinstance(number, int) else not math.isfinite(number):
            shown = node.value if len(node.value) <= 40 else f"{node.value[:20]}... of {len(node.value)} characters"
            expected = f"an integer of at most {MOST_BITS} bits" if is_integer else "a finite number"
            raise _RefusedError(f"{shown} is out of range, expected {expected}", node.start_mark)
        return number


# YAML 1.1 reads 989.4e12 as text: its floats want a signed exponent.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*)(?:\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
for _tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
    _Loader.add_constructor(_tag, _Loader.construct_number)
