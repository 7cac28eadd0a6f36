"""Read Kineto traces: from bytes to rows of integers in the layout of the scanner."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from triplepoint.trace import Bool

Rows = npt.NDArray[np.void]
"""Structured array with the fields of `ROW` or of a type derived from it."""


class Category(IntEnum):
    """Categories of rows, numbered as in `scanner/event.h`."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    CPU_OP = 3
    RUNTIME = 4
    ANNOTATION = 5
    GPU_ANNOTATION = 6
    OTHER = 7


IS_BEGIN, IS_END, HAS_STREAM = 1, 2, 4
"""Bits of a row's `flags`."""

ROW = np.dtype(
    [
        ("start", "i8"),
        ("duration", "i8"),
        ("correlation", "i8"),
        ("name", "i4"),
        ("thread", "i4"),
        ("message", "i4"),
        ("geometry", "i4"),
        ("category", "u1"),
        ("flags", "u1"),
        ("unused", "V6"),
    ]
)
"""Layout of an event. Times in ns as the file counts them. Name, thread, message (communication arguments) and geometry
(of the launch) are numbers that the header resolves; -1 if unknown."""


LAUNCH = np.dtype([("correlation", "i8"), ("start", "i8"), ("thread", "i4"), ("geometry", "i4")])
"""Layout of a runtime call that device work may refer to."""


def is_device(rows: Rows) -> Bool:
    """Return whether each row is GPU work: a kernel, copy or fill."""
    return np.asarray(rows["category"] <= Category.MEMSET)
