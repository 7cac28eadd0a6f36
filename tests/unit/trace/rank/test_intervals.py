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


def lists(spans: list[tuple[int, int]]) -> Intervals:
    """Return disjoint intervals that may touch, from gaps and lengths."""
    start, end, clock = [], [], 0
    for gap, length in spans:
        start.append(clock + gap)
        clock += gap + length
        end.append(clock)
    return Intervals(np.array(start, dtype=np.int64), np.array(end, dtype=np.int64))


disjoint = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=10)


def owners(one: Intervals) -> dict[int, int]:
    """Return which interval every cell is in."""
    return {cell: index for index, (s, e) in enumerate(zip(one.start, one.end, strict=True)) for cell in range(s, e)}


@given(disjoint, disjoint)
def test_overlay_any_two_lists_equals_cells(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    one, other = lists(first), lists(second)
    of_one, of_other, start, end = intervals.overlay(one, other)
    assert (end > start).all()
    assert (start[1:] >= end[:-1]).all()
    in_one, in_other = owners(one), owners(other)
    found = {
        cell: (a, b)
        for a, b, s, e in zip(of_one.tolist(), of_other.tolist(), start, end, strict=True)
        for cell in range(s, e)
    }
    assert found == {cell: (in_one[cell], in_other[cell]) for cell in in_one.keys() & in_other.keys()}


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12).map(
        lambda s: sorted(s, key=lambda i: i[0])
    )
)
def test_first_come_any_intervals_equals_cells(spans: list[tuple[int, int]]) -> None:
    start = np.array([s for s, _ in spans], dtype=np.int64)
    times, owner = intervals.first_come(start, start + np.array([length for _, length in spans], dtype=np.int64))
    assert (times.end > times.start).all()
    assert (times.start[1:] >= times.end[:-1]).all()
    expected: dict[int, int] = {}
    for index, (begin, length) in enumerate(spans):
        for cell in range(begin, begin + length):
            expected.setdefault(cell, index)
    assert {cell: int(owner[index]) for cell, index in owners(times).items()} == expected


@given(disjoint, st.integers(0, 4), st.integers(0, 4))
def test_gaps_any_set_equals_cells(spans: list[tuple[int, int]], before: int, after: int) -> None:
    one = make([(s, e - s) for s, e in zip(*map(np.ndarray.tolist, lists(spans)), strict=True)])
    start = int(one.start.min(initial=0)) - before
    end = int(one.end.max(initial=start)) + after
    free = intervals.gaps(one, start, end)
    assert_is_set(free)
    assert cells_of(free) == set(range(start, end)) - cells_of(one)


def test_single_of_no_length_is_empty() -> None:
    assert intervals.single(4, 4).length == 0
    assert intervals.single(4, 2).length == 0
    assert cells_of(intervals.single(4, 6)) == {4, 5}
