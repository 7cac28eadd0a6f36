"""Sensors recovered from their readings of a known load: the fake driver's sensors through the real sampler."""

from pathlib import Path

import numpy as np
import pytest

from tests.fakes.presets import hgx_h200
from tests.fakes.scenario import Sensor
from tests.fakes.wave import Wave
from tests.sampling import Sampled, record
from triplepoint.power_sensor import (
    busy_time,
    counter_energy_j,
    find_updates,
    fit_response,
    integral_j,
    resolution,
    settling_time_s,
    undo_average,
)

S = 1_000_000_000
SENSORS = (
    Sensor(period_s=0.1, window_s=0.025, phase_s=0.013),
    Sensor(period_s=0.1, window_s=1.0, phase_s=0.031),
    Sensor(period_s=0.1, window_s=0.1, lag_s=0.05),
    Sensor(period_s=0.05, window_s=0.01, lag_s=0.03, phase_s=0.004),
    Sensor(period_s=0.02, window_s=0.01, phase_s=0.003),
)


def random_load(seconds: float) -> tuple[Wave, np.ndarray, np.ndarray]:
    """Return a load of busy intervals between 20 and 500 ms, and when they start and end."""
    chooser = np.random.default_rng(6)
    edges = np.cumsum(chooser.uniform(0.02, 0.5, round(seconds / 0.2)))
    edges = edges[: 2 * (len(edges) // 2)]
    values = np.where(np.arange(len(edges)) % 2 == 0, 1.0, 0.0)
    return Wave((0.0, *edges.tolist()), (0.0, *values.tolist())), edges[::2], edges[1::2]


def readings(load: Wave, sensor: Sensor, folder: Path, seconds: float) -> tuple[np.ndarray, np.ndarray, Sampled]:
    """Return times on the scenario's clock and readings of the instant power at 237 Hz, no multiple of a sensor's."""
    scenario = hgx_h200(1).set_all(load=load, instant=sensor)
    sampled = record(scenario, folder, seconds, fast_hz=237.3, slow_hz=1.0)
    t_ns, power_w = sampled.rows("gpu_power_w")
    return (t_ns - sampled.node.start_ns) / S, power_w, sampled


@pytest.mark.parametrize("sensor", SENSORS, ids=lambda s: f"{s.period_s}-{s.window_s}-{s.lag_s}")
def test_fit_response_recovers_five_sensors(sensor: Sensor, tmp_path: Path) -> None:
    load, starts_s, ends_s = random_load(30.0)
    times_s, power_w, _ = readings(load, sensor, tmp_path, 30.0)
    updates = find_updates(times_s, power_w)
    found = fit_response(updates, starts_s, ends_s)
    assert updates.period_s == pytest.approx(sensor.period_s, rel=0.05)
    assert found.window_s == pytest.approx(sensor.window_s, rel=0.10)
    assert found.lag_s == pytest.approx(sensor.lag_s, abs=0.010)
    assert (found.idle_w, found.busy_w) == pytest.approx((75.0, 700.0), rel=0.05)


def test_undo_average_gives_the_step_back(tmp_path: Path) -> None:
    load = Wave((0.0, 3.0, 6.0), (0.1, 0.9, 0.1))
    scenario = hgx_h200(1).set_all(load=load)
    sampled = record(scenario, tmp_path, 9.0, fast_hz=97.0, slow_hz=1.0)
    t_ns, power_w = sampled.rows("gpu_power_average_w")
    times_s = (t_ns - sampled.node.start_ns) / S
    updates = find_updates(times_s, power_w)
    ends_s, mean_w = undo_average(times_s, power_w, updates, 1.0)
    truth_w = np.array([75.0 + 625.0 * load.mean(end - 0.1, end) for end in ends_s])
    assert np.median(np.abs(mean_w - truth_w)) < 5.0
    assert np.ptp(mean_w) == pytest.approx(500.0, rel=0.15), "the step is as high as it was"


@pytest.mark.parametrize(("seconds", "tolerance"), [(10.0, 0.02), (60.0, 0.01)])
def test_integral_of_power_agrees_with_the_energy_counter(seconds: float, tolerance: float, tmp_path: Path) -> None:
    load, _, _ = random_load(seconds + 2)
    sensor = Sensor(period_s=0.1, window_s=0.1)
    scenario = hgx_h200(1).set_all(load=load, instant=sensor)
    sampled = record(scenario, tmp_path, seconds + 2, fast_hz=20.0, slow_hz=1.0)
    power_t, power_w = sampled.rows("gpu_power_w")
    energy_t, energy_j = sampled.rows("gpu_energy_j")
    start = sampled.node.start_ns
    window = 1.0, 1.0 + seconds
    counted_j = counter_energy_j((energy_t - start) / S, energy_j, *window)
    integrated_j = integral_j((power_t - start) / S, power_w, *window)
    truth_j = sampled.node.truth.energy_j(0, start + S, start + round((1 + seconds) * S))
    assert counted_j == pytest.approx(truth_j, rel=tolerance)
    assert integrated_j == pytest.approx(counted_j, rel=tolerance)


def test_counter_energy_outside_the_samples_is_refused() -> None:
    times_s, counter_j = np.arange(10.0), np.arange(10.0) * 5
    assert counter_energy_j(times_s, counter_j, 2.0, 4.0) == pytest.approx(10.0)
    with pytest.raises(ValueError, match="did not move around the window"):
        counter_energy_j(times_s, counter_j, 2.0, 9.5)


def test_busy_time_counts_parts_of_intervals() -> None:
    at_s = np.array([0.0, 1.5, 2.0, 3.25, 9.0])
    assert busy_time(at_s, np.array([1.0, 3.0]), np.array([2.0, 4.0])).tolist() == [0.0, 0.5, 1.0, 1.25, 2.0]


def test_resolution_is_the_common_step() -> None:
    assert resolution(np.array([100.0, 100.25, 101.0, 99.5])) == pytest.approx(0.25)


def test_settling_time_ends_with_the_last_sample_outside() -> None:
    times_s = np.arange(10.0)
    power_w = np.array([50, 80, 95, 99, 100, 100, 100, 100, 100, 100.0])
    assert settling_time_s(times_s, power_w, start_s=-1.0) == 4.0
    assert settling_time_s(times_s, np.full(10, 100.0), start_s=-1.0) == 0.0


def test_find_updates_of_a_still_sensor_is_refused() -> None:
    with pytest.raises(ValueError, match="changed 0 times"):
        find_updates(np.arange(100.0), np.full(100, 70.0))
