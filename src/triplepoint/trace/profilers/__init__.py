"""Traces of other profilers, read into the same rows as Kineto's: Nsight Systems and AMD's rocprof of all generations.

| format | how it is known | written by |
|---|---|---|
| Nsight Systems | SQLite with `StringIds` | `nsys export --type sqlite` |
| rocpd | SQLite with `rocpd_kernel_dispatch` | `rocprofv3` (its default), `--output-format rocpd` |
| RPD | SQLite with `rocpd_op` | rocmProfileData's `runTracer.sh` |
| rocprof results | SQLite with `OPS` | `rocprof --hip-trace` |
| kernel trace | CSV with a kernel's name, start and end | `rocprofv3 --output-format csv`, `rocprofv2`, `rocprof` |
| rocprofv3 JSON | starts with `{"rocprofiler-sdk-tool"` | `rocprofv3 --output-format json` |

A file may hold many processes and GPUs; each process on each GPU is a part, and the trace of one rank.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.trace import Int64

SUFFIXES: Final = (".sqlite", ".db", ".rpd", "_kernel_trace.csv", "results.csv")
"""Ends of names that files of other profilers have; JSON is judged by its text."""


class Part(NamedTuple):
    """The work of one process on one GPU in a file that may hold many.

    Attributes:
        process: Process as the file numbers it.
        device: GPU as the file numbers it.
        gpu_name: Name of the GPU; empty where the file does not tell.
        rank: Global rank where the file tells (ranks of MPI).
    """

    process: int
    device: int
    gpu_name: str = ""
    rank: int | None = None


class Facts(NamedTuple):
    """What a file says beside its events.

    Attributes:
        base_ns: What to add to its times for nanoseconds since 1970; 0 where its clock is another.
        metadata: Members as of Kineto's metadata that could be filled: `deviceProperties`.
    """

    base_ns: int = 0
    metadata: dict[str, object] = {}  # noqa: RUF012 - a field of a NamedTuple, never written to


class Counter(NamedTuple):
    """Samples of a GPU that the profiler took beside its trace.

    Attributes:
        name: What was measured.
        unit: In which unit.
        t_ns: Time, shape (num_samples,). Unit: ns as the file counts, plus the base.
        value: Shape (num_samples,).
    """

    name: str
    unit: str
    t_ns: Int64
    value: npt.NDArray[np.float64]
