"""A small trace of known content: two training steps of one rank, told by what its GPU did. Times in ns."""

from typing import Any

from tests.unit.trace.judge.layouts import Event
from tests.unit.trace.judge.reference import Row, gpu_rows, to_ns

BASE_NS = 1_711_964_646_000_000_000
TOP = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "distributedInfo": {"backend": "nccl", "rank": 0}}

FIRST_NS = 4_458_676_983_000_000
"""Start of the trace: 13 digits of microseconds, as Kineto writes since 2024."""

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)"
)
COPY = "Memcpy HtoD (Pinned -> Device)"
FILL = "Memset (Device)"
COLLECTIVE = {
    "Collective name": "allreduce",
    "In msg nelems": 6637568,
    "Out msg nelems": 6637568,
    "Group size": 2,
    "dtype": "BFloat16",
    "In split size": "[]",
    "Out split size": "[]",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1]",
}


def complete(cat: str, name: str, start: int, duration: int, pid: int, tid: int, **args: Any) -> Event:
    """Return a complete event; start (from `FIRST_NS`) and duration in ns."""
    times = {"ts": (FIRST_NS + start) / 1000, "dur": duration / 1000}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": args}


def gpu(name: str, start: int, duration: int, correlation: int, stream: int = 7, **args: Any) -> Event:
    """Return a piece of GPU work."""
    kind = "gpu_memcpy" if name == COPY else "gpu_memset" if name == FILL else "kernel"
    where = {"device": 0, "context": 1, "stream": stream, "correlation": correlation}
    size = {"grid": [512, 1, 1], "block": [512, 1, 1], "est. achieved occupancy %": 75, "blocks per SM": 4.740741}
    size = size if kind == "kernel" else {"bytes": 8192000, "memory bandwidth (GB/s)": 486.6920152091255}
    return complete(kind, name, start, duration, 0, stream, **{"External id": correlation}, **where, **size, **args)


def launched(row: Event) -> list[Event]:
    """Return a piece of GPU work behind the call that launched it, with the flow between the two."""
    start = to_ns(row["ts"]) - FIRST_NS
    number = row["args"]["correlation"]
    call = "cudaLaunchKernel" if row["cat"] == "kernel" else "cudaMemcpyAsync"
    flow = {"id": number, "pid": 4711, "tid": 4711, "ts": row["ts"], "cat": "ac2g", "name": "ac2g"}
    return [
        complete("cuda_runtime", call, start - 15_250, 6_125, 4711, 4711, cbid=211, correlation=number),
        {"ph": "s", **flow},
        row,
        {"ph": "f", **flow, "bp": "e"},
    ]


def _step(number: int, start: int) -> list[Event]:
    """Return a step of 1 ms: copy, fill, compute; an all-reduce hidden for a part; an overlap of two computations."""
    first = 100 * number
    return [
        complete("user_annotation", f"ProfilerStep#{number}", start, 1_000_000, 4711, 4711, **{"External id": first}),
        complete("cpu_op", "aten::mm", start + 10_001, 90_333, 4711, 4711, **{"Input Dims": [[64, 64], [64, 64]]}),
        complete("python_function", "train.py(12): step", start + 9_000, 900_000, 4711, 4711, **{"Python id": first}),
        *launched(gpu(COPY, start + 50_000, 20_125, first + 1)),
        *launched(gpu(FILL, start + 80_000, 1_504, first + 2)),
        *launched(gpu(GEMM, start + 100_000, 200_376, first + 3)),
        *launched(gpu(GEMM, start + 300_376, 99_624, first + 4)),
        *launched(gpu(ALL_REDUCE, start + 350_000, 250_007, first + 5, 40, **COLLECTIVE)),
        *launched(gpu(ADD, start + 380_000, 40_001, first + 6, 11)),
        *launched(gpu(ADD, start + 590_000, 2_176, first + 7)),
        complete("gpu_user_annotation", "## optimizer ##", start + 590_000, 2_176, 0, 7, **{"External id": first}),
    ]


EVENTS = [
    {"name": "process_name", "ph": "M", "ts": FIRST_NS / 1000, "pid": 4711, "tid": 0, "args": {"name": "python3"}},
    *_step(5, 1_000),
    *_step(6, 1_101_000),
    {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": FIRST_NS / 1000 + 2_300},
]
"""14 pieces of GPU work among CPU operators, launches, flows and annotations."""


def is_gpu(event: Event) -> bool:
    """Return whether an event is GPU work."""
    return event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")


def rows_of(events: list[Event]) -> list[Row]:
    """Return the GPU rows of events."""
    return gpu_rows({"traceEvents": events})
