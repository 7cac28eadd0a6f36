"""The ideal of few ranks, and the cost of a late one."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.why.test_step_times import noise, whole_steps
from tests.unit.why.test_traced_operations import LATE_MS, TRANSFER_MS, WORK_MS, one_late, write_traces
from triplepoint.why.slowdown import find_slowdown, ideal_work_s
from triplepoint.why.sources import why_traces


@pytest.mark.parametrize("num_ranks", [2, 4, 7])
def test_one_slow_rank_of_few_is_no_part_of_the_ideal(num_ranks: int) -> None:
    times_s = noise(num_ranks)
    times_s[1] *= 2
    assert find_slowdown(whole_steps(times_s)).slowdown == pytest.approx(2.0, rel=0.01)


def test_of_two_ranks_within_their_spread_the_ideal_is_the_mean() -> None:
    times_s = noise(sigma_s=0.05)
    assert ideal_work_s(whole_steps(times_s)).mean() == pytest.approx(times_s.mean())


def test_of_eight_workers_the_ideal_is_the_published_mean() -> None:
    times_s = np.ones((8, 5))
    times_s[3] = 2.0
    assert ideal_work_s(whole_steps(times_s)).mean() == pytest.approx(9 / 8)


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8, 12])
def test_cost_of_a_late_rank_is_how_late_it_is(num_ranks: int, tmp_path: Path) -> None:
    answer = why_traces(write_traces(tmp_path, num_ranks, one_late))
    assert sum(one.lost_s for one in answer.findings) == pytest.approx(LATE_MS / 1e3)
    if num_ranks < 8:
        assert answer.slowdown.slowdown == pytest.approx((WORK_MS + TRANSFER_MS + LATE_MS) / (WORK_MS + TRANSFER_MS))
