"""NVTX or ROCTX ranges around steps, for an external profiler, in processes without torch.

This module needs only the standard library and is loaded by its path, so it works in any environment. The libraries are
those of CUDA and ROCm; `nsys profile -c cudaProfilerApi` and `rocprofv3 --marker-trace` record the ranges.

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
"""Name of each library, its files in the order in which they are tried, and the prefix of its functions."""
_CUDA_RUNTIMES = ("libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")


class Ranges(NamedTuple):
    """Calls of a library of ranges.

    Attributes:
        name: NVTX or ROCTX.
        push: Begins a range with a name.
        pop: Ends the last range.
        start: Starts the profiler; does nothing if the library has no such function.
        stop: Stops the profiler; likewise.
    """

    name: str
    push: Callable[[bytes], Any]
    pop: Callable[[], Any]
    start: Callable[[], Any]
    stop: Callable[[], Any]


def find_ranges(load: Callable[[str], Any] = ctypes.CDLL) -> Ranges | None:
    """Return the functions of the first library that is installed; None if none is.

    Args:
        load: Loads a shared library by its name; raises `OSError` if there is none.
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
    """Return the first library that can be loaded; None if none can."""
    for file in files:
        try:
            return load(file)
        except OSError:
            continue
    return None


def _control(load: Callable[[str], Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return the functions of CUDA that start and stop its profiler."""
    runtime = _first(_CUDA_RUNTIMES, load)
    if runtime is None:
        return _nothing, _nothing
    return runtime.cudaProfilerStart, runtime.cudaProfilerStop


def _control_rocm(library: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return the functions of ROCTX that start and stop the profiler."""
    resume, pause = (getattr(library, f"roctxProfiler{word}", None) for word in ("Resume", "Pause"))
    if resume is None or pause is None:
        return _nothing, _nothing
    return lambda: resume(0), lambda: pause(0)


def _nothing() -> None:
    pass


class Window:
    """A profiled window whose steps are ranges `iteration N`, which an external profiler records."""

    def __init__(self, ranges: Ranges) -> None:
        """Start the profiler."""
        self._ranges = ranges
        ranges.start()

    def span(self, number: int) -> "Window":
        """Begin the range of a step; `__exit__` ends it."""
        self._ranges.push(f"iteration {number}".encode())
        return self

    def __exit__(self, *problem: object) -> None:
        """End the range of a step."""
        self._ranges.pop()

    def stop(self) -> None:
        """Stop the profiler."""
        self._ranges.stop()


def open_window(folder: Path, rank: int, load: Callable[[str], Any] = ctypes.CDLL) -> Window | None:
    """Return a started window; None if no library of ranges is installed.

    Args:
        folder: Folder in which a file of the rank gets the name of the library.
        rank: Global rank.
        load: Loads a shared library by its name.
    """
    ranges = find_ranges(load)
    if ranges is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank{rank}").write_text(ranges.name)
    return Window(ranges)
