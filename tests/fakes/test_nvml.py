"""Readings of the real nvidia-ml-py on the fake NVML equal the truth of the scenario."""

import subprocess
import sys

import pynvml
import pytest

from tests.fakes.node import fake_node
from tests.fakes.nvml import field, handle, nvml_node, virtual
from tests.fakes.presets import hgx_a100, hgx_h100, hgx_h200
from tests.fakes.scenario import Sensor
from tests.fakes.wave import constant, square, steps

S = 1_000_000_000
ALL_LINKS = 0xFFFFFFFF


def test_init_finds_eight_gpus():
    with nvml_node(hgx_h200()):
        assert pynvml.nvmlDeviceGetCount() == 8
        assert pynvml.nvmlSystemGetDriverVersion() == "575.57.08"
        assert {pynvml.nvmlDeviceGetName(handle(i)) for i in range(8)} == {"NVIDIA H200"}
        assert len({pynvml.nvmlDeviceGetUUID(handle(i)) for i in range(8)}) == 8


def test_init_without_a_node_has_no_driver():
    with fake_node(hgx_h200(1)):
        pass
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()


def test_other_process_finds_the_library_by_its_name():
    code = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(3)))"
    with fake_node(hgx_h100(4)) as node:
        done = subprocess.run([sys.executable, "-c", code], env=node.env, capture_output=True, text=True, check=True)
        assert done.stdout == "NVIDIA H100 80GB HBM3\n"
        assert node.calls()["nvmlInit_v2"] == 1


def test_identity_leads_back_to_the_device():
    with nvml_node(hgx_h200()):
        for gpu in range(8):
            device = handle(gpu)
            for find, key in (
                (pynvml.nvmlDeviceGetHandleByUUID, pynvml.nvmlDeviceGetUUID(device)),
                (pynvml.nvmlDeviceGetHandleBySerial, pynvml.nvmlDeviceGetSerial(device)),
                (pynvml.nvmlDeviceGetHandleByPciBusId, pynvml.nvmlDeviceGetPciInfo(device).busId),
            ):
                assert pynvml.nvmlDeviceGetIndex(find(key)) == gpu


def test_instant_power_is_the_mean_of_25_ms():
    # 10 ms at full load, 90 ms idle: of the 25 ms before each full tenth of a second none is under load.
    with nvml_node(virtual(hgx_h200(1), load=square(0.1, 0.1))) as node:
        node.advance(1.05)
        assert field(0, 186) == pytest.approx(75_000, abs=1)


def test_average_power_is_the_mean_of_a_second():
    with nvml_node(virtual(hgx_h200(1), load=square(0.1, 0.1))) as node:
        node.advance(1.05)
        assert field(0, 185) == pytest.approx(75_000 + 0.1 * 625_000, abs=1)
        assert pynvml.nvmlDeviceGetPowerUsage(handle(0)) == field(0, 185)


def test_power_usage_of_ampere_is_the_instant_one():
    with nvml_node(virtual(hgx_a100(1), load=square(0.1, 0.1))) as node:
        node.advance(1.05)
        assert pynvml.nvmlDeviceGetPowerUsage(handle(0)) == field(0, 186) == pytest.approx(75_000, abs=1)


def test_sensor_refreshes_each_tenth_of_a_second():
    with nvml_node(virtual(hgx_h200(1), load=steps((0, 0.0), (1.0, 1.0)))) as node:
        node.advance(1.0)
        read = []
        for _ in range(40):
            node.advance(0.0101)
            read.append(field(0, 186))
        assert read.index(700_000) == 9  # 10 readings after 1.0 s: the first refresh, of a window wholly under load
        assert set(read) == {75_000, 700_000}


def test_sensor_lag_and_gain():
    sensor = Sensor(period_s=0.02, window_s=0.01, lag_s=0.1, gain=1.05, quantum_w=1.0)
    with nvml_node(virtual(hgx_h200(1), load=steps((0, 0.0), (1.0, 1.0)))) as node:
        node.scenario.set_all(instant=sensor)
        node.change()
        node.advance(1.099)
        assert field(0, 186) == 78_000  # 75 W * 1.05 = 78.75 W, in whole watts
        node.advance(0.022)
        assert field(0, 186) == 735_000


def test_sensor_noise_stays_within_its_bound_and_is_not_constant():
    with nvml_node(virtual(hgx_h200(1), load=constant(0.5))) as node:
        node.scenario.set_all(instant=Sensor(period_s=0.1, window_s=0.025, noise_w=5.0))
        node.change()
        read = []
        for _ in range(100):
            node.advance(0.1)
            read.append(field(0, 186) / 1000)
        assert len(set(read)) > 90
        assert 382 < min(read) < max(read) < 393
        assert sum(read) / len(read) == pytest.approx(387.5, abs=1.0)


def test_memory_power_has_a_scope_and_the_module_none():
    with nvml_node(virtual(hgx_h200(1), load=constant(1.0), memory_power_share=0.2)):
        assert field(0, 185, scope=2) == 140_000
        with pytest.raises(pynvml.NVMLError_NotSupported):
            field(0, 185, scope=1)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            field(0, 186, scope=2)


def test_energy_counter_is_the_truth_at_its_last_refresh():
    with nvml_node(virtual(hgx_h200(2), load=square(0.7, 0.3))) as node:
        first = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle(1))
        node.advance(60.0)
        second = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle(1))
        truth_j = node.truth.energy_j(1, node.start_ns, node.start_ns + 60 * S)
        assert (second - first) / 1000 == pytest.approx(truth_j, abs=0.01)
        assert field(1, 83) == field(1, 191) == second
        node.advance(0.0999)
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle(1)) == second


def test_die_follows_the_truth_in_whole_degrees():
    with nvml_node(virtual(hgx_h200(1), load=steps((0, 0.0), (5, 1.0)))) as node:
        for seconds in (5.0, 3.0, 9.0, 40.0):
            node.advance(seconds)
            truth_c = node.truth.temp_c(0, node.now_ns())
            assert pynvml.nvmlDeviceGetTemperature(handle(0), pynvml.NVML_TEMPERATURE_GPU) == int(truth_c)
            assert pynvml.nvmlDeviceGetTemperatureV(handle(0), pynvml.NVML_TEMPERATURE_GPU) == int(truth_c)
            assert field(0, 82) == int(node.truth.memory_temp_c(0, node.now_ns()))


def test_memory_has_no_temperature_sensor_of_the_plain_call():
    with nvml_node(hgx_h200(1)), pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetTemperature(handle(0), 1)


def test_power_cap_limits_power_and_is_a_violation():
    # 900 W asked for a third of the time, 700 W allowed.
    load = square(0.3, 1 / 3, high=(900 - 75) / 625)
    with nvml_node(virtual(hgx_h200(1), load=load)) as node:
        before = field(0, 74)
        node.advance(3.0)
        assert (field(0, 74) - before) / 1e9 == pytest.approx(1.0, abs=1e-6)
        assert node.truth.energy_j(0, node.start_ns, node.now_ns()) == pytest.approx(1.0 * 700 + 2.0 * 75)
        node.advance(0.05)
        assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle(0)) == pynvml.nvmlClocksEventReasonSwPowerCap
        assert pynvml.nvmlDeviceGetClockInfo(handle(0), pynvml.NVML_CLOCK_SM) == 1410
        node.advance(0.15)
        assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle(0)) == pynvml.nvmlClocksEventReasonGpuIdle


@pytest.mark.parametrize(
    ("cause", "number", "reason"),
    [
        ("sync_boost", 76, 0x10),
        ("sw_thermal", 269, 0x20),
        ("hw_thermal", 270, 0x40 | 0x8),
        ("power_brake", 271, 0x80 | 0x8),
    ],
)
def test_violation_counts_nanoseconds_by_cause(cause, number, reason):
    with nvml_node(virtual(hgx_h200(1), load=constant(1.0), **{cause: square(0.25, 0.12)})) as node:
        before = {n: field(0, n) for n in (76, 269, 270, 271)}
        node.advance(10.0)
        steps_ns = {n: field(0, n) - before[n] for n in before}
        assert steps_ns.pop(number) == pytest.approx(1.2e9, abs=2)
        assert set(steps_ns.values()) == {0}
        node.advance(0.01)
        assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle(0)) == reason


def test_violation_status_agrees_with_the_fields():
    with nvml_node(virtual(hgx_h200(1), load=constant(1.0), sw_thermal=square(1.0, 0.5))) as node:
        node.advance(4.0)
        status = pynvml.nvmlDeviceGetViolationStatus(handle(0), pynvml.NVML_PERF_POLICY_THERMAL)
        assert status.violationTime == field(0, 269)


def test_nvlink_of_link_zero_is_an_eighteenth():
    with nvml_node(virtual(hgx_h200(1), load=square(0.5, 0.5))) as node:
        node.advance(10.0)
        truth = node.truth.nvlink_tx_bytes(0, node.start_ns, node.now_ns())
        assert field(0, 138, ALL_LINKS) * 1024 == pytest.approx(truth, rel=1e-6)
        assert field(0, 138) * 1024 == pytest.approx(truth / 18, rel=1e-6)
        assert sum(field(0, 139, link) for link in range(18)) == pytest.approx(field(0, 139, ALL_LINKS), abs=18)


def test_pcie_counter_of_32_bits_wraps():
    with nvml_node(virtual(hgx_h200(1), load=constant(1.0), pcie_counter_bits=32, pcie_offset_bytes=4e9)) as node:
        value = pynvml.nvmlDeviceGetFieldValues(handle(0), [197])[0]
        assert value.valueType == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        node.advance(0.05)
        assert field(0, 197) == int(4e9 + 0.05 * 20e9) % 2**32 < value.value.uiVal


def test_pcie_throughput_waits_for_its_window():
    with nvml_node(hgx_h200(1).set_all(load=constant(1.0))) as node:
        before = node.time_s()
        kb_per_s = pynvml.nvmlDeviceGetPcieThroughput(handle(0), pynvml.NVML_PCIE_UTIL_TX_BYTES)
        assert node.time_s() - before >= 0.02
        assert kb_per_s == pytest.approx(20e6, rel=1e-6)


def test_utilisation_is_the_share_of_a_sixth_of_a_second():
    with nvml_node(virtual(hgx_h200(1), load=square(1 / 6, 0.25))) as node:
        node.advance(1.0)
        assert pynvml.nvmlDeviceGetUtilizationRates(handle(0)).gpu == 25


def test_gpm_between_two_samples():
    with nvml_node(virtual(hgx_h200(1), load=square(0.2, 0.5))) as node:
        samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
        pynvml.nvmlGpmSampleGet(handle(0), samples[0])
        node.advance(0.4)
        pynvml.nvmlGpmSampleGet(handle(0), samples[1])
        query = pynvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 3
        query.sample1, query.sample2 = samples
        for place, metric in enumerate((2, 5, 61)):
            query.metrics[place].metricId = metric
        pynvml.nvmlGpmMetricsGet(query)
        assert [query.metrics[i].value for i in range(2)] == pytest.approx([100 * 0.9 * 0.5, 100 * 0.6 * 0.5])
        assert query.metrics[2].value == pytest.approx(200e9 / 2**20 * 0.5)
        for sample in samples:
            pynvml.nvmlGpmSampleFree(sample)


def test_gpm_is_not_in_ampere():
    with nvml_node(hgx_a100(1)):
        assert pynvml.nvmlGpmQueryDeviceSupport(handle(0)).isSupportedDevice == 0


def test_samples_of_the_driver_are_the_readings_of_the_sensor():
    with nvml_node(virtual(hgx_h200(1), load=square(1.0, 0.5))) as node:
        node.advance(20.0)
        _, samples = pynvml.nvmlDeviceGetSamples(handle(0), pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
        assert len(samples) == 120
        gaps_us = {b.timeStamp - a.timeStamp for a, b in zip(samples, samples[1:], strict=False)}
        assert min(gaps_us) > 99_990 and max(gaps_us) < 100_010
        assert sorted({s.sampleValue.uiVal for s in samples})[0] == 75_000
        since = samples[-3].timeStamp
        assert len(pynvml.nvmlDeviceGetSamples(handle(0), pynvml.NVML_TOTAL_POWER_SAMPLES, since)[1]) == 2


def test_scale_runs_the_counters_faster_and_leaves_power():
    scenario = hgx_h200(1).set_all(load=constant(1.0))
    scenario.scale = 1000.0
    with nvml_node(scenario) as node:
        first, before_s = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle(0)), node.time_s()
        while node.time_s() < before_s + 50:
            pass
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle(0)) - first >= 49 * 700_000
        assert field(0, 186) == 700_000


def test_settings_of_the_card_cannot_be_changed():
    with nvml_node(hgx_h200(1)), pytest.raises(pynvml.NVMLError_NoPermission):
        pynvml.nvmlDeviceSetPowerManagementLimit(handle(0), 400_000)


def test_topology_of_two_sockets():
    with nvml_node(hgx_h200()):
        assert pynvml.nvmlDeviceGetTopologyCommonAncestor(handle(0), handle(3)) == pynvml.NVML_TOPOLOGY_NODE
        assert pynvml.nvmlDeviceGetTopologyCommonAncestor(handle(0), handle(4)) == pynvml.NVML_TOPOLOGY_SYSTEM
        near = pynvml.nvmlDeviceGetTopologyNearestGpus(handle(5), pynvml.NVML_TOPOLOGY_NODE)
        assert [pynvml.nvmlDeviceGetIndex(device) for device in near] == [4, 6, 7]


def test_thresholds_and_margins():
    with nvml_node(virtual(hgx_h200(1), load=constant(1.0))):
        assert [field(0, n) for n in (193, 194, 196)] == [-8, -2, 0]
        assert pynvml.nvmlDeviceGetMarginTemperature(handle(0)) == 87 - 70


def test_memory_of_both_versions():
    with nvml_node(virtual(hgx_h200(1), load=constant(1.0))):
        second = pynvml.nvmlDeviceGetMemoryInfo(handle(0), version=pynvml.nvmlMemory_v2)
        assert second.used == pynvml.nvmlDeviceGetMemoryInfo(handle(0)).used == 100 * 2**30
        assert second.total == 141 * 2**30


def test_page_counts_the_fields_by_scope():
    with nvml_node(hgx_h200(1)) as node:
        for _ in range(3):
            field(0, 138, ALL_LINKS)
        field(0, 138)
        assert node.fields() == {(138, ALL_LINKS): 3, (138, 0): 1}
        assert node.calls()["nvmlDeviceGetFieldValues"] == 4
