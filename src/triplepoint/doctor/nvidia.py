"""Facts of NVIDIA GPUs, through nvidia-ml-py."""

from collections.abc import Callable
from typing import Any

from triplepoint.doctor.facts import GpuFacts, Questions
from triplepoint.units import KILO

_SLOWDOWNS = {
    "hardware power brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
    "hardware slowdown": "nvmlClocksThrottleReasonHwSlowdown",
    "hardware thermal slowdown": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "software thermal slowdown": "nvmlClocksThrottleReasonSwThermalSlowdown",
}
"""Reasons that are no part of normal work; idle, power cap and set clocks are."""


def read_nvidia(nvml: Any) -> tuple[list[GpuFacts], dict[str, str]]:
    """Return facts of every GPU, and the versions of driver, NVML and the CUDA the driver supports.

    Args:
        nvml: The module `pynvml` of nvidia-ml-py.

    Raises:
        nvml.NVMLError: If there is no driver, or no access to it.
    """
    nvml.nvmlInit()
    try:
        versions = {"driver": _text(nvml.nvmlSystemGetDriverVersion()), "nvml": _text(nvml.nvmlSystemGetNVMLVersion())}
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        versions["cuda driver"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
        return [_read_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())], versions
    finally:
        nvml.nvmlShutdown()


def _read_gpu(nvml: Any, index: int) -> GpuFacts:
    questions = Questions(nvml.NVMLError)
    gpu = questions.ask("gpu", lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    if gpu is None:  # fallen off the bus, say; the others still answer
        return GpuFacts(index=index, refused=questions.refused)
    found: dict[str, Any] = {}
    for name, question in (_identity(nvml, gpu) | _limits(nvml, gpu) | _health(nvml, gpu)).items():
        found[name] = questions.ask(name, question)
    rows = questions.ask("num_remapped", lambda: _repairs(nvml, gpu))
    links = questions.ask("num_links", lambda: _links(nvml, gpu))
    if links:
        found["num_links"], found["num_links_up"] = links
    for metric, question in _telemetry(nvml, gpu).items():
        questions.ask(metric, question)
    return GpuFacts(index=index, **found, **(rows or {}), refused=questions.refused)


def _identity(nvml: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
    return {
        "product": lambda: _text(nvml.nvmlDeviceGetName(gpu)),
        "uuid": lambda: _text(nvml.nvmlDeviceGetUUID(gpu)),
        "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
    }


def _limits(nvml: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
    sm = nvml.NVML_CLOCK_SM
    return {
        "power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementLimit(gpu) / KILO,
        "default_power_limit_w": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / KILO,
        "clock_limit_mhz": lambda: nvml.nvmlDeviceGetApplicationsClock(gpu, sm),
        "default_clock_mhz": lambda: nvml.nvmlDeviceGetDefaultApplicationsClock(gpu, sm),
        "max_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(gpu, sm),
        "pcie_generation": lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
        "max_pcie_generation": lambda: nvml.nvmlDeviceGetGpuMaxPcieLinkGeneration(gpu),
        "pcie_width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
        "max_pcie_width": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
    }


def _health(nvml: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
    uncorrected, volatile = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return {
        "has_ecc": lambda: bool(nvml.nvmlDeviceGetCurrentEccMode(gpu)),
        "num_uncorrected": lambda: nvml.nvmlDeviceGetTotalEccErrors(gpu, uncorrected, volatile),
        "slowdowns": lambda: _slowdowns(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),
        "num_processes": lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu)),
    }


def _slowdowns(nvml: Any, reasons: int) -> tuple[str, ...]:
    return tuple(word for word, constant in _SLOWDOWNS.items() if reasons & getattr(nvml, constant))


def _repairs(nvml: Any, gpu: Any) -> dict[str, Any]:
    """Return what the row remapper says, or where there is none (before A100) the retired pages."""
    try:
        _, uncorrected, is_pending, has_failed = nvml.nvmlDeviceGetRemappedRows(gpu)
    except nvml.NVMLError_NotSupported:
        pages = nvml.nvmlDeviceGetRetiredPages(gpu, nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
        return {
            "num_remapped": len(pages),
            "is_repair_pending": bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu)),
        }
    return {
        "num_remapped": uncorrected,
        "is_repair_pending": bool(is_pending),
        "has_repair_failed": bool(has_failed),
    }


def _links(nvml: Any, gpu: Any) -> tuple[int, int]:
    """Return how many NVLinks the GPU has, and how many are up; links it does not have are refused one by one."""
    states = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(nvml.nvmlDeviceGetNvLinkState(gpu, link))
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
    return len(states), sum(state == nvml.NVML_FEATURE_ENABLED for state in states)


def _telemetry(nvml: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
    return {
        "gpu_power_w": lambda: nvml.nvmlDeviceGetPowerUsage(gpu),
        "gpu_energy_j": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
        "gpu_temp_c": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "gpu_util": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu),
    }


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
