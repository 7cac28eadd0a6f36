"""The sampler's memory does not grow with time."""

from tests.benchmarks.telemetry_cost import CASES, open_ahead, own_memory_mb, read_ahead

MINUTE_S = 60.0


def test_memory_stays_flat():
    # Everything at 20 Hz, ten minutes made in seconds: a leak of 100 bytes a read would show as over 2 MB.
    with open_ahead(CASES[0]) as lanes:
        read_ahead(lanes, MINUTE_S)
        before_mb = own_memory_mb()
        read_ahead(lanes, 10 * MINUTE_S)
        assert own_memory_mb() - before_mb < 1.0
