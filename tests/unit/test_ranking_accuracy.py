"""Ranking held to published layouts: coverage of differences, ties, and what the choice of the first costs."""

from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.ranking import ALL_TABLES, LEAST_PAIRS, Ranking, judge, trainings
from triplepoint.simulate.calibration import Calibration


@pytest.fixture(scope="module")
def found() -> Ranking:
    calibration = Calibration.load(Path("config"))
    return judge(trainings(ALL_TABLES, calibration), calibration)


def test_intervals_of_differences_hold_what_they_say(found: Ranking) -> None:
    assert found.num_trainings > 190
    assert 0.85 < found.coverage < 0.95


def test_intervals_of_differences_hold_in_every_stack(found: Ranking) -> None:
    low = {
        stack: float(np.mean(covered))
        for stack, covered in found.covered_by_stack.items()
        if len(covered) >= LEAST_PAIRS and np.mean(covered) < 0.85
    }
    assert low == {}


def test_the_first_costs_little_and_the_first_three_next_to_nothing(found: Ranking) -> None:
    assert np.mean(found.regrets) < 0.04
    assert np.mean(found.regrets_of_3) < 0.002


def test_intervals_hold_what_they_say_of_differences_to_the_first(found: Ranking) -> None:
    assert 0.85 < np.mean(found.covered_first) < 0.95


def test_ties_are_no_more_than_errors_ask_for(found: Ranking) -> None:
    assert np.mean(found.tied) < 0.68
