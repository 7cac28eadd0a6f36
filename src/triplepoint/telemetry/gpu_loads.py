"""Loads of a GPU while its sensors are recorded; each returns rows with times on the host's monotonic clock."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from triplepoint.telemetry.gpu_kernels import Kernel, gemm
from triplepoint.units import MS_PER_S, NS_PER_S

Row = dict[str, Any]
_GRAPH_BELOW_S = 60e-6
"""Calls shorter than this are held in a CUDA graph: a Python loop could not launch them fast enough."""
_BATCH_S = 0.02
_AHEAD = 3
"""Batches waiting on the device: it must never run dry while the host does something else."""


@dataclass(frozen=True)
class Machine:
    """Where stages run: the device, or a stand-in for a dry run."""

    device: str

    @property
    def is_gpu(self) -> bool:
        """Whether there is a GPU."""
        return self.device != "cpu"

    def wait(self) -> None:
        """Wait until all work is done."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def mark(self) -> Any:
        """Return a mark in the stream of work."""
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_s(self, first: Any, second: Any) -> float:
        """Return the time between two marks, waiting for the second. Unit: s."""
        if not self.is_gpu:
            return max(float(second - first), 1e-9)
        second.synchronize()
        return float(first.elapsed_time(second)) / MS_PER_S


@dataclass
class Batch:
    """A call repeated so often that a batch takes about `_BATCH_S`."""

    launch: Callable[[], None]
    calls: int
    call_s: float
    is_graph: bool


def prepare(kernel: Kernel, machine: Machine) -> Batch:
    """Return a kernel ready to run steadily."""
    call = kernel.make(machine.device)
    for _ in range(3):
        call()
    machine.wait()
    call_s = _time_calls(call, 10, machine)
    if call_s > _BATCH_S:
        return Batch(lambda: _repeat(call, 1), 1, call_s, False)
    if machine.is_gpu and kernel.is_capturable and call_s < _GRAPH_BELOW_S:
        made = _capture(call)
        if made is not None:
            graph, num = made
            replay_s = _time_calls(graph.replay, 5, machine)
            replays = max(1, round(_BATCH_S / replay_s))
            return Batch(lambda: _repeat(graph.replay, replays), replays * num, replay_s / num, True)
    calls = max(1, round(_BATCH_S / call_s))
    return Batch(lambda: _repeat(call, calls), calls, call_s, False)


def _capture(call: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, int] | None:
    num = 50
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            _repeat(call, num)
    except RuntimeError as error:
        print(f"not captured: {error}".splitlines()[0], flush=True)
        torch.cuda.synchronize()
        return None
    return graph, num


def _repeat(call: Callable[[], object], num: int) -> None:
    for _ in range(num):
        call()


def _time_calls(call: Callable[[], object], num: int, machine: Machine) -> float:
    first = machine.mark()
    _repeat(call, num)
    return machine.between_s(first, machine.mark()) / num


def run_steadily(batch: Batch, duration_s: float, machine: Machine) -> Row:
    """Run a batch back to back; times are host times at which the device was certainly busy.

    Returns:
        `t_start_ns`, `t_end_ns`, `call_s` (median over batches), `call_p10_s`, `call_p90_s`, `num_calls`.
    """
    machine.wait()
    marks = [machine.mark()]
    start = time.monotonic_ns()
    while time.monotonic_ns() - start < duration_s * NS_PER_S:
        batch.launch()
        marks.append(machine.mark())
        if machine.is_gpu and len(marks) > _AHEAD:
            marks[-_AHEAD].synchronize()
    machine.wait()
    end = time.monotonic_ns()
    times = [machine.between_s(a, b) / batch.calls for a, b in zip(marks, marks[1:], strict=False)]
    low, middle, high = np.percentile(times, [10, 50, 90])
    return {
        "t_start_ns": start,
        "t_end_ns": end,
        "call_s": float(middle),
        "call_p10_s": float(low),
        "call_p90_s": float(high),
        "num_calls": batch.calls * len(times),
        "is_graph": batch.is_graph,
    }


def measure_kernel(kernel: Kernel, duration_s: float, machine: Machine) -> Row:
    """Run one kernel of the grid; a kernel that fails is a row with the reason."""
    row: Row = {
        "kernel": kernel.name,
        "family": kernel.family,
        "dtype": kernel.dtype,
        "operands": kernel.operands,
        "shape": kernel.shape,
        "flops": kernel.flops,
        "min_bytes": kernel.num_bytes,
        "error": None,
    }
    try:
        row |= run_steadily(prepare(kernel, machine), duration_s, machine)
    except (RuntimeError, ValueError, AttributeError) as error:
        row["error"] = str(error).splitlines()[0][:200]
    if machine.is_gpu:
        torch.cuda.empty_cache()
    return row


def idle(duration_s: float, name: str) -> Row:
    """Do nothing."""
    start = time.monotonic_ns()
    time.sleep(duration_s)
    return {"stage": name, "period_s": None, "duty": None, "t_start_ns": start, "t_end_ns": time.monotonic_ns()}


SQUARES = (
    (8.0, 0.5, 1),
    (2.0, 0.5, 3),
    (1.0, 0.5, 4),
    (0.4, 0.5, 8),
    (0.25, 0.5, 12),
    (0.1, 0.25, 40),
    (0.125, 0.25, 32),
    (0.08, 0.25, 40),
    (0.05, 0.5, 60),
)
"""Period in seconds, share of it that is busy, cycles. 0.1 s at 25 % is the update period and duty reported for the
sensors of A100 and H100, where a plain mean of samples goes most wrong. Source: arXiv:2312.02741."""


def square_waves(machine: Machine, scale: float) -> Iterator[Row]:
    """Yield one row per busy interval of square waves of several periods, and of random intervals after them."""
    size = 4096 if machine.is_gpu else 64
    call = gemm(size, size, size).make(machine.device)
    _repeat(call, 20)
    machine.wait()
    call_s = _time_calls(call, 100, machine)
    for period_s, duty, cycles in SQUARES:
        time.sleep(0.5 * scale)
        start = time.monotonic()
        for cycle in range(max(1, round(cycles * scale))):
            _sleep_until(start + cycle * period_s)
            busy_s = period_s * duty * min(1.0, 5 * scale)
            yield _busy(call, call_s, busy_s, machine, f"square_{period_s}_{duty}", period_s, duty)
    chooser = random.Random(6)
    stop = time.monotonic() + 16 * scale
    while time.monotonic() < stop:
        time.sleep(chooser.uniform(0.02, 0.5))
        yield _busy(call, call_s, chooser.uniform(0.02, 0.5), machine, "random", None, None)


def _busy(
    call: Callable[[], object],
    call_s: float,
    busy_s: float,
    machine: Machine,
    stage: str,
    period_s: float | None,
    duty: float | None,
) -> Row:
    num = max(1, round(busy_s / call_s))
    start = time.monotonic_ns()
    _repeat(call, num)
    machine.wait()
    end = time.monotonic_ns()
    return {"stage": stage, "period_s": period_s, "duty": duty, "t_start_ns": start, "t_end_ns": end}


def _sleep_until(deadline_s: float) -> None:
    left = deadline_s - time.monotonic()
    if left > 0.002:
        time.sleep(left - 0.001)
    while time.monotonic() < deadline_s:
        pass


def churn_loop(device: str) -> Callable[[], None]:
    """Return a function that allocates and releases device memory, which contends with the driver's lock."""
    num_bytes = 64 << 20 if device != "cpu" else 1 << 10

    def step() -> None:
        block = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        block.zero_()
        del block
        if device != "cpu":
            torch.cuda.empty_cache()
            torch.cuda.synchronize()

    return step
