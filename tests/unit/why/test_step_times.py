"""What step times alone show: ranks against each other, drift, and rare slow steps."""

import numpy as np
import pytest

from triplepoint.why.operations import Operations, Worker
from triplepoint.why.step_times import analyse_step_times


def whole_steps(duration_s: np.ndarray) -> Operations:
    """Return one operation for each rank and step, of durations of shape (num_ranks, num_steps)."""
    num_ranks, num_steps = duration_s.shape
    numbers, zeros = np.arange(num_ranks), np.zeros(num_ranks, dtype=np.int64)
    return Operations(
        workers=[Worker(rank, rank, 0) for rank in range(num_ranks)],
        kinds=["step"],
        steps=np.arange(num_steps),
        worker=numbers,
        kind=zeros,
        transfer=numbers,
        is_comm=zeros.astype(bool),
        duration_class=zeros,
        rate_class=zeros,
        size_bytes=np.ones(num_ranks),
        start_s=np.zeros(duration_s.shape),
        duration_s=duration_s,
    )


def noise(num_ranks: int = 2, num_steps: int = 60, sigma_s: float = 0.002) -> np.ndarray:
    """Return steps of 1 s with spread."""
    return 1.0 + sigma_s * np.random.default_rng(11).standard_normal((num_ranks, num_steps))


def test_equal_ranks_have_no_difference_beyond_their_spread() -> None:
    found = analyse_step_times(whole_steps(noise(sigma_s=0.05)))
    assert found.ranks is not None and found.drift is not None
    assert not found.ranks.is_clear and not found.drift.is_clear
    assert found.long_steps == ()
    assert "none is slower beyond the spread" in " ".join(found.sentences())


def test_slower_rank_is_named_with_its_interval() -> None:
    times_s = noise()
    times_s[1] += 0.05
    found = analyse_step_times(whole_steps(times_s))
    assert found.ranks is not None and found.ranks.is_clear
    assert (found.slowest_rank, found.fastest_rank) == (1, 0)
    assert found.ranks.low_s is not None and found.ranks.high_s is not None
    assert found.ranks.low_s < 0.05 < found.ranks.high_s
    assert any("steps of rank 1 take +4.8 %" in line and "against rank 0" in line for line in found.sentences())


def test_drift_is_the_last_third_less_the_first() -> None:
    times_s = noise() + np.linspace(0, 0.3, 60)
    found = analyse_step_times(whole_steps(times_s))
    assert found.drift is not None and found.drift.is_clear
    assert found.drift.value_s == pytest.approx(0.2, abs=0.01)
    assert any(line.startswith("drift: steps of the last third are longer than") for line in found.sentences())


@pytest.mark.parametrize(("late_s", "line"), [
    (-0.0004, "drift: none, steps of the last third take as long as those of the first"),
    (0.0, "drift: none, steps of the last third take as long as those of the first"),
    (-0.0006, "drift: steps of the last third are shorter than those of the first, -0.1 % [-0.1, -0.1]"),
])  # fmt: skip
def test_drift_that_rounds_to_zero_is_none(late_s: float, line: str) -> None:
    times_s = np.ones((2, 12))
    times_s[:, 8:] += late_s
    assert any(sentence.startswith(line) for sentence in analyse_step_times(whole_steps(times_s)).sentences())


def test_rare_slow_steps_are_named_with_rank_and_cost_and_are_no_drift() -> None:
    times_s = noise()
    times_s[1, [50, 55]] += [2.0, 1.0]
    found = analyse_step_times(whole_steps(times_s))
    assert (found.long_steps, found.long_ranks) == ((50, 55), (1, 1))
    assert found.long_s == pytest.approx(3.0, rel=0.01)
    assert found.drift is not None and not found.drift.is_clear
    line = list(found.sentences())[-1]
    assert "2 steps far longer" in line and "4.8 % of the time: step 50 (rank 1), step 55 (rank 1)" in line


def test_a_step_that_launches_name_is_one_here_too() -> None:
    """Half of the steps differ so much that three times the median is within five of their deviations."""
    times_s = np.tile(np.array([0.4, 0.6, 1.0, 1.4, 1.6]), (2, 12))
    times_s[:, 30] = 3.5
    assert analyse_step_times(whole_steps(times_s)).long_steps == (30,)


def test_two_steps_and_one_rank_say_that_they_are_too_few() -> None:
    assert "too few" in list(analyse_step_times(whole_steps(np.ones((2, 2)))).sentences())[-1]
    assert any(
        "steps of one rank alone" in line for line in analyse_step_times(whole_steps(np.ones((1, 5)))).sentences()
    )
