"""Verdicts on two numbers: overlap of intervals, and signs beyond their spread."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplepoint.verdicts.number import Number, Verdict, judge_sign, judge_values, mean_of, overlap

AMOUNTS = st.floats(-1e6, 1e6)
WIDTHS = st.floats(0, 1e6)


@pytest.mark.parametrize(
    ("published", "ours", "verdict"),
    [
        (Number.within(458, 15), Number(602, 504, 700), Verdict.DIFFERS),
        (Number.within(458, 15), Number(480, 473, 490), Verdict.AGREES),
        (Number.within(458, 15), Number(458, 458, 458), Verdict.AGREES),
        (Number.within(458, 15), Number(474, 474, 474), Verdict.DIFFERS),
    ],
)
def test_judge_values_agrees_where_intervals_meet(published: Number, ours: Number, verdict: Verdict) -> None:
    assert judge_values(published, ours)[0] == verdict


def test_judge_values_says_how_far_apart_intervals_are() -> None:
    assert judge_values(Number.within(10, 1), Number(20, 17, 23))[1] == "the intervals are 6 apart"
    assert judge_values(Number(20, 17, 23), Number.within(10, 1))[1] == "the intervals are 6 apart"


@given(AMOUNTS, WIDTHS, AMOUNTS, WIDTHS)
def test_overlap_does_not_depend_on_order(one: float, width: float, other: float, wide: float) -> None:
    first, second = Number.within(one, width), Number.within(other, wide)
    assert overlap(first, second) == overlap(second, first)
    assert overlap(first, first)


@pytest.mark.parametrize(
    ("expected", "change", "verdict"),
    [
        ("rises", Number.within(6, 0), Verdict.AGREES),
        ("falls", Number.within(6, 0), Verdict.DIFFERS),
        ("falls", Number.within(-6, 0), Verdict.AGREES),
        ("rises", Number.within(-6, 0), Verdict.DIFFERS),
        ("rises", Number.within(3, 0), Verdict.CANNOT_TELL),
        ("rises", Number.within(-3, 0), Verdict.CANNOT_TELL),
        # The root of 3 squared and 4 squared is 5.
        ("rises", Number.within(4.9, 4), Verdict.CANNOT_TELL),
        ("rises", Number.within(5.1, 4), Verdict.AGREES),
    ],
)
def test_judge_sign_needs_more_than_the_least_and_the_spread(expected: str, change: Number, verdict: Verdict) -> None:
    assert judge_sign(expected, change, least=3)[0] == verdict  # type: ignore[arg-type]


def test_difference_adds_errors_as_squares() -> None:
    change = Number.within(10, 3) - Number.within(4, 4)
    assert (change.value, change.low, change.high) == (6, 1, 11)


def test_mean_of_runs_from_the_lowest_to_the_highest_end() -> None:
    found = mean_of([Number(1, 0.5, 2), Number(3, 2.5, 3.5)])
    assert (found.value, found.low, found.high) == (2, 0.5, 3.5)
