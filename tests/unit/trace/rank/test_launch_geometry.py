"""How kernels were launched, from what their events say."""

from typing import Any

import numpy as np
import pytest

from triplepoint.trace.kineto.reader import Geometry
from triplepoint.trace.rank.work import GEOMETRY_COLUMNS, geometry_values


def values(**said: Any) -> dict[str, float]:
    """Return what is known."""
    (row,) = geometry_values([Geometry(**said)])
    return {name: value for name, value in zip(GEOMETRY_COLUMNS, row.tolist(), strict=True) if not np.isnan(value)}


def test_geometry_values_of_a_kernel() -> None:
    found = values(
        grid=[8, 2, 3],
        block=[128, 2, 1],
        registers=40,
        shared_memory=49152,
        blocks_per_sm=0.5,
        warps_per_sm=4.0,
        occupancy_percent=25,
    )
    assert found == {
        "num_blocks": 48,
        "threads_per_block": 256,
        "registers_per_thread": 40,
        "shared_memory_bytes": 49152,
        "blocks_per_sm": 0.5,
        "warps_per_sm": 4.0,
        "occupancy": 0.25,
    }


def test_geometry_values_nothing_known() -> None:
    assert values() == {}
    assert geometry_values([]).shape == (0, len(GEOMETRY_COLUMNS))


@pytest.mark.parametrize("bad", [None, "8", [], [None], ["8"], [-1, 3], {"x": 8}, [[8]], [2**70], float("nan")])
def test_geometry_values_no_grid_is_unknown(bad: Any) -> None:
    assert values(grid=bad, block=[32]) == {"threads_per_block": 32}


@pytest.mark.parametrize("bad", [None, "40", -1, [40], 2**70, float("nan"), float("inf")])
def test_geometry_values_no_number_is_unknown(bad: Any) -> None:
    assert values(registers=bad, occupancy_percent=bad) == {}


def test_geometry_values_occupancy_is_at_most_all() -> None:
    assert values(occupancy_percent=104.0) == {"occupancy": 1.0}
    assert values(occupancy_percent=0) == {"occupancy": 0.0}
