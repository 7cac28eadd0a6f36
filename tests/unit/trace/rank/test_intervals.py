"""Interval algebra against sets of whole nanoseconds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from triplepoint.trace.rank import intervals
from triplepoint.trace.rank.intervals import Intervals

pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(-2, 12)), max_size=12)


def make(spans: list[tuple[int, int]]) -> Intervals:
    start = np.array([s for s, _ in spans], dtype=np.int64)
    return intervals.union(start, start + np.array([length for _, length in spans], dtype=np.int64))


def cells(spans: list[tuple[int, int]]) -> set[int]:
    return {cell for start, length in spans for cell in range(start, start + length)}


def cells_of(one: Intervals) -> set[int]:
    return {cell for start, end in zip(one.start, one.end, strict=True) for cell in range(start, end)}


def assert_is_set(one: Intervals) -> None:
    assert (one.end > one.start).all()
    assert (one.start[1:] > one.end[:-1]).all(), "intervals of a set neither overlap nor touch"


@given(pairs)
def test_union_any_intervals_equals_cells(spans: list[tuple[int, int]]) -> None:
    one = make(spans)
    assert_is_set(one)
    assert cells_of(one) == cells(spans)
    assert one.length == len(cells(spans))


@given(pairs, pairs)
def test_algebra_any_two_sets_equals_set_algebra(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    one, other = make(first), make(second)
    a, b = cells(first), cells(second)
    for result, expected in [
        (intervals.intersection(one, other), a & b),
        (intervals.difference(one, other), a - b),
        (intervals.merge(one, other), a | b),
    ]:
        assert_is_set(result)
        assert cells_of(result) == expected
    assert intervals.overlap_length(one, other) == len(a & b)


@given(pairs, st.lists(st.integers(-5, 60), max_size=8))
def test_covered_before_any_times_counts_cells(spans: list[tuple[int, int]], times: list[int]) -> None:
    found = intervals.covered_before(make(spans), np.array(times, dtype=np.int64))
    assert found.tolist() == [len([cell for cell in cells(spans) if cell < time]) for time in times]


def test_union_wall_clock_times_stay_exact() -> None:
    base = 1_795_192_389_000_000_001
    one = intervals.union(np.array([base, base + 1, base + 10]), np.array([base + 1, base + 2, base + 11]))
    assert one.start.tolist() == [base, base + 10]
    assert one.length == 3
