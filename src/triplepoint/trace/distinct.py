"""Distinct combinations of values in columns of integers or of a table."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from triplepoint.trace import Int64

_MAX_COMBINATIONS = 1 << 22
"""Combinations of values that are looked up in a table, 9 bytes each. More are sorted, which is slower."""


def distinct_rows(*columns: Int64) -> tuple[Int64, Int64]:
    """Return the distinct combinations of values in some columns, sorted, and the index of each row's combination.

    Args:
        columns: Integers, shape of each (num_rows,).

    Returns:
        Combinations, shape (num_distinct, num_columns), and indices into them, shape (num_rows,).
    """
    lowest = [int(column.min(initial=0)) for column in columns]
    sizes = [int(column.max(initial=0)) - low + 1 for column, low in zip(columns, lowest, strict=True)]
    if math.prod(sizes) > _MAX_COMBINATIONS:
        distinct, index = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        return distinct, index.reshape(-1)
    code = np.ravel_multi_index([column - low for column, low in zip(columns, lowest, strict=True)], sizes)
    is_used = np.zeros(math.prod(sizes), dtype=bool)
    is_used[code] = True
    used_codes = np.flatnonzero(is_used)
    index_of_code = np.empty(len(is_used), dtype=np.int64)
    index_of_code[used_codes] = np.arange(len(used_codes))
    values = np.unravel_index(used_codes, sizes)
    return np.stack([value + low for value, low in zip(values, lowest, strict=True)], axis=1), index_of_code[code]


def distinct_values(table: pa.Table, names: Sequence[str]) -> tuple[list[tuple[Any, ...]], Int64]:
    """Return the distinct combinations of values in some columns of a table, and the index of each row's combination.

    Args:
        table: The table.
        names: Names of the columns.

    Returns:
        Combinations, in the order in which they first appear, and indices into them, shape (num_rows,).
    """
    encoded = [table[name].combine_chunks().dictionary_encode(null_encoding="encode") for name in names]
    _, index = distinct_rows(*(column.indices.to_numpy().astype(np.int64) for column in encoded))
    # Assigned from the last row to the first one, so that the first row of each combination remains.
    first_row = np.empty(int(index.max(initial=-1)) + 1, dtype=np.int64)
    first_row[index[::-1]] = np.arange(len(index))[::-1]
    by_appearance = np.argsort(first_row)
    place = np.empty_like(by_appearance)
    place[by_appearance] = np.arange(len(place))
    values = table.select(names).take(pa.array(first_row[by_appearance])).to_pydict()
    return list(zip(*values.values(), strict=True)), place[index]
