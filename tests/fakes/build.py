"""Builds the fake libraries from native/*.c with the C compiler of the machine; once per content."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
BUILD = Path(__file__).parent / "build"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread")
SHARED = ("wave.c", "gpu.c", "node.c", "parse.c")
LIBRARIES = {"libnvidia-ml.so.1": "nvml_*.c", "libamd_smi.so": "amdsmi_*.c"}


def build_libraries() -> Path:
    """Return the folder with the libraries, built if the sources have changed."""
    digest = hashlib.sha256("".join(FLAGS).encode())
    for source in sorted(NATIVE.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    folder = BUILD / digest.hexdigest()[:16]
    if folder.exists():
        return folder
    BUILD.mkdir(exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=BUILD))
    for library, pattern in LIBRARIES.items():
        _compile(fresh / library, sorted(NATIVE.glob(pattern)))
    try:
        os.rename(fresh, folder)  # noqa: PTH104 - fails if another process was first, which is as good
    except OSError:
        shutil.rmtree(fresh)
    return folder


def _compile(library: Path, sources: list[Path]) -> None:
    if not sources:
        return
    files = [str(NATIVE / name) for name in SHARED] + [str(source) for source in sources]
    compiler = os.environ.get("CC", "gcc")
    command = [compiler, *FLAGS, f"-Wl,-soname,{library.name}", "-o", str(library), *files, "-lm"]
    subprocess.run(command, check=True)
