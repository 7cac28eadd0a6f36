"""What goes wrong on a node: a clear line, the rest goes on, nothing is made up."""

import numpy as np
import pytest

from tests.fakes.presets import hgx_h200
from tests.fakes.scenario import Rule, Xid
from tests.fakes.wave import constant
from tests.sampling import S, aligned, record

NO_PERMISSION, GPU_IS_LOST, UNKNOWN = 4, 15, 999
MISSING = {
    "gpu_power_w": ["field:186:0", "nvmlDeviceGetPowerUsage"],
    "gpu_memory_temp_c": ["field:82"],
    "gpu_energy_j": ["field:83", "field:191", "nvmlDeviceGetTotalEnergyConsumption"],
    "gpu_sw_thermal_s": ["field:269"],
    "nvlink_tx_bytes": ["field:138", "field:202"],
    "gpu_throttle_reasons": ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"],
}


@pytest.mark.parametrize("column", MISSING)
def test_field_one_gpu_lacks_is_said_and_the_rest_stays(tmp_path, column):
    scenario = hgx_h200(2).set_all(load=constant(1.0))
    scenario.errors += [Rule(what, 3, gpu=1) for what in MISSING[column]]
    found = record(scenario, tmp_path, seconds=1)
    assert len(found.rows(column, gpu=0)[0]) > 5
    assert len(found.rows(column, gpu=1)[0]) == 0
    assert "not supported" in found.fact(1)["absent"][column]
    assert column not in found.recording.absent
    assert len(found.rows("gpu_temp_c", gpu=1)[0]) == 20


def test_field_no_gpu_has_is_said_for_the_node(tmp_path):
    scenario = hgx_h200(2)
    scenario.errors.append(Rule("field:82", 3))
    found = record(scenario, tmp_path, seconds=0.5)
    assert "field 82" in found.recording.absent["gpu_memory_temp_c"]


def test_field_without_permission_says_so(tmp_path):
    scenario = hgx_h200(1)
    scenario.errors.append(Rule("field:197", NO_PERMISSION))
    found = record(scenario, tmp_path, seconds=0.5)
    assert "ermission" in found.fact(0)["absent"]["pcie_tx_bytes"]


def test_power_falls_back_to_the_plain_call_of_old_drivers(tmp_path):
    scenario = hgx_h200(1).set_all(load=constant(1.0))
    scenario.errors += [Rule("field:185", 3), Rule("field:186", 3)]
    found = record(scenario, tmp_path, seconds=1)
    assert set(found.rows("gpu_power_w")[1]) == {700.0}
    assert "nvmlDeviceGetPowerUsage" in found.fact(0)["sources"]["gpu_power_w"]


def test_energy_falls_back_to_the_plain_call(tmp_path):
    scenario = hgx_h200(1).set_all(**aligned(constant(1.0)))
    scenario.errors += [Rule("field:83", 3), Rule("field:191", 3)]
    found = record(scenario, tmp_path, seconds=5)
    energy_j, begin, end = found.change("gpu_energy_j")
    assert energy_j == pytest.approx(700 * (end - begin) / S, rel=1e-3)


def test_gpu_that_falls_off_the_bus_leaves_the_others(tmp_path):
    scenario = hgx_h200(3).set_all(load=constant(1.0))
    scenario.set_gpu(1, unplug_s=2.0)
    found = record(scenario, tmp_path, seconds=5)
    t_ns, _ = found.rows("gpu_power_w", gpu=1)
    assert (t_ns[-1] - found.node.start_ns) / S == pytest.approx(2.0, abs=0.06)
    for gpu in (0, 2):
        assert len(found.rows("gpu_power_w", gpu)[0]) == 100
    uuids = [found.node.scenario.gpus[gpu].uuid for gpu in range(3)]
    assert [found.fact(gpu)["uuid"] for gpu in range(3)] == uuids


def test_lost_gpu_does_not_make_energy_of_the_node_smaller_unseen(tmp_path):
    scenario = hgx_h200(2).set_all(load=constant(1.0))
    scenario.set_gpu(1, unplug_s=2.0)
    table = record(scenario, tmp_path, seconds=4).recording.samples
    late = table.filter([t > table["t_ns"][0].as_py() + 3 * S for t in table["t_ns"].to_pylist()])
    lost = np.array(late["device"].to_pylist()) == "gpu1"
    assert late.filter(lost)["gpu_energy_j"].null_count == lost.sum(), "missing, neither zero nor the last value"


def test_gpu_that_comes_back_counts_on(tmp_path):
    scenario = hgx_h200(1).set_all(**aligned(constant(1.0)))
    scenario.errors.append(Rule("*", GPU_IS_LOST, from_s=2.0, until_s=3.5))
    found = record(scenario, tmp_path, seconds=6)
    energy_j, begin, end = found.change("gpu_energy_j")
    assert energy_j == pytest.approx(700 * (end - begin) / S, rel=1e-3)
    assert np.diff(found.rows("gpu_power_w")[0]).max() == pytest.approx(1.5 * S, abs=0.06 * S)


def test_every_read_fails_for_a_while(tmp_path):
    scenario = hgx_h200(1)
    scenario.errors.append(Rule("nvmlDeviceGetFieldValues", UNKNOWN, from_s=1.0, until_s=2.0))
    found = record(scenario, tmp_path, seconds=3)
    seconds = (found.rows("gpu_power_w")[0] - found.node.start_ns) / S
    assert not ((seconds > 1.001) & (seconds < 1.999)).any()
    assert len(found.rows("gpu_temp_c")[0]) == 60


def test_mig_is_sampled_as_the_whole_gpu_without_utilisation(tmp_path):
    found = record(hgx_h200(2).set_gpu(0, mig_instances=3), tmp_path, seconds=1)
    assert len(found.rows("gpu_power_w", 0)[0]) == 20
    assert len(found.rows("gpu_utilisation", 0)[0]) == 0
    assert len(found.rows("gpu_utilisation", 1)[0]) > 5
    assert "gpu_utilisation" in found.fact(0)["absent"]


def test_driver_that_cannot_start_is_a_reason(tmp_path):
    scenario = hgx_h200(1)
    scenario.errors.append(Rule("nvmlInit_v2", 18))
    found = record(scenario, tmp_path, seconds=0.5)
    assert "NVML" in found.recording.absent["gpu_power_w"]
    assert found.recording.facts["gpus"] == []
    assert len(found.rows("memory_used_bytes", device="host")[0]) == 5


def test_node_without_gpus_is_a_reason(tmp_path):
    found = record(hgx_h200(0), tmp_path, seconds=0.5)
    assert "no GPU" in found.recording.absent["gpu_power_w"]


def test_frozen_energy_counter_adds_nothing(tmp_path):
    scenario = hgx_h200(1).set_all(**aligned(constant(1.0)))
    scenario.freezes.append(Rule("energy", from_s=2.0))
    found = record(scenario, tmp_path, seconds=6)
    _, energy_j = found.rows("gpu_energy_j")
    assert energy_j[-1] == pytest.approx(2.0 * 700, abs=1)
    assert found.rows("gpu_power_w")[1][-1] == 700


def test_gpu_whose_handle_cannot_be_got_leaves_the_others(tmp_path):
    scenario = hgx_h200(3).set_all(load=constant(1.0))
    scenario.errors.append(Rule("nvmlDeviceGetHandleByIndex_v2", GPU_IS_LOST, gpu=1))
    found = record(scenario, tmp_path, seconds=1)
    for gpu in (0, 2):
        assert len(found.rows("gpu_power_w", gpu)[0]) == 20
    assert len(found.rows("gpu_power_w", 1)[0]) == 0


def test_xid_is_recorded_from_its_time_on(tmp_path):
    scenario = hgx_h200(2)
    scenario.xids.append(Xid(gpu=1, code=79, at_s=1.0))
    found = record(scenario, tmp_path, seconds=3)
    t_ns, codes = found.rows("gpu_xid", 1)
    assert set(codes.tolist()) == {79}
    assert (t_ns[0] - found.node.start_ns) / S == pytest.approx(1.0, abs=0.11)
    assert len(found.rows("gpu_xid", 0)[0]) == 0


def test_slot_is_the_one_the_kernel_knows(tmp_path):
    scenario = hgx_h200(3)
    scenario.host.slots = {"SXM7": "0000:18:00", "21": "0000:3a:00"}
    found = record(scenario, tmp_path, seconds=0.2)
    assert [found.fact(gpu)["slot"] for gpu in range(3)] == ["SXM7", None, "21"]


def test_no_sentinel_anywhere(tmp_path):
    scenario = hgx_h200(2).set_all(load=constant(1.0))
    scenario.errors += [Rule(f"field:{n}", UNKNOWN, gpu=0, from_s=0.5) for n in (83, 186, 82, 138, 74, 197)]
    table = record(scenario, tmp_path, seconds=2).recording.samples
    for name in table.column_names[3:]:
        values = table[name].drop_null().to_numpy()
        assert not np.isin(values, [-1, 0xFFFF, 2**32 - 1, 2**64 - 1, 0xDEADBEEF]).any(), name
        assert np.isfinite(values).all(), name
