"""Power of nodes at the plug: mean, swing and line of all together."""

import numpy as np
import pytest

from triplepoint.aggregate.nodes import Readings, plug_columns


def node(offset_s: float = 0.0, period_s: float = 1.0, number: int = 400, phase: float = 0.0) -> Readings:
    t_s = offset_s + period_s * np.arange(number)
    power_w = 1000.0 + 100.0 * np.sin(2 * np.pi * 0.1 * t_s + phase)
    return Readings((t_s * 1e9).astype(np.int64), power_w)


def test_nodes_in_step_swing_together() -> None:
    found = plug_columns([node(), node(0.4), node(0.8)])
    assert found["node_power_w"] == pytest.approx(1000.0, rel=0.001)
    # Peak to peak 0.2 of the mean; straight lines between readings once a second cut a little off.
    assert found["job_power_swing_fraction"] == pytest.approx(0.2, abs=0.01)
    assert found["job_power_line_hz"] == pytest.approx(0.1, abs=0.001)
    assert found["job_power_line_fraction"] == pytest.approx(0.1, rel=0.05)
    assert found["job_power_seen_hz"] == pytest.approx(0.5)


def test_nodes_in_opposite_phase_hardly_swing() -> None:
    found = plug_columns([node(), node(phase=np.pi)])
    assert found["job_power_swing_fraction"] < 1e-6


def test_the_node_read_least_often_sets_what_is_seen() -> None:
    assert plug_columns([node(number=500), node(period_s=4.0, number=120)])["job_power_seen_hz"] == pytest.approx(0.125)


def test_too_few_readings_have_a_mean_and_no_swing() -> None:
    assert set(plug_columns([node(number=90)])) == {"node_power_w"}


def test_mean_is_over_time_not_over_readings() -> None:
    # 10 s at 100 W read twice, then 1 s rising to 200 W read three times.
    readings = Readings(np.array([0, 10, 11, 11, 11]) * 10**9, np.array([100.0, 100.0, 200.0, 200.0, 200.0]))
    assert plug_columns([readings])["node_power_w"] == pytest.approx((10 * 100 + 150) / 11)


def test_a_node_without_a_meter_leaves_all_empty() -> None:
    assert plug_columns([node(), Readings(np.array([]), np.array([]))]) == {}
    assert plug_columns([]) == {}
