"""What every run says of itself, whatever the engine: FLOPs, parameters, libraries, settings, memory."""

import os
from typing import Any

import torch

from triplepoint.config.point import Point
from triplepoint.flops import FORMULAS, model_flops_per_token
from triplepoint.launch.engines.device import peak_memory_bytes, reserved_memory_bytes

_SETTINGS = (
    *("NCCL_", "RCCL_", "TORCH_NCCL_", "GLOO_", "HSA_", "UCX_"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
)
"""How the names of variables begin that change what collectives and the allocator do."""


def run_facts(point: Point) -> dict[str, Any]:
    """Return facts of a run that every engine has."""
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_SETTINGS))
    return {
        "flops_per_token": model_flops_per_token(point),
        "flops_formula": FORMULAS[point.task],
        "num_parameters_model": point.model.num_parameters,
        "collective_settings": " ".join(settings) or "none: defaults of the library",
        **_libraries(),
        **memory_facts(),
    }


def memory_facts() -> dict[str, Any]:
    """Return what this rank has had of memory so far; also of one that has just run out of it."""
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    facts: dict[str, Any] = {
        "peak_memory_bytes": peak_memory_bytes(device),
        "reserved_memory_bytes": reserved_memory_bytes(device),
    }
    if on_gpu:
        free, total = torch.cuda.mem_get_info(device)
        facts |= {"device_memory_bytes": total, "device_free_bytes": free}
    return facts


def _libraries() -> dict[str, Any]:
    """Return versions of what torch was built with, and of the collective library where there is one."""
    found: dict[str, Any] = {}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    if torch.version.hip:
        found["rocm"] = torch.version.hip
    if torch.cuda.is_available() and torch.distributed.is_nccl_available():
        # RCCL keeps the name and the numbers.
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found
