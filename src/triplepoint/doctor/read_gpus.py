"""Facts of GPUs from their drivers: NVIDIA through NVML, AMD through amdsmi.

Source of the constants: nvml.h (version 13).
"""

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

from triplepoint.doctor.check import GpuFacts
from triplepoint.telemetry.nvml_library import INVALID_ARGUMENT, NOT_SUPPORTED, Nvml, NvmlError
from triplepoint.units import KILO, MEGA

Answer = TypeVar("Answer")


class Questions:
    """Queries to one GPU, whose refusals are collected.

    Attributes:
        refused: Reason by name of a refused query, in the words of the library.
    """

    def __init__(self, error: type[Exception]) -> None:
        """Collect exceptions of type `error` as refusals; let all others pass."""
        self._error = error
        self.refused: dict[str, str] = {}

    def ask(self, name: str, question: Callable[[], Answer]) -> Answer | None:
        """Return the answer to a query; None if it was refused.

        Args:
            name: Field of `GpuFacts`, or metric of telemetry.
            question: Calls the library.
        """
        try:
            return question()
        except self._error as error:
            self.refused[name] = " ".join(str(error).split())
            return None


_SLOWDOWNS = {
    "hardware power brake": 0x80,
    "hardware slowdown": 0x08,
    "hardware thermal slowdown": 0x40,
    "software thermal slowdown": 0x20,
}
"""Bits of nvmlClocksEventReasons that are abnormal, unlike idle, the power cap and application clocks."""
_SM_CLOCK, _UNCORRECTED, _VOLATILE, _DOUBLE_BIT, _GPU_SENSOR = 1, 1, 0, 1, 0
"""NVML_CLOCK_SM, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC,
NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR, NVML_TEMPERATURE_GPU."""
_MOST_LINKS = 36
"""NVML_NVLINK_MAX_LINKS."""
_U64 = ctypes.c_ulonglong


def read_nvidia() -> tuple[list[GpuFacts], dict[str, str]]:
    """Read facts of every NVIDIA GPU, and the versions of driver, NVML and the CUDA that the driver supports.

    Raises:
        OSError: If there is no driver.
        NvmlError: If the driver denies access.
    """
    nvml = Nvml()
    try:
        versions = {
            "driver": nvml.version("nvmlSystemGetDriverVersion"),
            "nvml": nvml.version("nvmlSystemGetNVMLVersion"),
        }
        (cuda,) = nvml.ask("nvmlSystemGetCudaDriverVersion_v2")
        versions["cuda driver"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
        return [_read_nvidia_gpu(nvml, index) for index in range(nvml.num_devices())], versions
    finally:
        nvml.close()


def _read_nvidia_gpu(nvml: Nvml, index: int) -> GpuFacts:
    questions = Questions(NvmlError)
    gpu = questions.ask("gpu", lambda: nvml.device(index))
    if gpu is None:  # The GPU may have fallen off the bus, while others still answer.
        return GpuFacts(index=index, refused=questions.refused)
    facts: dict[str, Any] = {}
    for name, question in (_identity(nvml, gpu) | _limits(nvml, gpu) | _health(nvml, gpu)).items():
        facts[name] = questions.ask(name, question)
    repairs = questions.ask("num_remapped", lambda: _nvidia_repairs(nvml, gpu))
    links = questions.ask("num_links", lambda: _nvidia_links(nvml, gpu))
    if links:
        facts["num_links"], facts["num_links_up"] = links
    for metric, question in _nvidia_telemetry(nvml, gpu).items():
        questions.ask(metric, question)
    return GpuFacts(index=index, **facts, **(repairs or {}), refused=questions.refused)


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
    current_and_pending = (ctypes.c_uint, ctypes.c_uint)
    errors = ("nvmlDeviceGetTotalEccErrors", gpu, _UNCORRECTED, _VOLATILE)
    return {
        "has_ecc": lambda: bool(nvml.ask("nvmlDeviceGetEccMode", gpu, writes=current_and_pending)[0]),
        "num_uncorrected": lambda: nvml.ask(*errors, writes=[_U64])[0],
        "slowdowns": lambda: _slowdowns(nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu, writes=[_U64])[0]),
        "num_processes": lambda: nvml.count("nvmlDeviceGetComputeRunningProcesses_v3", gpu),
    }


def _slowdowns(reasons: int) -> tuple[str, ...]:
    return tuple(word for word, bit in _SLOWDOWNS.items() if reasons & bit)


def _nvidia_repairs(nvml: Nvml, gpu: int) -> dict[str, Any]:
    """Return the repairs of memory: remapped rows, or retired pages on GPUs before A100."""
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


def _nvidia_links(nvml: Nvml, gpu: int) -> tuple[int, int]:
    """Return the number of NVLinks of the GPU, and of those that are up."""
    states = []
    for link in range(_MOST_LINKS):
        # NVML refuses each link that the GPU does not have.
        try:
            states += nvml.ask("nvmlDeviceGetNvLinkState", gpu, link)
        except NvmlError as error:
            if error.status not in (NOT_SUPPORTED, INVALID_ARGUMENT):
                raise
    return len(states), sum(state == 1 for state in states)


def _nvidia_telemetry(nvml: Nvml, gpu: int) -> dict[str, Callable[[], Any]]:
    gpu_and_memory = [ctypes.c_uint * 2]
    return {
        "gpu_power_w": lambda: nvml.ask("nvmlDeviceGetPowerUsage", gpu),
        "gpu_energy_j": lambda: nvml.ask("nvmlDeviceGetTotalEnergyConsumption", gpu, writes=[_U64]),
        "gpu_temp_c": lambda: nvml.ask("nvmlDeviceGetTemperature", gpu, _GPU_SENSOR),
        "sm_clock_mhz": lambda: nvml.ask("nvmlDeviceGetClockInfo", gpu, _SM_CLOCK),
        "gpu_util": lambda: nvml.ask("nvmlDeviceGetUtilizationRates", gpu, writes=gpu_and_memory),
    }


_UNKNOWN = ("N/A", "")
"""Texts of amdsmi for an unknown value."""
_PCIE_GENERATIONS = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}
"""PCIe generation by transfer rate of a lane. Unit: MT/s. Source: PCI Express base specifications."""


def read_amd(smi: Any) -> tuple[list[GpuFacts], dict[str, str]]:
    """Read facts of every AMD GPU, and the version of the driver.

    Args:
        smi: The module `amdsmi`.

    Raises:
        smi.AmdSmiException: If there is no driver, or it denies access.
    """
    smi.amdsmi_init()
    try:
        handles = smi.amdsmi_get_processor_handles()
        versions = {}
        if handles:
            versions["driver"] = str(smi.amdsmi_get_gpu_driver_info(handles[0])["driver_version"])
        return [_read_amd_gpu(smi, index, handle) for index, handle in enumerate(handles)], versions
    finally:
        smi.amdsmi_shut_down()


def _read_amd_gpu(smi: Any, index: int, gpu: Any) -> GpuFacts:
    questions = Questions(smi.AmdSmiException)
    facts = {name: questions.ask(name, question) for name, question in _amd_facts(smi, gpu).items()}
    for name, group_question in _amd_fact_groups(smi, gpu).items():
        facts |= questions.ask(name, group_question) or {}
    for metric, question in _amd_telemetry(smi, gpu).items():
        questions.ask(metric, question)
    return GpuFacts(index=index, **facts, refused=questions.refused)


def _amd_facts(smi: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
    """Return the queries for single facts, by fact."""
    return {
        "product": lambda: str(smi.amdsmi_get_gpu_asic_info(gpu)["market_name"]),
        "uuid": lambda: str(smi.amdsmi_get_gpu_device_uuid(gpu)),
        "memory_bytes": lambda: int(smi.amdsmi_get_gpu_memory_total(gpu, smi.AmdSmiMemoryType.VRAM)),
        "max_clock_mhz": lambda: _number(smi.amdsmi_get_clock_info(gpu, smi.AmdSmiClkType.GFX)["max_clk"]),
        "num_uncorrected": lambda: int(smi.amdsmi_get_gpu_total_ecc_count(gpu)["uncorrectable_count"]),
        "num_processes": lambda: len(smi.amdsmi_get_gpu_process_list(gpu)),
    }


def _amd_fact_groups(smi: Any, gpu: Any) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the queries that give several facts each, by one of the facts."""
    return {
        "power_limit_w": lambda: _power_limits(smi.amdsmi_get_power_cap_info(gpu)),
        "pcie_width": lambda: _pcie(smi.amdsmi_get_pcie_info(gpu)),
        "num_links": lambda: _amd_links(smi.amdsmi_get_gpu_xgmi_link_status(gpu)),
        "num_remapped": lambda: _amd_repairs(smi.amdsmi_get_gpu_bad_page_info(gpu), smi),
    }


def _power_limits(cap: Any) -> dict[str, Any]:
    """Return the power limits, which amdsmi gives in microwatts.

    There are none on the second die of a package, which has no sensor and gives 0.
    """
    if not cap["power_cap"]:
        return {}
    return {"power_limit_w": cap["power_cap"] / MEGA, "default_power_limit_w": cap["default_power_cap"] / MEGA}


def _pcie(info: Any) -> dict[str, Any]:
    static, metric = info["pcie_static"], info["pcie_metric"]
    speed = _number(static["max_pcie_speed"])
    return {
        "pcie_width": _whole(metric["pcie_width"]),
        "max_pcie_width": _whole(static["max_pcie_width"]),
        "max_pcie_generation": _PCIE_GENERATIONS.get(int(speed)) if speed else None,
    }


def _amd_links(status: Any) -> dict[str, Any]:
    states = status["status"]
    # State X is that of a link which the board does not use.
    used = [state for state in states if state in ("U", "D")]
    return {"num_links": len(used), "num_links_up": used.count("U")}


def _amd_repairs(pages: Any, smi: Any) -> dict[str, Any]:
    status = smi.AmdSmiMemoryPageStatus
    return {
        "num_remapped": sum(page["status"] == status.RESERVED for page in pages),
        "is_repair_pending": any(page["status"] == status.PENDING for page in pages),
        "has_repair_failed": any(page["status"] == status.UNRESERVABLE for page in pages),
    }


def _amd_telemetry(smi: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
    return {
        "gpu_power_w": lambda: smi.amdsmi_get_power_info(gpu),
        "gpu_energy_j": lambda: smi.amdsmi_get_energy_count(gpu),
        "gpu_temp_c": lambda: smi.amdsmi_get_temp_metric(
            gpu, smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        ),
        "sm_clock_mhz": lambda: smi.amdsmi_get_clock_info(gpu, smi.AmdSmiClkType.GFX),
    }


def _number(value: Any) -> float | None:
    return None if value in _UNKNOWN else float(value)


def _whole(value: Any) -> int | None:
    return None if value in _UNKNOWN else int(value)
