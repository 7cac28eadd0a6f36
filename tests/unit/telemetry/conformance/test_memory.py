"""The sampler's memory does not grow with time."""

from tests.benchmarks.telemetry_cost import CASES, alone, memory_after


def test_memory_stays_flat():
    # Everything at 20 Hz, ten minutes made in seconds: a leak of 100 bytes a read would show as over 2 MB.
    # In a process of its own: memory of other tests comes and goes.
    before_mb, after_mb = alone(memory_after, CASES[0], [60.0, 600.0])
    assert after_mb - before_mb < 1.0
