"""Hypothesis strategies for small traces: GPU work, launches, steps and rows that only look like GPU work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st

from tests.unit.trace.judge.layouts import LAYOUTS, Event
from tests.unit.trace.judge.small import ADD, ALL_REDUCE, COLLECTIVE, COPY, FILL, FIRST_NS, GEMM, TOP, complete, gpu

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
_OLD_SPELLING = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "cpu_op": "Operator"}

_starts = st.integers(0, 40_000)
_durations = st.sampled_from([0, 1, 2, 999, 1_000]) | st.integers(0, 9_000)
_streams = st.sampled_from([0, 7, 7, 20, 4_294_967_295])
_correlations = st.integers(0, 12)


@st.composite
def _gpu_work(draw: Any) -> Event:
    name = draw(st.sampled_from([GEMM, ADD, ALL_REDUCE, SEND, COPY, FILL]))
    correlation = draw(_correlations)
    args = COLLECTIVE if name == ALL_REDUCE and correlation % 2 else {}
    return gpu(name, draw(_starts), draw(_durations), correlation, draw(_streams), **args)


@st.composite
def _launch(draw: Any) -> Event:
    cat, name = draw(st.sampled_from([("cuda_runtime", "cudaLaunchKernel"), ("cuda_driver", "cuLaunchKernel")]))
    return complete(cat, name, draw(_starts), draw(_durations), 1, 1, correlation=draw(_correlations))


@st.composite
def _no_gpu_work(draw: Any) -> Event:
    """Return a row that is no GPU work, though most carry a stream or stand on the device's thread."""
    cat, name, args = draw(
        st.sampled_from(
            [
                ("cuda_sync", "Stream Synchronize", {"stream": 7, "correlation": 3}),
                ("cuda_sync", "Context Sync", {"stream": -1, "correlation": 4}),
                ("cpu_op", "triton_poi_fused_add_0", {"stream": 7, "kernel_kwargs": "num_warps=4"}),
                ("cuda_runtime", "hipMemcpyWithStream", {"stream": "0x0", "correlation": 5}),
                ("gpu_user_annotation", "nccl:all_reduce", {"External id": 1}),
                ("cpu_op", "aten::mm", {}),
                ("python_function", "nn.Module: Linear_0", {"Python id": 3}),
                ("overhead", "Buffer Flush", {}),
            ]
        )
    )
    return complete(cat, name, draw(_starts), draw(_durations), 0, 7, **args)


@st.composite
def _steps(draw: Any) -> list[Event]:
    """Return up to three profiled steps; their annotation on the GPU comes late, as it does."""
    events = []
    for number in range(draw(st.integers(0, 3))):
        start = 15_000 * number
        events.append(complete("user_annotation", f"ProfilerStep#{number}", start, 15_000, 1, 1))
        if draw(st.booleans()):
            events.append(complete("gpu_user_annotation", f"ProfilerStep#{number}", start + 4_000, 9_000, 0, 7))
    return events


def _rewrite(events: list[Event], change: Callable[[Event], Event]) -> list[Event]:
    return [change(dict(event)) for event in events]


def _in_whole_microseconds(event: Event) -> Event:
    return event | {key: round(event[key]) for key in ("ts", "dur") if key in event}


def _as_in_2021(event: Event) -> Event:
    return event | {"cat": _OLD_SPELLING.get(event.get("cat", ""), event.get("cat"))}


def _since_1970(event: Event) -> Event:
    """Return an event as in spring 2024: microseconds since 1970, of which a float's text tells halves for certain."""
    return event | {"ts": round(2 * (event["ts"] - FIRST_NS / 1000)) / 2 + 1_716_000_000_000_000.0}


@st.composite
def traces(draw: Any, *, with_steps: bool = True) -> list[Event]:
    """Return the events of a trace with GPU work; some of its rows stand in it twice."""
    work = draw(st.lists(_gpu_work(), min_size=1, max_size=12))
    work += draw(st.lists(st.sampled_from(work), max_size=3))
    others = draw(st.lists(_launch() | _no_gpu_work(), max_size=12))
    events = draw(st.permutations([*work, *others, *(draw(_steps()) if with_steps else [])]))
    spelling = draw(st.sampled_from([dict, dict, _in_whole_microseconds, _as_in_2021, _since_1970]))
    return _rewrite(events, spelling)


@st.composite
def texts(draw: Any, events: st.SearchStrategy[list[Event]]) -> tuple[bytes, list[Event]]:
    """Return a trace as text in some layout, and its events."""
    found = draw(events)
    layout = draw(st.sampled_from(sorted(LAYOUTS)))
    return LAYOUTS[layout].render(found, TOP).data, found


def write(folder: Path, data: bytes, name: str = "rank0.json") -> Path:
    """Return the path of a file with this content."""
    path = folder / name
    path.write_bytes(data)
    return path
