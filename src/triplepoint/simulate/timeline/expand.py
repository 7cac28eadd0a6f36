"""Placement of kernels and communication within one pass of the timeline."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from triplepoint.simulate.operations import Communication, Operation
from triplepoint.simulate.timeline.durations import Float
from triplepoint.simulate.timeline.schedule import Bool, Int64

TimeOf = Callable[[Operation], float]
"""Time of one run of an operation. Unit: s."""

MAIN = ""
"""Stream of kernels and exposed communication; overlapped communication of a group is on a stream of its name."""


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of operations in a pass; runs without duration are left out. Shape of arrays: (num_runs,).

    Attributes:
        operations: Operations of the pass.
        which: Index of the operation of every run.
        stream: Stream of every run.
        start: Start of every run, from the start of the pass. Unit: ns.
        duration: Duration of every run. Unit: ns.
    """

    operations: tuple[Operation, ...]
    which: Int64
    stream: tuple[str, ...]
    start: Int64
    duration: Int64

    @property
    def end(self) -> Int64:
        """End of every run, from the start of the pass. Unit: ns."""
        return np.asarray(self.start + self.duration)


def lay_out(
    operations: Sequence[Operation], time_of: TimeOf, compute_ns: int, comm_ns: int, host_ns: int = 0,
    *, ends_with_pass: bool = False,
) -> Runs:  # fmt: skip
    """Place operations in a pass of given length, one after the other and layer by layer.

    Kernels are stretched to the computation of the pass, which may be slower than the kernels alone. Waits for the host
    are equal gaps before kernels and before exposed communication. Overlapped communication begins with the pass, or
    later if it must end with the pass to cover the rest of the exposed communication.

    Args:
        operations: Operations of the pass.
        time_of: Function that returns the time of an operation alone; only ratios count where times are given below.
        compute_ns: Computation of the pass, with waits for the host. Unit: ns.
        comm_ns: Exposed communication. Unit: ns.
        host_ns: Part of the computation in which the GPU waits for the host. Unit: ns.
        ends_with_pass: Whether overlapped communication ends with the pass in any case, so that ranks which compute
            faster can wait in it.
    """
    operations = tuple(operations)
    which = _in_turn(operations)
    time_s = np.array([time_of(operation) for operation in operations], dtype=float)[which]
    is_communication = np.array([isinstance(op, Communication) for op in operations], dtype=bool)[which]
    group = np.array([_stream(op) for op in operations], dtype=object)[which]
    is_overlapped: Bool = group != MAIN
    duration = np.zeros(len(which), dtype=np.int64)
    duration[~is_communication] = _divide(time_s[~is_communication], compute_ns - host_ns)
    is_exposed = is_communication & ~is_overlapped
    # The rest of the exposed time is of overlapped communication that outlasts the computation.
    exposed_ns = min(round(float(time_s[is_exposed].sum()) * 1e9), comm_ns) if is_overlapped.any() else comm_ns
    duration[is_exposed] = _divide(time_s[is_exposed], exposed_ns)
    chain = np.where(is_overlapped, 0, duration)
    gaps = np.where(is_overlapped, 0, _divide((~is_overlapped).astype(float), host_ns))
    start = np.cumsum(chain + gaps) - chain
    rest_ns = comm_ns - exposed_ns
    _overlap(group, time_s, start, duration, compute_ns + comm_ns, rest_ns, ends_with_pass or rest_ns > 0)
    kept = np.flatnonzero(duration)
    return Runs(operations, which[kept], tuple(group[kept].tolist()), start[kept], duration[kept])


def wait_for_slowest(slowest: Runs, pace: float, host_share: float = 0.0) -> Runs:
    """Return the pass of a rank that computes faster than the slowest rank of its groups.

    Each collective ends when it does on the slowest rank, since no rank leaves it before. So the faster rank arrives
    earlier at exposed communication and waits in it. If overlapped communication alone is left to wait in, it joins the
    first collective of the longest stream as soon as its kernels are done.

    Args:
        slowest: Pass of the slowest rank.
        pace: Time of kernels over that of the slowest rank.
        host_share: Share of the time that faster kernels save in which the GPU waits longer for the host.
    """
    is_main = np.array(slowest.stream, dtype=object) == MAIN
    is_comm = np.array([isinstance(slowest.operations[index], Communication) for index in slowest.which], dtype=bool)
    is_exposed, kernel_ns = is_main & is_comm, np.where(is_main & ~is_comm, slowest.duration, 0)
    # Times are scaled from the start of the pass on, so that rounding errors do not add up.
    done_ns = np.cumsum(kernel_ns)
    own_done_ns, saved_ns = (
        np.rint(factor * done_ns).astype(np.int64) for factor in (pace, (1.0 - pace) * (1.0 - host_share))
    )
    own_kernel_ns, before_ns = np.diff(own_done_ns, prepend=0), np.append(0, saved_ns)[: len(saved_ns)]
    at_last_collective_ns = np.maximum.accumulate(np.append(0, np.where(is_exposed, saved_ns, 0)))[: len(saved_ns)]
    start = np.where(is_main, slowest.start - (before_ns - at_last_collective_ns), slowest.start)
    end = np.where(is_main & ~is_exposed, start + own_kernel_ns, slowest.end)
    if not is_main.all():
        last = int(np.where(is_main, -1, end).argmax())
        first = slowest.stream.index(slowest.stream[last])
        start[first] = min(start[first], end[is_main].max(initial=0))
    kept = np.flatnonzero(end > start)
    streams = tuple(slowest.stream[index] for index in kept.tolist())
    return Runs(slowest.operations, slowest.which[kept], streams, start[kept], (end - start)[kept])


def spread(operations: Sequence[Operation], time_of: TimeOf, length_ns: int) -> Runs:
    """Place communication, one after the other, over a length of time on the streams of its groups."""
    communications = tuple(operation for operation in operations if isinstance(operation, Communication))
    which = _in_turn(communications)
    time_s = np.array([time_of(operation) for operation in communications], dtype=float)[which]
    duration = _divide(time_s, length_ns)
    start = np.cumsum(duration) - duration
    kept = np.flatnonzero(duration)
    streams = tuple(communications[index].group for index in which[kept].tolist())
    return Runs(communications, which[kept], streams, start[kept], duration[kept])


def _stream(operation: Operation) -> str:
    return operation.group if isinstance(operation, Communication) and operation.is_overlapped else MAIN


def _in_turn(operations: Sequence[Operation]) -> Int64:
    """Return the index of the operation of every run: repeated neighbours take turns, as the layers of a model do."""
    runs: list[tuple[float, int]] = []
    block = 0
    for index, operation in enumerate(operations):
        if operation.count == 1 or (index and operations[index - 1].count == 1):
            block += 1
        runs += [(block + run / (operation.count + 1), index) for run in range(operation.count)]
    return np.array([index for _, index in sorted(runs)], dtype=np.int64)


def _divide(time_s: Float, length_ns: int) -> Int64:
    """Divide a length of time in proportion to times, in whole nanoseconds that add up to it. Unit: ns."""
    until_s = np.cumsum(time_s)
    total_s = until_s[-1] if len(until_s) else 0.0
    if total_s <= 0.0:
        # Without proportions the first run gets it all.
        return np.where(np.arange(len(time_s)) == 0, length_ns, 0)
    borders = np.rint(until_s / total_s * length_ns).astype(np.int64)
    return np.asarray(np.diff(borders, prepend=0))


def _overlap(
    group: np.ndarray, time_s: Float, start: Int64, duration: Int64, total_ns: int, rest_ns: int, ends_with_pass: bool
) -> None:
    """Set start and duration of overlapped communication; the longest stream covers the rest of the exposed time.

    Args:
        group: Stream of every run.
        time_s: Time of every run alone. Unit: s.
        start: Start of every run; changed. Unit: ns.
        duration: Duration of every run; changed. Unit: ns.
        total_ns: Length of the pass. Unit: ns.
        rest_ns: Exposed time of overlapped communication. Unit: ns.
        ends_with_pass: Whether the longest stream ends with the pass; else all streams begin with it.
    """
    streams = {name: np.flatnonzero(group == name) for name in dict.fromkeys(group.tolist()) if name != MAIN}
    longest = max(streams, key=lambda name: float(time_s[streams[name]].sum()), default=MAIN)
    for name, runs in streams.items():
        length = min(round(float(time_s[runs].sum()) * 1e9), total_ns)
        begin = 0
        if name == longest and ends_with_pass:
            length = max(length, rest_ns)
            begin = total_ns - length
        duration[runs] = _divide(time_s[runs], length)
        start[runs] = begin + np.cumsum(duration[runs]) - duration[runs]
