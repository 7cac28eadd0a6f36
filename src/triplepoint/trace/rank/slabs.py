"""The work of a rank slab by slab of time, so that any length of it is accounted for in constant memory.

A slab ends where a row begins, so idle time is never cut from what ended it. A row that reaches beyond its slab comes
again in the next one, with what was set in it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from triplepoint.trace.kineto.rows import Bool, Int64, Rows


@dataclass(frozen=True)
class Slab:
    """All work between two moments.

    Attributes:
        begin: Start of the slab. Unit: ns as the file counts.
        end: End of the slab.
        rows: Rows of `LAUNCHED` that run in it, by start; those from before it come first.
        following: The row that begins at `end`, shape (1,); shape (0,) at the end of the trace.
        num_dropped: Exact duplicates left out.
    """

    begin: int
    end: int
    rows: Rows
    following: Rows
    num_dropped: int

    @property
    def start(self) -> Int64:
        """Return the start of every row within the slab."""
        return np.asarray(np.maximum(self.rows["start"], self.begin))

    @property
    def stop(self) -> Int64:
        """Return the end of every row within the slab."""
        return np.asarray(np.minimum(self.rows["start"] + self.rows["duration"], self.end))

    @property
    def is_begun(self) -> Bool:
        """Return which rows begin within the slab."""
        return np.asarray(self.rows["start"] >= self.begin)

    @property
    def is_done(self) -> Bool:
        """Return which rows end within the slab."""
        return np.asarray(self.rows["start"] + self.rows["duration"] <= self.end)


def slabs(blocks: Iterable[Rows], *, keep_duplicates: bool = False) -> Iterator[Slab]:
    """Yield the slabs of a trace.

    Args:
        blocks: Rows of `LAUNCHED` by start; rows with the same start stand in the same block.
        keep_duplicates: Take rows that are equal in everything for different work.
    """
    waiting: Rows | None = None
    carried: Rows | None = None
    num_dropped = 0
    for following in blocks:
        if not keep_duplicates:
            following, num_next = _without_duplicates(following)
        else:
            num_next = 0
        if waiting is not None:
            slab = _slab(carried, waiting, following[:1], num_dropped)
            yield slab
            carried = slab.rows[~slab.is_done]
        waiting, num_dropped = following, num_next
    if waiting is not None:
        yield _slab(carried, waiting, waiting[:0], num_dropped)


def _slab(carried: Rows | None, rows: Rows, following: Rows, num_dropped: int) -> Slab:
    begin = int(rows["start"][0])
    if carried is not None and len(carried):
        rows = np.concatenate((carried, rows))
    end = int(following["start"][0]) if len(following) else int((rows["start"] + rows["duration"]).max())
    return Slab(begin, end, rows, following, num_dropped)


def _without_duplicates(rows: Rows) -> tuple[Rows, int]:
    """Return the rows without those equal to another in time, stream, name and correlation, and how many went."""
    start = rows["start"]
    is_tied = np.zeros(len(rows), dtype=bool)
    is_tied[1:] = start[1:] == start[:-1]
    is_tied[:-1] |= is_tied[1:]
    tied = np.flatnonzero(is_tied)
    if len(tied) == 0:
        return rows, 0
    told_apart = [rows[name][tied] for name in ("start", "duration", "thread", "name", "correlation", "category")]
    _, first = np.unique(np.stack(told_apart, axis=1), axis=0, return_index=True)
    kept = np.ones(len(rows), dtype=bool)
    kept[tied] = False
    kept[tied[first]] = True
    return rows[kept], int(len(rows) - kept.sum())
