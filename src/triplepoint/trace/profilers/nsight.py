"""Read the SQLite file of Nsight Systems, written by `nsys export --type sqlite`.

Kernels, copies and fills have the process (`globalPid`) and the process's number of the GPU (`deviceId`). Calls of the
CUDA runtime refer to them by `correlationId` within the process. Bits 24 to 47 of `globalPid`, and of a thread's
`globalTid`, are the process. Tables and columns differ between releases; missing ones count as unknown.

Source: SQLite export schema, https://docs.nvidia.com/nsight-systems/2021.5/nsys-exporter/exported_data.html; copy and
memory kinds: CUPTI, CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from triplepoint.trace import Int64
from triplepoint.trace.kineto import Category
from triplepoint.trace.profilers import Counter, Facts, Part
from triplepoint.trace.profilers.database import Database, StringTable
from triplepoint.trace.profilers.emitter import Emitter, Times, named_range

KNOWN_BY = "StringIds"
"""Table by which the format is recognised."""

_KERNEL, _COPY, _FILL = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
_GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_GRAPH_NAME = "CUDA graph"
"""Name of a graph that was recorded as a whole (`--cuda-graph-trace=graph`), without its kernels."""
_CALLS: Final = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
_COPY_KINDS: Final = {
    **{1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"},
    **{11: "HtoD", 12: "DtoH", 13: "DtoD"},
}
"""Copy kinds of CUPTI; from 11 on those of unified memory, numbered by the exporter."""
_MEMORY_KINDS: Final = {
    **{0: "Unknown", 1: "Pageable", 2: "Pinned", 3: "Device", 4: "Array", 5: "Managed"},
    **{6: "Device Static", 7: "Managed Static"},
}
_PUSH_POP, _START_END = 59, 60
"""`eventType` of NVTX ranges."""
_PROCESS = 0xFFFFFFFFFFFF000000 & (2**63 - 1)
"""Mask of the process in `globalTid`."""
_RANGE_TEXTS: Final = {"text": "text", "textId": "(SELECT value FROM StringIds WHERE id = textId)"}
_GEOMETRY: Final = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread")


def parts(database: Database) -> list[Part]:
    """Return every process with each GPU it used, sorted by GPU."""
    pairs: set[tuple[int, int]] = set()
    for table in (_KERNEL, _COPY, _FILL, _GRAPH):
        if table in database.tables:
            query = database.select(table, ("globalPid", "deviceId")).replace("SELECT", "SELECT DISTINCT", 1)
            pairs |= {(int(process or 0), int(device or 0)) for process, device in database.rows(query)}
    ranks = _ranks(database)
    return [
        Part(process, device, _gpu_name(database, process, device), ranks.get(process))
        for process, device in sorted(pairs, key=lambda pair: (pair[1], pair[0]))
    ]


def _ranks(database: Database) -> dict[int, int]:
    """Return the MPI rank of each process, if MPI was traced."""
    if not database.columns("MPI_RANKS") >= {"globalPid", "rank"}:
        return {}
    rows = database.rows('SELECT globalPid, "rank" FROM MPI_RANKS')
    return {int(process or 0): int(rank or 0) for process, rank in rows}


def _gpu(database: Database, process: int, device: int) -> int:
    """Return the machine's number of a GPU, given the process's number."""
    if database.columns("TARGET_INFO_CUDA_DEVICE") >= {"gpuId", "cudaId", "pid"}:
        query = "SELECT gpuId FROM TARGET_INFO_CUDA_DEVICE WHERE cudaId = ? AND pid = ?"
        if rows := database.rows(query, device, process >> 24 & 0xFFFFFF):
            return int(rows[0][0] or 0)
    return device


def _gpu_name(database: Database, process: int, device: int) -> str:
    if not database.columns("TARGET_INFO_GPU") >= {"id", "name"}:
        return ""
    rows = database.rows("SELECT name FROM TARGET_INFO_GPU WHERE id = ?", _gpu(database, process, device))
    return str(rows[0][0]) if rows else ""


def read(database: Database, part: Part, emitter: Emitter) -> Facts:
    """Emit the events of a part."""
    texts = StringTable(database, "SELECT value FROM StringIds WHERE id = ?", emitter.name)
    _read_kernels(database, part, emitter, texts)
    _read_copies(database, part, emitter)
    _read_graphs(database, part, emitter)
    for table in _CALLS:
        if table in database.tables:
            _read_calls(database, table, part, emitter)
    if "NVTX_EVENTS" in database.tables:
        _read_ranges(database, part, emitter)
    return Facts(_start_ns(database), {"deviceProperties": [{"id": part.device, "name": part.gpu_name}]})


def _of_part(database: Database, table: str, columns: tuple[str, ...], part: Part) -> Iterator[Int64]:
    """Yield the rows of a part in batches, shape (num_rows, num_columns)."""
    existing = database.columns(table)
    query = f"{database.select(table, columns, existing)} WHERE deviceId = ?"
    if "globalPid" in existing:
        return database.batches(f"{query} AND globalPid = ?", part.device, part.process)
    return database.batches(query, part.device)


def _read_kernels(database: Database, part: Part, emitter: Emitter, texts: StringTable) -> None:
    if _KERNEL not in database.tables:
        return
    existing = database.columns(_KERNEL)
    name_columns = ("demangledName", "shortName", "mangledName", "name")
    name = next((column for column in name_columns if column in existing), "")
    columns = (
        *("start", "end", "correlationId", "streamId", name),
        *_GEOMETRY,
        *("staticSharedMemory", "dynamicSharedMemory"),
    )
    for rows in _of_part(database, _KERNEL, columns, part):
        start, end, correlation, stream, text = rows[:, :5].T
        shared = np.where(rows[:, 12] < 0, -1, rows[:, 12] + np.maximum(rows[:, 13], 0))
        geometry = emitter.geometry(np.column_stack((rows[:, 5:12], shared)))
        emitter.work(Category.KERNEL, Times(start, end, correlation), texts.numbers(text), stream, geometry)


def _read_copies(database: Database, part: Part, emitter: Emitter) -> None:
    """Emit copies and fills, with Kineto's names."""
    if _COPY in database.tables:
        copy_columns = ("start", "end", "correlationId", "streamId", "copyKind", "srcKind", "dstKind")
        for rows in _of_part(database, _COPY, copy_columns, part):
            names = _names(rows[:, 4:], _copy_name, emitter)
            emitter.work(Category.MEMCPY, Times(*rows[:, :3].T), names, rows[:, 3])
    if _FILL in database.tables:
        fill_columns = ("start", "end", "correlationId", "streamId", "memKind")
        for rows in _of_part(database, _FILL, fill_columns, part):
            names = _names(rows[:, 4:], _fill_name, emitter)
            emitter.work(Category.MEMSET, Times(*rows[:, :3].T), names, rows[:, 3])


def _read_graphs(database: Database, part: Part, emitter: Emitter) -> None:
    if _GRAPH in database.tables:
        for rows in _of_part(database, _GRAPH, ("start", "end", "correlationId", "streamId"), part):
            names = np.full(len(rows), emitter.name(_GRAPH_NAME))
            emitter.work(Category.KERNEL, Times(*rows[:, :3].T), names, rows[:, 3])


def _names(kinds: Int64, name_of: Callable[..., str], emitter: Emitter) -> Int64:
    """Return the number of each row's name, computed once per distinct row of kinds."""
    distinct, index = np.unique(kinds, axis=0, return_inverse=True)
    return np.array([emitter.name(name_of(*row)) for row in distinct.tolist()], dtype=np.int64)[index.reshape(-1)]


def _copy_name(kind: int, source: int, target: int) -> str:
    direction = _COPY_KINDS.get(kind, "Unknown")
    return f"Memcpy {direction} ({_MEMORY_KINDS.get(source, 'Unknown')} -> {_MEMORY_KINDS.get(target, 'Unknown')})"


def _fill_name(kind: int) -> str:
    return f"Memset ({_MEMORY_KINDS.get(kind, 'Device')})"


def _read_calls(database: Database, table: str, part: Part, emitter: Emitter) -> None:
    query = f"{database.select(table, ('start', 'correlationId', 'globalTid'))} WHERE globalTid & {_PROCESS} = ?"
    for rows in database.batches(query, part.process & _PROCESS):
        emitter.launches(*rows.T)


def _read_ranges(database: Database, part: Part, emitter: Emitter) -> None:
    """Emit the NVTX ranges that ended. Their text is in the row, or in the table of strings."""
    existing = database.columns("NVTX_EVENTS")
    texts = [text for column, text in _RANGE_TEXTS.items() if column in existing]
    query = (
        f"SELECT start, \"end\", globalTid, coalesce({', '.join([*texts, 'NULL'])}, '') FROM NVTX_EVENTS "
        f'WHERE "end" IS NOT NULL AND eventType IN ({_PUSH_POP}, {_START_END}) AND globalTid & {_PROCESS} = ?'
    )
    for start, end, thread, names in database.columns_of(query, 3, part.process & _PROCESS):
        numbers = np.array([emitter.name(named_range(name)) for name in names], dtype=np.int64)
        emitter.ranges(start, end, numbers, thread)


def _start_ns(database: Database) -> int:
    """Return the wall clock at the start of the session, the base of all times; 0 if unknown. Unit: ns since 1970."""
    if "utcEpochNs" not in database.columns("TARGET_INFO_SESSION_START_TIME"):
        return 0
    rows = database.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
    return int(rows[0][0] or 0) if rows else 0


def counters(database: Database, part: Part) -> list[Counter]:
    """Return the samples of `--gpu-metrics-devices` for the part's GPU: clocks, activity, traffic.

    The last byte of `typeId` is the GPU; a metric's unit is in brackets after its name.
    """
    if not {"GPU_METRICS", "TARGET_INFO_GPU_METRICS"} <= database.tables:
        return []
    gpu, base_ns = _gpu(database, part.process, part.device), _start_ns(database)
    of_gpu = "SELECT DISTINCT typeId, metricId, metricName FROM TARGET_INFO_GPU_METRICS WHERE typeId & 255 = ?"
    time = "rawTimestamp" if "timestamp" not in database.columns("GPU_METRICS") else "timestamp"
    samples = f"SELECT {time}, value FROM GPU_METRICS WHERE typeId = ? AND metricId = ? ORDER BY 1"
    result = []
    for type_id, metric, title in database.rows(of_gpu, gpu):
        name, _, unit = str(title).removesuffix("]").partition(" [")
        rows = np.array(database.rows(samples, type_id or 0, metric or 0), dtype=np.float64).reshape(-1, 2)
        if len(rows):
            result.append(Counter(name, unit or "1", rows[:, 0].astype(np.int64) + base_ns, rows[:, 1]))
    return result
