"""Time of reading a trace of Nsight Systems, against the floor: SQLite handing out the same columns.

    python -m tests.benchmarks.trace_profilers --kernels 1000000

The file is made here by the published schema: as many kernels as said, one call of the runtime each, 200 names, 64
streams, 50 geometries, 100 steps.
"""

import argparse
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.unit.trace.profilers.recordings import GLOBAL_PID, NSIGHT_SCHEMA
from triplepoint.trace.loose_traces import trace_files
from triplepoint.trace.profilers.database import open_database
from triplepoint.trace.reader import read_parts, read_trace
from triplepoint.trace.taxonomy import load_scheme

_NAMES = (
    "ampere_bf16_s16816gemm_bf16_128x128_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::F{}>",
)
_COLUMNS = (
    "start, end, correlationId, streamId, demangledName, gridX, gridY, gridZ, blockX, blockY, blockZ, "
    "registersPerThread, staticSharedMemory, dynamicSharedMemory"
)


def _kernels(count: int) -> Iterator[tuple[int, ...]]:
    for index in range(count):
        size = index % 50 + 1
        yield (
            *(1000 * index, 1000 * index + 900, 0, 1, index % 64, index, GLOBAL_PID, index % 200, index % 200, 32),
            *(size, 1, 1, 256, 1, 1, 0, 1024),
        )


def make(path: Path, count: int) -> None:
    """Write the file."""
    connection = sqlite3.connect(path)
    connection.executescript(NSIGHT_SCHEMA)
    names = [(index, _NAMES[index % 2].format(index)) for index in range(200)]
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
    marks = ", ".join("?" * 18)
    connection.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", _kernels(count))
    calls = ((1000 * index - 500, 1000 * index - 400, 0, GLOBAL_PID | 1, index, 0, 0) for index in range(count))
    connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?)", calls)
    length = 1000 * count // 100
    steps = ((step * length, (step + 1) * length, 59, f"iteration {step}", GLOBAL_PID | 1) for step in range(100))
    connection.executemany(
        "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES (?, ?, ?, ?, ?)", steps
    )
    connection.commit()
    connection.close()


def floor(path: Path) -> None:
    """Fetch the columns of kernels and calls without using them."""
    with open_database(path) as database:
        for query in (
            f"SELECT {_COLUMNS} FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE deviceId = 0 AND globalPid = {GLOBAL_PID}",
            "SELECT start, correlationId, globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME",
        ):
            for _ in database.batches(query):
                pass


def read(path: Path) -> None:
    """Read the rows without keeping them."""
    (part,) = read_parts(path)
    read_trace(path, lambda rows, names: None, part)


def trace(path: Path) -> None:
    """Write the tables."""
    with tempfile.TemporaryDirectory() as out:
        trace_files([path], Path(out), load_scheme(), lambda line: None, num_jobs=1)


def _measure(do: Callable[[Path], None], path: Path, count: int) -> None:
    began_s = time.process_time()
    do(path)
    cpu_s = time.process_time() - began_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(f"{do.__name__:<8} {cpu_s:6.2f} CPU s  {1e6 * cpu_s / count:6.2f} us a kernel  peak {peak_mb:6.0f} MB")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=1_000_000)
    count = parser.parse_args().kernels
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.sqlite"
        make(path, count)
        print(f"{count} kernels, {path.stat().st_size / 1e6:.0f} MB")
        for do in (floor, read, trace):
            _measure(do, path, count)


if __name__ == "__main__":
    main()
