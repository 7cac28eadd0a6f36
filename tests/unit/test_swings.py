"""Range, ramps, lines and coherence of power, against signals whose answers are known."""

import numpy as np
import pytest

from triplepoint import swings

PERIOD_S, FREQUENCY_HZ = 2.0, 0.0914
T_S = np.arange(1700) * PERIOD_S


def sine(phase: float = 0.0, frequency_hz: float = FREQUENCY_HZ) -> np.ndarray:
    return np.asarray(1000.0 + 80.0 * np.sin(2 * np.pi * frequency_hz * T_S + phase))


def test_swing_of_a_sawtooth() -> None:
    power_w = np.tile([100.0, 110.0, 120.0, 130.0], 100)
    found = swings.swing(power_w, 2.0)
    assert (found.mean_w, found.low_w, found.high_w) == (115.0, 100.0, 130.0)
    assert found.fraction == pytest.approx(30 / 115)
    assert (found.ramp_up_w_per_s, found.ramp_down_w_per_s) == (5.0, 15.0)


def test_swing_refuses_samples_that_are_missing() -> None:
    with pytest.raises(ValueError, match="finite"):
        swings.swing([1.0, float("nan")], 2.0)


@pytest.mark.parametrize("frequency_hz", [0.0213, 0.0914, 0.24])
def test_strongest_line_meets_frequency_and_amplitude(frequency_hz: float) -> None:
    found = swings.strongest_line(sine(frequency_hz=frequency_hz), PERIOD_S, 0.02, 0.25)
    assert found.frequency_hz == pytest.approx(frequency_hz, abs=found.resolution_hz / 16)
    assert found.amplitude_w == pytest.approx(80.0, rel=0.01)


def test_strongest_line_is_of_the_band() -> None:
    power_w = sine() + 10.0 * np.sin(2 * np.pi * 0.2 * T_S)
    assert swings.strongest_line(power_w, PERIOD_S, 0.15, 0.25).frequency_hz == pytest.approx(0.2, abs=1e-4)


@pytest.mark.parametrize(("low_hz", "high_hz", "window_s"), [(0.1, 0.26, 0.0), (0.1, 0.2, 4.0), (0.001, 0.2, 0.0)])
def test_strongest_line_refuses_a_band_it_cannot_see(low_hz: float, high_hz: float, window_s: float) -> None:
    with pytest.raises(ValueError, match="band"):
        swings.strongest_line(sine(), PERIOD_S, low_hz, high_hz, window_s)


def test_highest_hz_of_published_sensors() -> None:
    # arXiv:2508.14318: a mean of 100 ms shows nothing above 5 Hz, a reading every 2 s nothing above 0.25 Hz.
    assert swings.highest_hz(0.01, 0.1) == 5.0
    assert swings.highest_hz(2.0) == 0.25


def test_coherence_is_one_in_step_and_falls_as_the_root_at_random() -> None:
    phases = np.random.default_rng(1).uniform(0, 2 * np.pi, 400)
    apart = np.stack([sine(phase) for phase in phases.tolist()], axis=1)
    together = np.stack([sine()] * 5, axis=1)
    assert swings.coherence(together, PERIOD_S, FREQUENCY_HZ) == pytest.approx(1.0)
    expected = abs(np.exp(1j * phases).mean())
    assert swings.coherence(apart, PERIOD_S, FREQUENCY_HZ) == pytest.approx(expected, abs=0.01)


def test_coherence_makes_the_amplitude_of_the_job_whatever_single_nodes_do() -> None:
    t_s = PERIOD_S * np.arange(200)
    swing_w = np.sin(2 * np.pi * FREQUENCY_HZ * t_s)
    nodes_w = np.stack([5000 + 900 * swing_w, 5000 - 100 * swing_w, np.full(200, 5000.0)], axis=1)
    assert swings.coherence(nodes_w, PERIOD_S, FREQUENCY_HZ) == pytest.approx(800 / 1000)
    assert swings.correlation(nodes_w) == pytest.approx(-1.0), "a constant node correlates with nothing"
    assert np.isnan(swings.correlation(nodes_w[:, 1:]))


def test_coherence_refuses_what_the_meter_does_not_show() -> None:
    with pytest.raises(ValueError, match="beyond"):
        swings.coherence(np.ones((10, 2)), PERIOD_S, 0.3)


def test_correlation_of_noise_on_a_common_signal() -> None:
    noise = np.random.default_rng(2).standard_normal((1700, 20)) * 80.0 / np.sqrt(2)
    # As much variance of each node is its own as is common.
    assert swings.correlation(sine()[:, None] + noise) == pytest.approx(0.5, abs=0.03)


def test_at_even_times_is_where_all_are_read_and_as_often_as_the_slowest() -> None:
    power_w, period_s = swings.at_even_times(
        [[0, 1, 2, 3, 4], [0.5, 2.0, 3.5, 5.0]], [[0, 1, 2, 3, 4], [5, 20, 35, 50]]
    )
    assert period_s == 1.5
    np.testing.assert_allclose(power_w, [[0.5, 5.0], [2.0, 20.0], [3.5, 35.0]])


def test_in_band_of_two_sines_by_hand() -> None:
    # A sine of 80 W swings by 80 / sqrt 2 about its mean; the other of 40 W has a quarter of its square.
    power_w = sine() + 40.0 * np.sin(2 * np.pi * 0.2 * T_S)
    both, lower = swings.in_band(power_w, PERIOD_S, 0.05, 0.25), swings.in_band(power_w, PERIOD_S, 0.05, 0.15)
    assert lower.rms_w == pytest.approx(80.0 / np.sqrt(2), rel=0.001)
    assert lower.share == pytest.approx(0.8, rel=0.001)
    assert both.rms_w == pytest.approx(np.sqrt((80.0**2 + 40.0**2) / 2), rel=0.001)
    assert both.share == pytest.approx(1.0, rel=0.001)


@pytest.mark.parametrize("band_hz", [(FREQUENCY_HZ, 0.25), (0.05, FREQUENCY_HZ)])
def test_in_band_has_the_whole_of_a_line_on_its_edge(band_hz: tuple[float, float]) -> None:
    found = swings.in_band(sine(), PERIOD_S, *band_hz)
    assert found.rms_w == pytest.approx(80.0 / np.sqrt(2), rel=0.001)
    assert found.share == pytest.approx(1.0, rel=0.001)


def test_in_band_leaves_out_a_line_beside_it() -> None:
    beside_hz = FREQUENCY_HZ + 8.0 / (len(T_S) * PERIOD_S)
    assert swings.in_band(sine(), PERIOD_S, beside_hz, 0.25).rms_w == pytest.approx(0.0, abs=0.3)


def test_in_band_refuses_what_the_meter_does_not_show() -> None:
    with pytest.raises(ValueError, match=r"0\.25 Hz"):
        swings.in_band(sine(), PERIOD_S, 0.1, 20.0)
