"""Provenance of a result: git commit, versions of software, processor."""

import contextlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

PACKAGES = (
    *("triplepoint", "torch", "megatron-core", "deepspeed", "transformer-engine", "flash-attn", "triton"),
    *("tokenizers", "numpy", "submitit", "psutil", "nvidia-ml-py", "amdsmi", "zeus"),
)
"""Packages whose versions may change a measurement; missing ones are omitted."""

COLLECTIVE_SETTINGS = (
    *("NCCL_", "RCCL_", "TORCH_NCCL_", "GLOO_", "HSA_", "UCX_"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
)
"""Prefixes of environment variables that affect collectives and the allocator."""
OTHER_SETTINGS = (
    *("OMP_", "MKL_", "KMP_", "CUBLAS_", "CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "NVTE_", "MIOPEN_", "XLA_"),
    *("TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "TRITON_", "ACCELERATE_", "FSDP_", "DS_", "FI_"),
)
"""Prefixes of environment variables that affect computation, compilation and the network."""


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return the commit of the repository around a folder, and whether tracked files differ; None outside of one."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit, None if changed is None else bool(changed)


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command; None if it fails."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def versions() -> dict[str, str]:
    """Return versions of Python, the operating system and `PACKAGES`."""
    version_of = {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version_of[package] = importlib.metadata.version(package)
    return version_of


def host_memory_bytes() -> int:
    """Return the memory of this host, whatever part of it this process may use. Unit: byte."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def processor() -> str:
    """Return the product name of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
