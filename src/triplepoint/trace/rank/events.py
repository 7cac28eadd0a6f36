"""Rows of a trace together with the names and messages they refer to."""

import re
from dataclasses import dataclass

import numpy as np

from triplepoint.trace.arrays import Int64
from triplepoint.trace.kineto.reader import Header, Message
from triplepoint.trace.kineto.rows import Category, Rows


@dataclass(frozen=True)
class Events:
    """Events held in memory.

    Attributes:
        header: What the rows refer to.
        rows: Array of `ROW`, in any order.
    """

    header: Header
    rows: Rows

    @property
    def start(self) -> Int64:
        """Return the start of every event. Unit: ns as the file counts."""
        return np.ascontiguousarray(self.rows["start"])

    @property
    def end(self) -> Int64:
        """Return the end of every event. Unit: ns as the file counts."""
        return np.asarray(self.rows["start"] + self.rows["duration"])

    @property
    def thread(self) -> Int64:
        """Return the number of every event's thread; on a GPU that is its stream."""
        return np.ascontiguousarray(self.rows["thread"])

    def name(self, event: int) -> str:
        """Return the name of an event."""
        return self.header.names[int(self.rows["name"][event])]

    def message(self, event: int) -> Message:
        """Return what an event says about communication."""
        index = self.rows["message"][event]
        return self.header.messages[index] if index >= 0 else Message()

    def named(self, category: Category, pattern: str) -> Int64:
        """Return the events of a category whose name matches a pattern from its start, by start time."""
        of_category = np.flatnonzero(self.rows["category"] == category)
        names = self.rows["name"][of_category]
        wanted = [index for index in np.unique(names).tolist() if re.match(pattern, self.header.names[index])]
        found = of_category[np.isin(names, wanted)]
        by_start: Int64 = found[np.argsort(self.rows["start"][found], kind="stable")]
        return by_start
