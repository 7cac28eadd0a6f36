"""What one rank hands to the analysis across ranks: its time cut into segments, and its collectives.

All times are nanoseconds since 1970 by the rank's clock.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from triplepoint.trace.arrays import Int64


class Step(NamedTuple):
    """One profiled step. Unit: ns since 1970."""

    number: int
    start: int
    end: int


class Label(NamedTuple):
    """What a stretch of time went into.

    Attributes:
        category: compute, comm, memory or idle.
        kind: Class of computation (gemm, attention, ...), kind of communication (all_reduce, ...), direction of a copy,
            or the reason for idling (bubble, straggler, host, other).
        group: Role of a collective's process group (tp, pp, dp, cp, ep); None otherwise or where not known.
    """

    category: str
    kind: str
    group: str | None = None


@dataclass(frozen=True)
class Lane:
    """The time of one rank, from its first to its last work: segments that touch, by time, idle ones included.

    Where several things ran at once the segment is the one that counts: compute before comm before memory.

    Attributes:
        rank: Global rank.
        steps: Its profiled steps, by number.
        start: Start of every segment, shape (num_segments,).
        end: End of every segment, shape (num_segments,).
        label: Index into `labels`, shape (num_segments,).
        labels: Distinct labels.
    """

    rank: int
    steps: list[Step]
    start: Int64
    end: Int64
    label: Int64
    labels: list[Label]


class Meeting(NamedTuple):
    """What the same collective has in common on all ranks that take part in it.

    Attributes:
        group: Name of the process group as the trace has it.
        kind: all_reduce, send_recv, ...
        sequence: How many of this kind the rank had in this group before it in the trace.
    """

    group: str
    kind: str
    sequence: int


@dataclass(frozen=True)
class Collectives:
    """The collectives of one rank, by start; shape of every array (num_collectives,).

    Attributes:
        rank: Global rank.
        meeting: Where the rank met others; None where the trace does not name the process group.
        start: When its part began: the kernel's start on a GPU.
        end: When its part ended.
        num_ranks: Size of the process group; 0 where not known.
        ranks: Global ranks of the process group; empty where not known.
    """

    rank: int
    meeting: list[Meeting | None]
    start: Int64
    end: Int64
    num_ranks: Int64
    ranks: list[tuple[int, ...]]


def time_by_label(lane: Lane, begin: int, end: int) -> Int64:
    """Return the time of every label of a lane from `begin` to `end`, touching no segment outside.

    Args:
        lane: The rank's segments.
        begin: From when on. Unit: ns, on the lane's clock.
        end: Until when. Unit: ns, on the lane's clock.

    Returns:
        Shape (num_labels,); less than `end - begin` in all where the lane is shorter. Unit: ns.
    """
    first = np.searchsorted(lane.end, begin, side="right")
    last = np.searchsorted(lane.start, end, side="left")
    times = np.zeros(len(lane.labels), dtype=np.int64)
    if first < last:
        within = slice(first, last)
        length = np.minimum(lane.end[within], end) - np.maximum(lane.start[within], begin)
        np.add.at(times, lane.label[within], length)
    return times
