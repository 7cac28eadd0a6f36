"""From the bytes of a Kineto trace to rows of integers, whose layout is that of the scanner."""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from triplepoint.trace import Bool

Rows = npt.NDArray[np.void]
"""Array of `ROW`, or of some of its fields."""


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
"""Layout of a row. Times in ns as the file counts them; name, thread, what it says about communication and how it was
launched as numbers; -1 where not known."""


LAUNCH = np.dtype([("correlation", "i8"), ("start", "i8"), ("thread", "i4"), ("geometry", "i4")])
"""What is kept of a call of the runtime that work on the device may refer to."""


def is_device(rows: Rows) -> Bool:
    """Return which rows are work of a GPU: kernels, copies and fills."""
    return np.asarray(rows["category"] <= Category.MEMSET)
