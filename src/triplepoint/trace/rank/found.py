"""What was found in a trace: its rows by what they are for, and the work made of them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from triplepoint.trace.kineto.reader import Header
from triplepoint.trace.kineto.rows import LAUNCH, ROW, Category, Rows, is_device
from triplepoint.trace.kineto.spill import Sorter
from triplepoint.trace.lanes import Step
from triplepoint.trace.rank.events import Events
from triplepoint.trace.rank.launches import as_launches, not_launched
from triplepoint.trace.rank.operations import Operations
from triplepoint.trace.rank.phases import MARKS, Phases
from triplepoint.trace.rank.totals import KernelTotals
from triplepoint.trace.taxonomy import Scheme


@dataclass(frozen=True)
class Reading:
    """How to read a trace.

    Attributes:
        scheme: Rules of the taxonomy.
        scratch: Folder for what does not fit in memory.
        is_alone: Whether the job has no other trace, so that nothing is kept for an analysis across ranks.
        progress: Called every few seconds of reading.
    """

    scheme: Scheme
    scratch: Path
    is_alone: bool = False
    progress: Callable[[str], None] = lambda line: None


class Found:
    """The rows of a trace by what they are for."""

    def __init__(self, scratch: Path) -> None:
        """Start with nothing; what does not fit in memory goes to a folder."""
        self.device = Sorter("correlation", scratch)
        """Kernels, copies and fills: rows of `ROW`."""
        self.launches = Sorter("correlation", scratch)
        """Calls of the runtime: rows of `LAUNCH`."""
        self.operators = Sorter("start", scratch)
        """Operators on the CPU, where they were asked for: rows of `LAUNCHED`."""
        self._marks = np.empty(0, dtype=ROW)
        self._num_marks = 0
        self._is_mark = np.zeros(0, dtype=bool)

    def take(self, rows: Rows, names: list[str]) -> None:
        """Take rows of the trace, as `read_trace` gives them."""
        if rows.dtype == LAUNCH:
            self.launches.add(rows)
            return
        work = is_device(rows)
        self.device.add(rows[work])
        rest = rows[~work]
        self.operators.add(not_launched(rest[rest["category"] == Category.CPU_OP]))
        self.launches.add(as_launches(rest[rest["category"] == Category.RUNTIME]))
        if len(rest):
            new = [MARKS.match(name) is not None for name in names[len(self._is_mark) :]]
            self._is_mark = np.concatenate((self._is_mark, np.array(new, dtype=bool)))
            self._keep(rest[self._is_mark[rest["name"]]])

    def _keep(self, marks: Rows) -> None:
        """Keep marks in one array that doubles: many small ones, kept among large ones that go, tear the heap apart."""
        count = self._num_marks + len(marks)
        if count > len(self._marks):
            grown = np.empty(max(count, 2 * len(self._marks)), dtype=ROW)
            grown[: self._num_marks] = self._marks[: self._num_marks]
            self._marks = grown
        self._marks[self._num_marks : count] = marks
        self._num_marks = count

    def marks(self, header: Header) -> Events:
        """Return the annotations, and the operators that communicate."""
        return Events(header, self._marks[: self._num_marks])


@dataclass(frozen=True)
class Work:
    """The work of one rank. Times in ns as the file counts.

    Attributes:
        marks: Annotations, and operators that communicate.
        is_device: Whether the work is a GPU's.
        operations: What the rows do.
        rows: Rows of `LAUNCHED`, by start.
        steps: Profiled steps, by number.
        phases: Annotated time.
        totals: Sums per operation; of a GPU still to be filled from the rows.
        span: Start of the first and end of the last work; both 0 without any.
    """

    marks: Events
    is_device: bool
    operations: Operations
    rows: Sorter
    steps: list[Step]
    phases: Phases
    totals: KernelTotals
    span: tuple[int, int]
