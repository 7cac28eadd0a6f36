"""What the sampler records of NVIDIA GPUs, against the truth of the node."""

import numpy as np
import pytest

from tests.fakes.presets import hgx_a100, hgx_h100, hgx_h200
from tests.fakes.scenario import Sensor
from tests.fakes.wave import constant, square, steps
from tests.sampling import S, aligned, record

LIVELY = square(0.7, 0.4)
CAUSES = {
    "power_cap": "gpu_power_cap_s",
    "sw_thermal": "gpu_sw_thermal_s",
    "hw_thermal": "gpu_hw_thermal_s",
    "power_brake": "gpu_power_brake_s",
    "sync_boost": "gpu_sync_boost_s",
}


@pytest.fixture(scope="module")
def minute(tmp_path_factory):
    """A minute of two GPUs, the second at half the load."""
    scenario = hgx_h200(2).set_all(**aligned(LIVELY))
    scenario.set_gpu(1, load=square(0.7, 0.4, high=0.5))
    return record(scenario, tmp_path_factory.mktemp("minute"), seconds=60)


@pytest.fixture(scope="module")
def step_up(tmp_path_factory):
    """Half a minute idle, a minute under full load."""
    return record(hgx_h200(1).set_all(load=steps((0, 0.0), (30, 1.0))), tmp_path_factory.mktemp("step"), seconds=90)


def integral_j(t_ns, power_w):
    return float(np.trapezoid(power_w, t_ns) / S)


@pytest.mark.parametrize("gpu", [0, 1])
def test_energy_is_the_truth(minute, gpu):
    energy_j, begin, end = minute.change("gpu_energy_j", gpu)
    assert energy_j == pytest.approx(minute.node.truth.energy_j(gpu, begin, end), rel=1e-3)


def test_integral_of_average_power_meets_the_counter_over_a_minute(minute):
    t_ns, power_w = minute.rows("gpu_power_average_w")
    energy_j, *_ = minute.change("gpu_energy_j")
    assert integral_j(t_ns, power_w) == pytest.approx(energy_j, rel=0.01)


def test_integral_of_average_power_meets_the_counter_over_ten_seconds(minute):
    t_ns, power_w = minute.rows("gpu_power_average_w")
    energy_t_ns, energy_j = minute.rows("gpu_energy_j")
    for begin_s in (5, 20, 41):
        inside = (t_ns - t_ns[0] >= begin_s * S) & (t_ns - t_ns[0] <= (begin_s + 10) * S)
        assert (t_ns == energy_t_ns).all()
        spent_j = energy_j[inside][-1] - energy_j[inside][0]
        assert integral_j(t_ns[inside], power_w[inside]) == pytest.approx(spent_j, rel=0.02)


def test_instant_power_has_only_the_levels_of_its_window(minute):
    _, power_w = minute.rows("gpu_power_w")
    assert power_w.min() == pytest.approx(75, abs=0.01) and power_w.max() == pytest.approx(700, abs=0.01)


def test_average_and_instant_power_are_kept_apart(minute):
    # Any second of this load holds one or two of its pulses of 0.28 s.
    _, instant_w = minute.rows("gpu_power_w")
    _, average_w = minute.rows("gpu_power_average_w")
    settled_w = average_w[40:]
    assert settled_w.min() >= 75 + 0.28 * 625 - 0.01 and settled_w.max() <= 75 + 0.56 * 625 + 0.01
    assert np.ptp(settled_w) < np.ptp(instant_w)


def test_memory_power_is_its_share(minute):
    _, average_w = minute.rows("gpu_power_average_w")
    _, memory_w = minute.rows("gpu_memory_power_w")
    assert memory_w == pytest.approx(0.2 * average_w, abs=0.01)


def test_a100_power_is_the_instant_field(tmp_path):
    found = record(hgx_a100(1).set_all(load=square(0.1, 0.1), instant=Sensor(0.1, 0.025)), tmp_path, seconds=3)
    _, instant_w = found.rows("gpu_power_w")
    _, average_w = found.rows("gpu_power_average_w")
    assert instant_w[-1] == pytest.approx(75, abs=0.01)
    assert average_w[-1] == pytest.approx(75 + 0.1 * 325, abs=0.01)
    assert found.fact(0)["sources"]["gpu_power_w"] == "field 186"


def test_die_temperature_follows_the_truth_within_its_degree(step_up):
    t_ns, temp_c = step_up.rows("gpu_temp_c")
    truth_c = np.array([step_up.node.truth.temp_c(0, int(t)) for t in t_ns])
    assert (temp_c <= truth_c + 1e-6).all() and (truth_c < temp_c + 1 + 1e-6).all()


def test_memory_temperature_is_that_of_the_memory(step_up):
    t_ns, temp_c = step_up.rows("gpu_memory_temp_c")
    truth_c = np.array([step_up.node.truth.memory_temp_c(0, int(t)) for t in t_ns])
    assert (temp_c <= truth_c + 1e-6).all() and (truth_c < temp_c + 1 + 1e-6).all()


def test_margin_goes_with_the_die(step_up):
    t_ns, margin_c = step_up.rows("gpu_temp_margin_c")
    by_time = dict(zip(*step_up.rows("gpu_temp_c"), strict=True))
    found = [(by_time[t], margin) for t, margin in zip(t_ns, margin_c, strict=True) if t in by_time]
    assert len(found) > 100
    assert {temp + margin for temp, margin in found} == {87.0}


def test_clock_shows_idle_load_and_throttling(tmp_path):
    load, brake = steps((0, 0.0), (2, 1.0)), steps((0, 0.0), (4, 1.0))
    found = record(hgx_h200(1).set_all(load=load, power_brake=brake), tmp_path, seconds=6)
    t_ns, clock_mhz = found.rows("sm_clock_mhz")
    at = {s: clock_mhz[np.searchsorted(t_ns, t_ns[0] + s * S)] for s in (1, 3, 5)}
    assert at == {1: 345.0, 3: 1980.0, 5: 1410.0}
    assert set(found.rows("memory_clock_mhz")[1]) == {3201.0}


@pytest.mark.parametrize("fast_hz", [1, 20])
@pytest.mark.parametrize("cause", CAUSES)
def test_throttle_fraction_is_exact_at_any_rate(tmp_path, cause, fast_hz):
    # Pulses of 13 ms each 0.31 s: what samples of the reason bits would miss or count twice.
    pulse = square(0.31, 0.013 / 0.31)
    changes = {cause: pulse, "load": constant(1.0)}
    if cause == "power_cap":
        changes = {"load": square(0.31, 0.013 / 0.31, high=1.3, low=0.9)}
    found = record(hgx_h200(1).set_all(**changes), tmp_path, seconds=62, fast_hz=fast_hz, slow_hz=1)
    for name, column in CAUSES.items():
        seconds, begin, end = found.change(column)
        truth = found.node.truth.throttled_share(0, name, begin, end)
        assert abs(seconds * S / (end - begin) - truth) < 1e-3, name
        assert (truth > 0.03) == (name == cause)


def test_throttle_reasons_are_the_bits_of_the_driver(tmp_path):
    scenario = hgx_h200(1).set_all(load=constant(1.0), sw_thermal=steps((0, 0.0), (1, 1.0)))
    _, bits = record(scenario, tmp_path, seconds=2).rows("gpu_throttle_reasons")
    assert set(bits.tolist()) == {0x0, 0x20}


def test_power_limit_and_its_change(tmp_path):
    found = record(hgx_h200(1).set_all(limit_w=550.0), tmp_path, seconds=1)
    assert set(found.rows("gpu_power_limit_w")[1]) == {550.0}
    assert found.fact(0)["power_limit_mw"] == 550_000


def test_utilisation_is_a_ratio(tmp_path):
    found = record(hgx_h200(1).set_all(load=square(1 / 6, 0.5)), tmp_path, seconds=3)
    assert set(found.rows("gpu_utilisation")[1][5:]) == {0.5}


def test_memory_in_use_is_in_bytes(tmp_path):
    found = record(hgx_h200(1).set_all(load=constant(1.0)), tmp_path, seconds=1)
    assert set(found.rows("gpu_memory_used_bytes")[1]) == {100 * 2.0**30}


@pytest.mark.parametrize("make", [hgx_h100, hgx_h200])
def test_activity_is_counted_over_more_than_a_tenth_of_a_second(tmp_path, make):
    found = record(make(1).set_all(load=constant(0.5)), tmp_path, seconds=3)
    assert found.rows("gpu_sm_activity")[1] == pytest.approx(0.9 * 0.5, abs=1e-4)
    assert found.rows("gpu_tensor_activity")[1] == pytest.approx(0.6 * 0.5, abs=1e-4)
    t_ns, _ = found.rows("gpu_dram_activity")
    assert np.diff(t_ns).min() > 0.1 * S


def test_ampere_has_no_activity_and_says_so(tmp_path):
    found = record(hgx_a100(1), tmp_path, seconds=1)
    assert len(found.rows("gpu_sm_activity")[0]) == 0
    assert "GPM" in found.recording.absent["gpu_sm_activity"]


def test_ecc_counts_are_kept(tmp_path):
    found = record(hgx_h200(1).set_all(ecc_corrected=7, ecc_uncorrected=2), tmp_path, seconds=1)
    assert set(found.rows("gpu_ecc_corrected")[1].tolist()) == {7}
    assert set(found.rows("gpu_ecc_uncorrected")[1].tolist()) == {2}


def test_identity_names_every_gpu(tmp_path):
    found = record(hgx_h200(8), tmp_path, seconds=0.2)
    for gpu in range(8):
        fact, truth = found.fact(gpu), found.node.scenario.gpus[gpu]
        assert (fact["uuid"], fact["serial"], fact["product"]) == (truth.uuid, truth.serial, truth.name)
        assert fact["pci_address"] == f"0000:{truth.pci_bus:02x}:00.0"
        assert fact["module"] == truth.module_id


def test_devices_are_in_the_order_of_numbers(tmp_path):
    found = record(hgx_h200(8), tmp_path, seconds=0.2)
    assert [fact["device"] for fact in found.recording.facts["gpus"]] == [f"gpu{i}" for i in range(8)]
