"""Numbers of cells, with the units they may carry, and the words that tools print where they have none."""

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
"""What stands for no value, in lower case."""
_NUMBER = re.compile(r"\(?([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\s\d()][^\s()]*)?\)?")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_BLANKS = (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 140737488355328.0)
"""From these on DCGM means that there is no value, for numbers of 32 bits, of 64 bits and floating-point ones.

Source: dcgm_fields.h and dcgm_structs.h: DCGM_INT32_BLANK, DCGM_INT64_BLANK, DCGM_FP64_BLANK; each with 15 codes above.
"""


def read_numbers(cells: Sequence[str], source: Source, unit: str, where: str) -> np.ndarray:
    """Return the numbers of a column in our unit, NaN where there is no value.

    Args:
        cells: As they stand in the file.
        source: What the column is.
        unit: Unit in its header; empty where there is none.
        where: File and column, for errors.

    Raises:
        UserError: If a cell is no number, or its unit is none of such a column.
    """
    factor = _factor(source, unit, where)
    try:
        return np.array(cells, float) * factor
    except ValueError:
        pass
    end = cells[0].rpartition(" ")[2] if cells else ""
    shared = source.factor(end) if end else None
    text = "\n".join(cells) + "\n"
    if shared is not None and text.count(f" {end}\n") == len(cells):  # all in one unit, as nvidia-smi prints them
        try:
            return np.array(text.replace(f" {end}\n", "\n").split("\n")[:-1], float) * shared
        except ValueError:
            pass
    distinct, places = np.unique(np.array(cells, str), return_inverse=True)
    return np.array([_read_cell(str(cell), source, factor, where) for cell in distinct])[places.reshape(-1)]


def _read_cell(cell: str, source: Source, factor: float, where: str) -> float:
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
    factor = source.factor(unit)
    if factor is None:
        raise UserError(f"{where}: the unit {shown(unit)} does not fit {source.metric}; expected {source.unit}")
    return factor


def without_blanks(values: np.ndarray) -> np.ndarray:
    """Return values of DCGM, its codes for no value replaced by NaN."""
    small, large, floating = _BLANKS
    is_blank = ((values >= small) & (values <= small + 15)) | (values >= large) | (values == floating)
    return np.where(is_blank | ((values > floating) & (values <= floating + 15)), np.nan, values)
