"""Whole numbers of a row, by column."""

from collections.abc import Mapping

from triplepoint.simulate.predict.spelling import UnreadableError, read_count

Cells = Mapping[str, str]
"""Text of a row by column."""


def count(cells: Cells, column: str) -> int | None:
    """Return a whole number of 1 or more; None for a blank cell.

    Raises:
        UnreadableError: If the cell holds something else.
    """
    value = read_count(column, cells.get(column, ""))
    if value is not None and value < 1:
        raise UnreadableError(f"{column} is {value}, expected 1 or more")
    return value


def need(cells: Cells, column: str) -> int:
    """Return a whole number of 1 or more.

    Raises:
        UnreadableError: If the cell is blank or holds something else.
    """
    value = count(cells, column)
    if value is None:
        raise UnreadableError(f"{column} is blank, expected a whole number")
    return value


def degree(cells: Cells, column: str) -> int:
    """Return a degree of parallelism: 1 for a blank cell."""
    return count(cells, column) or 1
