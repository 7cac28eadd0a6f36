"""Classify the text of an exception of a rank, by messages of torch, drivers and runtimes.

Ranks import this and not `outcome`, which needs numpy and pyarrow for what it judges with.
"""

import re

from triplepoint.status import Status

_OUT_OF_MEMORY = re.compile(
    r"CUDA out of memory|HIP out of memory|torch\.(cuda\.)?OutOfMemoryError|CUDA error: out of memory"
    r"|DefaultCPUAllocator: (can't|not enough) (allocate )?memory|hipErrorOutOfMemory|\bMemoryError\b",
)
"""Out-of-memory messages of torch and of the CUDA and HIP runtimes.

Source: torch 2.13, CPUAllocator and CUDACachingAllocator of c10.
"""

_BAD_NODE = re.compile(
    r"uncorrectable (ECC|NVLink)|ECC error|hipErrorECCNotCorrectable|fallen off the bus|GPU is lost|\bXid\b"
    r"|no (CUDA|ROCm)-capable device|hipErrorNoDevice|No (CUDA|HIP) GPUs are available|invalid device ordinal"
    r"|HSA_STATUS_ERROR_EXCEPTION|hardware exception|Hardware stack error",
    re.IGNORECASE,
)
"""Messages of drivers and runtimes about a device that is broken or missing.

Source: cudaGetErrorString, hipGetErrorString, the NVIDIA driver's kernel messages.
"""

_COLLECTIVE = re.compile(
    r"\b[NR]CCL (error|WARN)|nccl(System|Internal|UnhandledCuda|Remote|InvalidUsage)Error|ncclUnhandled"
    r"|\bDistBackendError\b|Watchdog caught collective operation timeout"
)
"""Messages of torch about errors of NCCL, and of RCCL under NCCL's names. Source: torch 2.13, ProcessGroupNCCL."""


def classify(message: str) -> Status:
    """Return the status for the text of an exception: `bad_node`, `oom`, `collective` or `crashed`."""
    if _BAD_NODE.search(message):
        return Status.BAD_NODE
    if _OUT_OF_MEMORY.search(message):
        return Status.OOM
    return Status.COLLECTIVE if _COLLECTIVE.search(message) else Status.CRASHED
