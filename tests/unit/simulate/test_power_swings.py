"""Power over time of a job on 64 nodes against a public log: `tests.benchmarks.power_swings` prints all of it."""

import numpy as np
import pytest

from tests.power_swings import BLOCK, FITTED_STEPS, block_s, ends_of_steps_s, measured, simulated
from triplepoint.simulate.power.over_time import Meter, Stretch, read_meters, with_jitter


def test_node_power_is_met() -> None:
    assert simulated().node_power_w == pytest.approx(measured().node_power_w, rel=0.05)


def test_swing_is_met_on_the_part_that_nothing_was_fitted_to() -> None:
    rest = measured(ends_of_steps_s()[FITTED_STEPS - 1])
    assert simulated().swing == pytest.approx(rest.swing, abs=0.03)


def test_line_is_met() -> None:
    assert simulated().line.frequency_hz == pytest.approx(measured().line.frequency_hz, rel=0.01)


def test_measured_line_is_a_multiple_of_the_block_not_of_the_step() -> None:
    found = measured().line
    step_s = float(np.median(np.diff(ends_of_steps_s())))
    assert found.frequency_hz == pytest.approx(13 / block_s(), abs=found.resolution_hz / 4)
    assert abs(found.frequency_hz - 1 / step_s) > 2 * found.resolution_hz


def test_steps_of_the_log_are_in_blocks() -> None:
    between_s = np.diff(ends_of_steps_s())
    assert np.flatnonzero(between_s > 20).tolist() == list(range(BLOCK - 1, 287, BLOCK))


def test_seeds_differ_and_one_seed_repeats() -> None:
    assert simulated(1) == simulated(1)
    assert simulated(1).node_power_w != simulated(2).node_power_w


def test_read_meters_means_a_window() -> None:
    # 1 s at 100 W and 1 s at 300 W: a window of 2 s sees 200 W whenever it looks, one of 1 s up to either.
    stretches = [Stretch(np.array([[100.0], [300.0]]), 2.0)] * 50
    _, slow = read_meters(stretches, Meter(2.1, 2.0), seed=0)
    when_s, fast = read_meters(stretches, Meter(0.7, 1.0), seed=0)
    np.testing.assert_allclose(slow, 200.0)
    assert fast.min() < 130 < 270 < fast.max()
    np.testing.assert_allclose(np.diff(when_s[:, 0]), 0.7)


def test_jitter_keeps_energy_and_deviates_as_asked() -> None:
    step = Stretch(np.array([[100.0], [300.0]]), 2.0)
    found = with_jitter([step] * 4000, 0.01, seed=3)
    lengths_s = np.array([each.length_s for each in found])
    assert lengths_s.std() / lengths_s.mean() == pytest.approx(0.01, rel=0.05)
    assert found[0].nodes_w.mean() * found[0].length_s == pytest.approx(400.0)
