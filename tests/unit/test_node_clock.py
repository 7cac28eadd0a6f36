import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from triplepoint.node_clock import answer_clock, measure_offset


def offset_of(ahead_ns: int, delays_s: tuple[float, float] = (0.0, 0.0)) -> tuple[float, float, float]:
    """Measure against a clock that is `ahead_ns` ahead, with delays before and after its stamps."""
    ours, theirs = socket.socketpair()

    def clock() -> int:
        return time.monotonic_ns() + ahead_ns

    def late_clock() -> int:
        time.sleep(delays_s[0])
        return clock()

    server = threading.Thread(target=answer_clock, args=(theirs, late_clock if any(delays_s) else clock))
    server.start()
    found = measure_offset(ours, time.monotonic_ns, num_exchanges=20)
    server.join()
    return found.offset_s, found.uncertainty_s, found.round_trip_s


@settings(max_examples=examples(20), deadline=None)
@given(ahead_ms=st.integers(-10_000, 10_000))
def test_measure_offset_is_right_within_its_uncertainty(ahead_ms: int) -> None:
    offset_s, uncertainty_s, _ = offset_of(ahead_ms * 1_000_000)
    assert abs(offset_s - ahead_ms / 1000) <= uncertainty_s


def test_measure_offset_on_a_slow_server_stays_within_its_uncertainty() -> None:
    # The server stamps late, so that the way there seems long: the worst an asymmetric network can do.
    offset_s, uncertainty_s, round_trip_s = offset_of(0, (0.002, 0.0))
    assert abs(offset_s) <= uncertainty_s
    assert uncertainty_s == pytest.approx(round_trip_s / 2)


def test_measure_offset_takes_the_quickest_exchange() -> None:
    ours, theirs = socket.socketpair()
    stamps = iter([0, 100, 200, 210, 300, 390])  # ns: asked and heard, three times
    answers = iter([1050, 1050, 1205, 1205, 1345, 1345])
    server = threading.Thread(target=answer_clock, args=(theirs, lambda: next(answers)))
    server.start()
    found = measure_offset(ours, lambda: next(stamps), num_exchanges=3)
    server.join()
    assert found.round_trip_s == pytest.approx(10e-9)
    assert found.offset_s == pytest.approx(1000e-9)
