"""Faults of a fake NVML node as the real nvidia-ml-py reports them."""

import pynvml
import pytest

from tests.fakes.nvml import field, handle, nvml_node, virtual
from tests.fakes.presets import hgx_h200
from tests.fakes.scenario import Rule, Xid
from tests.fakes.wave import constant

ALL_LINKS = 0xFFFFFFFF


def test_field_that_is_not_supported_leaves_the_others():
    scenario = virtual(hgx_h200(2), load=constant(1.0))
    scenario.errors.append(Rule("field:82", pynvml.NVML_ERROR_NOT_SUPPORTED, gpu=1))
    with nvml_node(scenario):
        codes = [v.nvmlReturn for v in pynvml.nvmlDeviceGetFieldValues(handle(1), [186, 82, 83])]
        assert codes == [0, 3, 0]
        assert field(0, 82) > 0


def test_error_of_one_scope_leaves_the_other():
    scenario = virtual(hgx_h200(1), load=constant(1.0))
    scenario.errors.append(Rule("field:185:2", pynvml.NVML_ERROR_NO_PERMISSION))
    with nvml_node(scenario):
        assert field(0, 185) == 700_000
        with pytest.raises(pynvml.NVMLError_NoPermission):
            field(0, 185, scope=2)


def test_error_holds_for_its_time():
    scenario = virtual(hgx_h200(1))
    scenario.errors.append(Rule("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_UNKNOWN, from_s=1.0, until_s=2.0))
    with nvml_node(scenario) as node:
        pynvml.nvmlDeviceGetPowerUsage(handle(0))
        node.advance(1.5)
        with pytest.raises(pynvml.NVMLError_Unknown):
            pynvml.nvmlDeviceGetPowerUsage(handle(0))
        node.advance(1.0)
        pynvml.nvmlDeviceGetPowerUsage(handle(0))


def test_every_call_fails_under_a_star():
    scenario = hgx_h200(1)
    with nvml_node(scenario) as node:
        device = handle(0)
        scenario.errors.append(Rule("*", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=0))
        node.change()
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetTemperature(device, 0)


def test_gpu_unplugged_is_lost_and_then_gone():
    scenario = virtual(hgx_h200(4))
    scenario.set_gpu(2, unplug_s=5.0)
    scenario.xids.append(Xid(gpu=2, code=79, at_s=5.0))
    with nvml_node(scenario) as node:
        devices = [handle(i) for i in range(4)]
        uuids = [pynvml.nvmlDeviceGetUUID(device) for device in devices]
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(devices[2], pynvml.nvmlEventTypeXidCriticalError, events)
        with pytest.raises(pynvml.NVMLError_Timeout):
            pynvml.nvmlEventSetWait_v2(events, 0)
        node.advance(5.0)
        assert pynvml.nvmlEventSetWait_v2(events, 0).eventData == 79
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            pynvml.nvmlDeviceGetPowerUsage(devices[2])
        assert pynvml.nvmlDeviceGetUUID(devices[3]) == uuids[3]
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        assert [pynvml.nvmlDeviceGetUUID(handle(i)) for i in range(pynvml.nvmlDeviceGetCount())] == [
            uuids[i] for i in (0, 1, 3)
        ]


def test_frozen_counter_stands_still():
    scenario = virtual(hgx_h200(1), load=constant(1.0))
    scenario.freezes.append(Rule("energy", from_s=2.0))
    with nvml_node(scenario) as node:
        node.advance(3.0)
        stuck = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle(0))
        assert stuck == pytest.approx(1e9 + 2 * 700_000)
        node.advance(3.0)
        assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle(0)) == stuck
        assert field(0, 138, ALL_LINKS) > 0


def test_mig_hides_utilisation_and_gives_instances():
    with nvml_node(virtual(hgx_h200(1), mig_instances=2)):
        assert pynvml.nvmlDeviceGetMigMode(handle(0)) == [1, 1]
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetUtilizationRates(handle(0))
        instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(0), 1)
        assert pynvml.nvmlDeviceIsMigDeviceHandle(instance)
        assert pynvml.nvmlDeviceGetUUID(instance).startswith("MIG-")
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetPowerUsage(instance)
        with pytest.raises(pynvml.NVMLError_NotFound):
            pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(0), 2)


def test_latency_of_a_call():
    scenario = hgx_h200(1)
    scenario.latencies_us.append(Rule("nvmlDeviceGetTemperature", 30_000))
    with nvml_node(scenario) as node:
        before = node.time_s()
        pynvml.nvmlDeviceGetTemperature(handle(0), 0)
        assert node.time_s() - before >= 0.03
