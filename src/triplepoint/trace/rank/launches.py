"""Which call on the host launched each piece of device work."""

import numpy as np
import numpy.typing as npt

from triplepoint.trace.kineto.reader import Category, Trace

Int64 = npt.NDArray[np.int64]


def launch_of(trace: Trace, events: Int64) -> Int64:
    """Return the event of the launching call of each device event, -1 where it was not recorded."""
    runtime = np.flatnonzero((trace.category == Category.RUNTIME) & (trace.correlation > 0))
    if len(runtime) == 0:
        return np.full(len(events), -1, dtype=np.int64)
    runtime = runtime[np.argsort(trace.correlation[runtime], kind="stable")]
    wanted = trace.correlation[events]
    at = np.minimum(np.searchsorted(trace.correlation[runtime], wanted), len(runtime) - 1)
    return np.where(trace.correlation[runtime[at]] == wanted, runtime[at], -1).astype(np.int64)


def enclosing(trace: Trace, spans: Int64, thread: int, time: int) -> int | None:
    """Return the latest begun of some spans on a thread that runs at a time, None if none does.

    Args:
        trace: The trace.
        spans: Events to choose from, by start.
        thread: Thread, or stream of the device.
        time: Unit: ns since 1970.
    """
    candidates = spans[: int(np.searchsorted(trace.start[spans], time, side="right"))]
    running = candidates[(trace.thread[candidates] == thread) & (trace.end[candidates] > time)]
    return int(running[-1]) if len(running) else None
