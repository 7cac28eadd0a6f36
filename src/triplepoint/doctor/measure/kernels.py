"""Times matrix products and copies of a device: a slow one stands out beside its peers, and kernels are calibrated."""

import socket
import time
from collections.abc import Callable
from typing import Any

from triplepoint.doctor.measure.rows import KernelRow
from triplepoint.units import MIB

TARGET_S = 0.05
MOST_RUNS = 1000

GPU_SHAPES = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
    (8192, 8192, 8192),
    (2048, 12288, 4096),
    (4096, 4096, 12288),
    (8192, 1024, 8192),
    (512, 8192, 8192),
)
"""Matrix products of training layers, small and large."""
CPU_SHAPES = ((256, 256, 256), (512, 512, 512))

GPU_COPIES = tuple(MIB << power for power in range(2, 11, 2))
"""4 MiB to 1 GiB. Unit: byte."""
CPU_COPIES = (4 * MIB, 16 * MIB)

BURN_IN_S = 1.0
"""Products before timing, so that clocks are those under load. Unit: s."""


def time_kernels(device: Any, index: int, wait: Callable[[], None]) -> list[KernelRow]:
    """Return the time of matrix products and copies on one device.

    Args:
        device: The torch device.
        index: Its number on this host.
        wait: Waits for the device.
    """
    import torch

    is_cpu = device.type == "cpu"
    precision = "fp32" if is_cpu else "bf16"
    dtype = torch.float32 if is_cpu else torch.bfloat16
    rows = []
    if not is_cpu:
        _burn_in(device, dtype, wait)
    for shape in CPU_SHAPES if is_cpu else GPU_SHAPES:
        m, n, k = shape
        one, other = torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device, dtype=dtype)
        out = torch.empty(m, n, device=device, dtype=dtype)
        num_bytes = (m * k + k * n + m * n) * dtype.itemsize
        time_s = _time(_product(one, other, out), wait)
        rows.append(_row("gemm", precision, shape, 2.0 * m * n * k, num_bytes, time_s, index))
    for size in CPU_COPIES if is_cpu else GPU_COPIES:
        source, target = (torch.empty(size, device=device, dtype=torch.uint8) for _ in range(2))
        rows.append(_row("copy", precision, (), 0.0, 2.0 * size, _time(_copy(source, target), wait), index))
    return rows


def _product(one: Any, other: Any, out: Any) -> Callable[[], None]:
    import torch

    def run() -> None:
        torch.mm(one, other, out=out)

    return run


def _copy(source: Any, target: Any) -> Callable[[], None]:
    def run() -> None:
        target.copy_(source)

    return run


def _row(
    cls: str, precision: str, shape: tuple[int, ...], flops: float, num_bytes: float, time_s: float, index: int
) -> KernelRow:  # fmt: skip
    return KernelRow(
        cls=cls, precision=precision, shape=shape, flops=flops, num_bytes=num_bytes, time_s=time_s,
        host=socket.gethostname(), device=index,
    )  # fmt: skip


def _burn_in(device: Any, dtype: Any, wait: Callable[[], None]) -> None:
    import torch

    one = torch.randn(4096, 4096, device=device, dtype=dtype)
    begin = time.monotonic()
    while time.monotonic() - begin < BURN_IN_S:
        for _ in range(50):
            one @ one
        wait()


def _time(run: Callable[[], None], wait: Callable[[], None]) -> float:
    """Return how long one run takes when runs follow one another; the best of three rounds. Unit: s."""
    run()
    wait()
    begin = time.monotonic()
    run()
    wait()
    num_runs = max(1, min(MOST_RUNS, round(TARGET_S / max(time.monotonic() - begin, 1e-6))))
    rounds = []
    for _ in range(3):
        begin = time.monotonic()
        for _ in range(num_runs):
            run()
        wait()
        rounds.append((time.monotonic() - begin) / num_runs)
    return min(rounds)
