"""What sensors show: windows, steps and edges, by hand on a made-up trace."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.simulate.heat.machines import CONFIG
from triplepoint.simulate.heat.clocks import Reason
from triplepoint.simulate.heat.loop import Trace
from triplepoint.simulate.heat.parameters import SHOWN, read_heat
from triplepoint.simulate.heat.sensor import Sensors, show
from triplepoint.tables.telemetry import METRICS

PERIOD = 0.005
HOPPER, MI200 = (read_heat(gpu, CONFIG).sensors for gpu in ("h200", "mi250"))


def hopper(num_devices: int) -> Sensors:
    return Sensors(HOPPER, [[device] for device in range(num_devices)])


def trace(power: np.ndarray, temp: np.ndarray | None = None, reasons: np.ndarray | None = None) -> Trace:
    """One node; power of shape (num_periods, num_devices)."""
    power = power[:, None, :].astype(float)
    temp = np.full_like(power, 50.0) if temp is None else temp[:, None, :]
    bits = np.zeros(power.shape, dtype=np.int64) if reasons is None else reasons[:, None, :]
    ones = np.ones(len(power))
    return Trace(PERIOD, power, temp, np.full_like(power, 1980.0), bits, np.ones_like(power), ones, ones)


def step(at_s: float, end_s: float = 4.0) -> np.ndarray:
    """100 W, and 500 W from `at_s` on."""
    return np.where(np.arange(0, end_s, PERIOD) < at_s - 1e-9, 100.0, 500.0)[:, None]


def test_show_average_is_a_boxcar_of_a_second() -> None:
    samples = np.arange(0.0, 4.0, 0.01)
    shown = show(trace(step(2.0)), 0, hopper(1), samples, seed=1)
    average = shown["gpu_power_average_w"][:, 0]
    assert (average[samples < 2.0] == pytest.approx(100)) and (average[samples > 3.11] == pytest.approx(500))
    rising = average[(samples > 2.11) & (samples < 2.99)]
    # At most 0.1 s old, it climbs 400 W in a second.
    expected = 100 + 400 * (samples[(samples > 2.11) & (samples < 2.99)] - 2.0)
    assert ((rising <= expected + 1e-6) & (rising >= expected - 40 - 1e-6)).all()


def test_show_values_change_every_100_ms_at_the_devices_own_moment() -> None:
    power = np.cumsum(np.ones((800, 2)), axis=0)
    shown = show(trace(power), 0, hopper(2), np.arange(0.5, 3.5, 0.001), seed=6)["gpu_power_w"]
    moments = [np.flatnonzero(np.diff(shown[:, device])) for device in range(2)]
    assert all(
        np.ptp(np.diff(found)) <= 1 and np.diff(found).mean() == pytest.approx(100, abs=0.5) for found in moments
    )
    assert moments[0][0] != moments[1][0]


def test_show_instant_power_is_of_the_last_25_ms() -> None:
    samples = np.arange(0.3, 4.0, 0.02)
    shown = show(trace(step(2.0)), 0, hopper(1), samples, seed=1)["gpu_power_w"][:, 0]
    assert shown[samples < 2.0] == pytest.approx(100) and shown[samples > 2.126] == pytest.approx(500)


def test_show_energy_counter_matches_integral_at_its_edges() -> None:
    samples = np.arange(0.2, 4.0, 0.001)
    counter = show(trace(step(2.0)), 0, hopper(1), samples, seed=3)["gpu_energy_j"][:, 0]
    edges = np.flatnonzero(np.diff(counter)) + 1
    before = edges[samples[edges] < 1.9]
    assert np.diff(counter[before]) == pytest.approx(10.0, abs=0.002), "100 W for 100 ms"
    assert counter[0] == 0 and counter[-1] == pytest.approx(100 * 1.8 + 500 * 2.0, abs=51)


def test_show_temperature_beside_the_die_by_the_sensors_offset() -> None:
    offset_k = np.array([[0.0, 0.0], [2.6, -2.6]])
    one = trace(np.full((800, 2), 100.0))
    names = ("power_w", "temp_c", "clock_mhz", "reasons")
    both = replace(one, **{name: np.repeat(getattr(one, name), 2, axis=1) for name in names})
    shown = [show(both, node, Sensors(MI200, [[0, 1]], offset_k), np.array([1.0]), 3)["gpu_temp_c"] for node in (0, 1)]
    assert [of.tolist() for of in shown] == [[[50.0, 50.0]], [[53.0, 47.0]]]


def test_show_temperature_in_whole_degrees() -> None:
    temp = np.linspace(40.0, 44.0, 800)[:, None]
    shown = show(trace(step(9.0), temp), 0, hopper(1), np.arange(0.2, 4.0, 0.05), seed=3)["gpu_temp_c"]
    assert set(shown[:, 0]) == {40, 41, 42, 43, 44}


def test_show_counters_of_causes() -> None:
    reasons = np.where(np.arange(800) < 400, int(Reason.POWER_CAP), int(Reason.SW_THERMAL))[:, None]
    shown = show(trace(step(9.0), None, reasons), 0, hopper(1), np.array([0.0, 1.0, 2.0, 3.0]), seed=3)
    assert shown["gpu_power_cap_s"][:, 0] == pytest.approx([0, 1, 2, 2])
    assert shown["gpu_sw_thermal_s"][:, 0] == pytest.approx([0, 0, 0, 1])
    assert shown["gpu_throttle_reasons"][:, 0].tolist() == [4, 4, 32, 32]


def test_show_second_die_of_mi250_is_silent() -> None:
    power = np.full((800, 4), 100.0)
    shown = show(trace(power), 0, Sensors(MI200, [[0, 1], [2, 3]]), np.array([2.0, 3.0]), seed=3)
    assert shown["gpu_power_w"][0, [0, 2]].tolist() == pytest.approx([200, 200])
    assert np.isnan(shown["gpu_power_w"][:, [1, 3]]).all() and np.isnan(shown["gpu_energy_j"][:, [1, 3]]).all()
    assert shown["gpu_temp_c"].tolist() == [[50.0] * 4] * 2


def test_show_power_on_the_die_that_the_file_names() -> None:
    second = MI200.model_copy(update={"power_die": 1})
    shown = show(trace(np.full((800, 2), 100.0)), 0, Sensors(second, [[0, 1]]), np.array([2.0]), seed=3)
    assert np.isnan(shown["gpu_power_w"][0, 0]) and shown["gpu_power_w"][0, 1] == pytest.approx(200)


def test_show_columns_are_the_telemetrys() -> None:
    shown = show(trace(step(2.0)), 0, hopper(1), np.array([1.0]), seed=1)
    assert set(shown) <= set(SHOWN) <= set(METRICS)
