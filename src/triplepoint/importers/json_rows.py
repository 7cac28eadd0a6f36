"""Command-line tools that print JSON: one object for each GPU, again and again where they were looped."""

import json
import re
from collections.abc import Iterator
from typing import Any

from triplepoint.errors import UserError
from triplepoint.importers.declaration import Content
from triplepoint.importers.text import Grid, split_name

_CARD = re.compile(r"card\d+$")


def read_objects(content: Content) -> Iterator[Any]:
    """Yield the JSON values of a file, which may follow each other without anything between them.

    Raises:
        UserError: If one is damaged, other than the last of a file that was cut off.
    """
    decoder, text, at = json.JSONDecoder(), content.text, 0
    while at < len(text):
        match = re.compile(r"[\[{]").search(text, at)
        if match is None:
            return
        try:
            value, at = decoder.raw_decode(text, match.start())
        except ValueError as error:
            if at and content.is_cut:
                return
            raise UserError(
                f"{content.path}: damaged JSON ({error}); record it again, or remove what is damaged"
            ) from None
        yield value


def gather_cards(content: Content) -> Grid:
    """Return what `rocm-smi --json` printed as columns: `device`, and a column for each key."""
    rows = []
    for value in read_objects(content):
        stamp = {key: str(value[key]) for key in ("timestamp", "time") if key in value}
        rows += [{"device": key} | stamp | card for key, card in value.items() if _CARD.match(key)]
    return _as_grid(content, [{key: str(cell) for key, cell in row.items()} for row in rows])


def gather_gpus(content: Content) -> Grid:
    """Return what `amd-smi metric --json` printed as columns, named as its CSV names them."""
    rows = []
    for value in read_objects(content):
        entries = value.get("gpu_data", [value]) if isinstance(value, dict) else value
        rows += [dict(_flatten(entry)) for entry in entries if isinstance(entry, dict) and "gpu" in entry]
    return _as_grid(content, rows)


def _flatten(entry: dict[str, Any], group: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and cells: a value with its unit is one cell, a clock keeps the name of its domain."""
    for key, value in entry.items():
        if isinstance(value, dict) and "value" in value:
            yield f"{group}{key}", f"{value['value']} {value.get('unit', '')}".strip()
        elif isinstance(value, dict):
            yield from _flatten(value, f"{key}_" if re.match(r"(gfx|mem|vclk|dclk|fclk|socclk)_\d+$", key) else "")
        elif not isinstance(value, list):
            yield f"{group}{key}", str(value)


def _as_grid(content: Content, rows: list[dict[str, str]]) -> Grid:
    if not rows:
        raise UserError(f"{content.path}: no GPU in the JSON; record it on a node with GPUs")
    names = list(dict.fromkeys(key for row in rows for key in row))
    split = [split_name(name) for name in names]
    columns = [[row.get(name, "") for row in rows] for name in names]
    return Grid([name for name, _ in split], [unit for _, unit in split], columns, [])
