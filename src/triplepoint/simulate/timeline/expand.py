"""Kernels and communication within one pass: a task of the timeline in detail."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from triplepoint.simulate.operations import Communication, Operation
from triplepoint.simulate.timeline.durations import Float
from triplepoint.simulate.timeline.schedule import Bool, Int64

TimeOf = Callable[[Operation], float]
"""Time of one run of an operation. Unit: s."""

MAIN = ""
"""Stream of kernels and of exposed communication; overlapped communication has a stream a group, named after it."""


@dataclass(frozen=True, eq=False)
class Laid:
    """Runs of operations in a pass. Shape of arrays (num_runs,); times from the start of the pass. Unit: ns.

    Attributes:
        operations: What is run.
        which: Of every run, its operation.
        stream: Of every run, the stream it is on.
        start: Start.
        duration: Duration; runs of no length are left out.
    """

    operations: tuple[Operation, ...]
    which: Int64
    stream: tuple[str, ...]
    start: Int64
    duration: Int64

    @property
    def end(self) -> Int64:
        """End of every run."""
        return np.asarray(self.start + self.duration)

    @cached_property
    def classes(self) -> list[tuple[str, Int64]]:
        """Runs by class of kernel, or by `comm` and the group's name."""
        names = [f"comm {op.group}" if isinstance(op, Communication) else op.cls for op in self.operations]
        named = np.array(names, dtype=object)[self.which]
        return [(name, np.flatnonzero(named == name)) for name in dict.fromkeys(named.tolist())]


def lay_out(operations: Sequence[Operation], time_of: TimeOf, compute_ns: int, comm_ns: int, host_ns: int = 0) -> Laid:
    """Lay operations out in a pass of given length, one after the other, layers in turn; overlap communication.

    Kernels are stretched to the pass's computation, which may be slower than theirs alone; where the GPU waits for the
    host, equal gaps lie before them and before exposed communication. Communication that
    may overlap it begins with the pass, or as late as it must to cover the rest of the exposed communication.

    Args:
        operations: What the pass does.
        time_of: Their times alone; only their ratios count where the pass's own are given.
        compute_ns: Computation of the pass. Unit: ns.
        comm_ns: Exposed communication. Unit: ns.
        host_ns: Of the computation, waiting for the host. Unit: ns.
    """
    operations = tuple(operations)
    which = _runs(operations)
    time = np.array([time_of(operation) for operation in operations], dtype=float)[which]
    is_communication = np.array([isinstance(op, Communication) for op in operations], dtype=bool)[which]
    group = np.array([_own_stream(op) for op in operations], dtype=object)[which]
    is_overlapped: Bool = group != MAIN
    duration = np.zeros(len(which), dtype=np.int64)
    duration[~is_communication] = _divide(time[~is_communication], compute_ns - host_ns)
    waits = is_communication & ~is_overlapped
    alone = min(round(float(time[waits].sum()) * 1e9), comm_ns) if is_overlapped.any() else comm_ns
    duration[waits] = _divide(time[waits], alone)
    chain = np.where(is_overlapped, 0, duration)
    gaps = np.where(is_overlapped, 0, _divide((~is_overlapped).astype(float), host_ns))
    start = np.cumsum(chain + gaps) - chain
    _overlap(group, time, start, duration, compute_ns + comm_ns, comm_ns - alone)
    kept = np.flatnonzero(duration)
    return Laid(operations, which[kept], tuple(group[kept].tolist()), start[kept], duration[kept])


def spread(operations: Sequence[Operation], time_of: TimeOf, length_ns: int) -> Laid:
    """Lay communication out one after the other over a length of time, on the stream of their group."""
    communications = tuple(operation for operation in operations if isinstance(operation, Communication))
    which = _runs(communications)
    time = np.array([time_of(operation) for operation in communications], dtype=float)[which]
    duration = _divide(time, length_ns)
    start = np.cumsum(duration) - duration
    kept = np.flatnonzero(duration)
    streams = tuple(communications[index].group for index in which[kept].tolist())
    return Laid(communications, which[kept], streams, start[kept], duration[kept])


def _own_stream(operation: Operation) -> str:
    return operation.group if isinstance(operation, Communication) and operation.is_overlapped else MAIN


def _runs(operations: Sequence[Operation]) -> Int64:
    """Return the operation of every run: neighbours that run several times take turns, as layers do."""
    which: list[tuple[float, int]] = []
    block = 0
    for index, operation in enumerate(operations):
        if operation.count == 1 or (index and operations[index - 1].count == 1):
            block += 1
        which += [(block + run / (operation.count + 1), index) for run in range(operation.count)]
    return np.array([index for _, index in sorted(which)], dtype=np.int64)


def _divide(time: Float, length_ns: int) -> Int64:
    """Divide a length of time in proportion, in whole nanoseconds that add up to it."""
    until = np.cumsum(time)
    whole = until[-1] if len(until) else 0.0
    if whole <= 0.0:
        # Nothing to go by: the first has it all.
        return np.where(np.arange(len(time)) == 0, length_ns, 0)
    borders = np.rint(until / whole * length_ns).astype(np.int64)
    return np.asarray(np.diff(borders, prepend=0))


def _overlap(group: np.ndarray, time: Float, start: Int64, duration: Int64, total_ns: int, rest_ns: int) -> None:
    """Set start and duration of overlapped communication; the longest stream covers the rest of what is exposed."""
    streams = {name: np.flatnonzero(group == name) for name in dict.fromkeys(group.tolist()) if name != MAIN}
    longest = max(streams, key=lambda name: float(time[streams[name]].sum()), default=MAIN)
    for name, runs in streams.items():
        length = min(round(float(time[runs].sum()) * 1e9), total_ns)
        begin = 0
        if name == longest and rest_ns:
            length = max(length, rest_ns)
            begin = total_ns - length
        duration[runs] = _divide(time[runs], length)
        start[runs] = begin + np.cumsum(duration[runs]) - duration[runs]
