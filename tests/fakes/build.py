"""Builds the fake libraries from native/*.c with the C compiler of the machine, once per content of the sources."""

import hashlib
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.fakes.scenario import Vendor

NATIVE = Path(__file__).parent / "native"
BUILD = Path(__file__).parent / "build"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread")
SHARED = ("wave.c", "gpu.c", "node.c", "parse.c")
LIBRARIES = {
    Vendor.NVIDIA: ("libnvidia-ml.so.1", "nvml_*.c"),
    Vendor.AMD: ("lib/libamd_smi.so", "amdsmi_*.c"),  # amdsmi searches ROCM_PATH/lib.
}


def build_library(vendor: Vendor) -> Path:
    """Return the path of a vendor's library; build it if the sources have changed."""
    return _build_all() / LIBRARIES[vendor][0]


def _build_all() -> Path:
    digest = hashlib.sha256("".join(FLAGS).encode())
    for source in sorted(NATIVE.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    folder = BUILD / digest.hexdigest()[:16]
    if folder.exists():
        return folder
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as scratch:
        libraries = Path(scratch) / "libraries"
        (libraries / "lib").mkdir(parents=True)
        for library, pattern in LIBRARIES.values():
            _compile(libraries / library, sorted(NATIVE.glob(pattern)))
        with suppress(OSError):  # Another process has built the same libraries first.
            libraries.rename(folder)
    return folder


def _compile(library: Path, sources: list[Path]) -> None:
    files = [str(NATIVE / name) for name in SHARED] + [str(source) for source in sources]
    compiler = os.environ.get("CC", "gcc")
    command = [compiler, *FLAGS, f"-Wl,-soname,{library.name}", "-Wl,-Bsymbolic", "-o", str(library), *files, "-lm"]
    subprocess.run(command, check=True)
