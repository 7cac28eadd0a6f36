"""Files of the kernel (sysfs, procfs): numbers kept open, so that reading one again costs microseconds; PCI slots."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from triplepoint.telemetry.sensor import PREAD, Step

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

    @property
    def descriptor(self) -> int:
        """The open file's number."""
        return self._file


class FileReads:
    """Several files read in a sweep."""

    def __init__(self, files: Sequence[KernelFile], longest: int = 32, every: int | Sequence[int] = 1) -> None:
        """Choose what to read.

        Args:
            files: The files, kept open.
            longest: How much of each is read. Unit: byte.
            every: As that of `Step`; one for all, or one for each file.
        """
        self._files = list(files)
        self._longest, self._every = longest, np.broadcast_to(every, len(self._files)).tolist()

    def allocate(self, num_slots: int) -> list[Step]:
        """Make room for `num_slots` reads and return their calls."""
        self._texts = np.zeros((num_slots, len(self._files), self._longest), "u1")
        self._lengths = np.zeros((num_slots, len(self._files)), "i8")
        return [
            Step(
                PREAD,
                (file.descriptor, self._texts[:, place], self._longest, 0),
                self._lengths[:, place],
                self._every[place],
            )
            for place, file in enumerate(self._files)
        ]

    def texts(self, num_slots: int) -> Iterator[tuple[int, bytes]]:
        """Yield each of the first `num_slots` slots in which the first file was read, and what it held."""
        for slot in np.flatnonzero(self._lengths[:num_slots, 0] > 0).tolist():
            yield slot, self._texts[slot, 0, : self._lengths[slot, 0]].tobytes()

    def numbers(self, num_slots: int) -> np.ndarray:
        """Return what the files held, NaN where that was no number. Shape (num_slots, num_files)."""
        lengths = self._lengths[:num_slots]
        texts = np.where(np.arange(self._longest) < lengths[..., None], self._texts[:num_slots], 0)
        words = texts.view(f"S{self._longest}")[..., 0]
        words[lengths <= 0] = b"nan"
        try:
            return np.asarray(words.astype(float))
        except ValueError:
            return np.array([[_number(word) for word in row] for row in words.tolist()], float)


def _number(word: bytes) -> float:
    try:
        return float(word)
    except ValueError:
        return float("nan")


def read_text(path: Path) -> str | None:
    """Return the stripped content of a file, None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def slot_of(address: str | None) -> str | None:
    """Return the name of the physical slot of a PCI device, None where the kernel knows none.

    Args:
        address: Domain:bus:device.function; slots list the first three parts.
    """
    if address is None:
        return None
    for path in sorted(sysfs().glob("bus/pci/slots/*/address")):
        if read_text(path) == address.partition(".")[0]:
            return path.parent.name
    return None
