"""Which call on the host launched each piece of device work."""

from collections.abc import Iterator

import numpy as np

from triplepoint.trace.arrays import Int64
from triplepoint.trace.kineto.external_sort import Sorter
from triplepoint.trace.kineto.rows import LAUNCH, ROW, Rows

NEVER = np.iinfo(np.int64).min
"""Time of a call that was not recorded."""

LAUNCHED = np.dtype(
    [
        *((name, ROW[name]) for name in ROW.names or ()),
        ("launch", "i8"),
        ("launch_thread", "i4"),
        ("operation", "i4"),
        ("exposed", "i8"),
        ("sequence", "i4"),
    ]
)
"""A row of work; when and on which thread it was launched, what it does (an index), its exposed time, and its number
among the collectives of its kind and group."""


def as_launches(calls: Rows) -> Rows:
    """Return calls of the runtime that came as rows of `ROW`, as begins and ends do, as rows of `LAUNCH`."""
    kept: Rows = calls[calls["correlation"] > 0][list(LAUNCH.names or ())].astype(LAUNCH)
    return kept


def not_launched(rows: Rows) -> Rows:
    """Return rows of `ROW` as rows of `LAUNCHED` whose launch and operation are not known yet."""
    more = np.empty(len(rows), dtype=LAUNCHED)
    # The fields of a row stand first, so that they can be copied as the bytes they are.
    bytes_of = more.view(np.uint8).reshape(len(rows), LAUNCHED.itemsize)
    bytes_of[:, : ROW.itemsize] = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), ROW.itemsize)
    more["launch"], more["launch_thread"], more["operation"], more["exposed"] = NEVER, -1, -1, 0
    more["sequence"] = -1
    return more


def join_launches(device: Sorter, launches: Sorter) -> Iterator[Rows]:
    """Yield device work with its launches.

    ROCm writes the geometry of a kernel on its launch, CUDA on the kernel; it is taken from where it stands.

    Args:
        device: Rows of `ROW`, by correlation.
        launches: Rows of `LAUNCH`, by correlation.

    Yields:
        Rows of `LAUNCHED`, by correlation.
    """
    blocks = launches.blocks()
    known = np.empty(0, dtype=LAUNCH)
    for rows in device.blocks():
        known = known[np.searchsorted(known["correlation"], rows["correlation"][0]) :]
        while (len(known) == 0 or known["correlation"][-1] < rows["correlation"][-1]) and (
            more := next(blocks, None)
        ) is not None:
            known = np.concatenate((known, more))
        yield _joined(rows, known)


def _joined(rows: Rows, known: Rows) -> Rows:
    joined = not_launched(rows)
    at = _find(rows["correlation"], known["correlation"])
    found = np.flatnonzero(at >= 0)
    launch = known[at[found]]
    joined["launch"][found] = launch["start"]
    joined["launch_thread"][found] = launch["thread"]
    joined["geometry"][found] = np.where(rows["geometry"][found] < 0, launch["geometry"], rows["geometry"][found])
    return joined


def _find(wanted: Int64, known: Int64) -> Int64:
    """Return where each value first stands in the sorted `known`, -1 where it does not."""
    if len(known) == 0:
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[at] == wanted, at, -1)
