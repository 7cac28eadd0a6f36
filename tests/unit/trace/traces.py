"""Builds tiny Kineto traces, so that a test shows the whole input it judges."""

import gzip
import json
from pathlib import Path
from typing import Any

BASE_NS = 1_790_857_026_000_000_000
"""`baseTimeNanoseconds` of built traces; event times below are relative to it."""


def event(name: str, start_us: float, duration_us: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": start_us, "dur": duration_us, "args": args}


def note(name: str, start_us: float, duration_us: float, tid: int = 1) -> dict:
    return event(name, start_us, duration_us, "user_annotation", tid)


def kernel(name: str, start_us: float, duration_us: float, stream: int = 7, **args: Any) -> dict:
    return event(name, start_us, duration_us, "kernel", stream, stream=stream, **args)


def document(events: list[dict], **top: Any) -> dict:
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events, **top}


def write_trace(path: Path, events: list[dict], **top: Any) -> Path:
    text = json.dumps(document(events, **top)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
