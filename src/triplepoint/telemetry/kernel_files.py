"""Numbers in files of the kernel (sysfs, procfs), kept open: reading one again costs microseconds."""

import os
import tempfile
from pathlib import Path

_SYSFS_VARIABLE = "TRIPLEPOINT_SYSFS"
_LONGEST = 1 << 16


def sysfs() -> Path:
    """Return the root of sysfs: /sys, or what the environment variable TRIPLEPOINT_SYSFS names in its place."""
    return Path(os.environ.get(_SYSFS_VARIABLE, "/sys"))


def node_folder() -> Path:
    """Return a folder all users of this node share; a node put in the place of the real one has its own."""
    return Path(os.environ.get(_SYSFS_VARIABLE, tempfile.gettempdir()))


class KernelFile:
    """One open file of the kernel.

    Raises:
        OSError: If it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, longest: int = 64) -> bytes:
        """Return its content now, of at most `longest` bytes."""
        return os.pread(self._file, longest, 0)

    def number(self) -> int:
        """Return its content as a number. Raises OSError or ValueError where there is none."""
        return int(self.read())

    def text(self) -> str:
        """Return its whole content."""
        return self.read(_LONGEST).decode(errors="replace")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_text(path: Path) -> str | None:
    """Return the stripped content of a file, None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
