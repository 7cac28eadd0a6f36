"""Cutting time among nested events and overlapping spans, against painting cell by cell."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from triplepoint.trace.rank.intervals import Cover, self_segments
from triplepoint.trace.thin import latest_wins

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 1)), max_size=10)


def columns(events: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    table = np.array(events, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 0] + table[:, 1], table[:, 2]


def painted(start: np.ndarray, end: np.ndarray, owner: np.ndarray) -> dict[int, int]:
    cells = [(cell, who) for s, e, who in zip(start, end, owner, strict=True) for cell in range(s, e)]
    assert len(cells) == len(dict(cells)), "an instant was given twice"
    return dict(cells)


def test_self_segments_nested_calls_gives_time_to_innermost() -> None:
    start, end, thread = columns([(0, 10, 0), (2, 3, 0), (3, 1, 0), (7, 3, 0)])
    owners = painted(*self_segments(start, end, thread))
    assert [owners[cell] for cell in range(10)] == [0, 0, 1, 2, 1, 0, 0, 3, 3, 3]


def test_self_segments_callee_outlasting_its_caller_is_cut() -> None:
    start, end, thread = columns([(0, 5, 0), (3, 9, 0), (8, 2, 0)])
    owners = painted(*self_segments(start, end, thread))
    assert owners == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 8: 2, 9: 2}


@given(spans)
def test_self_segments_any_events_give_each_instant_once(events: list[tuple[int, int, int]]) -> None:
    start, end, thread = columns(events)
    segment_start, segment_end, owner = self_segments(start, end, thread)
    for one in (0, 1):
        mine = thread[owner] == one
        for cell, who in painted(segment_start[mine], segment_end[mine], owner[mine]).items():
            assert start[who] <= cell < end[who]


@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=12))
def test_self_segments_any_call_tree_covers_it_exactly(tree: list) -> None:
    events: list[tuple[int, int, int]] = []
    expected: dict[int, int] = {}
    clock = 0

    def call(children: list) -> None:
        nonlocal clock
        index = len(events)
        events.append((clock, 0, 0))
        began = clock
        for child in [None, *children]:
            if child is not None:
                call(child)
            expected[clock] = index
            clock += 1
        events[index] = (began, clock - began, 0)

    call(tree)
    assert painted(*self_segments(*columns(events))) == expected


@given(spans)
def test_latest_wins_any_spans_equals_painting_in_order_of_start(events: list[tuple[int, int, int]]) -> None:
    start, end, _ = columns(events)
    expected = {}
    for index in sorted(range(len(events)), key=lambda i: start[i]):
        expected |= dict.fromkeys(range(start[index], end[index]), index)
    assert painted(*latest_wins(start, end)) == expected


calls = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(0, 2)), max_size=10)


@given(calls, st.lists(st.integers(0, 9)), st.lists(st.tuples(st.integers(-2, 35), st.integers(0, 3)), max_size=12))
def test_find_any_times_equals_the_owner_of_the_instant(
    events: list[tuple[int, int, int]], chosen: list[int], asked: list[tuple[int, int]]
) -> None:
    start, end, thread = columns(events)
    spans = np.array(sorted({index for index in chosen if index < len(events)}), dtype=np.int64)
    begin, until, owner = self_segments(start[spans], end[spans], thread[spans])
    cells = {
        (int(thread[spans[who]]), cell): int(spans[who])
        for s, e, who in zip(begin, until, owner, strict=True)
        for cell in range(s, e)
    }
    times, threads = (np.array([one[at] for one in asked], dtype=np.int64) for at in (0, 1))
    found = Cover(start, end, thread, spans).find(threads, times)
    assert found.tolist() == [cells.get((on, time), -1) for time, on in asked]


def test_find_innermost_of_nested_spans() -> None:
    start, end, thread = columns([(0, 10, 0), (2, 3, 0), (0, 10, 1)])
    cover = Cover(start, end, thread, np.array([0, 1]))
    asked = np.array([0, 2, 4, 5, 10, 3])
    assert cover.find(np.array([0, 0, 0, 0, 0, 1]), asked).tolist() == [0, 1, 1, 0, -1, -1]
