"""Facts of NVIDIA GPUs, through NVML.

Source: nvml.h (version 13), for the constants.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from triplepoint.doctor.facts import GpuFacts, Questions
from triplepoint.telemetry.nvml_library import INVALID_ARGUMENT, NOT_SUPPORTED, Nvml, NvmlError
from triplepoint.units import KILO

_SLOWDOWNS = {
    "hardware power brake": 0x80,
    "hardware slowdown": 0x08,
    "hardware thermal slowdown": 0x40,
    "software thermal slowdown": 0x20,
}
"""Bits of nvmlClocksEventReasons that are no part of normal work; idle, power cap and set clocks are."""
_SM_CLOCK, _UNCORRECTED, _VOLATILE, _DOUBLE_BIT, _GPU_SENSOR = 1, 1, 0, 1, 0
"""NVML_CLOCK_SM, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC,
NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR, NVML_TEMPERATURE_GPU."""
_MOST_LINKS = 36
"""NVML_NVLINK_MAX_LINKS."""
_U64 = ctypes.c_ulonglong


def read_nvidia() -> tuple[list[GpuFacts], dict[str, str]]:
    """Return facts of every GPU, and the versions of driver, NVML and the CUDA the driver supports.

    Raises:
        OSError: If there is no driver.
        NvmlError: If there is no access to it.
    """
    nvml = Nvml()
    try:
        versions = {
            "driver": nvml.version("nvmlSystemGetDriverVersion"),
            "nvml": nvml.version("nvmlSystemGetNVMLVersion"),
        }
        (cuda,) = nvml.ask("nvmlSystemGetCudaDriverVersion_v2")
        versions["cuda driver"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
        return [_read_gpu(nvml, index) for index in range(nvml.num_devices())], versions
    finally:
        nvml.close()


def _read_gpu(nvml: Nvml, index: int) -> GpuFacts:
    questions = Questions(NvmlError)
    gpu = questions.ask("gpu", lambda: nvml.device(index))
    if gpu is None:  # fallen off the bus, say; the others still answer
        return GpuFacts(index=index, refused=questions.refused)
    facts: dict[str, Any] = {}
    for name, question in (_identity(nvml, gpu) | _limits(nvml, gpu) | _health(nvml, gpu)).items():
        facts[name] = questions.ask(name, question)
    rows = questions.ask("num_remapped", lambda: _repairs(nvml, gpu))
    links = questions.ask("num_links", lambda: _links(nvml, gpu))
    if links:
        facts["num_links"], facts["num_links_up"] = links
    for metric, question in _telemetry(nvml, gpu).items():
        questions.ask(metric, question)
    return GpuFacts(index=index, **facts, **(rows or {}), refused=questions.refused)


def _identity(nvml: Nvml, gpu: int) -> dict[str, Callable[[], Any]]:
    return {
        "product": lambda: nvml.name("nvmlDeviceGetName", gpu),
        "uuid": lambda: nvml.name("nvmlDeviceGetUUID", gpu),
        "memory_bytes": lambda: nvml.ask("nvmlDeviceGetMemoryInfo", gpu, writes=[_U64 * 3])[0][0],  # total, free, used
    }


def _limits(nvml: Nvml, gpu: int) -> dict[str, Callable[[], Any]]:
    def ask(name: str, *arguments: int) -> int:
        return int(nvml.ask(f"nvmlDeviceGet{name}", gpu, *arguments)[0])

    return {
        "power_limit_w": lambda: ask("PowerManagementLimit") / KILO,
        "default_power_limit_w": lambda: ask("PowerManagementDefaultLimit") / KILO,
        "clock_limit_mhz": lambda: ask("ApplicationsClock", _SM_CLOCK),
        "default_clock_mhz": lambda: ask("DefaultApplicationsClock", _SM_CLOCK),
        "max_clock_mhz": lambda: ask("MaxClockInfo", _SM_CLOCK),
        "pcie_generation": lambda: ask("MaxPcieLinkGeneration"),
        "max_pcie_generation": lambda: ask("GpuMaxPcieLinkGeneration"),
        "pcie_width": lambda: ask("CurrPcieLinkWidth"),
        "max_pcie_width": lambda: ask("MaxPcieLinkWidth"),
    }


def _health(nvml: Nvml, gpu: int) -> dict[str, Callable[[], Any]]:
    two = (ctypes.c_uint, ctypes.c_uint)  # current and pending
    errors = ("nvmlDeviceGetTotalEccErrors", gpu, _UNCORRECTED, _VOLATILE)
    return {
        "has_ecc": lambda: bool(nvml.ask("nvmlDeviceGetEccMode", gpu, writes=two)[0]),
        "num_uncorrected": lambda: nvml.ask(*errors, writes=[_U64])[0],
        "slowdowns": lambda: _slowdowns(nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu, writes=[_U64])[0]),
        "num_processes": lambda: nvml.count("nvmlDeviceGetComputeRunningProcesses_v3", gpu),
    }


def _slowdowns(reasons: int) -> tuple[str, ...]:
    return tuple(word for word, bit in _SLOWDOWNS.items() if reasons & bit)


def _repairs(nvml: Nvml, gpu: int) -> dict[str, Any]:
    """Return what the row remapper says, or where there is none (before A100) the retired pages."""
    try:
        _, uncorrected, is_pending, has_failed = nvml.ask("nvmlDeviceGetRemappedRows", gpu, writes=[ctypes.c_uint] * 4)
    except NvmlError as error:
        if error.status != NOT_SUPPORTED:
            raise
        return {
            "num_remapped": nvml.count("nvmlDeviceGetRetiredPages", gpu, _DOUBLE_BIT),
            "is_repair_pending": bool(nvml.ask("nvmlDeviceGetRetiredPagesPendingStatus", gpu)[0]),
        }
    return {
        "num_remapped": uncorrected,
        "is_repair_pending": bool(is_pending),
        "has_repair_failed": bool(has_failed),
    }


def _links(nvml: Nvml, gpu: int) -> tuple[int, int]:
    """Return how many NVLinks the GPU has, and how many are up; links it does not have are refused one by one."""
    states = []
    for link in range(_MOST_LINKS):
        try:
            states += nvml.ask("nvmlDeviceGetNvLinkState", gpu, link)
        except NvmlError as error:
            if error.status not in (NOT_SUPPORTED, INVALID_ARGUMENT):
                raise
    return len(states), sum(state == 1 for state in states)


def _telemetry(nvml: Nvml, gpu: int) -> dict[str, Callable[[], Any]]:
    two = [ctypes.c_uint * 2]  # of the GPU and of its memory
    return {
        "gpu_power_w": lambda: nvml.ask("nvmlDeviceGetPowerUsage", gpu),
        "gpu_energy_j": lambda: nvml.ask("nvmlDeviceGetTotalEnergyConsumption", gpu, writes=[_U64]),
        "gpu_temp_c": lambda: nvml.ask("nvmlDeviceGetTemperature", gpu, _GPU_SENSOR),
        "sm_clock_mhz": lambda: nvml.ask("nvmlDeviceGetClockInfo", gpu, _SM_CLOCK),
        "gpu_util": lambda: nvml.ask("nvmlDeviceGetUtilizationRates", gpu, writes=two),
    }
