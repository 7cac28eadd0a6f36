"""The real nvidia-ml-py on a fake node."""

from collections.abc import Iterator
from contextlib import contextmanager

import pynvml

from tests.fakes.node import FakeNode, fake_node
from tests.fakes.scenario import Scenario, Sensor


@contextmanager
def nvml_node(scenario: Scenario) -> Iterator[FakeNode]:
    """Provide a node with NVML initialised in this process."""
    with fake_node(scenario) as node:
        pynvml.nvmlInit()
        try:
            yield node
        finally:
            pynvml.nvmlShutdown()


def field(gpu: int, number: int, scope: int = 0) -> float:
    """Return a field value of a GPU, read with the type that the library states.

    Raises:
        pynvml.NVMLError: If the library returns an error for this field.
    """
    value = pynvml.nvmlDeviceGetFieldValues(handle(gpu), [(number, scope)])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    members = {0: "dVal", 1: "uiVal", 3: "ullVal", 5: "siVal"}
    return getattr(value.value, members[value.valueType])


def handle(gpu: int):
    """Return the handle of a GPU."""
    return pynvml.nvmlDeviceGetHandleByIndex(gpu)


IN_PHASE = {
    "instant": Sensor(period_s=0.1, window_s=0.025),
    "average": Sensor(period_s=0.1, window_s=1.0),
    "energy_phase_s": 0.0,
}
"""Fields of a GPU with which its sensors refresh at whole tenths of a second."""


def virtual(scenario: Scenario, **changes: object) -> Scenario:
    """Return the scenario with a virtual clock, and with sensors that refresh at whole tenths of a second."""
    scenario.is_virtual = True
    return scenario.set_all(**IN_PHASE, **changes)
