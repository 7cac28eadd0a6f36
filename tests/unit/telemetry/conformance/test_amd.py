"""What the sampler records of AMD GPUs, against the truth of the node."""

import numpy as np
import pytest

from tests.fakes.presets import mi250_node, mi300x_node
from tests.fakes.scenario import Rule
from tests.fakes.wave import constant, square, steps
from tests.sampling import S, record

LIVELY = square(0.7, 0.4)
LIMITS = {"power_cap": "gpu_power_cap_s", "sw_thermal": "gpu_sw_thermal_s", "hw_thermal": "gpu_hw_thermal_s"}
BLOCKING = ("amdsmi_get_gpu_pci_throughput", "amdsmi_get_violation_status")


@pytest.fixture(scope="module")
def mi250(tmp_path_factory):
    """Half a minute of four packages; the last one's secondary die at rest."""
    scenario = mi250_node(4).set_all(load=LIVELY)
    scenario.set_gpu(7, load=constant(0.0))
    return record(scenario, tmp_path_factory.mktemp("mi250"), seconds=30)


def hip(found, die):
    """Return the number ranks know a die by."""
    return found.node.scenario.gpus[die].hip_id


def test_mi250_energy_is_that_of_the_package(mi250):
    for package in range(4):
        energy_j, begin, end = mi250.change("gpu_energy_j", hip(mi250, 2 * package))
        assert energy_j == pytest.approx(mi250.node.truth.package_energy_j(package, begin, end), rel=1e-3)


def test_mi250_secondary_die_has_no_power_of_its_own(mi250):
    for die in (1, 3, 5, 7):
        for column in ("gpu_power_w", "gpu_power_average_w", "gpu_energy_j"):
            assert len(mi250.rows(column, hip(mi250, die))[0]) == 0, column
        assert "secondary die" in mi250.fact(hip(mi250, die))["absent"]["gpu_energy_j"]


def test_mi250_power_is_of_both_dies(mi250):
    # Beyond what one die can draw.
    assert mi250.rows("gpu_power_average_w", hip(mi250, 0))[1].max() == pytest.approx(500, abs=1)
    assert mi250.rows("gpu_power_average_w", hip(mi250, 6))[1].max() == pytest.approx(250 + 45, abs=1)


def test_mi250_energy_of_the_node_counts_each_package_once(mi250):
    total_j = 0.0
    for die in range(8):
        t_ns, energy_j = mi250.rows("gpu_energy_j", hip(mi250, die))
        total_j += energy_j[-1] if len(t_ns) else 0.0
    _, begin, end = mi250.change("gpu_energy_j", hip(mi250, 0))
    truth_j = sum(mi250.node.truth.package_energy_j(package, begin, end) for package in range(4))
    assert total_j == pytest.approx(truth_j, rel=1e-3)


def test_mi250_devices_are_named_as_ranks_know_them(mi250):
    for die, gpu in enumerate(mi250.node.scenario.gpus):
        fact = mi250.fact(hip(mi250, die))
        assert fact["uuid"] == gpu.uuid
        assert fact["pci_address"] == f"0000:{gpu.pci_bus:02x}:00.0"


def test_mi250_temperature_is_that_of_the_die(mi250):
    # The resting die of the fourth package stays cool beside the working one.
    working = mi250.rows("gpu_edge_temp_c", hip(mi250, 6))[1]
    resting = mi250.rows("gpu_edge_temp_c", hip(mi250, 7))[1]
    assert set(resting) == {30.0 + 0.2 * 45}
    t_ns, _ = mi250.rows("gpu_edge_temp_c", hip(mi250, 6))
    truth_c = np.array([mi250.node.truth.temp_c(6, int(t)) for t in t_ns])
    assert (working <= truth_c + 1e-6).all() and (truth_c < working + 1 + 1e-6).all()


def test_gpu_temperature_is_the_hotspot(tmp_path):
    found = record(mi250_node(1).set_all(load=constant(1.0)), tmp_path, seconds=1)
    # 30 C + 0.2 K/W * 250 W at the edge, 0.02 K/W more in the hottest spot.
    assert set(found.rows("gpu_edge_temp_c", 0)[1]) == {80.0}
    assert set(found.rows("gpu_temp_c", 0)[1]) == {85.0}
    assert set(found.rows("gpu_memory_temp_c", 0)[1]) == {67.0}


def test_mi250_has_average_power_only(mi250):
    sources = mi250.fact(hip(mi250, 0))
    assert len(mi250.rows("gpu_power_average_w", hip(mi250, 0))[0]) == 600
    assert "xgmi_tx_bytes" in mi250.recording.absent or "xgmi_tx_bytes" in sources["absent"]


def test_mi300x_has_current_power_only(tmp_path):
    found = record(mi300x_node(2).set_all(load=constant(1.0)), tmp_path, seconds=1)
    assert set(found.rows("gpu_power_w", 1)[1]) == {750.0}
    assert len(found.rows("gpu_power_average_w", 1)[0]) == 0


@pytest.mark.parametrize("column", ["xgmi_tx_bytes", "xgmi_rx_bytes"])
def test_mi300x_links_are_summed(tmp_path, column):
    found = record(mi300x_node(2).set_all(load=LIVELY), tmp_path, seconds=10)
    moved_bytes, begin, end = found.change(column, 1)
    truth = getattr(found.node.truth, column.replace("xgmi", "nvlink"))(1, begin, end)
    assert moved_bytes == pytest.approx(truth, abs=7 * 1024 * 2)


def test_mi300x_energy_is_the_truth(tmp_path):
    found = record(mi300x_node(2).set_all(load=LIVELY), tmp_path, seconds=20)
    energy_j, begin, end = found.change("gpu_energy_j", 0)
    assert energy_j == pytest.approx(found.node.truth.energy_j(0, begin, end), rel=1e-3)


def test_throttling_of_the_moment_is_kept(tmp_path):
    scenario = mi250_node(1).set_all(load=constant(1.0), sw_thermal=steps((0, 0.0), (1, 1.0)))
    _, bits = record(scenario, tmp_path, seconds=2).rows("gpu_throttle_reasons", 0)
    assert set(bits.tolist()) == {0x0, 0x20}


@pytest.mark.parametrize("fast_hz", [1, 20])
@pytest.mark.parametrize("cause", LIMITS)
def test_mi300x_throttle_fraction_is_exact_at_any_rate(tmp_path, cause, fast_hz):
    # Pulses of 13 ms each 0.31 s, which the bits of the moment miss or count twice.
    pulse = square(0.31, 0.013 / 0.31)
    changes = {cause: pulse, "load": constant(1.0)}
    if cause == "power_cap":
        changes = {"load": square(0.31, 0.013 / 0.31, high=1.3, low=0.9)}
    found = record(mi300x_node(2).set_all(**changes), tmp_path, seconds=62, fast_hz=fast_hz, slow_hz=1)
    for name, column in LIMITS.items():
        seconds, begin, end = found.change(column, 1)
        truth = found.node.truth.throttled_share(1, name, begin, end)
        assert abs(seconds * S / (end - begin) - truth) < 1e-3, name
        assert (truth > 0.03) == (name == cause)


def test_mi300x_throttle_time_spans_reads_that_failed(tmp_path):
    scenario = mi300x_node(1).set_all(load=constant(1.0), sw_thermal=constant(1.0))
    scenario.errors.append(Rule("amdsmi_get_gpu_metrics_info", 40, from_s=1.55, until_s=3.22))
    found = record(scenario, tmp_path, seconds=6)
    seconds, begin, end = found.change("gpu_sw_thermal_s", 0)
    assert seconds == pytest.approx((end - begin) / S, abs=2e-3)
    assert len(found.rows("gpu_sw_thermal_s", 0)[0]) == pytest.approx(120 - 33, abs=1)


def test_mi250_has_no_throttle_time(mi250):
    for column in LIMITS.values():
        assert "not measured by this GPU" in mi250.fact(0)["absent"][column]


def test_clocks_memory_and_limit(tmp_path):
    found = record(mi250_node(1).set_all(load=constant(1.0)), tmp_path, seconds=1)
    assert set(found.rows("sm_clock_mhz", 1)[1]) == {1700.0}
    assert set(found.rows("memory_clock_mhz", 1)[1]) == {1600.0}
    assert set(found.rows("gpu_memory_used_bytes", 1)[1]) == {40 * 2.0**30}
    assert set(found.rows("gpu_power_limit_w", 0)[1]) == {500.0}
    assert set(found.rows("gpu_utilisation", 1)[1]) == {1.0}


@pytest.mark.parametrize("name", BLOCKING)
def test_call_that_blocks_is_not_in_the_loop(mi250, name):
    assert mi250.node.calls().get(name, 0) <= 3 * 8


def test_frozen_energy_counter_adds_nothing(tmp_path):
    scenario = mi250_node(1).set_all(load=constant(1.0))
    scenario.freezes.append(Rule("energy", from_s=1.0))
    found = record(scenario, tmp_path, seconds=3)
    _, energy_j = found.rows("gpu_energy_j", 0)
    assert energy_j[-1] == pytest.approx(500.0, rel=1e-3)
    # The counter moved last at 1 s; the samples from 2 s to 3 s say so.
    assert found.recording.stale["gpu_energy_j"] == pytest.approx(20, abs=2)


def test_energy_counter_frozen_from_the_start_is_flagged(tmp_path):
    # As on the cards of amdsmi issue 38: the counter answers, and never moves.
    scenario = mi250_node(2).set_all(load=constant(1.0))
    scenario.freezes.append(Rule("energy", gpu=0))
    found = record(scenario, tmp_path, seconds=3)
    assert set(found.rows("gpu_energy_j", hip(found, 0))[1]) == {0.0}
    assert found.recording.stale["gpu_energy_j"] == pytest.approx(40, abs=2)
    assert found.change("gpu_energy_j", hip(found, 2))[0] > 1000


def test_die_that_falls_off_the_bus_leaves_the_others(tmp_path):
    scenario = mi250_node(2)
    scenario.set_gpu(1, unplug_s=1.0)
    found = record(scenario, tmp_path, seconds=3)
    t_ns, _ = found.rows("gpu_temp_c", hip(found, 1))
    assert (t_ns[-1] - found.node.start_ns) / S == pytest.approx(1.0, abs=0.06)
    for die in (0, 2, 3):
        assert len(found.rows("gpu_temp_c", hip(found, die))[0]) == 60


def test_driver_that_cannot_start_is_a_reason(tmp_path):
    scenario = mi250_node(1)
    scenario.errors.append(Rule("amdsmi_init", 34))
    found = record(scenario, tmp_path, seconds=0.5)
    assert "AMD SMI" in found.recording.absent["gpu_power_w"]


def test_no_sentinel_anywhere(mi250):
    table = mi250.recording.samples
    for name in table.column_names[3:]:
        values = table[name].drop_null().to_numpy()
        assert not np.isin(values, [-1, 0xFFFF, 2**32 - 1, 2**64 - 1]).any(), name
