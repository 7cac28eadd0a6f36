"""Powers from energies over times of several things: errors cover what is wrong, whatever steps repeat."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triplepoint.aggregate.phases import fit_with_jackknife

LIMIT_W = 700.0
NUM_MOVES = 40


def repeated(num_steps: int, seed: int, drift_w: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Times of two things that are mixed much alike between all moves, energies, places, and the mean of each power.

    The power of the first changes in the course of a step, which no fit of one power knows.
    """
    rng = np.random.default_rng(seed)
    place = (np.arange(NUM_MOVES) + 0.5) / NUM_MOVES
    share = 0.6 + 0.05 * rng.standard_normal(NUM_MOVES).clip(-3, 3)
    time_s = 0.1 * np.column_stack([share, 1 - share])
    first_w = 600 + drift_w * np.sin(2 * np.pi * (place + rng.random()))
    energy_j = time_s[:, 0] * first_w + time_s[:, 1] * 200
    mean_w = np.array([np.average(first_w, weights=time_s[:, 0]), 200.0])
    return np.tile(time_s, (num_steps, 1)), np.tile(energy_j, num_steps), np.tile(place, num_steps), mean_w


def test_fit_of_powers_that_stay_is_exact() -> None:
    time_s, energy_j, place, powers_w = repeated(4, 1, 0.0)
    found = fit_with_jackknife(time_s, energy_j, float(energy_j.sum() / time_s.sum()), place, LIMIT_W)
    assert found.power_w == pytest.approx(powers_w, rel=0.01)
    assert (found.error_w < 10).all()


@pytest.mark.parametrize("num_steps", [4, 64])
def test_errors_cover_powers_that_change_within_a_step(num_steps: int) -> None:
    away = []
    for seed in range(200):
        time_s, energy_j, place, powers_w = repeated(num_steps, seed, 60.0)
        found = fit_with_jackknife(time_s, energy_j, float(energy_j.sum() / time_s.sum()), place, LIMIT_W)
        away.append(np.abs(found.power_w - powers_w) / found.error_w)
    assert np.mean(np.array(away) < 2) > 0.9, "as many as a normal distribution has"


@given(seed=st.integers(0, 10_000), drift_w=st.floats(0, 500), num_steps=st.integers(1, 20))
def test_no_power_is_one_that_no_gpu_has(seed: int, drift_w: float, num_steps: int) -> None:
    time_s, energy_j, place, _ = repeated(num_steps, seed, drift_w)
    mean_w = float(energy_j.sum() / time_s.sum())
    found = fit_with_jackknife(time_s, energy_j, mean_w, place, LIMIT_W)
    assert (found.power_w > 0).all() and (found.power_w <= 1.1 * LIMIT_W).all()
    assert (found.error_w <= 0.5 * mean_w * (1 + 1e-9)).all(), "where nothing is known, half the mean"
