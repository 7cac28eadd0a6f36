"""Read the JSON of command-line tools: one object per GPU, repeated if the tool ran in a loop."""

import json
import re
from collections.abc import Iterator
from typing import Any

from triplepoint.errors import UserError
from triplepoint.importers.declaration import Content
from triplepoint.importers.text import Grid, split_name

_CARD = re.compile(r"card\d+$")


def read_objects(content: Content) -> Iterator[Any]:
    """Yield the JSON values of a file, which may follow each other without a separator.

    Raises:
        UserError: If a value is damaged; the last value of an incomplete file is left out instead.
    """
    decoder, text, position = json.JSONDecoder(), content.text, 0
    while position < len(text):
        match = re.compile(r"[\[{]").search(text, position)
        if match is None:
            return
        try:
            value, position = decoder.raw_decode(text, match.start())
        except ValueError as error:
            if position and content.is_cut:
                return
            raise UserError(
                f"{content.path}: damaged JSON ({error}); record it again, or remove what is damaged"
            ) from None
        yield value


def gather_cards(content: Content) -> Grid:
    """Return the output of `rocm-smi --json` as columns: `device`, and a column for each key."""
    rows = []
    for value in read_objects(content):
        stamp = {key: str(value[key]) for key in ("timestamp", "time") if key in value}
        rows += [{"device": key} | stamp | card for key, card in value.items() if _CARD.match(key)]
    return _as_grid(content, [{key: str(cell) for key, cell in row.items()} for row in rows])


def gather_gpus(content: Content) -> Grid:
    """Return the output of `amd-smi metric --json` as columns, with the names of its CSV."""
    rows = []
    for value in read_objects(content):
        entries = value.get("gpu_data", [value]) if isinstance(value, dict) else value
        rows += [dict(_flatten(entry)) for entry in entries if isinstance(entry, dict) and "gpu" in entry]
    return _as_grid(content, rows)


def _flatten(entry: dict[str, Any], group: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and cells of nested objects; a value with its unit is one cell, and clocks are named by domain."""
    for key, value in entry.items():
        if isinstance(value, dict) and "value" in value:
            yield f"{group}{key}", f"{value['value']} {value.get('unit', '')}".strip()
        elif isinstance(value, dict):
            yield from _flatten(value, f"{key}_" if re.match(r"(gfx|mem|vclk|dclk|fclk|socclk)_\d+$", key) else "")
        elif not isinstance(value, list):
            yield f"{group}{key}", str(value)


def _as_grid(content: Content, rows: list[dict[str, str]]) -> Grid:
    """Return rows of cells as columns. Raises `UserError` if there is no row."""
    if not rows:
        raise UserError(f"{content.path}: no GPU in the JSON; record it on a node with GPUs")
    names = list(dict.fromkeys(key for row in rows for key in row))
    split = [split_name(name) for name in names]
    columns = [[row.get(name, "") for row in rows] for name in names]
    return Grid([name for name, _ in split], [unit for _, unit in split], columns, [])
