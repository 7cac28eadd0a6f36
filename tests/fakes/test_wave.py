"""Values, integrals and low-pass responses of waves agree with numerical integration."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.wave import Wave, constant, square, steps, trace

values = st.floats(0.0, 1.0)
gaps = st.lists(st.floats(0.01, 3.0), min_size=0, max_size=5)


@st.composite
def waves(draw):
    starts = [0.0]
    for gap in draw(gaps):
        starts.append(starts[-1] + gap)
    numbers = draw(st.lists(values, min_size=len(starts), max_size=len(starts)))
    period = draw(st.sampled_from([0.0, 0.25, 1.5]))
    return Wave(tuple(starts), tuple(numbers), starts[-1] + period if period else 0.0)


def test_square_values():
    wave = square(period_s=2.0, duty=0.25, high=3.0, low=1.0)
    assert [wave.value(t) for t in (-1, 0, 0.49, 0.51, 1.99, 2.0, 2.6)] == [3, 3, 3, 1, 1, 3, 1]


def test_square_integral_by_hand():
    wave = square(period_s=2.0, duty=0.25, high=3.0, low=1.0)
    assert wave.integral(7.0) == pytest.approx(3 * (0.5 * 3 + 1.5 * 1) + 0.5 * 3 + 0.5 * 1)


def test_steps_last_value_stays():
    wave = steps((0, 0.5), (2, 1.0))
    assert wave.value(100) == 1.0
    assert wave.integral(5) == pytest.approx(0.5 * 2 + 1.0 * 3)


def test_trace_starts_at_zero():
    assert trace([10.0, 11.0], [0.2, 0.4]).starts_s == (0.0, 1.0)


def test_response_of_a_step_by_hand():
    wave = steps((0, 0.0), (1, 1.0))
    assert wave.response(3.0, tau_s=2.0) == pytest.approx(1 - math.exp(-1))


def test_response_of_a_constant_stays():
    assert constant(0.7).response(12.0, tau_s=3.0) == pytest.approx(0.7)


@given(waves(), st.floats(0.0, 8.0))
def test_integral_is_the_sum_of_values(wave, until_s):
    num = 4000
    numeric = sum(wave.value(until_s * (i + 0.5) / num) for i in range(num)) * until_s / num
    assert wave.integral(until_s) == pytest.approx(numeric, abs=until_s / num * 40 + 1e-9)


@given(waves(), st.floats(0.0, 8.0), st.floats(0.2, 5.0))
def test_response_solves_its_equation(wave, until_s, tau_s):
    num = 4000
    state, step_s = wave.values[0], until_s / num
    for i in range(num):
        state += (wave.value(step_s * (i + 0.5)) - state) * step_s / tau_s
    assert wave.response(until_s, tau_s) == pytest.approx(state, abs=step_s / tau_s * 20 + 1e-9)
