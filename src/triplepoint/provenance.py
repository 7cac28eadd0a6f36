"""Provenance of a result: commit, versions, processor."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path

PACKAGES = (
    *("triplepoint", "torch", "megatron-core", "deepspeed", "transformer-engine", "flash-attn", "triton"),
    *("tokenizers", "numpy", "submitit", "psutil", "nvidia-ml-py", "amdsmi", "zeus"),
)
"""Packages whose versions may change what is measured; those that are not installed are left out."""

COLLECTIVE_SETTINGS = (
    *("NCCL_", "RCCL_", "TORCH_NCCL_", "GLOO_", "HSA_", "UCX_"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
)
"""How the names of variables begin that change what collectives and the allocator do."""
OTHER_SETTINGS = (
    *("OMP_", "MKL_", "KMP_", "CUBLAS_", "CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "NVTE_", "MIOPEN_", "XLA_"),
    *("TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "TRITON_", "ACCELERATE_", "FSDP_", "DS_", "FI_"),
)
"""The same of variables that change what computation, compilation and the network do."""


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return the commit around `folder` and whether tracked files differ from it; None outside a repository."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit, None if changed is None else bool(changed)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def versions() -> dict[str, str]:
    """Return versions of the interpreter, the system and the packages that matter."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.release()}"}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """Return the processor's product name."""
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
