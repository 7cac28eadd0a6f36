"""Begins and ends made whole."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from triplepoint.trace.kineto import HAS_STREAM, IS_BEGIN, IS_END, ROW, Rows
from triplepoint.trace.kineto.reader import pair_halves

Half = tuple[str, int, int, int]
"""B or E, start, thread, name."""


def rows_of(halves: list[Half]) -> Rows:
    rows = np.zeros(len(halves), dtype=ROW)
    for row, (phase, start, thread, name) in zip(rows, halves, strict=True):
        row["flags"] = (IS_BEGIN if phase == "B" else IS_END) | HAS_STREAM
        row["start"], row["thread"], row["name"] = start, thread, name
    return rows


def paired(halves: list[Half]) -> tuple[list[tuple[int, int, int]], int]:
    """Return (name, start, end) of whole rows, and how many halves were left."""
    whole, num_unpaired = pair_halves(rows_of(halves))
    assert (whole["flags"] == HAS_STREAM).all(), "no row is a half any more"
    found = zip(whole["name"], whole["start"], whole["start"] + whole["duration"], strict=True)
    return sorted((int(name), int(start), int(end)) for name, start, end in found), num_unpaired


def test_pair_nested_calls_end_the_latest_begun() -> None:
    halves = [("B", 0, 1, 10), ("B", 2, 1, 11), ("E", 3, 1, 0), ("B", 4, 1, 12), ("E", 6, 1, 0), ("E", 9, 1, 0)]
    assert paired(halves) == ([(10, 0, 9), (11, 2, 3), (12, 4, 6)], 0)


def test_pair_threads_do_not_end_one_another() -> None:
    halves = [("B", 0, 1, 10), ("B", 1, 2, 20), ("E", 5, 1, 0), ("E", 9, 2, 0)]
    assert paired(halves) == ([(10, 0, 5), (20, 1, 9)], 0)


def test_pair_end_stands_before_the_begin_it_touches() -> None:
    assert paired([("B", 0, 1, 10), ("E", 5, 1, 0), ("B", 5, 1, 11), ("E", 7, 1, 0)]) == ([(10, 0, 5), (11, 5, 7)], 0)


def test_halves_without_another_are_counted() -> None:
    assert paired([("E", 0, 1, 0), ("B", 1, 1, 10), ("E", 2, 1, 0), ("B", 3, 1, 11), ("B", 4, 2, 12)]) == (
        [(10, 1, 2)],
        3,
    )
    assert paired([]) == ([], 0)


def test_pair_takes_any_order_of_the_file() -> None:
    assert paired([("E", 9, 1, 0), ("B", 2, 1, 11), ("E", 3, 1, 0), ("B", 0, 1, 10)]) == ([(10, 0, 9), (11, 2, 3)], 0)


trees = st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=6)


@given(st.lists(st.tuples(st.integers(0, 2), trees), max_size=4), st.randoms(use_true_random=False))
def test_pair_any_call_trees_come_back(calls: list, random: object) -> None:
    halves: list[Half] = []
    expected = []
    clock = 0

    def call(thread: int, children: list) -> None:
        nonlocal clock
        name, began = len(expected), clock
        expected.append((name, began, began))
        clock += 1
        halves.append(("B", began, thread, name))
        for child in children:
            call(thread, child)
        halves.append(("E", clock, thread, 0))
        expected[name] = (name, began, clock)
        clock += 1

    for thread, tree in calls:
        call(thread, tree)
    random.shuffle(halves)  # type: ignore[attr-defined]
    assert paired(halves) == (expected, 0)
