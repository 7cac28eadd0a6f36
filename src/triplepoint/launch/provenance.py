"""Where a measurement comes from: versions, devices."""

import importlib.metadata
import platform
from pathlib import Path

PACKAGES = (
    *("triplepoint", "torch", "megatron-core", "deepspeed", "transformer-engine", "flash-attn", "triton"),
    *("tokenizers", "numpy", "submitit", "psutil", "nvidia-ml-py", "amdsmi", "zeus"),
)
"""Packages whose versions may change what is measured; those that are not installed are left out."""


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
