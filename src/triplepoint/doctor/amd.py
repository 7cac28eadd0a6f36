"""Facts of AMD GPUs, through amdsmi; a GPU is what the driver shows, one die of an MI250."""

from collections.abc import Callable
from typing import Any

from triplepoint.doctor.facts import GpuFacts, Questions
from triplepoint.units import MEGA

_UNKNOWN = ("N/A", "")
_PCIE_GENERATIONS = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}
"""Generation by transfer rate of a lane. Unit: MT/s. Source: PCI Express base specifications."""


def read_amd(smi: Any) -> tuple[list[GpuFacts], dict[str, str]]:
    """Return facts of every GPU, and the versions of the driver and of the library.

    Args:
        smi: The module `amdsmi`.

    Raises:
        smi.AmdSmiException: If there is no driver, or no access to it.
    """
    smi.amdsmi_init()
    try:
        handles = smi.amdsmi_get_processor_handles()
        versions = {}
        if handles:
            versions["driver"] = str(smi.amdsmi_get_gpu_driver_info(handles[0])["driver_version"])
        return [_read_gpu(smi, index, handle) for index, handle in enumerate(handles)], versions
    finally:
        smi.amdsmi_shut_down()


def _read_gpu(smi: Any, index: int, gpu: Any) -> GpuFacts:
    questions = Questions(smi.AmdSmiException)
    found = {name: questions.ask(name, question) for name, question in _single(smi, gpu).items()}
    for name, several in _several(smi, gpu).items():
        found |= questions.ask(name, several) or {}
    for metric, question in _telemetry(smi, gpu).items():
        questions.ask(metric, question)
    return GpuFacts(index=index, **found, refused=questions.refused)


def _single(smi: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
    return {
        "product": lambda: str(smi.amdsmi_get_gpu_asic_info(gpu)["market_name"]),
        "uuid": lambda: str(smi.amdsmi_get_gpu_device_uuid(gpu)),
        "memory_bytes": lambda: int(smi.amdsmi_get_gpu_memory_total(gpu, smi.AmdSmiMemoryType.VRAM)),
        "max_clock_mhz": lambda: _number(smi.amdsmi_get_clock_info(gpu, smi.AmdSmiClkType.GFX)["max_clk"]),
        "num_uncorrected": lambda: int(smi.amdsmi_get_gpu_total_ecc_count(gpu)["uncorrectable_count"]),
        "num_processes": lambda: len(smi.amdsmi_get_gpu_process_list(gpu)),
    }


def _several(smi: Any, gpu: Any) -> dict[str, Callable[[], dict[str, Any]]]:
    """Return questions whose answers fill several facts."""
    return {
        "power_limit_w": lambda: _power_limits(smi.amdsmi_get_power_cap_info(gpu)),
        "pcie_width": lambda: _pcie(smi.amdsmi_get_pcie_info(gpu)),
        "num_links": lambda: _links(smi.amdsmi_get_gpu_xgmi_link_status(gpu)),
        "num_remapped": lambda: _repairs(smi.amdsmi_get_gpu_bad_page_info(gpu), smi),
    }


def _power_limits(cap: Any) -> dict[str, Any]:
    """Return the limits; amdsmi gives microwatts, and 0 on the second die of a package, which has no sensor."""
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


def _links(status: Any) -> dict[str, Any]:
    states = status["status"]
    # "X" is a link that the board does not use.
    used = [state for state in states if state in ("U", "D")]
    return {"num_links": len(used), "num_links_up": used.count("U")}


def _repairs(pages: Any, smi: Any) -> dict[str, Any]:
    status = smi.AmdSmiMemoryPageStatus
    return {
        "num_remapped": sum(page["status"] == status.RESERVED for page in pages),
        "is_repair_pending": any(page["status"] == status.PENDING for page in pages),
        "has_repair_failed": any(page["status"] == status.UNRESERVABLE for page in pages),
    }


def _telemetry(smi: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
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
