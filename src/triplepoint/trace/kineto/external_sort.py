"""External merge sort of rows in constant memory: sorted runs go to an unnamed file and are merged as they are read."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from triplepoint.trace.kineto import Rows

CAPACITY = 1 << 17
"""Rows kept in memory: some 10 to 15 MB, of which a few copies are alive at once."""


class Sorter:
    """Rows to be had again in order of one of their fields."""

    def __init__(self, key: str, folder: Path, capacity: int = CAPACITY) -> None:
        """Start with no rows.

        Args:
            key: Field to sort by; rows with the same value keep the order they were added in.
            folder: Where the file is made once more than `capacity` rows are there; it has no name and is gone with
                the process.
            capacity: Rows to keep in memory.
        """
        self._key = key
        self._folder = folder
        self._capacity = capacity
        self._waiting: list[Rows] = []
        self._num_waiting = 0
        self._file: IO[bytes] | None = None
        self._runs: list[tuple[int, Rows]] = []
        self.count = 0

    def add(self, rows: Rows) -> None:
        """Add rows in any order.

        Raises:
            OSError: If the disk is full.
        """
        if len(rows) == 0:
            return
        self._waiting.append(rows)
        self._num_waiting += len(rows)
        self.count += len(rows)
        if self._num_waiting >= self._capacity:
            self._spill()

    def blocks(self) -> Iterator[Rows]:
        """Yield all rows in order, in blocks; rows with the same value stand in the same block."""
        if self._file is None:
            if self._waiting:
                yield self._sorted()
            return
        if self._waiting:
            self._spill()
        yield from self._merged(self._file)

    def _sorted(self) -> Rows:
        rows = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        return _by_key(rows, self._key)

    def _spill(self) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - lives as long as the rows
        rows = self._sorted()
        # Not `rows[:0]`: a view of no rows keeps all of them.
        self._runs.append((self._file.seek(0, os.SEEK_END), np.empty(0, dtype=rows.dtype)))
        self._file.write(rows.data)
        self._waiting.clear()
        self._num_waiting = 0

    def _merged(self, file: IO[bytes]) -> Iterator[Rows]:
        ends = [start for start, _ in self._runs[1:]] + [file.seek(0, os.SEEK_END)]
        portion = max(self._capacity // (2 * len(self._runs)), 1)
        runs = [
            _Run(file, start, end, none, self._key, portion)
            for (start, none), end in zip(self._runs, ends, strict=True)
        ]
        ready: list[Rows] = []
        while True:
            # What lies before the nearest end of what was read is complete; of that end itself more may come.
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
    """One sorted run in the file, read a portion at a time."""

    def __init__(self, file: IO[bytes], start: int, end: int, none: Rows, key: str, portion: int) -> None:
        self._file = file
        self._at = start
        self._end = end
        self._key = key
        self._portion = portion
        self._rows = none

    @property
    def last(self) -> int:
        return int(self._rows[self._key][-1])

    def fill(self) -> bool:
        """Read on if all that was read but its last value was taken; return whether more is left in the file."""
        if self._at < self._end and (len(self._rows) == 0 or self._rows[self._key][0] == self.last):
            size = min(self._portion * self._rows.itemsize, self._end - self._at)
            self._file.seek(self._at)
            more = np.frombuffer(self._file.read(size), dtype=self._rows.dtype)
            self._at += size
            self._rows = np.concatenate((self._rows, more))
        return self._at < self._end

    def take(self, border: int | None) -> Rows:
        """Return and forget the rows before a value, all where it is None."""
        keys = self._rows[self._key]
        count = len(keys) if border is None else int(np.searchsorted(keys, border))
        taken, self._rows = self._rows[:count], self._rows[count:]
        return taken


def _by_key(rows: Rows, key: str) -> Rows:
    """Return rows by a field; those of a trace mostly are already."""
    keys = np.ascontiguousarray(rows[key])
    if (keys[1:] >= keys[:-1]).all():
        return rows
    return rows.take(np.argsort(keys, kind="stable"))
