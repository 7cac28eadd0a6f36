"""Distinct combinations of values: of whole numbers, and of the columns of a table."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from triplepoint.trace import Int64

_MOST_COMBINATIONS = 1 << 22
"""Combinations of values that are looked up in a table, of 9 bytes each; more are sorted, which takes longer."""


def distinct_rows(*columns: Int64) -> tuple[Int64, Int64]:
    """Return the distinct combinations of values of some columns, in order, and which of them each row has.

    Args:
        columns: Whole numbers, shape of each (num_rows,).

    Returns:
        The combinations, shape (num_distinct, num_columns), and the index of each row's, shape (num_rows,).
    """
    lowest = [int(column.min(initial=0)) for column in columns]
    sizes = [int(column.max(initial=0)) - low + 1 for column, low in zip(columns, lowest, strict=True)]
    if math.prod(sizes) > _MOST_COMBINATIONS:
        distinct, which = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        return distinct, which.reshape(-1)
    code = np.ravel_multi_index([column - low for column, low in zip(columns, lowest, strict=True)], sizes)
    is_there = np.zeros(math.prod(sizes), dtype=bool)
    is_there[code] = True
    there = np.flatnonzero(is_there)
    number = np.empty(len(is_there), dtype=np.int64)
    number[there] = np.arange(len(there))
    values = np.unravel_index(there, sizes)
    return np.stack([value + low for value, low in zip(values, lowest, strict=True)], axis=1), number[code]


def distinct_of(table: pa.Table, names: Sequence[str]) -> tuple[list[tuple[Any, ...]], Int64]:
    """Return the distinct combinations of values of some columns of a table, and which of them each row has.

    Args:
        table: The table.
        names: Its columns.

    Returns:
        The combinations, in the order in which they first appear, and the index of each row's, shape (num_rows,).
    """
    columns = [table[name].combine_chunks().dictionary_encode(null_encoding="encode") for name in names]
    _, which = distinct_rows(*(column.indices.to_numpy().astype(np.int64) for column in columns))
    # Of equal ones the one assigned last stays: from the end on, that is the first.
    first = np.empty(int(which.max(initial=-1)) + 1, dtype=np.int64)
    first[which[::-1]] = np.arange(len(which))[::-1]
    by_appearance = np.argsort(first)
    number = np.empty_like(by_appearance)
    number[by_appearance] = np.arange(len(first))
    values = table.select(names).take(pa.array(first[by_appearance])).to_pydict()
    return list(zip(*values.values(), strict=True)), number[which]
