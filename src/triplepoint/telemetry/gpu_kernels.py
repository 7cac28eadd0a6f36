"""Kernels that `characterise --record` measures: their FLOPs, traffic and operands, and batches that run steadily."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name all of PyTorch uses

from triplepoint.units import MS_PER_S

_GRAPH_BELOW_S = 60e-6
"""Duration below which calls are captured in a CUDA graph, because Python cannot launch them fast enough."""
_BATCH_S = 0.02
"""Duration of a batch of calls."""


@dataclass(frozen=True)
class Kernel:
    """A kernel to measure."""

    name: str
    family: str
    """gemm, attention, memory or grouped."""
    dtype: str
    operands: str
    """random (normal numbers) or zero. Operands decide how many bits toggle, and so the power."""
    shape: str
    """Shape in words."""
    flops: float
    """FLOPs of one call."""
    num_bytes: float
    """Least memory traffic of one call: every operand read once, every result written once. Unit: byte."""
    make: Callable[[str], Callable[[], object]]
    """Allocates the operands on a device and returns the call."""
    is_capturable: bool = True
    """Whether a CUDA graph can capture the call."""


def _tensor(operands: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Return a tensor of zeros or of normal random numbers."""
    if operands == "zero":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.randn(shape, dtype=torch.float32 if dtype.itemsize == 1 else dtype, device=device).to(dtype)


_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}


def gemm(m: int, n: int, k: int, dtype: str = "bf16", operands: str = "random", layout: str = "nt") -> Kernel:
    """Return the GEMM C = A B with A of shape (m, k) and B of shape (k, n).

    Args:
        m: Rows of A.
        n: Columns of B.
        k: Columns of A.
        dtype: bf16, fp16, tf32 or fp32.
        operands: random or zero.
        layout: nt: B is stored as weights, shape (n, k). nn: neither is transposed. tn: A is transposed, as for a
            weight gradient.
    """
    torch_dtype = _DTYPES[dtype]

    def make(device: str) -> Callable[[], object]:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        a = _tensor(operands, (k, m) if layout == "tn" else (m, k), torch_dtype, device)
        b = _tensor(operands, (n, k) if layout == "nt" else (k, n), torch_dtype, device)
        left, right = (a.t() if layout == "tn" else a), (b.t() if layout == "nt" else b)
        out = torch.empty((m, n), dtype=torch_dtype, device=device)
        return lambda: torch.mm(left, right, out=out)

    name = f"gemm_{dtype}_{layout}_{m}x{n}x{k}_{operands}"
    traffic = torch_dtype.itemsize * (m * k + k * n + m * n)
    return Kernel(name, "gemm", dtype, operands, f"m={m} n={n} k={k} {layout}", 2.0 * m * n * k, traffic, make)


def scaled_mm(m: int, n: int, k: int, operands: str = "random") -> Kernel:
    """Return the fp8 (e4m3) GEMM with one scale per tensor and bf16 output."""

    def make(device: str) -> Callable[[], object]:
        if device == "cpu":
            return gemm(m, n, k).make(device)
        a = _tensor(operands, (m, k), torch.float8_e4m3fn, device)
        b = _tensor(operands, (n, k), torch.float8_e4m3fn, device).t()
        scale = torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)

    traffic = m * k + k * n + 2 * m * n
    name = f"gemm_fp8_{m}x{n}x{k}_{operands}"
    return Kernel(name, "gemm", "fp8", operands, f"m={m} n={n} k={k} nt", 2.0 * m * n * k, traffic, make)


def attention(batch: int, heads: int, sequence: int, head: int, is_backward: bool) -> Kernel:
    """Return causal scaled-dot-product attention, forward or forward and backward."""

    def make(device: str) -> Callable[[], object]:
        shape = (batch, heads, sequence, head)
        q, k, v = (_tensor("random", shape, torch.bfloat16, device).requires_grad_(is_backward) for _ in range(3))
        if not is_backward:
            return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        gradient = _tensor("random", shape, torch.bfloat16, device)

        def forward_and_backward() -> object:
            return torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), gradient)

        return forward_and_backward

    # Forward 4 b h s^2 d, half of it with a causal mask; backward 2.5 times that (five GEMMs instead of two).
    flops = 4.0 * batch * heads * sequence**2 * head / 2 * (3.5 if is_backward else 1.0)
    traffic = 2.0 * batch * heads * sequence * head * (12 if is_backward else 4)
    name = f"sdpa_{'fwdbwd' if is_backward else 'fwd'}_b{batch}h{heads}s{sequence}d{head}"
    shape = f"batch={batch} heads={heads} sequence={sequence} head={head} causal"
    return Kernel(name, "attention", "bf16", "random", shape, flops, traffic, make, not is_backward)


def memory(name: str, rows: int, columns: int, passes: float, body: Callable[..., object], num: int = 1) -> Kernel:
    """Return a memory-bound operation.

    Args:
        name: Name of the operation.
        rows: Rows of a matrix.
        columns: Columns of a matrix.
        passes: Memory traffic over the size of a matrix.
        body: The operation on `num` bf16 matrices and an output matrix.
        num: Number of input matrices.
    """

    def make(device: str) -> Callable[[], object]:
        inputs = [_tensor("random", (rows, columns), torch.bfloat16, device) for _ in range(num)]
        out = torch.empty_like(inputs[0])
        return lambda: body(*inputs, out)

    traffic = 2.0 * rows * columns * passes
    return Kernel(f"{name}_{rows}x{columns}", "memory", "bf16", "random", f"{rows}x{columns}", 0.0, traffic, make)


def adam(num: int) -> Kernel:
    """Return a fused Adam step on `num` fp32 parameters, which reads p, g, m, v and writes p, m, v."""

    def make(device: str) -> Callable[[], object]:
        parameter = torch.nn.Parameter(torch.randn(num, device=device))
        parameter.grad = torch.randn(num, device=device)
        optimizer = torch.optim.AdamW([parameter], fused=True)
        step: Callable[[], object] = optimizer.step
        return step

    return Kernel(f"adamw_fused_{num}", "memory", "fp32", "random", str(num), 0.0, 28.0 * num, make, False)


def experts(num: int, tokens: int, n: int, k: int) -> Kernel:
    """Return the GEMMs of `num` experts with `tokens` each as one batched GEMM."""

    def make(device: str) -> Callable[[], object]:
        a = _tensor("random", (num, tokens, k), torch.bfloat16, device)
        b = _tensor("random", (num, n, k), torch.bfloat16, device).transpose(1, 2)
        out = torch.empty((num, tokens, n), dtype=torch.bfloat16, device=device)
        return lambda: torch.bmm(a, b, out=out)

    shape = f"experts={num} m={tokens} n={n} k={k}"
    traffic = 2.0 * num * (tokens * k + k * n + tokens * n)
    name = f"experts_{num}x{tokens}x{n}x{k}"
    return Kernel(name, "grouped", "bf16", "random", shape, 2.0 * num * tokens * n * k, traffic, make)


def _gemms() -> Iterator[Kernel]:
    for size in (8192, 4096, 2048, 1024, 512):
        yield gemm(size, size, size)
    for size in (8192, 4096, 2048):
        yield gemm(size, size, size, operands="zero")
    # Layers of 7 B, 20 B and 70 B models, whole or split over tensor parallel ranks: (tokens, outputs, inputs).
    for m, n, k in (
        *((4096, 12288, 4096), (4096, 4096, 4096 * 4), (2048, 4096, 4096), (8192, 28672, 8192), (8192, 8192, 28672)),
        *((8192, 2560, 8192), (8192, 8192, 1024), (4096, 7168, 8192), (2048, 1536, 6144), (2048, 6144, 1536)),
        *((4096, 32000, 4096), (256, 8192, 8192), (128, 4096, 4096), (16384, 1024, 1024)),
    ):
        yield gemm(m, n, k)
    yield gemm(8192, 4096, 4096, layout="nn")
    yield gemm(4096, 4096, 8192, layout="tn")
    for size in (8192, 4096, 2048):
        yield scaled_mm(size, size, size)
    yield scaled_mm(8192, 8192, 8192, "zero")
    yield scaled_mm(8192, 28672, 8192)
    for dtype, size in (("fp16", 8192), ("tf32", 8192), ("tf32", 4096), ("fp32", 4096)):
        yield gemm(size, size, size, dtype)


def _attentions() -> Iterator[Kernel]:
    for shape in ((4, 32, 2048, 128), (1, 32, 8192, 128), (8, 16, 1024, 64), (1, 64, 4096, 128)):
        yield attention(*shape, is_backward=False)
        yield attention(*shape, is_backward=True)


def _memories() -> Iterator[Kernel]:
    yield memory("copy", 32768, 16384, 2, lambda x, out: out.copy_(x))
    yield memory("copy", 4096, 4096, 2, lambda x, out: out.copy_(x))
    yield memory("add", 16384, 16384, 3, lambda x, y, out: torch.add(x, y, out=out), 2)
    yield memory("layer_norm", 16384, 8192, 2, lambda x, out: F.layer_norm(x, x.shape[1:]))
    yield memory("rms_norm", 16384, 8192, 2, lambda x, out: F.rms_norm(x, x.shape[1:]))
    yield memory("softmax", 16384, 8192, 2, lambda x, out: torch.softmax(x, 1))
    yield memory("gelu", 16384, 8192, 2, lambda x, out: F.gelu(x))
    yield memory("swiglu", 16384, 8192, 5, lambda x, y, out: torch.mul(F.silu(x), y, out=out), 2)
    yield memory("transpose", 16384, 8192, 2, lambda x, out: x.t().contiguous())
    yield memory("sum_rows", 16384, 8192, 1, lambda x, out: x.sum(1))
    yield adam(500_000_000)


def _experts() -> Iterator[Kernel]:
    yield experts(8, 1024, 14336, 4096)
    yield experts(8, 512, 4096, 14336)
    yield experts(64, 128, 2048, 2048)


def grid() -> list[Kernel]:
    """Return all kernels to measure, the most important first."""
    families = [list(make()) for make in (_gemms, _attentions, _memories, _experts)]
    # Families alternate, so that a run cut short has some of each, and hot kernels are spread out.
    longest = max(map(len, families))
    return [family[index] for index in range(longest) for family in families if index < len(family)]


def small(kernels: list[Kernel]) -> list[Kernel]:
    """Return the first kernels with sizes of a few kilobytes, for a dry run on a CPU."""
    tiny = {
        "gemm": gemm(64, 64, 64),
        "attention": attention(1, 2, 64, 16, True),
        "memory": memory("copy", 64, 64, 2, lambda x, out: out.copy_(x)),
        "grouped": experts(2, 16, 16, 16),
    }
    return [replace(tiny[kernel.family], name=kernel.name) for kernel in kernels[:6]]


@dataclass(frozen=True)
class Machine:
    """The device that kernels run on: a GPU, or a CPU for a dry run."""

    device: str

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device != "cpu"

    def wait(self) -> None:
        """Wait until all work is done."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def mark(self) -> Any:
        """Return a time mark, on a GPU an event in the stream of work."""
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
    """Repetitions of a call that take about `_BATCH_S`."""

    launch: Callable[[], None]
    """Launches all calls of the batch."""
    calls: int
    """Number of calls in the batch."""
    call_s: float
    """Mean time of a call. Unit: s."""
    is_graph: bool
    """Whether the calls are in a CUDA graph."""


def prepare(kernel: Kernel, machine: Machine) -> Batch:
    """Allocate a kernel's operands, time a call, and return a batch of calls."""
    call = kernel.make(machine.device)
    for _ in range(3):
        call()
    machine.wait()
    call_s = time_calls(call, 10, machine)
    if call_s > _BATCH_S:
        return Batch(lambda: repeat(call, 1), 1, call_s, False)
    if machine.is_gpu and kernel.is_capturable and call_s < _GRAPH_BELOW_S:
        captured = _capture(call)
        if captured is not None:
            graph, num = captured
            replay_s = time_calls(graph.replay, 5, machine)
            replays = max(1, round(_BATCH_S / replay_s))
            return Batch(lambda: repeat(graph.replay, replays), replays * num, replay_s / num, True)
    calls = max(1, round(_BATCH_S / call_s))
    return Batch(lambda: repeat(call, calls), calls, call_s, False)


def _capture(call: Callable[[], object]) -> tuple[torch.cuda.CUDAGraph, int] | None:
    """Return a CUDA graph of repeated calls, and their number; None if the call cannot be captured."""
    num = 50
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            repeat(call, num)
    except RuntimeError as error:
        print(f"not captured: {error}".splitlines()[0], flush=True)
        torch.cuda.synchronize()
        return None
    return graph, num


def repeat(call: Callable[[], object], num: int) -> None:
    """Call a function many times."""
    for _ in range(num):
        call()


def time_calls(call: Callable[[], object], num: int, machine: Machine) -> float:
    """Return the mean time of a call. Unit: s."""
    first = machine.mark()
    repeat(call, num)
    return machine.between_s(first, machine.mark()) / num
