"""The drawn lanes of a step: cut to it, thinned, and as rows of the table."""

import numpy as np
import pytest

from triplepoint.tables import TIMELINE
from triplepoint.trace.timeline import LaneSpans, Look, cells_per_lane, span_table, thin_lane

ORIGIN = 1_790_857_026_000_000_000


def lane(name: str, looks: list[Look], rows: list[tuple[int, int, int]]) -> LaneSpans:
    """Return a lane of (start, end, look), times counted from the origin."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return LaneSpans(name, looks, columns[:, 0] + ORIGIN, columns[:, 1] + ORIGIN, columns[:, 2])


def test_thin_lane_cuts_at_the_step_and_sorts() -> None:
    given = lane("comm", [Look("send", "pp"), Look("recv", "pp")], [(900, 1500, 1), (-50, 100, 0), (2000, 2100, 0)])
    found = thin_lane(given, ORIGIN, ORIGIN + 1000, num_cells=100)
    assert found.looks == given.looks
    assert list(zip(found.start - ORIGIN, found.end - ORIGIN, found.look, strict=True)) == [(0, 100, 0), (900, 1000, 1)]


def test_thin_lane_of_a_step_without_time_is_empty() -> None:
    assert len(thin_lane(lane("comm", [Look("send")], [(0, 5, 0)]), ORIGIN, ORIGIN).start) == 0


def test_span_table_rows_by_lane_and_time_from_the_origin() -> None:
    phase = lane("phase", [Look("forward", None, 1, 2), Look("optimizer")], [(500, 800, 0), (850, 900, 1)])
    comm = lane("comm", [Look("all_reduce", "dp")], [(600, 700, 0)])
    table = span_table(3, [phase, comm], ORIGIN + 400)
    assert table.schema == TIMELINE.schema()
    nothing = {"group": None, "stage": None, "microbatch": None}
    assert table.to_pylist() == [
        {"rank": 3, "lane": "comm", "label": "all_reduce", **nothing, "group": "dp", "t_start_ns": 200,
         "duration_ns": 100},
        {"rank": 3, "lane": "phase", "label": "forward", "group": None, "stage": 1, "microbatch": 2, "t_start_ns": 100,
         "duration_ns": 300},
        {"rank": 3, "lane": "phase", "label": "optimizer", **nothing, "t_start_ns": 450, "duration_ns": 50},
    ]  # fmt: skip
    TIMELINE.check(table, "rows")


def test_span_table_of_no_lanes_or_no_spans_is_empty() -> None:
    assert span_table(0, [], 0).num_rows == 0
    assert span_table(0, [lane("memory", [], [])], 0).schema == TIMELINE.schema()


@pytest.mark.parametrize(("num_ranks", "cells"), [(0, 4000), (1, 4000), (8, 4000), (16, 2000), (32, 1000), (64, 1000)])
def test_cells_per_lane_bounds_a_run(num_ranks: int, cells: int) -> None:
    assert cells_per_lane(num_ranks) == cells
