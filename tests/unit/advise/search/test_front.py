"""Fronts and the few to measure, by hand and by brute force."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from triplepoint.advise.search.front import few_to_measure, may_reach_front, pareto_front
from triplepoint.metrics import Z90

SMALL = st.integers(0, 4).map(float)


def is_beaten(row: list[float], others: list[list[float]]) -> bool:
    return any(
        all(b <= a for a, b in zip(row, other, strict=True)) and any(b < a for a, b in zip(row, other, strict=True))
        for other in others
    )


@given(arrays(float, st.tuples(st.integers(1, 12), st.integers(1, 4)), elements=SMALL))
def test_front_is_that_of_brute_force(values: np.ndarray) -> None:
    rows = values.tolist()
    assert pareto_front(values).tolist() == [not is_beaten(row, rows) for row in rows]


def test_a_row_that_is_not_known_is_not_on_the_front() -> None:
    assert pareto_front(np.array([[1.0, math.nan], [2.0, 2.0]])).tolist() == [False, True]


def test_a_row_reaches_the_front_within_its_interval_in_one_objective() -> None:
    logs, front = np.array([[0.0, 0.0], [0.1, 0.1], [0.1, 0.3]]), np.array([[0.0, 0.0]])
    widths = np.array([[[0.0, 0.0]], [[0.05, 0.05]], [[0.2, 0.05]]])
    assert may_reach_front(logs, front, widths).tolist() == [True, False, True]


def test_without_uncertainty_only_the_first_is_measured() -> None:
    found = few_to_measure(np.log([3.0, 1.0, 2.0]), np.zeros((3, 3)), 3)
    assert (found.rows, found.probability, found.gain) == ([1], 1.0, 0.0)


def test_two_rows_alike_are_best_half_of_the_time_each() -> None:
    """The smaller of two values whose difference has the deviation s is s/sqrt(2 pi) below the first in the mean."""
    sigma = 0.1
    widths = Z90 * sigma * (1.0 - np.eye(2))
    one = few_to_measure(np.zeros(2), widths, 1)
    assert abs(one.probability - 0.52) < 0.03  # half, and those within 0.5 % of one another
    both = few_to_measure(np.zeros(2), widths, 2)
    assert sorted(both.rows) == [0, 1]
    assert both.probability == 1.0
    assert abs(math.log1p(both.gain) - sigma / math.sqrt(2.0 * math.pi)) < 0.006


def test_what_cannot_be_better_is_not_measured() -> None:
    """A row that is 20 % slower with an interval of 2 % adds nothing, one 1 % slower does."""
    widths = 0.02 * (1.0 - np.eye(3))
    assert few_to_measure(np.log([1.0, 1.2, 1.01]), widths, 2).rows == [0, 2]
