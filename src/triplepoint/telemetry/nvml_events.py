"""Critical errors (XIDs) as the driver announces them.

Source: nvml.h (version 13), nvmlEventSetWait_v2, event type 0x8 (nvmlEventTypeXidCriticalError).
"""

import ctypes
from collections.abc import Mapping

import numpy as np

from triplepoint.telemetry.nvml_library import SUCCESS, Nvml, NvmlError
from triplepoint.telemetry.sensor import Sensor, carried
from triplepoint.telemetry.sweep import Step

_XID = 0x8
_EVENT = np.dtype([("device", "u8"), ("type", "u8"), ("data", "u8"), ("instances", "2u4")])
"""nvmlEventData_t."""


class XidSensor(Sensor):
    """The last XID of each GPU; nothing until there is one. Each read takes one event off the driver's list."""

    columns = ("gpu_xid",)

    def __init__(self, nvml: Nvml, events: Mapping[str, int]) -> None:
        """Choose what to read.

        Args:
            nvml: The library.
            events: Names of GPUs, and the event set of each.
        """
        self.devices = tuple(events)
        self._nvml, self._events = nvml, list(events.values())
        self._last = np.full(len(events), np.nan)

    def allocate(self, num_slots: int, period_s: float) -> list[list[Step]]:
        """Make room for `num_slots` reads and return their calls, which look for news without waiting."""
        self._seen = np.zeros((num_slots, len(self._events)), _EVENT)
        self._results = np.zeros(self._seen.shape, "i8")
        wait = self._nvml.address("nvmlEventSetWait_v2")
        return [
            [Step(wait, (events, self._seen[:, index], 0), self._results[:, index])]
            for index, events in enumerate(self._events)
        ]

    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads."""
        seen = self._seen[:num_slots]
        is_new = (self._results[:num_slots].astype("i4") == SUCCESS) & (seen["type"] == _XID)
        found = carried(np.where(is_new, seen["data"].astype(float), np.nan), self._last)
        self._last = found[-1]
        return found[..., None]

    def close(self) -> None:
        """Give the events back."""
        free = self._nvml.function("nvmlEventSetFree", ctypes.c_void_p)
        for events in self._events:
            free(events)


def register(nvml: Nvml, handle: int) -> int:
    """Return a new event set in which the driver puts the XIDs of a GPU.

    Args:
        nvml: The library.
        handle: The GPU.

    Raises:
        NvmlError: If this GPU or driver announces none.
        AttributeError: If this driver has no events.
    """
    made = ctypes.c_void_p()
    nvml.check(nvml.function("nvmlEventSetCreate", ctypes.c_void_p)(ctypes.addressof(made)))
    assert made.value is not None
    announce = nvml.function("nvmlDeviceRegisterEvents", ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_void_p)
    status = announce(handle, _XID, made.value)
    if status != SUCCESS:
        nvml.function("nvmlEventSetFree", ctypes.c_void_p)(made.value)
        raise NvmlError(status, nvml.explain(status))
    return made.value
