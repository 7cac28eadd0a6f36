"""What is asked of an NVIDIA GPU, in which lane, and in which unit it answers.

Source: nvml.h (version 13), field identifiers NVML_FI_DEV_* and the comments beside them.
"""

from dataclasses import dataclass

from triplepoint.telemetry.nvml_library import ALL_LINKS
from triplepoint.telemetry.sensor import FAST, SLOW
from triplepoint.units import KIB


@dataclass(frozen=True)
class Field:
    """One value of the batched nvmlDeviceGetFieldValues."""

    column: str
    field: int
    lane: str
    scale: float
    """Multiplies the driver's value into the unit of the column."""
    scope: int = 0


@dataclass(frozen=True)
class Call:
    """One function that writes one structure: `num_words` 32-bit words of which each column takes one value."""

    columns: tuple[str, ...]
    function: str
    lane: str
    scale: float
    arguments: tuple[int, ...] = ()
    kind: str = "u4"
    """numpy type of the values."""
    places: tuple[int, ...] = (0,)
    """Index of each column's value in an array of `kind`."""
    num_words: int = 2
    version: int = 0
    """Written into the first word before the call, as versioned structures want it."""

    @property
    def name(self) -> str:
        """Function with its arguments, for accounts."""
        return f"{self.function}({','.join(map(str, self.arguments))})"


_MILLI = 1e-3
_NANO = 1e-9
_PERCENT = 1e-2
_GPU, _MODULE, _MEMORY = 0, 1, 2
"""Scopes of the power fields (nvmlPowerScopeType_t)."""

FIELDS = (
    Field("gpu_power_w", 186, FAST, _MILLI, _GPU),
    Field("gpu_power_average_w", 185, FAST, _MILLI, _GPU),
    Field("gpu_memory_power_w", 185, FAST, _MILLI, _MEMORY),
    Field("gpu_module_power_w", 186, FAST, _MILLI, _MODULE),
    Field("gpu_energy_j", 83, FAST, _MILLI),
    Field("gpu_energy_j", 191, FAST, _MILLI),
    Field("gpu_memory_temp_c", 82, FAST, 1.0),
    Field("gpu_power_cap_s", 74, FAST, _NANO),
    Field("gpu_sync_boost_s", 76, FAST, _NANO),
    Field("gpu_sw_thermal_s", 269, FAST, _NANO),
    Field("gpu_hw_thermal_s", 270, FAST, _NANO),
    Field("gpu_power_brake_s", 271, FAST, _NANO),
    Field("pcie_tx_bytes", 197, SLOW, 1.0),
    Field("pcie_rx_bytes", 198, SLOW, 1.0),
    Field("nvlink_tx_bytes", 138, SLOW, KIB, ALL_LINKS),
    Field("nvlink_tx_bytes", 202, SLOW, 1.0, ALL_LINKS),
    Field("nvlink_rx_bytes", 139, SLOW, KIB, ALL_LINKS),
    Field("nvlink_rx_bytes", 204, SLOW, 1.0, ALL_LINKS),
    Field("gpu_ecc_corrected", 3, SLOW, 1.0),
    Field("gpu_ecc_uncorrected", 4, SLOW, 1.0),
    Field("pcie_replays", 94, SLOW, 1.0),
)
"""Of two fields with the same column the first that works is taken. The violation fields 74, 76 and 269 to 271 count
nanoseconds; 138 and 139 count KiB, 202 and 204 bytes. The averaged power of scope memory is what H100 and H200 have."""

CALLS = (
    # NVML_TEMPERATURE_GPU is the only sensor this function knows; memory is field 82.
    Call(("gpu_temp_c",), "nvmlDeviceGetTemperature", FAST, 1.0, (0,)),
    Call(("sm_clock_mhz",), "nvmlDeviceGetClockInfo", FAST, 1.0, (1,)),
    Call(("memory_clock_mhz",), "nvmlDeviceGetClockInfo", FAST, 1.0, (2,)),
    Call(("gpu_throttle_reasons",), "nvmlDeviceGetCurrentClocksEventReasons", FAST, 1.0, kind="u8"),
    Call(("gpu_throttle_reasons",), "nvmlDeviceGetCurrentClocksThrottleReasons", FAST, 1.0, kind="u8"),
    # Averaged over a second from Ampere on (but not GA100), instantaneous before: only where the fields are missing.
    Call(("gpu_power_w",), "nvmlDeviceGetPowerUsage", FAST, _MILLI),
    Call(("gpu_energy_j",), "nvmlDeviceGetTotalEnergyConsumption", FAST, _MILLI, kind="u8"),
    Call(("gpu_power_limit_w",), "nvmlDeviceGetEnforcedPowerLimit", SLOW, _MILLI),
    Call(("gpu_utilisation", "gpu_memory_utilisation"), "nvmlDeviceGetUtilizationRates", SLOW, _PERCENT, places=(0, 1)),
    # nvmlMemory_v2_t: version, total, reserved, free, used; the first version's `used` includes the reserved part.
    Call(
        ("gpu_memory_used_bytes",),
        "nvmlDeviceGetMemoryInfo_v2",
        SLOW,
        1.0,
        kind="u8",
        places=(4,),
        num_words=10,
        version=0x02000028,
    ),
    Call(("gpu_memory_used_bytes",), "nvmlDeviceGetMemoryInfo", SLOW, 1.0, kind="u8", places=(2,), num_words=6),
    Call(
        ("gpu_temp_margin_c",),
        "nvmlDeviceGetMarginTemperature",
        SLOW,
        1.0,
        kind="i4",
        places=(1,),
        version=0x01000008,
    ),
)
"""Of two calls with the same columns, and of a call and a field, the first that works is taken, fields before calls.
nvmlDeviceGetPcieThroughput is never called: it blocks for 20 ms to count over that time."""
