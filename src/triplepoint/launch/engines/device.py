"""The device a rank computes on, behind one set of calls for CPU, CUDA and ROCm (which torch calls cuda)."""

import os
import platform
import resource

import torch

from triplepoint.errors import UserError
from triplepoint.launch.provenance import processor
from triplepoint.units import KIB

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
