"""Counters of NVIDIA GPUs: whole, of their own width, without sentinels. Each is a defect of the published artefact."""

import numpy as np
import pytest

from tests.fakes.presets import hgx_a100, hgx_h200
from tests.fakes.scenario import Rule
from tests.fakes.wave import constant, square
from tests.sampling import S, aligned, record

ALL_LINKS = 0xFFFFFFFF
NVLINK_FIELDS = (138, 139)
TRAFFIC = ("nvlink_tx_bytes", "nvlink_rx_bytes", "pcie_tx_bytes", "pcie_rx_bytes")


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """Twenty seconds of two GPUs with counters of 64 bits far above 2^32."""
    scenario = hgx_h200(2).set_all(**aligned(square(0.9, 0.6)), nvlink_offset_bytes=3e15, pcie_offset_bytes=5e13)
    return record(scenario, tmp_path_factory.mktemp("busy"), seconds=20)


@pytest.mark.parametrize("column", TRAFFIC)
def test_traffic_is_the_truth(busy, column):
    sent_bytes, begin, end = busy.change(column, gpu=1)
    assert sent_bytes == pytest.approx(getattr(busy.node.truth, column)(1, begin, end), rel=1e-6)


def test_nvlink_is_asked_for_all_links_at_once(busy):
    scopes = {scope for number, scope in busy.node.fields() if number in NVLINK_FIELDS}
    assert scopes == {ALL_LINKS}


def test_nvlink_of_link_zero_alone_would_be_an_eighteenth(busy):
    sent_bytes, begin, end = busy.change("nvlink_tx_bytes")
    link_bytes = busy.node.truth.nvlink_tx_bytes(0, begin, end) / 18
    assert sent_bytes > 17 * link_bytes


def test_counters_begin_at_zero_whatever_the_driver_has_counted(busy):
    for column in (*TRAFFIC, "gpu_energy_j"):
        assert busy.rows(column)[1][0] == 0, column


def test_counters_only_grow(busy):
    for column in (*TRAFFIC, "gpu_energy_j", "gpu_power_cap_s", "gpu_sw_thermal_s"):
        assert (np.diff(busy.rows(column)[1]) >= 0).all(), column


def test_energy_of_64_bits_passes_2_to_the_32(tmp_path):
    # 2^32 mJ are 4.3 MJ: crossed ten seconds in.
    scenario = hgx_h200(1).set_all(**aligned(constant(1.0)), energy_offset_j=2**32 / 1000 - 7000.0)
    found = record(scenario, tmp_path, seconds=20)
    energy_j, begin, end = found.change("gpu_energy_j")
    assert energy_j == pytest.approx(found.node.truth.energy_j(0, begin, end), rel=1e-3)


def test_nvlink_passes_2_to_the_32_kib(tmp_path):
    scenario = hgx_h200(1).set_all(load=constant(1.0), nvlink_offset_bytes=2.0**42 - 1e12)
    found = record(scenario, tmp_path, seconds=10)
    sent_bytes, begin, end = found.change("nvlink_tx_bytes")
    assert sent_bytes == pytest.approx(found.node.truth.nvlink_tx_bytes(0, begin, end), rel=1e-6)


@pytest.mark.parametrize("seconds", [3.0, 20.0])
def test_pcie_of_32_bits_wraps_many_times(tmp_path, seconds):
    # 20 GB/s wrap 4 GiB each 0.21 s: twice between two samples of a lane of 2 Hz, never between those of the fast one.
    scenario = hgx_h200(1).set_all(load=constant(1.0), pcie_counter_bits=32, pcie_offset_bytes=4e9)
    found = record(scenario, tmp_path, seconds=seconds, slow_hz=2)
    sent_bytes, begin, end = found.change("pcie_tx_bytes")
    assert sent_bytes == pytest.approx(found.node.truth.pcie_tx_bytes(0, begin, end), rel=1e-6)


def test_wrap_adds_nothing_of_its_own(tmp_path):
    # The artefact added 2^32 - 1: one byte a wrap. Here every one of some 90 wraps would show.
    scenario = hgx_h200(1).set_all(load=constant(1.0), pcie_counter_bits=32)
    found = record(scenario, tmp_path, seconds=20, fast_hz=20)
    sent_bytes, begin, end = found.change("pcie_tx_bytes")
    assert sent_bytes - found.node.truth.pcie_tx_bytes(0, begin, end) == pytest.approx(0, abs=2)


def test_failed_read_is_missing_and_no_number(tmp_path):
    scenario = hgx_h200(1).set_all(**aligned(constant(1.0)))
    scenario.errors.append(Rule("field:83", 999, from_s=2.0, until_s=3.0))
    found = record(scenario, tmp_path, seconds=6)
    t_ns, energy_j = found.rows("gpu_energy_j")
    seconds = (t_ns - found.node.start_ns) / S
    assert not ((seconds >= 2.001) & (seconds < 2.999)).any()
    truth_j = [found.node.truth.energy_j(0, int(t_ns[0]), int(t)) for t in t_ns]
    assert energy_j == pytest.approx(np.array(truth_j), abs=1.0)


def test_failed_field_of_a_batch_is_no_number(tmp_path):
    scenario = hgx_h200(1).set_all(load=constant(1.0))
    for number in (186, 82, 138):
        scenario.errors.append(Rule(f"field:{number}", 999, from_s=1.0, until_s=2.0))
    found = record(scenario, tmp_path, seconds=3)
    for column in ("gpu_power_w", "gpu_memory_temp_c", "nvlink_tx_bytes"):
        _, values = found.rows(column)
        assert (values >= 0).all() and values.max() < 3e12, column


def test_wrap_within_failed_reads_is_not_taken_for_more(tmp_path):
    # 5 GB/s wrap each 0.86 s; a quarter of a second without an answer hides no second wrap.
    changes = {"pcie_counter_bits": 32, "pcie_offset_bytes": 2 * 2.0**32 - 1.15 * 5e9, "pcie_tx_bytes_per_s": 5e9}
    scenario = hgx_h200(1).set_all(load=constant(1.0), **changes)
    scenario.errors.append(Rule("field:197", 999, from_s=1.05, until_s=1.3))
    found = record(scenario, tmp_path, seconds=4)
    sent_bytes, begin, end = found.change("pcie_tx_bytes")
    assert sent_bytes == pytest.approx(found.node.truth.pcie_tx_bytes(0, begin, end), rel=1e-6)


def test_first_field_failed_in_a_second_with_a_wrap(tmp_path):
    # The value type of a failed field is not that of the counter.
    changes = {"pcie_counter_bits": 32, "pcie_offset_bytes": 2 * 2.0**32 - 1.5 * 5e9, "pcie_tx_bytes_per_s": 5e9}
    scenario = hgx_h200(1).set_all(load=constant(1.0), **changes)
    scenario.errors.append(Rule("field:197", 999, from_s=0.9, until_s=1.2))
    found = record(scenario, tmp_path, seconds=4)
    sent_bytes, begin, end = found.change("pcie_tx_bytes")
    assert sent_bytes == pytest.approx(found.node.truth.pcie_tx_bytes(0, begin, end), rel=1e-6)


def test_counter_set_to_zero_by_a_driver_reload_loses_nothing_seen(tmp_path):
    scenario = hgx_h200(1).set_all(**aligned(constant(1.0)))

    def reload(node):
        node.scenario.set_all(energy_offset_j=-2.0 * 700)
        node.change()

    found = record(scenario, tmp_path, seconds=4, events=[(2.0, reload)])
    energy_j, begin, end = found.change("gpu_energy_j")
    assert energy_j == pytest.approx(found.node.truth.energy_j(0, begin, end), abs=0.06 * 700 + 1)


def test_gpu_without_links_has_no_traffic_and_says_so(tmp_path):
    found = record(hgx_a100(1).set_all(nvlinks=0), tmp_path, seconds=1)
    assert len(found.rows("nvlink_tx_bytes")[0]) == 0
    assert "nvlink_tx_bytes" in found.recording.absent


def test_blackwell_counts_bytes_too(tmp_path):
    scenario = hgx_h200(1).set_all(load=constant(1.0), architecture=10)
    scenario.errors += [Rule("field:138", 3), Rule("field:139", 3)]
    found = record(scenario, tmp_path, seconds=3)
    sent_bytes, begin, end = found.change("nvlink_tx_bytes")
    assert sent_bytes == pytest.approx(found.node.truth.nvlink_tx_bytes(0, begin, end), rel=1e-6)
    assert found.fact(0)["sources"]["nvlink_tx_bytes"] == "field 202"
