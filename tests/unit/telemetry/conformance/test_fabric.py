"""Fabric and host counters below a fake sysfs."""

import numpy as np
import pytest

from tests.fakes.host import HostParts, Hwmon, Port, Rapl
from tests.fakes.presets import hgx_h200
from tests.fakes.wave import constant, square, steps
from tests.sampling import S, record
from triplepoint.telemetry.host import Host

LIVELY = square(0.9, 0.5)


def with_host(**parts):
    scenario = hgx_h200(1)
    scenario.host = HostParts(**parts)
    return scenario


def sent(port, found, begin, end):
    """Return what a port sent in truth. Unit: bytes."""
    time_s = found.node.time_s
    return port.xmit_bytes_per_s * (port.load.integral(time_s(end)) - port.load.integral(time_s(begin)))


def test_port_data_is_four_bytes_a_word(tmp_path):
    port = Port(load=LIVELY, offset_bytes=1e15)
    found = record(with_host(ports=[port]), tmp_path, seconds=10)
    sent_bytes, begin, end = found.change("infiniband_tx_bytes", device="host")
    assert sent_bytes == pytest.approx(sent(port, found, begin, end), abs=8)


def test_received_and_sent_are_not_exchanged(tmp_path):
    port = Port(load=constant(1.0), xmit_bytes_per_s=10e9, rcv_bytes_per_s=2e9)
    found = record(with_host(ports=[port]), tmp_path, seconds=3)
    assert (
        found.change("infiniband_tx_bytes", device="host")[0]
        > 4 * found.change("infiniband_rx_bytes", device="host")[0]
    )


def test_ports_are_summed(tmp_path):
    ports = [Port(f"mlx5_{i}", load=square(0.9, 0.1 * (i + 1)), offset_bytes=1e12 * i) for i in range(8)]
    found = record(with_host(ports=ports), tmp_path, seconds=5)
    sent_bytes, begin, end = found.change("infiniband_tx_bytes", device="host")
    assert sent_bytes == pytest.approx(sum(sent(port, found, begin, end) for port in ports), abs=8 * 8)


def test_legacy_counter_of_32_bits_wraps(tmp_path):
    # 40 GB/s fill 32 bits of words in 0.43 s.
    port = Port(load=constant(1.0), counter_bits=32, xmit_bytes_per_s=40e9, offset_bytes=1e9)
    found = record(with_host(ports=[port]), tmp_path, seconds=10)
    sent_bytes, begin, end = found.change("infiniband_tx_bytes", device="host")
    assert sent_bytes == pytest.approx(sent(port, found, begin, end), abs=8)


def test_network_interface_is_not_the_fabric(tmp_path):
    port = Port(load=constant(1.0))
    found = record(with_host(ports=[port]), tmp_path, seconds=3)
    assert found.change("infiniband_tx_bytes", device="host")[0] > 25e9
    assert found.change("network_tx_bytes", device="host")[0] < 25e9


@pytest.mark.parametrize("column", ["rdma_out_of_sequence", "rdma_retries"])
def test_congestion_is_counted(tmp_path, column):
    port = Port(load=constant(1.0), congestion_per_s=1000.0)
    found = record(with_host(ports=[port]), tmp_path, seconds=5)
    grown, begin, end = found.change(column, device="host")
    assert grown == pytest.approx(1000 * (end - begin) / S, abs=1)


def test_no_port_is_said(tmp_path):
    found = record(hgx_h200(1), tmp_path, seconds=0.5)
    assert "no active InfiniBand or RoCE port" in found.recording.absent["infiniband_tx_bytes"]
    assert len(found.rows("infiniband_tx_bytes", device="host")[0]) == 0


def test_counter_missing_on_one_port_is_no_half_sum(tmp_path):
    ports = [Port("mlx5_0", load=LIVELY), Port("mlx5_1", load=LIVELY, missing=("out_of_sequence",))]
    found = record(with_host(ports=ports), tmp_path, seconds=2)
    assert "mlx5_1" in found.recording.absent["rdma_out_of_sequence"]
    assert len(found.rows("rdma_out_of_sequence", device="host")[0]) == 0
    assert found.change("infiniband_tx_bytes", device="host")[0] > 0


def test_port_that_stands_still_sends_nothing_more(tmp_path):
    port = Port(load=constant(1.0), freeze_s=2.0)
    found = record(with_host(ports=[port]), tmp_path, seconds=5)
    assert found.change("infiniband_tx_bytes", device="host")[0] == pytest.approx(2.0 * 10e9, rel=1e-6)


def test_rapl_wraps_at_its_range(tmp_path):
    packages = [
        Rapl("intel-rapl:0", "package-0", steps((0, 150.0)), 900_000_000, 1_000_000_000),
        Rapl("intel-rapl:1", "package-1", square(0.8, 0.5, 200.0, 100.0), 0, 262_143_328_850),
        Rapl("intel-rapl:0:0", "dram", constant(20.0), 5, 1_000_000_000),
    ]
    found = record(with_host(rapl=packages), tmp_path, seconds=30)
    energy_j, begin, end = found.change("cpu_energy_j", device="host")
    truth_j = sum(
        domain.power_w.integral(found.node.time_s(end)) - domain.power_w.integral(found.node.time_s(begin))
        for domain in packages[:2]
    )
    assert energy_j == pytest.approx(truth_j, abs=1e-4)
    assert found.change("dram_energy_j", device="host")[0] == pytest.approx(20 * (end - begin) / S, abs=1e-4)


def test_rapl_of_the_platform_is_not_a_package(tmp_path):
    domains = [Rapl(power_w=constant(100.0)), Rapl("intel-rapl:1", "psys", constant(400.0))]
    found = record(with_host(rapl=domains), tmp_path, seconds=3)
    energy_j, begin, end = found.change("cpu_energy_j", device="host")
    assert energy_j == pytest.approx(100 * (end - begin) / S, abs=1e-4)


def test_cpu_and_inlet_temperature(tmp_path):
    sensors = [
        Hwmon("nvme", "Composite", constant(60.0)),
        Hwmon("coretemp", "Package id 0", steps((0, 40.0), (1, 71.5))),
        Hwmon("board", "Inlet Temp", constant(24.0)),
    ]
    found = record(with_host(hwmon=sensors), tmp_path, seconds=2)
    assert set(found.rows("cpu_temp_c", device="host")[1]) == {40.0, 71.5}
    assert set(found.rows("inlet_temp_c", device="host")[1]) == {24.0}


def test_power_at_the_plug(tmp_path):
    found = record(with_host(plug_w=steps((0, 2_400.0), (1, 7_100.5))), tmp_path, seconds=2)
    assert set(found.rows("node_power_w", device="host")[1]) == {2_400.0, 7_100.5}
    without = record(hgx_h200(1), tmp_path / "without", seconds=0.5)
    assert "ACPI" in without.recording.absent["node_power_w"]


def test_counters_of_the_host_begin_at_zero(tmp_path):
    scenario = with_host(ports=[Port(load=LIVELY, offset_bytes=7e14)], rapl=[Rapl(offset_uj=123_456_789)])
    found = record(scenario, tmp_path, seconds=1)
    for column in ("infiniband_tx_bytes", "infiniband_rx_bytes", "cpu_energy_j"):
        values = found.rows(column, device="host")[1]
        assert values[0] == 0 and (np.diff(values) >= 0).all(), column


def test_inlet_that_only_the_boards_controller_knows_is_said(tmp_path):
    host = Host(inventory(tmp_path, "class/ipmi/ipmi0"))
    assert "IPMI" in host.absent["inlet_temp_c"]
    assert "IPMI" not in Host(inventory(tmp_path / "plain", "class/hwmon")).absent["inlet_temp_c"]


def inventory(root, folder):
    """Return a sysfs with one folder in it."""
    (root / folder).mkdir(parents=True)
    return root


def test_what_is_costly_to_ask_is_asked_once_a_second(tmp_path):
    ports = [Port(load=constant(1.0), congestion_per_s=1000.0)]
    found = record(with_host(ports=ports, hwmon=[Hwmon("coretemp", "Package id 0", constant(50.0))]), tmp_path, 10)
    for column in ("cpu_temp_c", "rdma_retries"):
        t_ns, _ = found.rows(column, device="host")
        assert 9 <= len(t_ns) <= 11 and np.diff(t_ns).max() <= 1.2 * S, column
    assert len(found.rows("infiniband_tx_bytes", device="host")[0]) == 100
