"""C interface of AMD SMI, as far as the sampler needs it.

The amdsmi package is not used: without ROCm its import prints to standard output and raises KeyError.

Source: amdsmi.h of AMD SMI 7.0 (ROCm 7.0); layouts as in the amdsmi package 7.0.2. The metrics table is the kernel's
gpu_metrics (Linux, drivers/gpu/drm/amd/include/kgd_pp_interface.h), in which all ones mean "not measured".
"""

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np

from triplepoint.telemetry.sensor import DriverError, Step, Sweep, address_of

LIBRARY = "libamd_smi.so"

SUCCESS = 0
NOT_SUPPORTED = 2
_INIT_AMD_GPUS = 2
_STRING = 256
_METRICS_BYTES = 8192
"""Size of the buffer for the metrics table: above that of any version, so that a newer library cannot overflow it."""

METRICS = np.dtype(
    {
        "names": [
            *("revision", "edge_c", "hotspot_c", "memory_c", "gfx_percent", "umc_percent", "average_power_w"),
            *("average_gfxclk_mhz", "gfxclk_mhz", "uclk_mhz", "hbm_c", "throttle", "current_power_w"),
            *("pcie_replays", "xgmi_read_kb", "xgmi_write_kb", "gfxclks_mhz", "clock_ns"),
            *("cycles", "prochot_cycles", "ppt_cycles", "socket_hot_cycles", "regulator_hot_cycles", "hbm_hot_cycles"),
        ],
        "formats": [
            *("u2", "u2", "u2", "u2", "u2", "u2", "u2"),
            *("u2", "u2", "u2", "4u2", "u8", "u2"),
            *("u8", "8u8", "8u8", "8u2", "u8"),
            *("u8", "u8", "u8", "u8", "u8", "u8"),
        ],
        "offsets": [
            *(2, 4, 6, 8, 16, 18, 22),
            *(40, 54, 58, 88, 112, 120),
            *(168, 184, 248, 312, 32),
            *(424, 432, 440, 448, 456, 464),
        ],
        "itemsize": _METRICS_BYTES,
    }
)
"""The fields of amdsmi_gpu_metrics_t that the sampler uses."""

VRAM = np.dtype({"names": ["total_mb", "used_mb"], "formats": ["u4", "u4"], "offsets": [0, 4], "itemsize": 64})
POWER_CAP = np.dtype({"names": ["cap_uw"], "formats": ["u8"], "offsets": [0], "itemsize": 128})
ERRORS = np.dtype({"names": ["corrected", "uncorrected"], "formats": ["u8", "u8"], "offsets": [0, 8], "itemsize": 128})
ENERGY = np.dtype([("count", "u8"), ("t_ns", "u8"), ("resolution_uj", "f4")])


class AmdSmi:
    """The loaded and initialised library.

    Raises:
        OSError: If there is no such library.
        AmdSmiError: If it cannot be initialised.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_find())
        status = self.function("amdsmi_init", ctypes.c_uint64)(_INIT_AMD_GPUS)
        if status:
            raise AmdSmiError(self.explain(status))

    def has(self, name: str) -> bool:
        """Return whether the library has a function."""
        return hasattr(self._library, name)

    def function(self, name: str, *types: Any) -> Any:
        """Return a C function that takes `types` and returns a status. Raises AttributeError if it is missing."""
        return ctypes.CFUNCTYPE(ctypes.c_int, *types)((name, self._library))

    def address(self, name: str) -> int:
        """Return the address of a function. Raises `AttributeError` if the library lacks it."""
        return address_of(getattr(self._library, name))

    def call(self, name: str, handle: int, *arguments: int | np.ndarray) -> int:
        """Call a function for a device once and return its status.

        Args:
            name: Name of the function.
            handle: Handle of the device.
            arguments: Further arguments, as in `sensor.Step`.
        """
        result = np.zeros(1, "i8")
        Sweep([Step(self.address(name), (handle, *arguments), result)]).run(0)
        return int(result.astype("i4")[0])

    def explain(self, status: int) -> str:
        """Return the library's description of a status."""
        if status == NOT_SUPPORTED:
            return "not supported by this GPU or driver"
        text = ctypes.c_char_p()
        if self.has("amdsmi_status_code_to_string"):
            self.function("amdsmi_status_code_to_string", ctypes.c_int, ctypes.c_void_p)(status, ctypes.byref(text))
        return text.value.decode(errors="replace") if text.value else f"AMD SMI status {status}"

    def devices(self) -> list[int]:
        """Return a handle for each GPU die, in the library's order."""
        sockets = self._handles("amdsmi_get_socket_handles")
        return [die for socket in sockets for die in self._handles("amdsmi_get_processor_handles", socket)]

    def _handles(self, name: str, *owner: int) -> list[int]:
        get = self.function(name, *(ctypes.c_void_p for _ in owner), ctypes.c_void_p, ctypes.c_void_p)
        number = ctypes.c_uint32()
        status = get(*owner, ctypes.addressof(number), None)
        handles = (ctypes.c_void_p * max(number.value, 1))()
        status = status or get(*owner, ctypes.addressof(number), ctypes.addressof(handles))
        if status:
            raise AmdSmiError(f"{name}: {self.explain(status)}")
        return [handle for handle in handles[: number.value] if handle]

    def buffer(self, name: str, handle: int, num_bytes: int) -> bytes | None:
        """Return the structure that a function writes for a device; None if it fails."""
        if not self.has(name):
            return None
        buffer = ctypes.create_string_buffer(num_bytes)
        status = self.function(name, ctypes.c_void_p, ctypes.c_void_p)(handle, ctypes.addressof(buffer))
        return buffer.raw if status == SUCCESS else None

    def uuid(self, handle: int) -> str | None:
        """Return the UUID of a die; None if it has none."""
        length, buffer = ctypes.c_uint32(_STRING), ctypes.create_string_buffer(_STRING)
        get = self.function("amdsmi_get_gpu_device_uuid", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
        status = get(handle, ctypes.addressof(length), buffer)
        return buffer.value.decode(errors="replace") if status == SUCCESS else None

    def pci_address(self, handle: int) -> str | None:
        """Return the PCI address, domain:bus:device.function, as in sysfs."""
        raw = self.buffer("amdsmi_get_gpu_device_bdf", handle, 8)
        if raw is None:
            return None
        # amdsmi_bdf_t: 3 bits of function, 5 of device, 8 of bus, 48 of domain.
        bits = int.from_bytes(raw, "little")
        return f"{bits >> 16:04x}:{bits >> 8 & 0xFF:02x}:{bits >> 3 & 0x1F:02x}.{bits & 7}"

    def names(self, handle: int) -> tuple[str | None, str | None]:
        """Return product name and serial number of a die."""
        # amdsmi_asic_info_t: name, vendor and its name, sub-vendor, device, revision, serial.
        raw = self.buffer("amdsmi_get_gpu_asic_info", handle, 2048)
        if raw is None:
            return None, None
        serial_at = 2 * _STRING + 20
        return _text(raw, 0), _text(raw, serial_at)

    def hip_index(self, handle: int) -> int | None:
        """Return the index of a die in HIP, which ranks use; it differs from the library's index."""
        raw = self.buffer("amdsmi_get_gpu_enumeration_info", handle, 1024)
        return None if raw is None else int.from_bytes(raw[12:16], "little")

    def close(self) -> None:
        """Shut the library down."""
        self.function("amdsmi_shut_down")()


class AmdSmiError(DriverError):
    """A status other than success."""


def _find() -> str:
    """Return the path of the library below ROCM_PATH if it exists, else its name for the dynamic loader."""
    path = Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "lib" / LIBRARY
    return str(path) if path.exists() else LIBRARY


def _text(raw: bytes, start: int) -> str | None:
    return raw[start : start + _STRING].split(b"\0", 1)[0].decode(errors="replace") or None
