"""When the sampler reads, what it calls, and what it never calls."""

import numpy as np
import pytest

from tests.fakes.presets import hgx_h200
from tests.fakes.scenario import Rule
from tests.fakes.wave import constant
from tests.sampling import S, record

BLOCKING = ("nvmlDeviceGetPcieThroughput",)
COSTLY = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetFanSpeed", "nvmlDeviceGetTotalEccErrors")
SET_UP = {"nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """Ten seconds of eight busy GPUs at 20 Hz."""
    return record(hgx_h200().set_all(load=constant(0.8)), tmp_path_factory.mktemp("eight"), seconds=10)


@pytest.mark.parametrize("name", BLOCKING + COSTLY)
def test_call_that_blocks_or_costs_is_not_in_the_loop(sampled, name):
    assert sampled.node.calls().get(name, 0) == 0


def test_set_up_is_done_once(sampled):
    calls = sampled.node.calls()
    assert calls["nvmlInit_v2"] == 1
    assert all(calls[name] <= 8 for name in SET_UP)


def test_fields_are_asked_for_in_one_batch_a_lane(sampled):
    # 200 fast and 100 slow reads of 8 GPUs, and the probes of the start.
    calls = sampled.node.calls()["nvmlDeviceGetFieldValues"]
    fields = sum(sampled.node.fields().values())
    assert calls < 8 * (200 + 100) * 1.2 + 1000
    assert fields > 5 * calls


@pytest.mark.parametrize("gpu", [0, 7])
def test_every_gpu_is_read_at_the_rate(sampled, gpu):
    t_ns, _ = sampled.rows("gpu_power_w", gpu)
    assert len(t_ns) == 200
    assert set(np.diff(t_ns)) <= {S // 20}


def test_samples_stand_on_a_clock_that_only_goes_on(sampled):
    for gpu in range(8):
        assert (np.diff(sampled.rows("gpu_power_w", gpu)[0]) > 0).all()


@pytest.mark.parametrize("fast_hz", [1, 7, 100])
def test_deadlines_are_absolute(tmp_path, fast_hz):
    # Each read takes 3 ms and ends late; the hundredth sample is where the rate puts it all the same.
    scenario = hgx_h200(1)
    scenario.latencies_us.append(Rule("nvmlDeviceGetFieldValues", 3000))
    found = record(scenario, tmp_path, seconds=100.5 / fast_hz, fast_hz=fast_hz, slow_hz=1)
    t_ns, _ = found.rows("gpu_power_w")
    late_ns = t_ns - t_ns[0] - np.rint((t_ns - t_ns[0]) * fast_hz / S) * S / fast_hz
    assert t_ns[-1] - t_ns[0] >= 99 * S / fast_hz - 100 and len(t_ns) >= 98
    # A read of the other lane may be in the way, for the time it takes.
    assert np.ptp(late_ns) <= 2 * 3e6 + 100


def test_missed_deadlines_are_skipped_and_leave_a_gap(tmp_path):
    def stall(node):
        node.advance(0.33)

    found = record(hgx_h200(1), tmp_path, seconds=3, events=[(1.0, stall)])
    t_ns, _ = found.rows("gpu_power_w")
    offsets = (t_ns - t_ns[0]) % (S // 20)
    gaps = np.diff(t_ns)
    assert gaps.max() == pytest.approx(0.35 * S, abs=0.06 * S)
    late = gaps.argmax() + 1
    assert set(np.delete(offsets, [late])) == {0}, "what follows is on the grid again"
    assert len(t_ns) == pytest.approx(60 - 6, abs=1)


def test_lanes_have_rates_of_their_own(sampled):
    fast, _ = sampled.rows("gpu_power_w")
    slow, _ = sampled.rows("nvlink_tx_bytes")
    assert (len(fast), len(slow)) == (200, 100)
    assert sampled.recording.period_s == 0.1 and sampled.recording.fast_period_s == 0.05


def test_slow_driver_call_is_refused_with_the_reason(tmp_path):
    # 12 ms a read cannot be in a loop of 50 ms.
    scenario = hgx_h200(1)
    scenario.latencies_us.append(Rule("nvmlDeviceGetUtilizationRates", 12_000))
    found = record(scenario, tmp_path, seconds=1)
    assert "12 ms" in found.fact(0)["absent"]["gpu_utilisation"]
    assert len(found.rows("gpu_utilisation")[0]) == 0
    assert len(found.rows("gpu_power_w")[0]) == 20


def test_read_latency_is_kept_with_every_sample(sampled):
    table = sampled.recording.samples
    assert table["read_latency_ns"].null_count == 0


def test_read_latency_is_that_of_the_driver(tmp_path):
    scenario = hgx_h200(1)
    scenario.latencies_us.append(Rule("nvmlDeviceGetFieldValues", 1500, from_s=1.0))
    table = record(scenario, tmp_path, seconds=3).recording.samples
    of_gpu = np.array(table["device"].to_pylist()) == "gpu0"
    latencies_ms = table["read_latency_ns"].to_numpy()[of_gpu] / 1e6
    assert {0, 15} <= set(np.rint(latencies_ms * 10)) <= {0, 15, 30}


def test_long_run_at_one_hertz_has_every_sample(tmp_path):
    found = record(hgx_h200(1).set_all(load=constant(0.3)), tmp_path, seconds=300, fast_hz=1, slow_hz=0.2)
    t_ns, _ = found.rows("gpu_power_w")
    assert len(t_ns) == 300
    assert found.change("gpu_energy_j")[0] == pytest.approx(299 * (75 + 0.3 * 625), rel=1e-3)
