"""Sensors the card was not made with: noise, coarse steps, a wrong gain, a lag; and loads of other shapes."""

import numpy as np
import pytest

from tests.fakes.presets import hgx_h200
from tests.fakes.scenario import Sensor
from tests.fakes.wave import Wave
from tests.sampling import S, record
from triplepoint.power_sensor import find_updates, fit_response

SECONDS = 20.0
READS_PER_UPDATE = 4.137
"""No whole number: reads fall into all phases of the sensor."""
SENSORS = {
    "noisy": Sensor(period_s=0.1, window_s=0.025, lag_s=0.02, phase_s=0.077, noise_w=2.0),
    "whole watts of a second": Sensor(period_s=0.1, window_s=1.0, lag_s=0.1, phase_s=0.05, quantum_w=1.0),
    "window of the whole period": Sensor(period_s=0.05, window_s=0.05, phase_s=0.041, noise_w=0.5),
    "fast and late": Sensor(period_s=0.02, window_s=0.01, lag_s=0.04, phase_s=0.011, noise_w=1.0),
    "slow with a wrong gain": Sensor(period_s=0.2, window_s=0.1, lag_s=0.04, phase_s=0.13, gain=1.05, quantum_w=1.0),
}


def bursts(seconds, seed):
    """Return a load that alternates between rest and work of uneven lengths, with starts and ends of the work."""
    edges = np.cumsum(np.random.default_rng(seed).exponential(0.15, round(seconds / 0.1)) + 0.015)
    edges = edges[: 2 * (np.searchsorted(edges, seconds) // 2)]
    values = np.tile([1.0, 0.0], len(edges) // 2)
    return Wave((0.0, *edges.tolist()), (0.0, *values.tolist())), edges[::2], edges[1::2]


@pytest.mark.parametrize("name", SENSORS)
def test_characterise_recovers_a_sensor(tmp_path, name):
    sensor = SENSORS[name]
    load, starts_s, ends_s = bursts(SECONDS, seed=len(name))
    scenario = hgx_h200(1).set_all(load=load, instant=sensor)
    found = record(scenario, tmp_path, SECONDS, fast_hz=READS_PER_UPDATE / sensor.period_s, slow_hz=1)
    t_ns, power_w = found.rows("gpu_power_w")
    updates = find_updates((t_ns - found.node.start_ns) / S, power_w)
    response = fit_response(updates, starts_s, ends_s)
    assert updates.period_s == pytest.approx(sensor.period_s, rel=0.05)
    assert response.window_s == pytest.approx(sensor.window_s, rel=0.10)
    assert response.lag_s == pytest.approx(sensor.lag_s, abs=0.010)
    assert response.busy_w == pytest.approx(700 * sensor.gain, rel=0.05)
