"""How long a rank did nothing but wait for others inside communication: what a kernel of NCCL hides by running."""

from typing import NamedTuple

import numpy as np

from triplepoint.trace.cross.arrivals import Arrivals
from triplepoint.trace.lanes import Collectives, Lane
from triplepoint.trace.rank import intervals
from triplepoint.trace.rank.operations import POINT_TO_POINT


class Waited(NamedTuple):
    """Exposed waiting of one rank, over its profiled steps. Unit: ns.

    Attributes:
        bubble: For a neighbour in the pipeline, in point-to-point messages.
        straggler: For the last rank of a collective.
    """

    bubble: int
    straggler: int


def exposed_waits(lane: Lane, collectives: Collectives, arrived: Arrivals) -> Waited:
    """Return how long a rank waited for others while nothing else of it counted.

    Args:
        lane: Its segments.
        collectives: Its collectives.
        arrived: How it arrived at them.
    """
    category = np.array([label.category in ("comm", "idle") for label in lane.labels], dtype=bool)
    idle = intervals.union(*(border[category[lane.label]] for border in (lane.start, lane.end)))
    steps = np.array([step[1:] for step in lane.steps], dtype=np.int64).reshape(-1, 2)
    idle = intervals.intersection(idle, intervals.union(steps[:, 0], steps[:, 1]))
    is_message = np.array([met is not None and met.kind in POINT_TO_POINT for met in collectives.meeting], dtype=bool)
    until = np.minimum(collectives.start + arrived.waited_ns, collectives.end)
    waits = (intervals.union(collectives.start[own], until[own]) for own in (is_message, ~is_message))
    return Waited(*(intervals.overlap_length(wait, idle) for wait in waits))
