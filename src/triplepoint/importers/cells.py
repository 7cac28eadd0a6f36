"""Read numbers from cells, which may hold a unit, or a word for a missing value."""

import re
from collections.abc import Sequence

import numpy as np

from triplepoint.errors import UserError, shown
from triplepoint.importers.declaration import Source

_MISSING = frozenset(
    [
        "",
        "-",
        "n/a",
        "[n/a]",
        "na",
        "nan",
        "none",
        "null",
        "unknown",
        "[unknown error]",
        "[not supported]",
        "not supported",
        "err!",
        "[gpu is lost]",
        "unavailable",
        "[gpu requires reset]",
        "[insufficient permissions]",
        "[requested functionality has been deprecated]",
    ]
)
"""Words for a missing value, in lower case."""
_NUMBER = re.compile(r"\(?([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\s\d()][^\s()]*)?\)?")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_BLANKS = (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 140737488355328.0)
"""Codes of DCGM for a missing value: of 32-bit, 64-bit and floating-point numbers; each has 15 more codes above it.

Source: dcgm_fields.h and dcgm_structs.h: DCGM_INT32_BLANK, DCGM_INT64_BLANK, DCGM_FP64_BLANK.
"""


def read_numbers(cells: Sequence[str], source: Source, unit: str, where: str) -> np.ndarray:
    """Return the numbers of a column in the unit of our column; NaN for missing values.

    Args:
        cells: Cells of the file.
        source: Declaration of the column.
        unit: Unit in the header; empty if there is none.
        where: File and column, for errors.

    Raises:
        UserError: If a cell is not a number, or its unit does not fit the column.
    """
    factor = _factor(source, unit, where)
    try:
        numbers = np.array(cells, float) * factor
        if not np.isinf(numbers).any():
            return numbers
    except ValueError:
        pass
    end = cells[0].rpartition(" ")[2] if cells else ""
    shared = source.factor(end) if end else None
    text = "\n".join(cells) + "\n"
    if shared is not None and text.count(f" {end}\n") == len(cells):  # fast path: all cells end in one unit
        try:
            return np.array(text.replace(f" {end}\n", "\n").split("\n")[:-1], float) * shared
        except ValueError:
            pass
    distinct, index = np.unique(np.array(cells, str), return_inverse=True)
    return np.array([_read_cell(str(cell), source, factor, where) for cell in distinct])[index.reshape(-1)]


def _read_cell(cell: str, source: Source, factor: float, where: str) -> float:
    """Return the number in a cell; NaN if it is missing. Raises `UserError` if it is not a number."""
    text = cell.strip()
    if text.lower() in _MISSING or text.lower().startswith("n/a"):
        return np.nan
    if _HEX.fullmatch(text):
        return float(int(text, 16))
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UserError(
            f"{where}: {shown(cell)} is not a number; correct the cell, or leave it empty where there is no value"
        )
    return float(match[1]) * (_factor(source, match[2], where) if match[2] else factor)


def _factor(source: Source, unit: str, where: str) -> float:
    """Return the factor from a unit to that of our column. Raises `UserError` if the unit does not fit."""
    factor = source.factor(unit)
    if factor is None:
        raise UserError(f"{where}: the unit {shown(unit)} does not fit {source.metric}; expected {source.unit}")
    return factor


def without_blanks(values: np.ndarray) -> np.ndarray:
    """Return values of DCGM with NaN in place of its codes for missing values."""
    small, large, floating = _BLANKS
    is_blank = ((values >= small) & (values <= small + 15)) | (values >= large) | (values == floating)
    return np.where(is_blank | ((values > floating) & (values <= floating + 15)), np.nan, values)
