"""Heat: steady states and steps by hand, an independent integrator, and what must hold for any power."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.examples import examples
from tests.unit.simulate.heat.machines import CONFIG, airflow, cooling
from triplepoint.simulate.heat.devices import BadContact, BlockedAirflow, draw_devices, equal_devices, with_faults
from triplepoint.simulate.heat.network import build_network, propagator
from triplepoint.simulate.heat.parameters import read_airflow, read_heat
from triplepoint.simulate.power.parameters import read_power

ROWS = [[0, 2], [1, 3]]


def test_steady_by_hand() -> None:
    network = build_network(cooling(), airflow(ROWS), equal_devices(1, 4))
    power = np.array([[100.0, 200, 300, 400]])
    # 0.05 K/W over the air; the rear's air is 0.02 K/W of the front's mean of 200 W warmer.
    expected = [20 + 5, 20 + 10 + 4, 20 + 15, 20 + 20 + 4]
    assert network.die_c(network.steady(power), 20.0)[0] == pytest.approx(expected)


def test_propagator_lone_die_follows_its_exponential() -> None:
    network = build_network(cooling(), airflow([[0]]), equal_devices(1, 1))
    # The sink takes a hundred times the heat: it has risen 0.01 K/W after 1/500 of a second's watt.
    state = propagator(network, 0.2)(network.at_rest(), np.array([[100.0]]))
    assert state[0, 0] == pytest.approx(4 * (1 - np.exp(-1)), rel=0.01)


@settings(max_examples=examples(20), deadline=None)
@given(arrays(float, (2, 4), elements=st.floats(0, 700)), st.floats(0.01, 30))
def test_propagator_agrees_with_small_explicit_steps(power: np.ndarray, step_s: float) -> None:
    devices = with_faults(equal_devices(2, 4), [BadContact(0, 1, 3.0), BlockedAirflow(1, (2, 3), 0.5)])
    network = build_network(cooling(twin=0.03), airflow(ROWS, [[0, 1], [2, 3]]), devices)
    slow, count = network.at_rest(), 4000
    for _ in range(count):
        middle = slow + step_s / count / 2 * _rate(network, slow, power)
        slow = slow + step_s / count * _rate(network, middle, power)
    assert propagator(network, step_s)(network.at_rest(), power) == pytest.approx(slow, rel=2e-3, abs=2e-3)


def _rate(network, state, power):  # type: ignore[no-untyped-def]
    return np.einsum("bij,bj->bi", network.change, state) + np.einsum("bij,bj->bi", network.drive, power)


@settings(max_examples=examples(30), deadline=None)
@given(arrays(float, (6, 1, 4), elements=st.floats(0, 700)))
def test_heat_put_in_is_stored_or_in_the_air(power: np.ndarray) -> None:
    known = cooling(twin=0.03)
    network = build_network(known, airflow(ROWS, [[0, 1], [2, 3]]), equal_devices(1, 4))
    capacity = np.repeat(
        [known.die_time.value / known.die_resistance.value, known.sink_time.value / known.sink_resistance.value], 4
    )
    step_s, parts = 2.0, 400
    step = propagator(network, step_s / parts)
    state, given_off = network.at_rest(), 0.0

    def to_air_w(state: np.ndarray) -> float:
        return float((state[:, 4:8] - state[:, 8:]).sum() / known.sink_resistance.value)

    for watts in power:
        for _ in range(parts):
            after = step(state, watts)
            given_off += (to_air_w(state) + to_air_w(after)) / 2 * step.step_s
            state = after
    put_in = float(power.sum() * step_s)
    assert given_off + float((capacity * state[0, :8]).sum()) == pytest.approx(put_in, rel=1e-3, abs=1e-6)


def test_steps_of_any_length_end_alike() -> None:
    network = build_network(cooling(), airflow(ROWS), equal_devices(1, 4))
    power, state = np.array([[500.0, 600, 700, 100]]), network.at_rest()
    for _ in range(20):
        state = propagator(network, 0.5)(state, power)
    assert propagator(network, 10.0)(network.at_rest(), power) == pytest.approx(state)
    assert propagator(network, 0.5).repeated(20)(network.at_rest(), power) == pytest.approx(state)


def test_blocked_airflow_warms_the_blocked_alone_in_front() -> None:
    normal = build_network(cooling(), airflow(ROWS), equal_devices(1, 4))
    blocked = build_network(cooling(), airflow(ROWS), with_faults(equal_devices(1, 4), [BlockedAirflow(0, (0,), 0.5)]))
    power = np.full((1, 4), 500.0)
    warmer = blocked.steady(power)[0, :4] - normal.steady(power)[0, :4]
    # 0.01 K/W grows by 2^0.8; the heat it gives to the rear is the same.
    assert warmer == pytest.approx([500 * 0.01 * (2**0.8 - 1), 0, 0, 0], abs=1e-9)


def test_liquid_has_no_preheat() -> None:
    flow = read_airflow("hgx-8", CONFIG)
    network = build_network(read_heat("h100", CONFIG).cooling["liquid"], flow, equal_devices(1, 8))
    dies = network.steady(np.full((1, 8), 700.0))[0, :8]
    assert dies == pytest.approx(np.full(8, 700 * 0.032))


def test_draw_devices_same_seed_same_parts_and_spread_as_configured() -> None:
    heat, power = read_heat("h200", CONFIG), read_power("h200", CONFIG)
    one, again, other = (draw_devices(heat, power, (500, 8), seed) for seed in (1, 1, 2))
    assert (one.die == again.die).all() and (one.leakage == again.leakage).all()
    assert not (one.die == other.die).any()
    is_bad = one.die > 2
    assert np.log(one.die[~is_bad]).std() == pytest.approx(heat.resistance_spread.value, rel=0.05)
    assert is_bad.mean() == pytest.approx(heat.bad_contact_share.value, rel=0.4)
