"""How kernels were launched: numbers from what their events say."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from triplepoint.trace.kineto.reader import Geometry

COLUMNS = (
    "num_blocks",
    "threads_per_block",
    "registers_per_thread",
    "shared_memory_bytes",
    "blocks_per_sm",
    "warps_per_sm",
    "occupancy",
)
"""Columns of table `kernels` that tell how a kernel was launched."""


def geometry_values(geometries: Sequence[Geometry]) -> npt.NDArray[np.float64]:
    """Return the values of `COLUMNS`, shape (num_geometries, num_columns), NaN where not told or no number."""
    rows = [
        (
            _product(one.grid),
            _product(one.block),
            _number(one.registers),
            _number(one.shared_memory),
            _number(one.blocks_per_sm),
            _number(one.warps_per_sm),
            _number(one.occupancy_percent) / 100,
        )
        for one in geometries
    ]
    values = np.array(rows, dtype=np.float64).reshape(-1, len(COLUMNS))
    # Some drivers estimate a little more than there can be.
    values[:, COLUMNS.index("occupancy")] = np.minimum(values[:, COLUMNS.index("occupancy")], 1.0)
    return np.where(values >= 0, values, np.nan)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 2**63 else np.nan


def _product(sizes: Any) -> float:
    return float(np.prod([_number(size) for size in sizes])) if isinstance(sizes, list) and sizes else np.nan
