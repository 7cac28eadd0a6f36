"""Counters of the fake sysfs tree follow the waves of its scenario."""

from tests.fakes.host import HostParts, Hwmon, Port, Rapl
from tests.fakes.node import fake_node
from tests.fakes.scenario import Scenario
from tests.fakes.wave import constant, square, steps

COUNTERS = "class/infiniband/{}/ports/1/counters/{}"


def host(**parts):
    return Scenario(host=HostParts(**parts), is_virtual=True)


def number(node, path):
    return int((node.sysfs_root / path).read_text())


def test_port_counts_words_of_four_bytes():
    with fake_node(host(ports=[Port(load=square(1.0, 0.5), xmit_bytes_per_s=10e9)])) as node:
        node.advance(3.0)
        assert number(node, COUNTERS.format("mlx5_0", "port_xmit_data")) * 4 == 1.5 * 10e9


def test_legacy_counter_wraps_at_32_bits():
    port = Port(load=constant(1.0), counter_bits=32, xmit_bytes_per_s=16e9)
    with fake_node(host(ports=[port])) as node:
        node.advance(1.0)
        assert number(node, COUNTERS.format("mlx5_0", "port_xmit_data")) == 4_000_000_000
        node.advance(0.1)
        assert number(node, COUNTERS.format("mlx5_0", "port_xmit_data")) == 4_400_000_000 - 2**32


def test_open_file_shows_new_values():
    with fake_node(host(ports=[Port(load=constant(1.0))])) as node:
        file = (node.sysfs_root / COUNTERS.format("mlx5_0", "port_rcv_data")).open()
        first = int(file.read())
        node.advance(1.0)
        file.seek(0)
        assert int(file.read()) - first == 2_000_000_000
        file.close()


def test_missing_file_and_frozen_port():
    ports = [
        Port("mlx5_0", load=constant(1.0), missing=("port_xmit_wait",)),
        Port("mlx5_1", load=constant(1.0), freeze_s=1.0),
    ]
    with fake_node(host(ports=ports)) as node:
        node.advance(5.0)
        assert not (node.sysfs_root / COUNTERS.format("mlx5_0", "port_xmit_wait")).exists()
        assert number(node, COUNTERS.format("mlx5_1", "port_rcv_data")) == 2_000_000_000


def test_congestion_follows_the_load():
    with fake_node(host(ports=[Port(load=square(1.0, 0.25), congestion_per_s=1000.0)])) as node:
        node.advance(8.0)
        assert number(node, "class/infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent") == 2000


def test_rapl_wraps_at_its_range():
    domain = Rapl(power_w=constant(200.0), offset_uj=900_000_000, max_energy_range_uj=1_000_000_000)
    with fake_node(host(rapl=[domain])) as node:
        node.advance(0.4)
        assert number(node, "class/powercap/intel-rapl:0/energy_uj") == 980_000_000
        node.advance(0.2)
        assert number(node, "class/powercap/intel-rapl:0/energy_uj") == 20_000_000


def test_hwmon_is_in_millidegrees():
    with fake_node(host(hwmon=[Hwmon(temp_c=steps((0, 40.0), (1, 55.5)))])) as node:
        node.advance(2.0)
        assert number(node, "class/hwmon/hwmon0/temp1_input") == 55_500


def test_thread_keeps_the_counters_moving():
    scenario = host(ports=[Port(load=constant(1.0))])
    scenario.is_virtual = False
    with fake_node(scenario) as node:
        node.sysfs.start()
        first = number(node, COUNTERS.format("mlx5_0", "port_xmit_data"))
        begin_s = node.time_s()
        while number(node, COUNTERS.format("mlx5_0", "port_xmit_data")) == first:
            assert node.time_s() < begin_s + 10
