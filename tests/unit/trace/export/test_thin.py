"""A lane made small: what is drawn in whole cells stays what it was, and nothing is invented."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from triplepoint.trace.thin import LatestWins, Spans, Thinner

ORIGIN = 1_790_857_026_000_000_000
NUM_LABELS = 5
EMPTY = NUM_LABELS
"""What no span covers counts as one more label."""

Row = tuple[int, int, int]


def thin(rows: list[Row], duration: int, num_cells: int, num_calls: int = 1) -> list[Row]:
    """Thin spans given from the origin on, in one call or several."""
    thinner = Thinner(ORIGIN, ORIGIN + duration, num_cells)
    for part in np.array_split(np.array(rows, dtype=np.int64).reshape(-1, 3), num_calls):
        thinner.add(part[:, 0] + ORIGIN, part[:, 1] + ORIGIN, part[:, 2])
    start, end, label = thinner.finish()
    return list(zip((start - ORIGIN).tolist(), (end - ORIGIN).tolist(), label.tolist(), strict=True))


def paint(rows: list[Row], duration: int) -> np.ndarray:
    """Return the label at every nanosecond, later rows over earlier ones: shape (duration,)."""
    seen = np.full(duration, EMPTY)
    for start, end, label in rows:
        seen[max(start, 0) : max(end, 0)] = label
    return seen


def cell_borders(duration: int, num_cells: int) -> list[int]:
    return [-(-k * duration // num_cells) for k in range(num_cells + 1)]


def shares(seen: np.ndarray, borders: list[int]) -> np.ndarray:
    """Return the nanoseconds of each label in each cell: shape (num_cells, NUM_LABELS + 1)."""
    cells = [np.bincount(seen[a:b], minlength=NUM_LABELS + 1) for a, b in zip(borders, borders[1:], strict=False)]
    return np.array(cells)


@st.composite
def lanes(draw: st.DrawFn) -> tuple[list[Row], int, int]:
    """Rows by start, the time looked at, and into how many cells; short and long spans, apart and overlapping."""
    num_cells = draw(st.integers(1, 8))
    duration = draw(st.integers(num_cells, 25 * num_cells))
    row = st.tuples(
        st.integers(-5, duration + 5),
        st.one_of(st.integers(0, 4), st.integers(0, duration)),
        st.integers(0, NUM_LABELS - 1),
    )
    rows = sorted(draw(st.lists(row, max_size=60)), key=lambda found: found[0])
    return [(start, start + length, label) for start, length, label in rows], duration, num_cells


@st.composite
def grains(draw: st.DrawFn) -> tuple[list[Row], int, int]:
    """The same of cells full of spans of 1 ns, each cell with three labels or emptiness in shares of its own."""
    share = st.integers(0, 3)
    cells = draw(st.lists(st.tuples(share, share, share), min_size=1, max_size=6))
    width = max(max(map(sum, cells)), 1)
    labels = [label for cell in cells for label in (*np.repeat(np.arange(3), cell).tolist(), *[EMPTY] * width)[:width]]
    return [(at, at + 1, label) for at, label in enumerate(labels) if label != EMPTY], len(labels), len(cells)


@settings(max_examples=examples(500), deadline=None)
@given(st.one_of(lanes(), grains()))
def test_thin_majority_of_any_whole_cells_stays_the_dominant_label(lane: tuple[list[Row], int, int]) -> None:
    rows, duration, num_cells = lane
    borders = cell_borders(duration, num_cells)
    before = np.cumsum(np.vstack([np.zeros(NUM_LABELS + 1), shares(paint(rows, duration), borders)]), axis=0)
    after = np.cumsum(np.vstack([np.zeros(NUM_LABELS + 1), shares(paint(thin(*lane), duration), borders)]), axis=0)
    for first in range(num_cells):
        for last in range(first + 1, num_cells + 1):
            was, now = before[last] - before[first], after[last] - after[first]
            if was.max() * 2 > was.sum():
                others = np.delete(now, was.argmax())
                assert now[was.argmax()] > others.max(), (first, last)


@settings(max_examples=examples(300), deadline=None)
@given(lanes())
def test_thin_covers_no_more_than_before_nor_where_nothing_was(lane: tuple[list[Row], int, int]) -> None:
    rows, duration, num_cells = lane
    borders = cell_borders(duration, num_cells)
    before, after = shares(paint(rows, duration), borders), shares(paint(thin(*lane), duration), borders)
    assert (after[:, EMPTY] >= before[:, EMPTY]).all()
    assert not (after[:, :EMPTY].any(axis=1) & ~before[:, :EMPTY].any(axis=1)).any()
    # With two labels at most in a cell nothing is left over: time is exact to the nanosecond.
    plain = (before[:, :EMPTY] > 0).sum(axis=1) <= 2
    assert (after[plain] == before[plain]).all()


@settings(max_examples=examples(300), deadline=None)
@given(lanes())
def test_thin_is_bounded_ordered_disjoint_and_keeps_wide_spans(lane: tuple[list[Row], int, int]) -> None:
    rows, duration, num_cells = lane
    thinned = thin(*lane)
    assert len(thinned) <= 3 * num_cells
    assert all(start < end for start, end, _ in thinned)
    assert all(one[1] <= other[0] for one, other in zip(thinned, thinned[1:], strict=False))
    clipped = [(max(start, 0), min(end, duration), label) for start, end, label in rows if start < duration]
    for index, (start, end, label) in enumerate(clipped):
        is_alone = all(
            other[1] <= start or other[0] >= end or other[0] >= other[1]
            for number, other in enumerate(clipped)
            if number != index
        )
        if is_alone and (end - start) * num_cells >= duration:
            assert (start, end, label) in thinned


@settings(max_examples=examples(200), deadline=None)
@given(lanes(), st.integers(1, 7))
def test_thin_in_many_calls_is_the_same_as_in_one(lane: tuple[list[Row], int, int], num_calls: int) -> None:
    assert thin(*lane, num_calls) == thin(*lane)


@settings(max_examples=examples(200), deadline=None)
@given(lanes(), st.integers(1, 7))
def test_latest_wins_is_what_a_painter_leaves(lane: tuple[list[Row], int, int], num_calls: int) -> None:
    rows, duration, _ = lane
    rows = [(max(start, 0), min(end, duration), label) for start, end, label in rows]
    rows = [row for row in rows if row[0] < row[1]]
    found = np.full(duration, EMPTY)
    latest, pieces = LatestWins(), []
    for part in np.array_split(np.array(rows, dtype=np.int64).reshape(-1, 3), num_calls):
        pieces.append(latest.add(Spans(part[:, 0], part[:, 1], part[:, 2])))
    for spans in [*pieces, latest.finish()]:
        for start, end, label in zip(*spans, strict=True):
            assert (found[start:end] == EMPTY).all(), "an instant given twice"
            found[start:end] = label
    assert (found == paint(rows, duration)).all()


def test_thin_three_cells_by_hand() -> None:
    rows = [
        *((at, at + 6, 1) for at in range(0, 100, 10)),  # 60 ns of label 1 in ten pieces,
        *((at + 6, at + 8, 2) for at in range(0, 100, 10)),  # 20 ns of label 2, 20 ns of nothing
        (250, 300, 3),  # half a cell, alone: exact
    ]
    assert thin(sorted(rows), 300, 3) == [(0, 60, 1), (78, 98, 2), (250, 300, 3)]


def test_thin_short_span_across_a_border_stays_whole() -> None:
    assert thin([(95, 105, 1)], 300, 3) == [(95, 105, 1)]


def test_thin_touching_short_spans_of_one_label_become_one_run_over_cells() -> None:
    assert thin([(at, at + 1, 4) for at in range(20, 280)], 300, 3) == [(20, 280, 4)]


def test_thin_third_label_goes_to_the_second_as_far_as_it_may() -> None:
    # 40, 30, 20 of 100 ns: the second may grow to 100 - 2 * 20 = 60, and needs 50.
    assert thin([(0, 40, 0), (40, 70, 1), (70, 90, 2), (100, 400, 3)], 400, 4) == [
        (0, 40, 0),
        (40, 90, 1),
        (100, 400, 3),
    ]
    # A third each of 99 ns: neither may get more than 33, or it would win over the third label in a wider pixel.
    assert thin([(0, 33, 0), (33, 66, 1), (66, 99, 2)], 99, 1) == [(0, 33, 0), (66, 99, 1)]


def test_thin_wide_span_is_seen_around_the_one_over_it() -> None:
    assert thin([(0, 300, 0), (50, 150, 1)], 300, 3) == [(0, 50, 0), (50, 150, 1), (150, 300, 0)]


def test_thin_wide_touching_spans_of_one_label_stay_two() -> None:
    assert thin([(0, 100, 0), (100, 300, 0)], 300, 3) == [(0, 100, 0), (100, 300, 0)]


def test_thin_nothing_gives_nothing() -> None:
    assert thin([], 10, 4) == []
    assert thin([(-5, 0, 1), (3, 3, 1), (10, 12, 1)], 10, 4) == []


def test_thinner_refuses_disorder_and_no_time() -> None:
    with pytest.raises(ValueError, match="order of start"):
        thin([(5, 6, 0), (4, 9, 0)], 10, 4)
    with pytest.raises(ValueError, match="cannot thin"):
        Thinner(5, 5)


def test_thinner_million_spans_take_below_a_second() -> None:
    rng = np.random.default_rng(7)
    length = rng.integers(500, 20_000, 1_000_000)
    start = np.cumsum(rng.integers(200, 15_000, len(length)))
    label = rng.integers(0, 20, len(length))
    began = time.process_time()
    thinner = Thinner(0, int(start[-1]))
    for at in range(0, len(length), 250_000):
        part = slice(at, at + 250_000)
        thinner.add(start[part], start[part] + length[part], label[part])
    thinned = thinner.finish()
    # 0.15 s on one core of a 2023 server: far from the limit, so that only another order of growth meets it.
    assert time.process_time() - began < 1
    assert len(thinned[0]) <= 3 * 4000
