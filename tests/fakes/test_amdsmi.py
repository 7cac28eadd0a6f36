"""Readings of the real amdsmi package on the fake AMD SMI library equal the truth of the scenario."""

import contextlib
import ctypes
import ctypes.util
import subprocess
import sys

import pytest

from tests.fakes.node import fake_node
from tests.fakes.presets import mi250_node, mi300x_node
from tests.fakes.scenario import Rule
from tests.fakes.wave import constant, square, steps


@contextlib.contextmanager
def amd_node(scenario):
    """Provide a node, the package amdsmi and the handles of the GPUs."""
    with fake_node(scenario) as node:
        import amdsmi  # looks for its library when it is imported

        amdsmi.amdsmi_init()
        try:
            yield node, amdsmi, amdsmi.amdsmi_get_processor_handles()
        finally:
            amdsmi.amdsmi_shut_down()


def virtual(scenario, **changes):
    scenario.is_virtual = True
    return scenario.set_all(**changes)


def test_mi250_node_has_two_dies_a_package():
    with amd_node(mi250_node()) as (_, amdsmi, dies):
        assert len(dies) == 8
        addresses = [amdsmi.amdsmi_get_gpu_device_bdf(die) for die in dies]
        assert addresses[:2] == ["0000:20:00.0", "0000:24:00.0"] and len(set(addresses)) == 8
        hip = [amdsmi.amdsmi_get_gpu_enumeration_info(die)["hip_id"] for die in dies]
        assert hip == [2, 3, 4, 5, 6, 7, 0, 1]


def test_mi250_power_is_that_of_the_package_on_the_primary_die():
    scenario = virtual(mi250_node(1))
    scenario.set_gpu(0, load=constant(1.0))
    scenario.set_gpu(1, load=constant(0.5))
    with amd_node(scenario) as (node, amdsmi, dies):
        node.advance(1.0)
        primary, secondary = (amdsmi.amdsmi_get_power_info(die) for die in dies)
        assert primary["average_socket_power"] == int(250 + 45 + 0.5 * 205)
        assert primary["current_socket_power"] == "N/A"
        assert secondary["average_socket_power"] == 0


def test_mi250_energy_is_the_truth_of_the_package():
    with amd_node(virtual(mi250_node(2), load=square(0.3, 0.4))) as (node, amdsmi, dies):
        first = [amdsmi.amdsmi_get_energy_count(die) for die in dies]
        node.advance(30.0)
        second = [amdsmi.amdsmi_get_energy_count(die) for die in dies]
        spent = [
            (b["energy_accumulator"] - a["energy_accumulator"]) * b["counter_resolution"] * 1e-6
            for a, b in zip(first, second, strict=True)
        ]
        truth_j = node.truth.package_energy_j(1, node.start_ns, node.now_ns())
        assert spent == pytest.approx([truth_j, 0, truth_j, 0], rel=1e-4)
        assert second[0]["timestamp"] - first[0]["timestamp"] == pytest.approx(30e9, abs=1000)


def test_mi250_secondary_die_has_no_power_cap():
    with amd_node(mi250_node(1)) as (_, amdsmi, dies):
        assert amdsmi.amdsmi_get_power_cap_info(dies[0])["power_cap"] == 500_000_000
        with pytest.raises(amdsmi.AmdSmiLibraryException) as failed:
            amdsmi.amdsmi_get_power_cap_info(dies[1])
        assert failed.value.get_error_code() == 2


def test_temperatures_of_edge_hotspot_and_memory():
    with amd_node(virtual(mi250_node(1), load=steps((0, 0.0), (1, 1.0)))) as (node, amdsmi, dies):
        node.advance(10.0)
        kinds, now = amdsmi.AmdSmiTemperatureType, amdsmi.AmdSmiTemperatureMetric.CURRENT
        edge, hotspot, memory = (
            amdsmi.amdsmi_get_temp_metric(dies[1], kind, now) for kind in (kinds.EDGE, kinds.HOTSPOT, kinds.VRAM)
        )
        truth_c = node.truth.temp_c(1, node.now_ns())
        assert edge == int(truth_c)
        assert hotspot == int(truth_c + 0.02 * 250)
        assert memory == int(node.truth.memory_temp_c(1, node.now_ns()))


def test_mi250_metrics_are_of_version_1_3():
    with amd_node(mi250_node(1).set_all(load=constant(1.0))) as (_, amdsmi, dies):
        metrics = amdsmi.amdsmi_get_gpu_metrics_info(dies[0])
        assert (metrics["common_header.format_revision"], metrics["common_header.content_revision"]) == (1, 3)
        assert metrics["average_socket_power"] == 500
        assert metrics["current_socket_power"] == "N/A"
        assert set(metrics["xgmi_read_data_acc"]) == {"N/A"}
        size = ctypes.sizeof(amdsmi.amdsmi_wrapper.amdsmi_gpu_metrics_t)
        assert metrics["common_header.structure_size"] == size


def test_mi250_throttle_status_shows_the_cause_of_the_moment():
    with amd_node(virtual(mi250_node(1), load=constant(1.0), sw_thermal=square(1.0, 0.5))) as (node, amdsmi, dies):
        raw = amdsmi.amdsmi_wrapper.amdsmi_gpu_metrics_t()
        statuses = []
        for _ in range(2):
            amdsmi.amdsmi_wrapper.amdsmi_get_gpu_metrics_info(dies[0], ctypes.byref(raw))
            statuses.append(raw.indep_throttle_status)
            node.advance(0.6)
        assert statuses == [1 << 36, 0]


def test_mi300x_has_current_power_and_link_counters():
    with amd_node(virtual(mi300x_node(2), load=square(0.5, 0.5))) as (node, amdsmi, gpus):
        before = amdsmi.amdsmi_get_gpu_metrics_info(gpus[1])["xgmi_write_data_acc"]
        node.advance(10.2)
        after = amdsmi.amdsmi_get_gpu_metrics_info(gpus[1])["xgmi_write_data_acc"]
        sent = sum((b - a) * 1024 for a, b in zip(before, after, strict=True) if b != "N/A")
        assert sent == pytest.approx(node.truth.nvlink_tx_bytes(1, node.start_ns, node.now_ns()), rel=1e-6)
        power = amdsmi.amdsmi_get_power_info(gpus[1])
        assert power["current_socket_power"] == 750 and power["average_socket_power"] == "N/A"


def test_missing_function_is_not_supported():
    with amd_node(mi250_node(1)) as (_, amdsmi, dies):
        with pytest.raises(amdsmi.AmdSmiLibraryException) as failed:
            amdsmi.amdsmi_get_violation_status(dies[0])
        assert failed.value.get_error_code() == 2


def test_error_of_one_die_and_frozen_energy():
    scenario = virtual(mi250_node(2), load=constant(1.0))
    scenario.errors.append(Rule("amdsmi_get_temp_metric", 10, gpu=3))
    scenario.freezes.append(Rule("energy", gpu=2, from_s=1.0))
    with amd_node(scenario) as (node, amdsmi, dies):
        node.advance(2.0)
        stuck = amdsmi.amdsmi_get_energy_count(dies[2])["energy_accumulator"]
        node.advance(2.0)
        assert amdsmi.amdsmi_get_energy_count(dies[2])["energy_accumulator"] == stuck
        edge = (amdsmi.AmdSmiTemperatureType.EDGE, amdsmi.AmdSmiTemperatureMetric.CURRENT)
        with pytest.raises(amdsmi.AmdSmiLibraryException) as failed:
            amdsmi.amdsmi_get_temp_metric(dies[3], *edge)
        assert failed.value.get_error_code() == 10
        assert amdsmi.amdsmi_get_temp_metric(dies[2], *edge) == 80


def test_die_unplugged_is_found_no_more():
    scenario = virtual(mi250_node(2))
    scenario.set_gpu(3, unplug_s=1.0)
    with amd_node(scenario) as (node, amdsmi, dies):
        node.advance(1.0)
        with pytest.raises(amdsmi.AmdSmiLibraryException) as failed:
            amdsmi.amdsmi_get_power_info(dies[3])
        assert failed.value.get_error_code() == 31
        assert len(amdsmi.amdsmi_get_processor_handles()) == 3


@pytest.mark.skipif(bool(ctypes.util.find_library("nvidia-ml")), reason="this machine has an NVIDIA driver")
def test_nvidia_driver_is_not_found_on_an_amd_node():
    code = "import pynvml as n\ntry: n.nvmlInit()\nexcept n.NVMLError as e: print(type(e).__name__)"
    with fake_node(mi250_node(1)) as node:
        done = subprocess.run([sys.executable, "-c", code], env=node.env, capture_output=True, text=True, check=True)
        assert done.stdout == "NVMLError_LibraryNotFound\n"
