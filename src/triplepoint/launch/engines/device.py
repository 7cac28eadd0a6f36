"""The device a rank computes on: CPU, CUDA or ROCm (which torch calls cuda), and the facts every run reports."""

import os
import platform
import resource
from typing import Any

import torch

from triplepoint.config.point import Point
from triplepoint.errors import UserError
from triplepoint.flops import FORMULAS, model_flops_per_token
from triplepoint.provenance import processor
from triplepoint.units import KIB

_SETTINGS = (
    *("NCCL_", "RCCL_", "TORCH_NCCL_", "GLOO_", "HSA_", "UCX_"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
)
"""How the names of variables begin that change what collectives and the allocator do."""
BACKENDS = {"cpu": "gloo", "cuda": "nccl", "rocm": "nccl"}
"""Collective library by `cluster.device`; on ROCm torch's nccl is RCCL."""


def open_device(kind: str, local_rank: int) -> torch.device:
    """Return this rank's device, made the current one.

    Args:
        kind: cpu, cuda or rocm.
        local_rank: Place of the rank on its node. A launcher may show each rank its own GPU only.

    Raises:
        UserError: If torch sees no GPU.
    """
    if kind == "cpu":
        # Several ranks share the cores: torch's default, all cores for each of them, makes every rank slower.
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        return torch.device("cpu")
    if not (num_gpus := torch.cuda.device_count()):
        raise UserError(
            f"{platform.node()}: torch {torch.__version__} sees no GPU, and the cluster's device is {kind}; install "
            "envs/launch-cuda.txt or envs/launch-rocm.txt where there are GPUs, else add the cluster to 'simulated' "
            "in config/config.yaml"
        )
    device = torch.device("cuda", local_rank % num_gpus)
    torch.cuda.set_device(device)
    return device


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the highest memory so far: what torch allocated on a GPU, the resident set on CPU."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Linux counts in KiB. Source: getrusage(2).
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def reserved_memory_bytes(device: torch.device) -> int | None:
    """Return the highest memory so far that torch held of a GPU, free parts included; None on CPU."""
    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else None


def device_name(device: torch.device) -> str:
    """Return the model of the GPU or processor."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return processor()


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
