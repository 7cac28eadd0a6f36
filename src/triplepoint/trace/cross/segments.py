"""How long a rank's time went into each label, between two moments."""

import numpy as np

from triplepoint.trace.lanes import Int64, Lane


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
