"""External merge sort of rows in constant memory: sorted runs are written to an unnamed file and merged on reading."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from triplepoint.trace.kineto import Rows

CAPACITY = 1 << 17
"""Rows in memory: 10 to 15 MB, of which a few copies exist at once."""


class Sorter:
    """Collects rows and returns them sorted by one of their fields."""

    def __init__(self, key: str, folder: Path, capacity: int = CAPACITY) -> None:
        """Start with no rows.

        Args:
            key: Field to sort by; rows with the same value keep their order.
            folder: Folder for the file, which is created after more than `capacity` rows. It has no name, so that it
                disappears with the process.
            capacity: Number of rows to keep in memory.
        """
        self._key = key
        self._folder = folder
        self._capacity = capacity
        self._in_memory: list[Rows] = []
        self._num_in_memory = 0
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, Rows]] = []
        """Start in the file of every sorted run, and an empty array of its layout."""
        self.count = 0
        """Number of rows."""

    def add(self, rows: Rows) -> None:
        """Add rows in any order.

        Raises:
            OSError: If the disk is full.
        """
        if len(rows) == 0:
            return
        self._in_memory.append(rows)
        self._num_in_memory += len(rows)
        self.count += len(rows)
        if self._num_in_memory >= self._capacity:
            self._spill()

    def blocks(self) -> Iterator[Rows]:
        """Yield all rows in order, in blocks. Rows with the same value are in the same block."""
        if self._file is None:
            if self._in_memory:
                yield self._sorted()
            return
        if self._in_memory:
            self._spill()
        yield from self._merged(self._file)

    def _sorted(self) -> Rows:
        rows = self._in_memory[0] if len(self._in_memory) == 1 else np.concatenate(self._in_memory)
        return _by_key(rows, self._key)

    def _spill(self) -> None:
        """Write the rows in memory to the file as a sorted run."""
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - lives as long as the rows
        rows = self._sorted()
        # Not `rows[:0]`: an empty view would keep all rows in memory.
        self._runs.append((self._file.seek(0, os.SEEK_END), np.empty(0, dtype=rows.dtype)))
        self._file.write(rows.data)
        self._in_memory.clear()
        self._num_in_memory = 0

    def _merged(self, file: IO[bytes]) -> Iterator[Rows]:
        ends = [start for start, _ in self._runs[1:]] + [file.seek(0, os.SEEK_END)]
        portion = max(self._capacity // (2 * len(self._runs)), 1)
        runs = [
            _Run(file, start, end, empty, self._key, portion)
            for (start, empty), end in zip(self._runs, ends, strict=True)
        ]
        ready: list[Rows] = []
        while True:
            # Rows below the lowest last value of all portions are complete; more rows may follow with that value.
            border = min((run.last for run in runs if run.fill()), default=None)
            parts = [part for run in runs if len(part := run.take(border))]
            if parts:
                merged = np.concatenate(parts)
                ready.append(_by_key(merged, self._key))
            if ready and (border is None or sum(map(len, ready)) >= self._capacity // 2):
                yield np.concatenate(ready)
                ready.clear()
            if border is None:
                return


class _Run:
    """One sorted run in the file, read portion by portion."""

    def __init__(self, file: IO[bytes], start: int, end: int, empty: Rows, key: str, portion: int) -> None:
        self._file = file
        self._at = start
        self._end = end
        self._key = key
        self._portion = portion
        self._rows = empty

    @property
    def last(self) -> int:
        """Last value read so far."""
        return int(self._rows[self._key][-1])

    def fill(self) -> bool:
        """Read the next portion if only rows with the last value are left; return whether the file has more."""
        if self._at < self._end and (len(self._rows) == 0 or self._rows[self._key][0] == self.last):
            size = min(self._portion * self._rows.itemsize, self._end - self._at)
            self._file.seek(self._at)
            more = np.frombuffer(self._file.read(size), dtype=self._rows.dtype)
            self._at += size
            self._rows = np.concatenate((self._rows, more))
        return self._at < self._end

    def take(self, border: int | None) -> Rows:
        """Return and remove the rows below a value; None for all."""
        keys = self._rows[self._key]
        count = len(keys) if border is None else int(np.searchsorted(keys, border))
        taken, self._rows = self._rows[:count], self._rows[count:]
        return taken


def _by_key(rows: Rows, key: str) -> Rows:
    """Return the rows sorted by a field; rows of a trace mostly are already."""
    keys = np.ascontiguousarray(rows[key])
    if (keys[1:] >= keys[:-1]).all():
        return rows
    return rows.take(np.argsort(keys, kind="stable"))
