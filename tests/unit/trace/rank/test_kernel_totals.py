"""Sums per operation and step, and how kernels were launched on average."""

from pathlib import Path

import pytest

from tests.unit.trace.rank.parsed import parse, parse_path
from tests.unit.trace.traces import ALL_REDUCE, GEMM, kernel, note, write_trace


def sums(rows: list[dict]) -> list[tuple]:
    return [tuple(row[name] for name in ("step", "name", "count", "sum_ns", "min_ns", "max_ns")) for row in rows]


@pytest.mark.parametrize("capacity", [1, 3, 1000])
def test_kernels_occurrence_counts_whole_where_it_starts(capacity: int) -> None:
    events = [
        note("ProfilerStep#3", 0, 10),
        note("ProfilerStep#4", 10, 10),
        kernel(GEMM, 2, 3),
        kernel(GEMM, 8, 6),
        kernel(GEMM, 15, 1),
        kernel(ALL_REDUCE, 16, 1),
    ]
    rows = parse(events, capacity=capacity).kernels
    assert sums(rows) == [
        (3, GEMM, 2, 9_000, 3_000, 6_000),
        (4, GEMM, 1, 1_000, 1_000, 1_000),
        (4, ALL_REDUCE, 1, 1_000, 1_000, 1_000),
    ]
    assert {(row["rank"], row["class"], row["kind"], row["group"]) for row in rows} == {
        (5, "gemm", "dense", None),
        (5, "comm", "all_reduce", None),
    }


@pytest.mark.parametrize("capacity", [1, 1000])
def test_kernels_between_steps_have_none(capacity: int) -> None:
    events = [
        note("ProfilerStep#3", 10, 10),
        note("ProfilerStep#4", 30, 10),
        *(kernel(GEMM, at, 1) for at in (5, 15, 20, 25, 35, 50)),
    ]
    rows = parse(events, capacity=capacity).kernels
    # A step's end is no longer of it; the last one lasts until the work is done.
    assert sorted(sums(rows), key=str) == [
        (3, GEMM, 1, 1_000, 1_000, 1_000),
        (4, GEMM, 2, 2_000, 1_000, 1_000),
        (None, GEMM, 3, 3_000, 1_000, 1_000),
    ]


def test_kernels_launch_geometry_is_a_mean_weighted_by_duration() -> None:
    events = [
        kernel(GEMM, 0, 30, grid=[10, 1, 1], block=[128], **{"est. achieved occupancy %": 20, "blocks per SM": 1.0}),
        kernel(GEMM, 40, 10, grid=[2, 5, 5], block=[128], **{"est. achieved occupancy %": 60}),
        kernel(GEMM, 60, 100),
    ]
    (row,) = parse(events).kernels
    assert (row["num_blocks"], row["threads_per_block"]) == ((30 * 10 + 10 * 50) / 40, 128)
    assert row["occupancy"] == pytest.approx((30 * 0.2 + 10 * 0.6) / 40)
    assert row["blocks_per_sm"] == 1.0, "of the occurrence that tells"
    assert row["registers_per_thread"] is None


def test_kernels_of_no_length_have_a_geometry() -> None:
    (row,) = parse([note("ProfilerStep#1", 0, 9), kernel(GEMM, 0, 0, grid=[10]), kernel(GEMM, 5, 0, grid=[20])]).kernels
    assert (row["num_blocks"], row["sum_ns"], row["count"]) == (15, 0, 2)


def test_kernels_occupancy_over_all_is_cut_to_all(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.json", [kernel(GEMM, 0, 1, **{"est. achieved occupancy %": 104})])
    assert [row["occupancy"] for row in parse_path(path, tmp_path / "out").kernels] == [1.0]
