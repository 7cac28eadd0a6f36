"""Whether a folder is the same on all nodes, how soon, how fast and how full."""

import contextlib
import os
import time
from pathlib import Path

from triplepoint.units import MIB

POLL_S = 0.005
PATIENCE_S = 90.0
"""NFS keeps what it knows of a folder for up to 60 s by default (acdirmax). Source: nfs(5)."""

CHUNK_BYTES = 16 * MIB
MOST_BYTES = 256 * MIB
MOST_S = 5.0
"""Writing is measured for no longer, nor with more data."""


def show(path: Path, text: str) -> None:
    """Write a mark for other nodes to see."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def wait_until_shown(path: Path, text: str, patience_s: float = PATIENCE_S) -> float | None:
    """Return how long it takes until a mark can be read here, None if it never can. Unit: s."""
    begin = time.monotonic()
    while (waited := time.monotonic() - begin) < patience_s:
        with contextlib.suppress(OSError):  # not there yet
            if path.read_text(encoding="utf-8") == text:
                return waited
        time.sleep(POLL_S)
    return None


def write_rate(folder: Path, name: str) -> float:
    """Return how fast this node writes to a folder, up to the disk and back. Unit: byte/s.

    Args:
        folder: The folder.
        name: Of a scratch file, which is removed.

    Raises:
        OSError: From the file system.
    """
    chunk, written = os.urandom(CHUNK_BYTES), 0
    path = folder / name
    begin = time.monotonic()
    try:
        with path.open("wb", buffering=0) as file:
            while written < MOST_BYTES and time.monotonic() - begin < MOST_S:
                written += file.write(chunk)
                os.fsync(file.fileno())
            duration_s = time.monotonic() - begin
    finally:
        path.unlink(missing_ok=True)
    return written / duration_s


def free_bytes(folder: Path) -> int:
    """Return the space left for this user. Unit: byte."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
