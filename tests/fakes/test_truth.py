"""The C code of the fakes agrees with the truth in Python for loads of any shape."""

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fakes.nvml import field, handle, nvml_node, virtual
from tests.fakes.presets import hgx_h200
from tests.fakes.test_wave import waves
from tests.fakes.wave import constant


@settings(max_examples=examples(25), deadline=None)
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


def test_load_set_as_time_goes_on_is_what_is_measured():
    with nvml_node(virtual(hgx_h200(2), load=constant(0.0))) as node:
        first = field(1, 83)
        for load in (1.0, 0.5) * 20:
            node.advance(0.5)
            node.set_load(load, gpu=1)
        node.advance(0.5)
        # Half a second idle, then 20 of each level.
        assert (field(1, 83) - first) / 1000 == pytest.approx(0.5 * 75 + 10 * 700 + 10 * 387.5)
        assert field(0, 186) == 75_000
