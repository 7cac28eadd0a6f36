"""Builds tiny Kineto traces, so that a test shows the whole input it judges."""

import gzip
import json
from pathlib import Path
from typing import Any

BASE_NS = 1_790_857_026_000_000_000
"""`baseTimeNanoseconds` of built traces; event times below are relative to it."""

GEMM = "ampere_sgemm_128x64_nn"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
COPY = "Memcpy DtoD (Device -> Device)"
FILL = "Memset (Device)"


def event(name: str, start_us: float, duration_us: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": start_us, "dur": duration_us, "args": args}


def note(name: str, start_us: float, duration_us: float, tid: int = 1) -> dict:
    return event(name, start_us, duration_us, "user_annotation", tid)


def kernel(name: str, start_us: float, duration_us: float, stream: int = 7, **args: Any) -> dict:
    return event(name, start_us, duration_us, "kernel", stream, stream=stream, **args)


def launch(at_us: float, correlation: int, tid: int = 1, **args: Any) -> dict:
    return event("cudaLaunchKernel", at_us, 1, "cuda_runtime", tid, correlation=correlation, **args)


def document(events: list[dict], **top: Any) -> dict:
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events, **top}


def write_trace(path: Path, events: list[dict], **top: Any) -> Path:
    text = json.dumps(document(events, **top)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
