"""Read traces of other profilers into the same rows as Kineto's: Nsight Systems and all generations of AMD's rocprof.

| format | recognised by | written by |
|---|---|---|
| Nsight Systems | SQLite with `StringIds` | `nsys export --type sqlite` |
| rocpd | SQLite with `rocpd_kernel_dispatch` | `rocprofv3` (its default), `--output-format rocpd` |
| RPD | SQLite with `rocpd_op` | rocmProfileData's `runTracer.sh` |
| rocprof results | SQLite with `OPS` | `rocprof --hip-trace` |
| kernel trace | CSV with a kernel's name, start and end | `rocprofv3 --output-format csv`, `rocprofv2`, `rocprof` |
| rocprofv3 JSON | starts with `{"rocprofiler-sdk-tool"` | `rocprofv3 --output-format json` |

A file may have several processes and GPUs. Each process on each GPU is a part of it, and the trace of one rank.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from triplepoint.trace import Int64

SUFFIXES: Final = (".sqlite", ".db", ".rpd", "_kernel_trace.csv", "results.csv")
"""Suffixes of files of other profilers; JSON is recognised by its content."""


class Part(NamedTuple):
    """The work of one process on one GPU in a file.

    Attributes:
        process: Number of the process in the file.
        device: Number of the GPU in the file.
        gpu_name: Product name of the GPU; empty if the file has none.
        rank: Global rank, if the file has ranks of MPI.
    """

    process: int
    device: int
    gpu_name: str = ""
    rank: int | None = None


class Facts(NamedTuple):
    """Base time and metadata of a file.

    Attributes:
        base_ns: Base time, to be added to the file's times for nanoseconds since 1970; 0 if its clock is another one.
        metadata: Members as in Kineto's metadata, as far as the file has them: `deviceProperties`.
    """

    base_ns: int = 0
    metadata: dict[str, object] = {}  # noqa: RUF012 - a field of a NamedTuple, never written to


class Counter(NamedTuple):
    """Samples of one quantity of a GPU, which the profiler took along with its trace.

    Attributes:
        name: Title of the quantity.
        unit: Unit of the values.
        t_ns: Times, shape (num_samples,). Unit: ns as the file counts, plus the base time.
        value: Values, shape (num_samples,).
    """

    name: str
    unit: str
    t_ns: Int64
    value: npt.NDArray[np.float64]
