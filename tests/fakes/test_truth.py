"""The C of the fakes against the Python truth, for loads of any shape."""

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.nvml import handle, nvml_node
from tests.fakes.presets import hgx_h200
from tests.fakes.test_wave import waves


@settings(max_examples=25, deadline=None)
@given(waves(), st.lists(st.floats(0.0, 30.0), min_size=1, max_size=4))
def test_energy_and_temperature_of_any_load(load, pauses_s):
    scenario = hgx_h200(1).set_all(load=load, energy_period_s=1e-6, idle_w=60.0)
    scenario.is_virtual = True
    with nvml_node(scenario) as node:
        first = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle(0))
        for pause_s in pauses_s:
            node.advance(pause_s)
            energy_j = (pynvml.nvmlDeviceGetTotalEnergyConsumption(handle(0)) - first) / 1000
            assert energy_j == pytest.approx(node.truth.energy_j(0, node.start_ns, node.now_ns()), abs=0.01)
            degrees = pynvml.nvmlDeviceGetTemperature(handle(0), 0)
            assert degrees - 1e-6 <= node.truth.temp_c(0, node.now_ns()) <= degrees + 1 + 1e-6
