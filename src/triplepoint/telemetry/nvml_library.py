"""C interface of NVML, whose calls in the sampler allocate no memory.

Source: nvml.h of the NVIDIA driver (version 13); the layouts are the same in nvidia-ml-py 13.615.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from triplepoint.telemetry.sensor import DriverError, address_of

LIBRARY = "libnvidia-ml.so.1"

SUCCESS = 0
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
INSUFFICIENT_SIZE = 7
FUNCTION_NOT_FOUND = 13

ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink field for the sum over all links; scope 0, the default, is link 0 only."""

FIELD_VALUE = np.dtype(
    [
        ("field", "u4"),
        ("scope", "u4"),
        ("t_us", "i8"),
        ("latency_us", "i8"),
        ("type", "u4"),
        ("status", "u4"),
        ("value", "u8"),
    ]
)
"""nvmlFieldValue_t: the driver fills all members but the first two; `type` is the type of the union `value`."""

_TYPES: dict[int, str] = {0: "f8", 1: "u4", 2: "u8", 3: "u8", 4: "i8", 5: "i4", 6: "u2"}
"""nvmlValueType_t: numpy type of the union member, by type."""
_NO_TYPE = 99
_MASKS = {1: 0xFFFFFFFF, 2: 0xFFFFFFFFFFFFFFFF, 3: 0xFFFFFFFFFFFFFFFF, 6: 0xFFFF}
"""Bits of the union that unsigned integers use, by type; the others are undefined."""


def decode(values: np.ndarray) -> np.ndarray:
    """Return field values as numbers, each decoded by its own type; NaN where the driver gave none.

    Args:
        values: Values of type `FIELD_VALUE`, any shape.
    """
    if (values["status"] == SUCCESS).all() and (values["type"] == values["type"][0]).all():
        return _decode_columns(values["value"], values["type"][0])
    numbers = np.full(values.shape, np.nan)
    types = np.where(values["status"] == SUCCESS, values["type"], _NO_TYPE)
    union = np.ascontiguousarray(values["value"])
    # Values of an unknown type, from a newer driver, stay NaN.
    for value_type in set(types.ravel().tolist()) & set(_TYPES):
        is_type = types == value_type
        member = np.dtype(_TYPES[value_type])
        numbers[is_type] = union[is_type].view(member)[:: union.itemsize // member.itemsize]
    return numbers


def _decode_columns(union: np.ndarray, types: np.ndarray) -> np.ndarray:
    """Return values of which each column has one type: the usual case, several times faster."""
    masks = np.array([_MASKS.get(value_type, 0) for value_type in types.ravel().tolist()], "u8").reshape(types.shape)
    numbers = np.asarray((union & masks).astype(float))
    for value_type in set(types.ravel().tolist()) - set(_MASKS):
        is_type = np.broadcast_to(types == value_type, union.shape)
        member = np.dtype(_TYPES[value_type]) if value_type in _TYPES else None
        values = np.ascontiguousarray(union[is_type])
        numbers[is_type] = values.view(member)[:: values.itemsize // member.itemsize] if member else np.nan
    return numbers


def is_32_bit(value_type: Any) -> Any:
    """Return whether a value type has 32 bits, so that counters wrap at 2^32."""
    return value_type == 1


class Nvml:
    """The loaded and initialised library.

    Raises:
        OSError: If there is no such library.
        NvmlError: If it cannot be initialised.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self.check(self.function("nvmlInit_v2")())

    def has(self, name: str) -> bool:
        """Return whether the driver has a function."""
        return hasattr(self._library, name)

    def function(self, name: str, *types: Any) -> Any:
        """Return a C function with arguments of given types that returns a status.

        Raises:
            AttributeError: If the driver lacks it.
        """
        # Each caller gets its own function object, because argument types set on a shared one would affect others.
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *types)
        return prototype((name, self._library))

    def _require(self, name: str, *types: Any) -> Any:
        """Return a C function as `function`, but raise `NvmlError` if the driver lacks it."""
        if not self.has(name):
            raise NvmlError(FUNCTION_NOT_FOUND, "Function Not Found")
        return self.function(name, *types)

    def address(self, name: str) -> int:
        """Return the address of a function. Raises `AttributeError` if the driver lacks it."""
        return address_of(getattr(self._library, name))

    def check(self, status: int) -> None:
        """Raise `NvmlError` for any status other than success."""
        if status != SUCCESS:
            raise NvmlError(status, self.explain(status))

    def explain(self, status: int) -> str:
        """Return the driver's description of a status."""
        text: bytes | None = self._library.nvmlErrorString(status)
        return text.decode(errors="replace") if text else f"NVML status {status}"

    def num_devices(self) -> int:
        """Return the number of GPUs, including those that cannot be opened."""
        number = ctypes.c_uint()
        self.check(self.function("nvmlDeviceGetCount_v2", ctypes.c_void_p)(ctypes.addressof(number)))
        return number.value

    def device(self, index: int) -> int:
        """Return the handle of one GPU."""
        handle = ctypes.c_void_p()
        get = self.function("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint, ctypes.c_void_p)
        self.check(get(index, ctypes.addressof(handle)))
        assert handle.value is not None
        return handle.value

    def name(self, name: str, handle: int, length: int = 96) -> str:
        """Return the text that a function such as nvmlDeviceGetUUID writes into a buffer.

        Raises:
            NvmlError: If it fails, or the driver lacks it.
        """
        function = self._require(name, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint)
        buffer = ctypes.create_string_buffer(length)
        self.check(function(handle, buffer, length))
        return buffer.value.decode(errors="replace")

    def text(self, name: str, handle: int) -> str | None:
        """Return the text as `name` does; None if the function fails."""
        try:
            return self.name(name, handle)
        except NvmlError:
            return None

    def ask(self, name: str, *arguments: int, writes: Sequence[Any] = (ctypes.c_uint,)) -> list[Any]:
        """Return the values that a function writes through pointers.

        Args:
            name: Name of the function.
            arguments: Handle of the GPU, then integers; none for a function of the driver.
            writes: C types of the values, in the order of the function's last arguments.

        Raises:
            NvmlError: If it fails, or the driver lacks it.
        """
        values = [kind() for kind in writes]
        types = [ctypes.c_void_p if index == 0 else ctypes.c_uint for index in range(len(arguments))]
        function = self._require(name, *types, *(ctypes.c_void_p for _ in values))
        self.check(function(*arguments, *map(ctypes.addressof, values)))
        return [value.value if hasattr(value, "value") else list(value) for value in values]

    def number(self, name: str, handle: int, *arguments: int) -> int | None:
        """Return the unsigned integer that a function writes; None if it fails."""
        try:
            return int(self.ask(name, handle, *arguments)[0])
        except NvmlError:
            return None

    def count(self, name: str, handle: int, *arguments: int) -> int:
        """Return the number of entries that a function would list, by calling it without a buffer.

        Raises:
            NvmlError: If it fails, or the driver lacks it.
        """
        number = ctypes.c_uint(0)
        types = [ctypes.c_void_p, *(ctypes.c_uint for _ in arguments), ctypes.c_void_p, ctypes.c_void_p]
        status = self._require(name, *types)(handle, *arguments, ctypes.addressof(number), None)
        if status != INSUFFICIENT_SIZE:
            self.check(status)
        return number.value

    def version(self, name: str) -> str:
        """Return the version that a function without a GPU writes, such as nvmlSystemGetDriverVersion.

        Raises:
            NvmlError: If it fails, or the driver lacks it.
        """
        buffer = ctypes.create_string_buffer(96)
        self.check(self._require(name, ctypes.c_char_p, ctypes.c_uint)(buffer, 96))
        return buffer.value.decode(errors="replace")

    def pci_address(self, handle: int) -> str | None:
        """Return the PCI address, domain:bus:device.function, as in sysfs; None if it is not known."""
        buffer = ctypes.create_string_buffer(68)  # nvmlPciInfo_t: 16 + 5 * 4 + 32 bytes
        status = self.function("nvmlDeviceGetPciInfo_v3", ctypes.c_void_p, ctypes.c_char_p)(handle, buffer)
        if status != SUCCESS:
            return None
        domain, bus, device = np.frombuffer(buffer.raw, "u4", 3, 16).tolist()
        return f"{domain:04x}:{bus:02x}:{device:02x}.0"

    def instances(self, handle: int) -> list[str]:
        """Return the UUIDs of the MIG instances of a GPU."""
        if not self.has("nvmlDeviceGetMigDeviceHandleByIndex"):
            return []
        get = self.function("nvmlDeviceGetMigDeviceHandleByIndex", ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p)
        uuids, instance = [], ctypes.c_void_p()
        for index in range(self.number("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            if get(handle, index, ctypes.addressof(instance)) == SUCCESS and instance.value:
                uuids.append(self.text("nvmlDeviceGetUUID", instance.value))
        return [uuid for uuid in uuids if uuid]

    def close(self) -> None:
        """Shut the library down."""
        self.function("nvmlShutdown")()


class NvmlError(DriverError):
    """A status other than success."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
