"""Ranges of NVTX or ROCTX around steps, for a profiler from outside, in processes without torch.

Of the standard library, and loaded by its path: it works in any environment. The libraries are those of CUDA and ROCm;
`nsys profile -c cudaProfilerApi` and `rocprofv3 --marker-trace` record what is called here.

Source:
    NVTX: nvToolsExt.h (nvtxRangePushA, nvtxRangePop); CUDA: cuda_profiler_api.h (cudaProfilerStart, cudaProfilerStop);
    ROCTX: roctx.h (roctxRangePushA, roctxRangePop, roctxProfilerResume, roctxProfilerPause; thread 0 means all).
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_LIBRARIES = (
    ("NVTX", ("libnvToolsExt.so.1", "libnvToolsExt.so"), "nvtx"),
    (
        "ROCTX",
        ("librocprofiler-sdk-roctx.so", "librocprofiler-sdk-roctx.so.1", "libroctx64.so"),
        "roctx",
    ),
)
"""Name, files in the order in which they are tried, and beginning of the names of functions."""
_CUDA_RUNTIMES = ("libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")


class Ranges(NamedTuple):
    """Calls of a library of ranges.

    Attributes:
        name: NVTX or ROCTX.
        push: Begin a range of a name.
        pop: End it.
        start: Let the profiler begin to record; does nothing where there is no such call.
        stop: Let it end.
    """

    name: str
    push: Callable[[bytes], Any]
    pop: Callable[[], Any]
    start: Callable[[], Any]
    stop: Callable[[], Any]


def find_ranges(load: Callable[[str], Any] = ctypes.CDLL) -> Ranges | None:
    """Return the ranges of the first library that is installed; None of none.

    Args:
        load: Loads a shared library by its name; raises `OSError` where there is none.
    """
    for name, files, prefix in _LIBRARIES:
        library = _first(files, load)
        if library is None:
            continue
        push, pop = getattr(library, f"{prefix}RangePushA"), getattr(library, f"{prefix}RangePop")
        start, stop = _control(load) if name == "NVTX" else _control_rocm(library)
        return Ranges(name, push, pop, start, stop)
    return None


def _first(files: tuple[str, ...], load: Callable[[str], Any]) -> Any:
    for file in files:
        try:
            return load(file)
        except OSError:
            continue
    return None


def _control(load: Callable[[str], Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    runtime = _first(_CUDA_RUNTIMES, load)
    if runtime is None:
        return _nothing, _nothing
    return runtime.cudaProfilerStart, runtime.cudaProfilerStop


def _control_rocm(library: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    resume, pause = (getattr(library, f"roctxProfiler{word}", None) for word in ("Resume", "Pause"))
    if resume is None or pause is None:
        return _nothing, _nothing
    return lambda: resume(0), lambda: pause(0)


def _nothing() -> None:
    pass


class Window:
    """A profiled window whose steps are ranges `iteration N`, recorded by a profiler from outside."""

    def __init__(self, ranges: Ranges) -> None:
        """Let the profiler begin."""
        self._ranges = ranges
        ranges.start()

    def span(self, number: int) -> "Window":
        """Begin the range of a step, which ends as a context does."""
        self._ranges.push(f"iteration {number}".encode())
        return self

    def __exit__(self, *problem: object) -> None:
        """End the range of a step."""
        self._ranges.pop()

    def stop(self) -> None:
        """Let the profiler end."""
        self._ranges.stop()


def open_window(folder: Path, rank: int, load: Callable[[str], Any] = ctypes.CDLL) -> Window | None:
    """Return a window that has begun, None where no library of ranges is installed.

    Args:
        folder: Where the name of the library is noted, in a file of the rank.
        rank: Global rank.
        load: Loads a shared library by its name.
    """
    ranges = find_ranges(load)
    if ranges is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank{rank}").write_text(ranges.name)
    return Window(ranges)
