"""Critical errors (XIDs) as the driver announces them.

Source: nvml.h (version 13), nvmlEventSetWait_v2, event type 0x8 (nvmlEventTypeXidCriticalError).
"""

import ctypes

import numpy as np

from triplepoint.telemetry.nvml_library import SUCCESS, Nvml, NvmlError
from triplepoint.telemetry.sensor import Sensor

_XID = 0x8


class _Event(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = [
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class XidSensor(Sensor):
    """The last XID of one GPU; nothing until there is one."""

    columns = ("gpu_xid",)

    def __init__(self, nvml: Nvml, handle: int, device: str) -> None:
        """Register for the events of one GPU.

        Args:
            nvml: The library.
            handle: The GPU.
            device: Its name.

        Raises:
            NvmlError: If this GPU or driver announces none.
            AttributeError: If this driver has no events.
        """
        self.device = device
        events = ctypes.c_void_p()
        nvml.check(nvml.function("nvmlEventSetCreate", ctypes.c_void_p)(ctypes.addressof(events)))
        register = nvml.function("nvmlDeviceRegisterEvents", ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_void_p)
        self._events = events.value
        self._free = nvml.function("nvmlEventSetFree", ctypes.c_void_p)
        status = register(handle, _XID, self._events)
        if status != SUCCESS:
            self._free(self._events)
            raise NvmlError(status, nvml.explain(status))
        self._wait = nvml.function("nvmlEventSetWait_v2", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
        self._event = _Event()
        self._event_at = ctypes.addressof(self._event)
        self._last = np.nan

    def allocate(self, num_slots: int) -> None:
        """Make room for `num_slots` reads."""
        self._values = np.full((num_slots, 1), np.nan)

    def read(self, slot: int) -> None:
        """Look, without waiting, whether there is news."""
        while self._wait(self._events, self._event_at, 0) == SUCCESS:
            if self._event.type == _XID:
                self._last = float(self._event.data)
        self._values[slot, 0] = self._last

    def take(self, num_slots: int) -> np.ndarray:
        """Return the first `num_slots` reads."""
        return self._values[:num_slots].copy()

    def close(self) -> None:
        """Give the events back."""
        self._free(self._events)
